"""docs/time-machine.md, made from the cases and from their output when they were last run."""

import fcntl
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from timemachine.case import Case

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/time-machine.md"
RESULTS = Path(__file__).parent / "results.json"
BEGIN = "<!-- The tables: made by `make time-machine`. -->"
END = "<!-- End of the tables. -->"
README_BEGIN = "<!-- The summary of the time machine: made by `make goldens`. -->"
README_END = "<!-- End of the summary. -->"


def read_results(file: Path) -> dict[str, Any]:
    """Read the results that were written last, by the names of their cases."""
    if not file.is_file():
        return {}
    return {one["case"]: one for one in json.loads(file.read_text("utf-8"))["results"]}


def write_results(file: Path, results: Mapping[str, Any]) -> None:
    """Write the results of all cases."""
    document = {"version": 1, "results": [results[name] for name in sorted(results)]}
    text = json.dumps(document, indent=1, ensure_ascii=False)
    write(file, f"{text}\n")


def add_result(file: Path, result: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Add one result to those of a file, which another run may write too; return all of them.

    What is of none of the known cases is left out.
    """
    with alone(file.parent):
        results = {name: one for name, one in read_results(file).items() if name in known}
        results[result["case"]] = result
        write_results(file, results)
    return results


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold a folder's files, so that another run waits with its own."""
    folder.mkdir(parents=True, exist_ok=True)
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def write(file: Path, text: str) -> None:
    """Write a file whole, or leave it as it is."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f"{file.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


def page(cases: Sequence[Case], results: Mapping[str, Any]) -> str:
    """Return the text of the page, with its tables made again."""
    before, rest = PAGE.read_text("utf-8").split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{tables(cases, results)}\n{END}{after}"


def with_summary(readme: str, cases: Sequence[Case], results: Mapping[str, Any]) -> str:
    """Return the README with its table made again: a line for each project."""
    before, rest = readme.split(README_BEGIN)
    _, after = rest.split(README_END)
    table = "\n".join(_by_project(_seen(cases, results), results))
    return f"{before}{README_BEGIN}\n{table}\n{README_END}{after}"


def _seen(cases: Sequence[Case], results: Mapping[str, Any]) -> list[Case]:
    return [one for one in cases if results.get(one.name, {}).get("outcome") == "seen"]


def tables(cases: Sequence[Case], results: Mapping[str, Any]) -> str:
    """Return the summary, the table of each kind, and what was not seen."""
    seen = _seen(cases, results)
    kinds = {
        "Releases that the ordinary command tells apart": [
            one for one in seen if one.kind == "command" and not one.is_open
        ],
        "Functions of a release, by themselves": [
            one for one in seen if one.kind == "public-api" and not one.is_open
        ],
        "Open: no release is without it": [one for one in seen if one.is_open],
    }
    seconds = [_seconds(results[one.name]) for one in seen]
    lines = [
        *_by_project(seen, results),
        "",
        f"{len(seen)} of {len(cases)} cases, {sum(seconds):.0f} s of CPU in all,"
        f" {max(seconds, default=0):.0f} s the longest.",
    ]
    if commits := [one for one in seen if one.lacks([])]:
        lines += [
            "",
            "Between two commits, which no wheel has, and so not run without `--checkout NAME=DIR`",
            f"(the earlier result is kept): {', '.join(one.name for one in commits)}.",
        ]
    for title, those in kinds.items():
        if those:
            lines += ["", f"### {title}", "", *_table(those, results)]
    if left := [one for one in cases if one not in seen]:
        lines += ["", "### Not seen", "", "| case | defect | why |", "|---|---|---|"]
        lines += [
            f"| {_link(one)} | {one.defect} | {results.get(one.name, {}).get('outcome', 'not run')}"
            " |"
            for one in left
        ]
    return "\n".join(lines) + "\n"


def _by_project(seen: Sequence[Case], results: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each project; what was not seen is in none of them."""
    yield (
        "| project | pairs told apart by a command's error | by a command's warning"
        " | by a function alone | open |"
    )
    yield "|---|---|---|---|---|"
    rows = {project: [one for one in seen if one.project == project] for project in _projects(seen)}
    for project, those in {**rows, "**all**": list(seen)}.items():
        pairs = [one for one in those if not one.is_open]
        commands = [one for one in pairs if one.kind == "command"]
        errors = sum(_finding(one, results[one.name])["severity"] == "error" for one in commands)
        warnings, functions = len(commands) - errors, len(pairs) - len(commands)
        opened = len(those) - len(pairs)
        yield f"| {project} | {errors} | {warnings} | {functions} | {opened} |"


def _projects(cases: Sequence[Case]) -> list[str]:
    return sorted({one.project for one in cases})


def _table(cases: Sequence[Case], results: Mapping[str, Any]) -> Iterator[str]:
    yield "| case | defect | unsafe | clean | rule | vtool says of the unsafe side | CPU s |"
    yield "|---|---|---|---|---|---|---|"
    for case in cases:
        result = results[case.name]
        finding = _finding(case, result)
        severity = "" if finding["severity"] == "error" else f", a {finding['severity']}"
        cells = (
            _link(case),
            case.defect,
            " ".join(case.wheels.unsafe) or f"{case.project} {_version(case, result)}, installed",
            " ".join(case.wheels.clean) or "none",
            f"`{case.rule}`{severity}",
            finding["message"].replace("|", "\\|"),
            f"{_seconds(result):.0f}",
        )
        yield f"| {' | '.join(cells)} |"


def _finding(case: Case, result: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the finding of the case's rule at the unsafe side."""
    findings: list[Mapping[str, Any]] = result["sides"]["unsafe"]["findings"]
    return next(one for one in findings if one["rule"] == case.rule)


def _version(case: Case, result: Mapping[str, Any]) -> str:
    return str(result["sides"]["unsafe"]["versions"].get(case.project, "?"))


def _link(case: Case) -> str:
    return f"[{case.name}](../timemachine/cases/{case.name}.yaml) ([thread]({case.url}))"


def _seconds(result: Mapping[str, Any]) -> float:
    return float(sum(side["cpu_seconds"] for side in result["sides"].values()))
