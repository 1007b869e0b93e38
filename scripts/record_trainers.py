"""Record which releases of other trainers know which settings, from their wheels.

    python scripts/record_trainers.py FOLDER [TRAINER ...]

FOLDER has the wheels that `RELEASES` names; `pip download --no-deps --python-version 3.12
--only-binary=:all: -d FOLDER NAME==RELEASE` brings each. Nothing of them is imported or run. It
writes `vtool/config/foreign/releases/TRAINER.json`.
"""

import json
import sys
import tempfile
import zipfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from vtool.config.foreign.known_words import TABLES
from vtool.config.foreign.package_fields import PACKAGES, ReadFields, read_package

RELEASES: dict[str, dict[str, str | None]] = {
    "trl": {
        "0.19.1": "4.52.4",
        "0.24.0": "4.56.2",
        "0.29.1": "4.57.6",
        "1.0.0": "5.0.0",
        "1.8.0": "5.6.0",
        "1.16.0": "5.23.0",
    },
    "llamafactory": {"0.9.2": "4.49.0", "0.9.3": "4.52.4", "0.9.4": "4.56.2", "0.9.5": "5.6.0"},
    "ms-swift": {
        "3.8.3": "4.56.2",
        "3.12.6": "4.57.6",
        "4.0.4": "5.0.0",
        "4.3.2": "5.6.0",
        "4.6.0": "5.19.0",
    },
    "axolotl": {"0.19.0": None, "0.20.0": None, "0.21.0": None},
    "verl": {"0.7.0": None, "0.7.1": None, "0.8.0": None, "0.9.0": None, "0.9.1": None},
}
"""By trainer: its releases, the newest last, with the release of transformers beside each."""


def record(trainer: str, wheels: Path) -> dict[str, Any]:
    """Return the table of a trainer."""
    read = {
        release: read_release(trainer, release, beside, wheels)
        for release, beside in RELEASES[trainer].items()
    }
    newest = list(read.values())[-1]
    known = {
        release: one.fields.keys() | {name for names in one.plugins.values() for name in names}
        for release, one in read.items()
    }
    groups = defaultdict(list)
    for name in sorted(set().union(*known.values())):
        releases = [release for release, names in known.items() if name in names]
        if len(releases) < len(known):
            groups[" ".join(releases)].append(name)
    table: dict[str, Any] = {
        "releases": RELEASES[trainer],
        "fields": dict(sorted(newest.fields.items())),
        "known": {releases: " ".join(names) for releases, names in sorted(groups.items())},
    }
    if plugins := {name: " ".join(names) for name, names in newest.plugins.items() if names}:
        table["plugins"] = plugins
    kinds = defaultdict(list)
    for name, kind in sorted(newest.takes.items()):
        kinds[kind].append(name)
    table["takes"] = {kind: " ".join(names) for kind, names in sorted(kinds.items())}
    if newest.open:
        table["open"] = newest.open
    if newest.choices:
        table["choices"] = newest.choices
    return table


def read_release(trainer: str, release: str, beside: str | None, wheels: Path) -> ReadFields:
    """Return the settings of one release."""
    wanted = dict(zip(PACKAGES[trainer].distributions, (release, beside), strict=False))
    with tempfile.TemporaryDirectory() as folder:
        for name, version in wanted.items():
            wheel = next(wheels.glob(f"{name}-{version}-*.whl"), None)
            if wheel is None:
                raise SystemExit(f"{wheels} has no wheel of {name} {version}")
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(folder)
        return read_package(trainer, [Path(folder)])


def written(table: dict[str, Any]) -> str:
    """Return a table as text: a line for each of its settings."""
    parts = []
    for key, value in table.items():
        if key == "releases" or not isinstance(value, dict):
            parts.append(f'"{key}": {json.dumps(value)}')
        else:
            lines = [f"  {json.dumps(name)}: {json.dumps(one)}" for name, one in value.items()]
            parts.append(f'"{key}": {{\n' + ",\n".join(lines) + "\n }")
    return "{\n " + ",\n ".join(parts) + "\n}\n"


if __name__ == "__main__":
    for trainer in sys.argv[2:] or RELEASES:
        text = written(record(trainer, Path(sys.argv[1])))
        (TABLES / f"{trainer}.json").write_text(text, encoding="utf-8")
