"""The processor that a run began with: every file of `processor/`, digested.

It has the model's config and token ids too: another activation, mean or id would resume with other
numbers, and no error.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vtool.contents import read_small_json, small_file
from vtool.diagnostics import Diagnostic, Findings
from vtool.diagnostics.printable import Lines
from vtool.training.own_folder import has_marker, write_atomically
from vtool.training.run_folder import RunFolder, reading

if TYPE_CHECKING:
    from vtool.training.start import Start

# A JSON file of up to so many bytes is kept as values, so that a finding names the setting.
_LARGEST_SETTINGS = 2**16
_SHOWN = 12


def record_processor(folder: RunFolder) -> None:
    """Write what `processor/` holds into `processor.json`."""
    found = _describe(folder.processor)
    write_atomically(folder.processor_files, json.dumps(found, indent=1) + "\n")


def check_processor(folder: RunFolder) -> None:
    """Hold `processor/` against what the run began with; one of an older vtool has no record.

    Raises:
        Findings: `processor-changed`, `not-a-run`.
    """
    if not folder.processor_files.exists() and not has_marker(folder.path):
        return
    with reading(folder.processor_files):
        before = read_small_json(folder.processor_files)
        if not all(isinstance(one["sha256"], str) for one in before.values()):
            raise ValueError("it has no digests")
    with reading(folder.processor):
        changes = list(_changes(before, _describe(folder.processor)))
    if changes:
        more = [f"and {len(changes) - _SHOWN} more"] if len(changes) > _SHOWN else []
        heading = f"{folder.processor} is not what the run began with:"
        message = Lines.of(heading, [*changes[:_SHOWN], *more])
        raise Findings(Diagnostic("processor-changed", message, parameter="run.dir"))


def take_processor(start: "Start", folder: RunFolder) -> None:
    """Check the processor of the run whose checkpoint this one starts from, and copy it.

    Raises:
        Findings: `processor-changed`, `not-a-run`, `run-folder-unwritable`.
    """
    origin = start.origin
    assert origin is not None
    check_processor(origin)
    own = origin.path.resolve() == folder.path.resolve()
    with folder.writing():
        if not own and not (
            folder.processor.exists() and _describe(folder.processor) == _describe(origin.processor)
        ):
            temporary = folder.processor.with_name(".writing-processor")
            shutil.rmtree(temporary, ignore_errors=True)
            shutil.copytree(origin.processor, temporary)
            shutil.rmtree(folder.processor, ignore_errors=True)
            temporary.rename(folder.processor)
        if not own or not folder.processor_files.exists():
            record_processor(folder)


def _describe(folder: Path) -> dict[str, Any]:
    """Return size and SHA-256 of each file; of a small JSON file its values too."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        if path.name.startswith(".") or path.name.endswith("~") or not path.is_file():
            continue  # an editor's or a file server's
        content = small_file(path)
        one: dict[str, Any] = {
            "bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
        }
        if path.suffix == ".json" and len(content) <= _LARGEST_SETTINGS:
            with suppress(ValueError, RecursionError):
                one["settings"] = json.loads(content)
        found[path.relative_to(folder).as_posix()] = one
    return found


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted(before.keys() | now.keys()):
        old, new = before.get(name), now.get(name)
        if old is None:
            yield f"{name} was not there"
        elif new is None:
            yield f"{name} is missing"
        elif old["sha256"] == new["sha256"]:
            continue
        elif "settings" in old and "settings" in new:  # spaces and order change nothing
            yield from (
                f"{name}: {change}" for change in _differences(old["settings"], new["settings"])
            )
        else:
            yield f"{name} has other bytes than were written"


def _differences(old: Any, new: Any, prefix: str = "") -> Iterator[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            if key not in old or key not in new:
                what = "has been added" if key in new else "is missing"
                yield f"{prefix}{key} {what}"
            else:
                yield from _differences(old[key], new[key], f"{prefix}{key}.")
    elif json.dumps(old) != json.dumps(new):
        yield f"{prefix.removesuffix('.')}: {_short(old)} → {_short(new)}"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
