"""A data set of LLaMA-Factory: its entry in `dataset_info.json` says which columns a row has.

Columns and tags are read as that entry names them; without a name they have LLaMA-Factory's own. A
key of a row that the entry does not name is refused, where LLaMA-Factory would leave it out.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vtool.contents import read_small_json
from vtool.data.chats import ColumnsReader, answer_text, text, tools, visuals
from vtool.data.containers.files import not_readable, unreadable_file
from vtool.data.formats.alpaca import from_instruction
from vtool.data.keys import KEYS_READ
from vtool.data.messages_layout import Malformed
from vtool.data.missing import is_empty
from vtool.data.row import shown_value
from vtool.diagnostics import Diagnostic, Findings
from vtool.diagnostics.near_miss import did_you_mean, near

INFO = "dataset_info.json"
_COLUMNS = {
    "alpaca": {"prompt": "instruction", "query": "input", "response": "output"},
    "sharegpt": {"messages": "conversations"},
}
_OPTIONAL = {
    "alpaca": ("history", "system", "tools", "images", "videos"),
    "sharegpt": ("system", "tools", "images", "videos"),
}
_TAGS = {
    "role_tag": "from",
    "content_tag": "value",
    "user_tag": "human",
    "assistant_tag": "gpt",
    "observation_tag": "observation",
    "function_tag": "function_call",
    "system_tag": "system",
}
_PARTS = {"prompt": "instruction", "query": "input", "response": "output"}
_ENTRY = ("file_name", "formatting", "ranking", "columns", "tags", "split")
_LONGEST = 4096
"""Characters of a path; an image in a row itself has more, or begins with `data:`."""
_CALL = "a call of a tool as text: its layout is the chat template's"


class LlamaFactory(ColumnsReader):
    """Rows of one data set."""

    format = "llama_factory"
    words = "a LLaMA-Factory data set"

    def __init__(
        self,
        path: str,
        dataset: str,
        label: str | None = None,
        image_folder: str | None = None,
        **more: Any,
    ) -> None:
        """Find the rows of the data set that `path` calls `dataset`.

        Args:
            path: `dataset_info.json`, or its folder.
            label: the beginning of its rows' names, in place of the file's own name.
            image_folder: the folder of images and videos; that of `dataset_info.json` without it.

        Raises:
            Findings: `path-not-found`, `broken-row`, `unknown-choice`, `not-for-training`, and as
                `open_records`.
        """
        info = info_file(Path(path))
        entry = _entry(info, dataset)
        self.path, self.dataset = path, dataset
        self.formatting = str(entry.get("formatting", "alpaca"))
        self.columns = {
            **_COLUMNS[self.formatting],
            **{name: column for name, column in entry.get("columns", {}).items() if column},
        }
        self.reads = tuple(self.columns.values())
        self.tags = {**_TAGS, **{name: tag for name, tag in entry.get("tags", {}).items() if tag}}
        rows = str(info.parent / entry["file_name"])
        super().__init__(rows, label, image_folder=image_folder, **more)
        self.folder = image_folder or str(info.parent)

    @staticmethod
    def fits(record: Mapping[str, Any]) -> bool:
        return False  # by its `dataset_info.json` alone

    def to_messages(self, record: Mapping[str, Any], malformed: Malformed) -> dict[str, Any]:
        for key in KEYS_READ["row"]:
            if key not in self.reads and key not in self.ignore and not is_empty(record.get(key)):
                what = f'the row has "{key}", which no column of {self.dataset} is'
                column = f"{key}s" if key in ("image", "video") else key
                raise malformed(what, f'name it in {INFO}: "columns": {{"{column}": "{key}"}}')
        named = {
            _PARTS.get(name, name): record[column]
            for name, column in self.columns.items()
            if record.get(column) not in (None, "", [])
        }
        if self.formatting == "alpaca":
            made = from_instruction({"output": "", **named}, malformed)
        else:
            messages = [*self._turns(named, malformed)]
            made = {"messages": messages, **visuals(named, malformed), **tools(named, malformed)}
        return made | {
            kind: self._found(made[kind]) for kind in ("images", "videos") if kind in made
        }

    def _found(self, given: Any) -> Any:
        """Return images or videos; one that is not in their folder is looked for where we run.

        LLaMA-Factory does so, with a warning.
        """
        if isinstance(given, list):
            return [self._found(one) for one in given]
        if not isinstance(given, str) or len(given) > _LONGEST or given.startswith("data:"):
            return given
        is_here = not Path(self.folder, given).is_file() and Path(given).is_file()
        return str(Path(given).absolute()) if is_here else given

    def describe(self) -> dict[str, Any]:
        return {
            **super().describe(),
            "dataset": self.dataset,
            "path": str(Path(self.path)),
            "columns": self.columns,
            "tags": self.tags,
        }

    def _turns(self, named: Mapping[str, Any], malformed: Malformed) -> Iterator[dict[str, Any]]:
        turns, tags = named.get("messages"), self.tags
        if not isinstance(turns, list):
            what = f'there is no list "{self.columns["messages"]}" with a turn'
            raise malformed(what)
        roles = {
            tags["user_tag"]: "user",
            tags["assistant_tag"]: "assistant",
            tags["observation_tag"]: "tool",
            tags["system_tag"]: "system",
        }
        if "system" in named:
            yield {"role": "system", "content": text(named["system"], "system", malformed)}
        for number, turn in enumerate(turns, 1):
            given = turn.get(tags["role_tag"]) if isinstance(turn, Mapping) else turn
            if given == tags["function_tag"]:
                raise malformed(f"turn {number} is {_CALL}")
            role = roles.get(given) if isinstance(given, str) else None
            if role is None or not isinstance(turn, Mapping):
                allowed = ", ".join(roles)
                what = f'"{tags["role_tag"]}" of turn {number} must be one of {allowed}; here it is'
                raise malformed(f"{what} {shown_value(given)}")
            if role == "system" and (number > 1 or "system" in named):
                raise malformed(f"turn {number} is a second system turn, or a late one")
            read_as = (tags["role_tag"], tags["content_tag"])
            rest = {key: value for key, value in turn.items() if key not in read_as}
            if stray := rest.keys() & {"role", "content"}:
                raise malformed(f'turn {number} has "{min(stray)}", which is not read')
            read = answer_text if role == "assistant" else text
            content = read(turn.get(tags["content_tag"]), tags["content_tag"], malformed)
            yield {**rest, "role": role, "content": content}


def info_file(path: Path) -> Path:
    """Return the `dataset_info.json` that a recipe names, or that is in the folder it names."""
    return path / INFO if path.is_dir() else path


def read_info(info: Path) -> dict[str, Any]:
    """Return the entries of a `dataset_info.json`, by name.

    Raises:
        Findings: `path-not-found`, `broken-row`.
    """
    try:
        found = read_small_json(info)
    except OSError as error:
        raise not_readable(info, error) from error
    except ValueError as error:
        raise unreadable_file(info, f"is not JSON: {error}") from error
    if not isinstance(found, dict) or not all(isinstance(one, dict) for one in found.values()):
        raise unreadable_file(info, "is not an object with an entry for each data set")
    return found


def _entry(info: Path, dataset: str) -> dict[str, Any]:
    """Return the entry of a data set whose rows are in a file and can be read without loss."""
    entries = read_info(info)
    if (entry := entries.get(dataset)) is None:
        wanted = ", ".join(list(entries)[:10])
        help = did_you_mean(near(dataset, list(entries))) or f"it has {wanted}"
        message = f"{info} has no data set {dataset}"
        raise Findings(Diagnostic("unknown-choice", message, help, "data"))
    where = f"{info}: the data set {dataset}"
    columns, tags = entry.get("columns", {}), entry.get("tags", {})
    if entry.get("ranking") or "kto_tag" in columns:
        what = f"{where} is of preferred and rejected answers, and these are another task"
        raise Findings(Diagnostic("not-for-training", what))
    if not isinstance(entry.get("file_name"), str):
        why = "is not in a file: it is fetched, or made by a script"
        raise unreadable_file(
            info, f"says that {dataset} {why}", "save its rows to a file, and name that"
        )
    unread = [key for key in entry if key not in _ENTRY]
    if unread:
        raise unreadable_file(info, f"has of {dataset} what is not read: {', '.join(unread)}")
    formatting = entry.get("formatting", "alpaca")
    if formatting not in _COLUMNS:
        what = f"has of {dataset} the formatting {shown_value(formatting)}"
        instead = "name the rows' file: {format: messages, path: …}"
        raise unreadable_file(info, what, instead if formatting == "openai" else None)
    known = {*_COLUMNS[formatting], *_OPTIONAL[formatting]}
    for kind, given, names in (("columns", columns, known), ("tags", tags, set(_TAGS))):
        if not isinstance(given, dict) or set(given) - names:
            unknown = ", ".join(sorted(set(given) - names)) if isinstance(given, dict) else given
            raise unreadable_file(info, f"has of {dataset} {kind} that are not read: {unknown}")
    return dict(entry)
