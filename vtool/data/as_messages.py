"""A command that makes chats of rows of a question, an answer and perhaps an image."""

import json
import shlex
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from vtool.contents import open_regular

_QUESTIONS = (
    *("question", "instruction", "prompt", "query", "problem", "text_input", "input_text"),
    *("input", "user", "human"),
)
_ANSWERS = (
    *("answer", "response", "output", "completion", "target", "label", "solution", "caption"),
    *("text_output", "output_text", "assistant", "gpt", "ground_truth", "gt", "text"),
)
_IMAGES = (
    *("image", "images", "file_name", "image_path", "image_paths", "image_file", "img"),
    *("img_path", "picture", "photo", "filename", "filepath", "path", "file"),
)
_MORE = ("history", "system", "tools", "videos", "audios", "rejected_response")
"""Keys whose values such a command would lose."""


def is_unreadable(record: Mapping[str, Any]) -> bool:
    """Return whether a row of a known layout names an image that its text has no place for.

    So are text without roles, of TRL's, and an image under a key that is of no layout.
    """
    image = _first(_IMAGES, record, (str, list, Mapping))
    question = _first(_QUESTIONS, record, (str,))
    if question is None or "messages" in record or "conversations" in record:
        return False
    if image is None:
        return question == "prompt" and isinstance(record.get("completion"), str)
    texts = (str(value) for key, value in record.items() if key != image)
    return image not in ("image", "images") or not any("<im" in text for text in texts)


def command_for(record: Mapping[str, Any], file: str) -> str | None:
    """Return a command that writes a file's rows as `messages`; None for rows less plain.

    Args:
        record: one of the rows.
        file: JSON or Parquet. Images are named relative to it, and so is what is written.
    """
    path = Path(file)
    question = _first(_QUESTIONS, record, (str,))
    answer = _first(_ANSWERS, record, (str, int, float), {question})
    image = _first(_IMAGES, record, (str, list, Mapping))
    if question is None or answer is None or path.suffix not in (".json", ".jsonl", ".parquet"):
        return None
    if any(record.get(key) for key in _MORE):
        return None
    given = record[image] if image is not None else []
    several = isinstance(given, list)
    if several and not all(isinstance(one, str | Mapping) for one in given):
        return None
    of_parquet = path.suffix == ".parquet"
    asked, said, shown = (
        f"r[{_quoted(key)}]" if of_parquet else f".[{_quoted(key)}]"
        for key in (question, answer, image or "")
    )
    if not isinstance(record[answer], str):
        said = f"str({said})" if of_parquet else f"({said}|tostring)"
    if question == "instruction" and "input" in record:  # Alpaca's, which may be empty
        more = 'r["input"]' if of_parquet else '.["input"]'
        asked += (
            f'+("\\n"+{more} if {more} else "")'
            if of_parquet
            else (f'+(if ({more}//"")=="" then "" else "\\n"+{more} end)')
        )
    if image is not None and "<image>" not in record[question]:
        count = f"len({shown})" if of_parquet else f"({shown}|length)"
        marks = f'"<image>"*{count}' if several else '"<image>"'
        no_image = '//""' if several and not of_parquet else ""
        asked = f"({marks}{no_image})+{asked}"
    listed = shown if several else f"[{shown}]"
    images = f',"images":{listed}' if image is not None else ""
    row = (
        f'{{"messages":[{{"role":"user","content":({asked})}},'
        f'{{"role":"assistant","content":{said}}}]{images}}}'
    )
    if of_parquet:
        out = _quoted(str(path.with_name(f"{path.stem}-rows.parquet")))
        code = (
            "import pyarrow as a,pyarrow.parquet as p;p.write_table(a.Table.from_pylist("
            f"[{row} for r in p.read_table({_quoted(file)}).to_pylist()]),{out})"
        )
        return f"python -c {shlex.quote(code)}"
    out = shlex.quote(str(path.with_name(f"{path.stem}-rows.jsonl")))
    each = ".[]|" if _is_list(path) else ""
    return f"jq -c {shlex.quote(each + row)} {shlex.quote(file)} > {out}"


def _first(
    names: Collection[str],
    record: Mapping[str, Any],
    kinds: tuple[type, ...],
    taken: Collection[str | None] = (),
) -> str | None:
    """Return the key of a row that is the first of some names, with a value of some kinds."""
    keys = {key.lower(): key for key in record if key not in taken}
    named = (keys[name] for name in names if name in keys)
    return next(
        (key for key in named if isinstance(record[key], kinds) and record[key] != ""), None
    )


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _is_list(path: Path) -> bool:
    with open_regular(path) as stream:
        return stream.read(4096).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")
