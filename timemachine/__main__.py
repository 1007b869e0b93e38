"""Run cases of the time machine, and write docs/time-machine.md.

python -m timemachine [CASE…]

A case is a file in timemachine/cases, by its name or the beginning of it. What has been run with
the same code is not run again, and what lacks its --checkout keeps the result that it has.
Exits with 1 where a case has not shown what it should, with 2 where results cannot be written.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from timemachine.case import Case, read_cases
from timemachine.page import PAGE, RESULTS, add_result, alone, page, read_results, write
from timemachine.run import ROOT, digest, run_case


def main(words: Sequence[str]) -> int:
    """Run the cases that are named, or all; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m timemachine", description=__doc__)
    parser.add_argument("cases", metavar="CASE", nargs="*")
    parser.add_argument("--again", action="store_true", help="run what has been run before, too")
    parser.add_argument("--cache", type=Path, default=ROOT / ".time-machine", metavar="DIR")
    parser.add_argument("--to", type=Path, default=RESULTS, metavar="FILE", help="the results")
    parser.add_argument(
        "--checkout",
        type=_checkout,
        action="append",
        default=[],
        metavar="NAME=DIR",
        help="a project's git repository, for cases that are between two commits",
    )
    given = parser.parse_args(words)
    try:
        cases, known = read_cases(given.cases), {case.name for case in read_cases()}
    except ValueError as error:
        print(f"time machine: {error}", file=sys.stderr)
        return 2
    try:
        results = read_results(given.to)
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"time machine: {given.to} has no results: {error}", file=sys.stderr)
        return 2
    try:
        return _run_all(cases, known, results, given)
    except OSError as error:  # a full disk: what was written before is whole
        print(f"time machine: {error}", file=sys.stderr)
        return 2


def _run_all(
    cases: Sequence[Case],
    known: Set[str],
    results: dict[str, Any],
    given: argparse.Namespace,
) -> int:
    """Run cases, and write what they show as soon as it is known; return the exit status."""
    for case in cases:
        result, is_kept = _result(case, given.cache, given.again, dict(given.checkout))
        _say(result, is_kept)
        was_run = all(side["state"] != "not-run" for side in result["sides"].values())
        if case.name in results and case.lacks(list(dict(given.checkout))) and not was_run:
            print("  its earlier result is kept", flush=True)
            continue
        results = add_result(given.to, result, known)
    if given.to == RESULTS:
        with alone(PAGE.parent):
            write(PAGE, page(read_cases(), read_results(RESULTS)))
    return int(any(results[case.name]["outcome"] != "seen" for case in cases))


def _checkout(word: str) -> tuple[str, Path]:
    name, is_there, folder = word.partition("=")
    if not is_there or not Path(folder).is_dir():
        raise argparse.ArgumentTypeError(f"{word} is no NAME=DIR of a folder that is there")
    return name, Path(folder)


def _result(
    case: Case, cache: Path, again: bool, checkouts: Mapping[str, Path]
) -> tuple[dict[str, Any], bool]:
    """Return the result that is kept of a case, or run it; and whether it was kept."""
    key, kept = digest(case), cache / "results" / f"{case.name}.json"
    if not again and (found := _read(kept)).get("digest") == key:
        return dict(found["result"]), True
    result = run_case(case, cache, checkouts)
    if all(side["state"] != "not-run" for side in result["sides"].values()):
        kept.parent.mkdir(parents=True, exist_ok=True)
        write(kept, json.dumps({"digest": key, "result": result}))
    return result, False


def _read(kept: Path) -> dict[str, Any]:
    """Return the kept result of a case; nothing where it was not written to its end."""
    try:
        return dict(json.loads(kept.read_text("utf-8")))
    except (OSError, ValueError):
        return {}


def _say(result: dict[str, Any], is_kept: bool) -> None:
    seconds = sum(side["cpu_seconds"] for side in result["sides"].values())
    text = f"{seconds:.1f} s of CPU{', not run again' if is_kept else ''}"
    print(f"{result['case']}: {result['outcome']} ({text})", flush=True)
    for name, side in result["sides"].items():
        for finding in side["findings"]:
            text = f"{finding['severity']}[{finding['rule']}]: {finding['message']}"
            print(f"  {name:6s} {text[:180]}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
