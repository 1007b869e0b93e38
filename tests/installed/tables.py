"""The tables of docs/install.md: made of what ran (`measured.json`) by `make goldens`."""

import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.version import Version

from tests.installed.measure import RECORD
from vtool.families import FAMILIES
from vtool.releases import TESTED

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/install.md"
BEGIN = "<!-- The tables of what ran: made by `make goldens`. -->\n"
END = "<!-- End of the tables. -->\n"


def renew(page: str) -> str:
    """Return docs/install.md with the tables as the record is."""
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    record = json.loads(RECORD.read_text())
    tables = "\n".join((*_ranges(record), *_releases(record["releases"]), *_torch(record)))
    return f"{head}{BEGIN}{tables}\n{END}{tail}"


def _ranges(record: Mapping[str, Any]) -> Iterator[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = (*project["dependencies"], *project["optional-dependencies"]["train"])
    ends = {end: record["ends"].get(end) for end in ("oldest", "newest")}
    yield "\n### Ranges\n"
    heads = [f"{end} run" for end in ends]
    yield f"| package | asked for | {' | '.join(heads)} |\n|---|---|---|---|"
    for one in map(Requirement, asked):
        bounds = ",".join(sorted(map(str, one.specifier), reverse=True))
        ran = [found["versions"][one.name] if found else "not run" for found in ends.values()]
        yield f"| {one.name} | `{bounds}` | {' | '.join(ran)} |"
    counts = [
        f"{found['passed']} passed, {found['failed']} failed, {found['not run']} not run"
        if found
        else "not run"
        for found in ends.values()
    ]
    yield f"| **tests** | | {' | '.join(counts)} |"


def _releases(releases: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    yield "\n### Releases of transformers\n"
    columns = (*FAMILIES, "videos")
    yield f"| transformers | {' | '.join(columns)} |\n|---{'|---' * len(columns)}|"
    for version in sorted(releases, key=Version):
        inside = Version(TESTED["transformers"].oldest) <= Version(version)
        cells = [_cell(releases[version].get(column, "not run")) for column in columns]
        yield f"| {version}{'' if inside else ' (below)'} | {' | '.join(cells)} |"


def _cell(outcome: str) -> str:
    if outcome in ("passed", "not run", "failed"):
        return outcome
    if outcome.startswith("not run: "):
        return "does not start"
    return f"`{outcome.partition(',')[0]}`"


def _torch(record: Mapping[str, Any]) -> Iterator[str]:
    resolved: Mapping[str, Mapping[str, str]] = record["resolved"]
    pythons = sorted({python for found in resolved.values() for python in found}, key=Version)
    yield "\n### torch and Python\n"
    yield f"| torch | {' | '.join(f'Python {one}' for one in pythons)} |"
    yield f"|---{'|---' * len(pythons)}|"
    for torch in sorted(resolved, key=Version):
        ends = (TESTED["torch"].oldest, TESTED["torch"].newest)
        tested = torch in ends and pythons[0] == "3.11"
        cells = [resolved[torch][python] for python in pythons]
        if tested:
            cells[0] = "run"
        yield f"| {torch} | {' | '.join(cells)} |"
