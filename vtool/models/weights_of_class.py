"""The weights of a folder, by names and shapes, beside those of the class that its config names.

transformers' own loader is asked, on the meta device: it knows older names, and reads no values.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from vtool.diagnostics import Diagnostic
from vtool.diagnostics.diagnostic import Origin
from vtool.families.images import beyond_any_model
from vtool.model_folder import MODEL_CONFIG
from vtool.words import first_line

RULE = "weights-not-of-class"
_SHOWN = 4


class _NotCompared(Exception):
    """The class cannot be asked here; the text says why."""


def work(task: str, folder: Path, rank: int) -> tuple[list[Diagnostic], str, bool]:
    """Compare a folder with its class, in a process of its own.

    Returns:
        Findings; what was compared; False where it could not be, which the text then says.
    """
    path = Path(task)
    try:
        kind, count, report = _report(path)
    except _NotCompared as why:
        return [], str(why), False
    words = f"{count} weights of {kind}, by name and shape"
    return list(_findings(path, kind, report)), words, True


def _report(path: Path) -> tuple[str, int, dict[str, Any]]:
    """Return the class, the number of its weights, and what its loader says of the folder's."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if beyond := beyond_any_model(path):
        raise _NotCompared(beyond)
    where = {"local_files_only": True, "trust_remote_code": False}
    try:
        config = transformers.AutoConfig.from_pretrained(path, **where)
        if getattr(config, "quantization_config", None):  # other names and shapes, by its method
            raise _NotCompared("its weights are quantized")
        named = str(next(iter(config.architectures or ()), ""))
        kind = getattr(transformers, named, None)
        if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):
            version = transformers.__version__
            raise _NotCompared(
                f"transformers {version} has no class {named}"
                if named
                else "config.json names no class (architectures)"
            )
        loader: Any = kind
        model, report = loader.from_pretrained(
            path,
            config=config,
            device_map="meta",
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            **where,
        )
    except _NotCompared:
        raise
    except Exception as error:  # a config says anything; a quantized folder needs its own packages
        raise _NotCompared(f"transformers does not load it: {first_line(error)}") from error
    missing = set(report.get("missing_keys", ()))
    own = _OwnNames(_names_in(path), model.state_dict().keys() - missing)
    report = {
        **report,
        "missing_keys": [own.wanted(name) for name in missing],
        "unexpected_keys": [own.there(name) for name in report.get("unexpected_keys", ())],
    }
    return named, sum(1 for _ in model.parameters()), report


def _names_in(folder: Path) -> set[str]:
    """Return the names of the tensors in a folder's files, as far as these can be read."""
    names: set[str] = set()
    for file in folder.glob("*.safetensors"):
        with suppress(OSError, SafetensorError), safe_open(file, "pt") as opened:
            names |= {*opened.keys()}
    return names


class _OwnNames:
    """The names of tensors as a folder's files have them, where transformers reads older ones."""

    def __init__(self, own: Collection[str], of_class: Collection[str]) -> None:
        self.own = own
        ends: dict[str, list[str]] = {}
        for name in own:
            for end in _ends(name):
                ends.setdefault(end, []).append(name)
        self.by_end = {end: names[0] for end, names in ends.items() if len(names) == 1}
        beginnings: dict[str, Counter[str]] = {}
        for name in of_class:
            if found := self._ending_alike(name):
                beginnings.setdefault(found[0], Counter())[found[1]] += 1
        self.beginnings = {
            beginning: found.most_common(1)[0][0] for beginning, found in beginnings.items()
        }

    def _ending_alike(self, name: str) -> tuple[str, str] | None:
        """Return the beginnings of a name and of the file's name that ends as it does."""
        end = next((end for end in _ends(name) if end in self.by_end), None)
        if end is None or "." not in end:
            return None
        beginnings = name.removesuffix(end), self.by_end[end].removesuffix(end)
        return None if re.search(r"\d", "".join(beginnings)) else beginnings  # of another layer

    def there(self, name: str) -> str:
        """Return the file's name for a tensor that it has; the name itself if none is known."""
        found = None if name in self.own else self._ending_alike(name)
        return found[1] + name.removeprefix(found[0]) if found else name

    def wanted(self, name: str) -> str:
        """Return the name that a tensor would have in the file, which others of it have."""
        known = (one for one in self.beginnings if name.startswith(one))
        longest = max(known, key=len, default="")
        return self.beginnings.get(longest, "") + name.removeprefix(longest)


def _ends(name: str) -> Iterator[str]:
    """Yield a name, and its ends, the longest first."""
    parts = name.split(".")
    return (".".join(parts[at:]) for at in range(len(parts)))


def _findings(path: Path, kind: str, report: dict[str, Any]) -> Iterator[Diagnostic]:
    missing, strange = (sorted(report.get(key, ())) for key in ("missing_keys", "unexpected_keys"))
    shapes = sorted(report.get("mismatched_keys", ()), key=str)
    said = []
    if missing:
        what = (
            "are not there, and begin with random values"
            if len(missing) > 1
            else ("is not there, and begins with random values")
        )
        said.append(f"{len(missing)} {what}: {_listed(missing)}")
    if shapes:
        told = [f"{name} {[*own]}, by the class {[*wanted]}" for name, own, wanted in shapes]
        said.append(f"{len(shapes)} of another shape: {_listed(told)}")
    if strange:
        said.append(f"{len(strange)} that nothing reads: {_listed(strange)}")
    if not said:
        return
    whole = not missing and not shapes
    yield Diagnostic(
        RULE,
        f"{path.name}: of the weights of {kind}, {'; '.join(said)}",
        _help(missing, strange),
        origin=Origin(str(path / MODEL_CONFIG)),
        parameter=missing[0] if missing else None,
        severity="note" if whole else None,
    )


def _listed(names: Collection[str]) -> str:
    shown = ", ".join(list(names)[:_SHOWN])
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown


def _help(missing: list[str], strange: list[str]) -> str | None:
    """Return the names that tensors may have been meant to have."""
    said, left = [], list(missing)
    for name in strange:
        layer = re.findall(r"\d+", name)
        numbers = {other: re.findall(r"\d+", other) for other in left}
        alike = [one for one in left if numbers[one] == layer or len(numbers[one]) != len(layer)]
        if near := get_close_matches(name, alike, 1, 0.8):
            left.remove(near[0])
            said.append(f"`{name}` is nearly the name of `{near[0]}`")
    if not said:
        return None
    more = f" and {len(said) - _SHOWN} more" if len(said) > _SHOWN else ""
    what = "rename it" if len(said) == 1 else "rename them"
    return f"{'; '.join(said[:_SHOWN])}{more}: {what}, or save the folder again"
