"""All defects, what is asked of healthy code, and whether a check has done what it is for."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.zoo import config, data, loading, model, runs, steps
from tests.zoo.defect import Defect, Look
from tests.zoo.looks import Family
from vtool.diagnostics import RULES, Diagnostic
from vtool.families import FAMILIES

AREAS: dict[str, tuple[Defect, ...]] = {
    "Rows and labels": data.DEFECTS,
    "Settings": config.DEFECTS,
    "The forward pass": model.DEFECTS,
    "Steps, and what comes of them": steps.DEFECTS,
    "Runs": runs.DEFECTS,
    "Loading": loading.DEFECTS,
}
DEFECTS = tuple(defect for area in AREAS.values() for defect in area)
# Defects of one kind are looked for in the same way: what healthy code answers is asked once. And
# all families are healthy.
LOOKS: tuple[Look, ...] = (
    *dict.fromkeys(defect.look for defect in DEFECTS),
    *map(Family, FAMILIES),
)


def ask(look: Look) -> tuple[Diagnostic, ...]:
    """What a check says in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="vtool-zoo-") as folder:
        return look(Path(folder))


def ask_with(defect: Defect) -> tuple[Diagnostic, ...]:
    """What it says of the defect."""
    with defect.inject():
        return ask(defect.look)


def is_caught(defect: Defect, findings: Sequence[Diagnostic]) -> bool:
    """The rule that it is for has named it, and no other rule has said anything."""
    return {finding.rule for finding in findings} == {defect.caught_by} and any(
        defect.told in f"{finding.message} {finding.parameter}" for finding in findings
    )


def code(defect: Defect) -> str:
    """The code of the rule that must name it."""
    return RULES[defect.caught_by].code


def said(findings: Sequence[Diagnostic]) -> str:
    """Findings in a line."""
    return "; ".join(f"{finding.rule}: {finding.message}" for finding in findings) or "nothing"


def figures(caught: int, alarms: int) -> tuple[str, str]:
    """The last two lines of `make zoo`."""
    return (
        f"defects caught: {caught} of {len(DEFECTS)}",
        f"false alarms: {alarms} in {len(LOOKS)} checks of healthy code",
    )


def page() -> str:
    """docs/zoo.md."""
    parts = [_HEAD.format(count=len(DEFECTS), looks=len(LOOKS))]
    for area, defects in AREAS.items():
        parts.append(
            f"## {area}\n\n| defect | upstream | what is wrong | caught by | injected into"
            " |\n|---|---|---|---|---|"
        )
        parts += [
            f"| {one.name} | {one.upstream} | {one.summary} | `{one.caught_by}` {code(one)} |"
            f" `{one.at}` |"
            for one in defects
        ]
        parts[-1] += "\n"
    return "\n".join(parts)


_HEAD = """# The zoo

{count} ways in which fine-tuning has gone wrong elsewhere without an error, each put into vtool's own code: one real function is replaced
by one that makes the mistake, and the check that is to catch it must name it. In a run, in an audit of rows or of a folder, and where
settings are read back, no other rule may speak; of the proofs of `vtool verify`, and of load-check's rules for a class, the one that is
for it is asked: one mistake may change several numbers. Asked all proofs that one process makes (`make soak`), each of 33 such defects
is named by its own, about half of them by that one alone. {looks} times the same checks are asked of the code as it is, and must say
nothing; among these are, of each family, all proofs that one process makes, and the read-back. `make zoo` runs all of it and counts, and
so does `make test` (`tests/zoo/`).

A case is what the mistake is modelled on: the same slip in the place where it would be made here, not a copy of anybody's code.

This page is `python -m tests.zoo --page`.
"""
