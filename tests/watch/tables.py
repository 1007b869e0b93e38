"""The tables of docs/watch.md, of the runs in `tests/watch/runs`: `make goldens` writes them."""

from collections.abc import Iterator
from pathlib import Path

from tests.watch.runs import healthy, planted, traincheck
from vtool.diagnostics import RULES
from vtool.watch.conclusions import CHECKS

PAGE = Path(__file__).parents[2] / "docs/watch.md"
BEGIN = "<!-- The tables of runs: made by `make goldens`. -->\n"
END = "<!-- End of the tables. -->\n"
SEEN = "<!-- What each check must have seen: made by `make goldens`. -->\n"
END_OF_SEEN = "<!-- End of what it must have seen. -->\n"


def renew(page: str) -> str:
    """Return docs/watch.md with the tables as the runs are."""
    for begin, end, lines in ((BEGIN, END, _lines()), (SEEN, END_OF_SEEN, _must_see())):
        head, _, rest = page.partition(begin)
        _, _, tail = rest.partition(end)
        tables = "\n".join(lines)
        page = f"{head}{begin}{tables}\n{end}{tail}"
    return page


def _must_see() -> Iterator[str]:
    yield "\n| check | at least | known to |\n|---|---|---|"
    for check in CHECKS:
        least = ", ".join(f"{count} {_of(unit, count)}" for unit, count in check.must_see.items())
        noise = f"{check.most_noise:.0%}" if check.most_noise else ""
        yield f"| `{check.name}` {check.rule.code} | {least} | {noise} |"
    yield ""


def _of(unit: str, count: int) -> str:
    one = unit[:-2] if unit.endswith(("ches", "sses")) else unit[:-1]
    return unit if count > 1 else one


def _lines() -> Iterator[str]:
    yield "\n### Planted mistakes"
    yield (
        f"{len(planted.RUNS)} runs with one mistake each; the rule that is for it must find it,"
        " and\nno other rule may have an error (`tests/watch/test_runs.py`).\n"
    )
    yield "| mistake | rule | |\n|---|---|---|"
    for name, one in planted.RUNS.items():
        yield f"| {name} | `{one.rule}` {RULES[one.rule].code} | {one.severity} |"
    yield from _traincheck()
    yield "\n### Healthy runs"
    yield (
        f"{len(healthy.RUNS)} runs in which nothing is wrong: no error, no warning, and a verdict."
        "\n"
    )
    yield "| run |\n|---|"
    yield from (f"| {name} |" for name in healthy.RUNS)


def _traincheck() -> Iterator[str]:
    runs = {name: one.planted for name, one in traincheck.ERRORS.items()}
    seen = sum(run is not None for run in runs.values())
    yield "\n### TrainCheck's errors"
    yield (
        f"[TrainCheck](https://github.com/OrderLab/TrainCheck) detects 18 errors. The mistake of"
        f" {seen} of\nthem is one of the runs above, and `vtool watch` finds it;"
        f" {18 - seen} are not seen, or were not run.\n"
    )
    yield "| theirs | what | `vtool watch` |\n|---|---|---|"
    for name, one in traincheck.ERRORS.items():
        if one.planted is None:
            cell = f"not seen: {one.not_seen}"
        else:
            cell = f"`{planted.RUNS[one.planted].rule}` ({one.planted})"
        yield f"| {name} | {one.what} | {cell} |"
