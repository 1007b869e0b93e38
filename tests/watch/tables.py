"""The tables of docs/watch.md, of the runs in `tests/watch/runs`: `make goldens` writes them."""

from collections.abc import Iterator
from pathlib import Path

from tests.watch.runs import healthy, planted
from vtool.diagnostics import RULES

PAGE = Path(__file__).parents[2] / "docs/watch.md"
BEGIN = "<!-- The tables of runs: made by `make goldens`. -->\n"
END = "<!-- End of the tables. -->\n"


def renew(page: str) -> str:
    """Return docs/watch.md with the tables as the runs are."""
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    tables = "\n".join(_lines())
    return f"{head}{BEGIN}{tables}\n{END}{tail}"


def _lines() -> Iterator[str]:
    yield "\n### Planted mistakes"
    yield (
        f"{len(planted.RUNS)} runs with one mistake each; the rule that is for it must find it,"
        " and\nno other rule may have an error (`tests/watch/test_runs.py`).\n"
    )
    yield "| mistake | rule | |\n|---|---|---|"
    for name, one in planted.RUNS.items():
        yield f"| {name} | `{one.rule}` {RULES[one.rule].code} | {one.severity} |"
    yield "\n### Healthy runs"
    yield (
        f"{len(healthy.RUNS)} runs in which nothing is wrong: no error, no warning, and a verdict."
        "\n"
    )
    yield "| run |\n|---|"
    yield from (f"| {name} |" for name in healthy.RUNS)
