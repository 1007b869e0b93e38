"""The list of all defects, the checks of healthy code, and the page docs/zoo.md."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.zoo import config, data, loading, model, runs, steps
from tests.zoo.defect import Defect, Look
from tests.zoo.looks import Family, Proved
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
PROVED: tuple[tuple[Defect, Proved], ...] = tuple(
    (defect, defect.look)
    for defect in DEFECTS
    if isinstance(defect.look, Proved) and defect.look.world == 1
)
"""Defects that a proof of one process is for, with that proof."""
# Defects of one kind share a check, which is run once on healthy code, as is each family.
LOOKS: tuple[Look, ...] = (
    *dict.fromkeys(defect.look for defect in DEFECTS),
    *map(Family, FAMILIES),
)


def ask(look: Look) -> tuple[Diagnostic, ...]:
    """Run a check in a folder of its own, and return its findings."""
    with tempfile.TemporaryDirectory(prefix="vtool-zoo-") as folder:
        return look(Path(folder))


def ask_with(defect: Defect) -> tuple[Diagnostic, ...]:
    """Run a defect's check on the code with the defect, and return its findings."""
    with defect.inject():
        return ask(defect.look)


def is_caught(defect: Defect, findings: Sequence[Diagnostic]) -> bool:
    """The rule that it is for has named it, and no other rule has said anything."""
    return {finding.rule for finding in findings} == {defect.caught_by} and any(
        defect.mentions in f"{finding.message} {finding.parameter}" for finding in findings
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
    parts = [_HEAD.format(count=len(DEFECTS), looks=len(LOOKS), proved=len(PROVED))]
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

{count} ways in which fine-tuning has gone wrong elsewhere without an error. Each case puts the
mistake into vtool's own code: one real function is replaced by one that makes the mistake, and the
check that is for it must name it. In a run, in an audit of rows or of a folder, and where settings
are read back, no other rule may report anything. Of the proofs of `vtool verify`, and of
load-check's rules for a class, only the one that is for the mistake is run, because one mistake may
change several numbers. `make soak` runs all proofs of one process on the {proved} defects that such
a proof is for: each is named by its own proof, about half of them by that one alone.

The same checks run {looks} times on the code as it is, and must report nothing. Among these are,
for each model family, all proofs that one process makes, and the read-back of settings. `make zoo`
runs all of it and counts, and so does `make test-all` (`tests/zoo/`).

A case repeats the mistake in the place where it would be made here. It is no copy of anybody's
code.

This page is made by `make goldens`.
"""
