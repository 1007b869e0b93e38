"""From a folder of facts to results: what was found, what holds, and what was not looked at."""

import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from vtool.diagnostics import Diagnostic, Findings
from vtool.diagnostics.result import Result, Verdict
from vtool.watch.conclusions import CHECKS, NOT_FACTS, NOTHING_READ
from vtool.watch.conclusions.check import DAMAGED
from vtool.watch.conclusions.learnt import nothing_read
from vtool.watch.facts import Facts
from vtool.watch.page_facts import page_facts
from vtool.watch.reading import UNENDED, Watched, read_facts
from vtool.watch.turns import find_turns, load_tokenizer
from vtool.watch.verdict import run_verdict, unlooked


def conclude_folder(
    folder: Path, subject: str, tokenizer: Path | None, status: int | None = None
) -> list[Result]:
    """Conclude from a folder of facts: a result for each model that was trained.

    Args:
        folder: where the facts are.
        subject: what the results are about.
        tokenizer: a folder with tokenizer.json, if it is not the model's.
        status: the exit status of the command, which may be why nothing was read; None where
            the folder is one of somebody else's naming.

    Raises:
        Findings: `not-a-folder-of-facts`.
    """
    try:
        watched = read_facts(folder)
        if status is None and not (
            watched.processes or watched.empty or watched.blind or watched.crashed
        ):
            raise ValueError(
                f"{folder} has no facts (rank*.jsonl): it is another folder than the one that vtool"
                " watch printed, or nothing of that command has trained"
            )
    except (ValueError, OSError) as error:
        raise Findings(Diagnostic(NOT_FACTS.name, str(error)), fatal=True) from error
    return conclude(watched, subject, tokenizer, status)


def conclude(
    watched: Watched, subject: str, tokenizer: Path | None = None, status: int | None = None
) -> list[Result]:
    """Conclude from the facts of each model."""
    results = _conclude_models(watched, subject, tokenizer, status)
    if status is None:
        return results
    command = {"command": {"status": status}}
    return [
        replace(
            result,
            verdict=_of_command(result.verdict, status),
            details={**result.details, **command},
        )
        for result in results
    ]


def _of_command(verdict: Verdict, status: int) -> Verdict:
    """Return the verdict: a command that failed is not clean, one that somebody ended may be."""
    failed = status and status not in (128 + signal.SIGINT, 128 + signal.SIGTERM)
    return "incomplete" if failed and verdict == "clean" else verdict


def _conclude_models(
    watched: Watched, subject: str, tokenizer: Path | None, status: int | None
) -> list[Result]:
    if not watched.models:
        return [_nothing(watched, subject, status)]
    several = len(watched.models) > 1
    results = []
    for facts in watched.models:
        name = f"{subject}: {facts.name} {facts.number}" if several else subject
        try:
            results.append(conclude_model(with_turns(facts, tokenizer), name, watched))
        except DAMAGED as error:
            why = f"the facts are damaged: {type(error).__name__} {error}"
            results.append(_not_run(name, why))
    return results


def with_turns(facts: Facts, tokenizer: Path | None) -> Facts:
    """Return the facts with how the chat template of a tokenizer marks answers."""
    named = [facts.model.get(name) for name in ("tokenizer", "name_or_path")]
    folders = [tokenizer, *(Path(str(one)) for one in named if one)]
    folder = next((one for one in folders if one and one.is_dir()), None)
    if folder is None:
        return replace(facts, no_turns="the tokenizer is not known: --tokenizer DIR")
    known = replace(facts, tokenizer=load_tokenizer(folder))
    turns = find_turns(folder)
    return replace(known, no_turns=turns) if isinstance(turns, str) else replace(known, turns=turns)


def conclude_model(facts: Facts, subject: str, watched: Watched) -> Result:
    """Conclude from the facts of one model."""
    outcomes = {check.name: check.outcome(facts) for check in CHECKS}
    findings = [finding for outcome in outcomes.values() for finding in outcome.findings]
    checks = {name: outcome.state for name, outcome in outcomes.items()}
    details: dict[str, Mapping[str, Any]] = {}
    for name, outcome in outcomes.items():
        detail: dict[str, Any] = {}
        if outcome.looked_at:
            detail["looked_at"] = dict(outcome.looked_at)
        if outcome.measured:
            detail["measured"] = dict(outcome.measured)
        if checks[name] == "not-run":
            detail["reason"] = outcome.not_run
        if detail:
            details[name] = detail
    with suppress(*DAMAGED):
        details["watch"] = page_facts(facts, watched)
    errors = any(finding.severity == "error" for finding in findings)
    if not errors and not any(micro.supervised and micro.is_read for micro in facts.micros):
        early = None if facts.of("micro") else _cut_short(facts, watched)
        crashed = (f"{_BEFORE} {one}" for one in watched.crashed)
        why = (
            *watched.errors,
            *crashed,
            *watched.blind,
            early or nothing_read(facts) or "nothing",
        )[0]
        help = _MEND if watched.crashed and not watched.errors else _READABLE
        findings.append(Diagnostic(NOTHING_READ.name, f"{facts.name}: {why}", help=help))
        # what was not learnt from was not looked at, whatever else is in order
        checks = {name: state if state == "failed" else "not-run" for name, state in checks.items()}
        return Result(subject, "not-run", checks, tuple(findings), details)
    if not errors and (cut := _cut_short(facts, watched)):
        help = "what was found stands; run it again, or wait for its end, to see the rest"
        findings.append(Diagnostic(NOTHING_READ.name, f"{facts.name}: {cut}", help=help))
        for name, state in checks.items():
            if state == "passed":
                checks[name] = "not-run"
                details[name] = {**details.get(name, {}), "reason": cut}
        return Result(subject, "not-run", checks, tuple(findings), details)
    if missing := unlooked(outcomes):
        details["watch"] = {**details.get("watch", {}), "unlooked": list(missing)}
    return Result(subject, run_verdict(outcomes), checks, tuple(findings), details)


_BEFORE = "it came to no step of an optimizer:"
_MEND = "mend that, and run it again: nothing was there to be watched"
_READABLE = "docs/watch.md says what can be read: a head that is whole, losses of tokens"


def _cut_short(facts: Facts, watched: Watched) -> str | None:
    """Return why missing facts may change what is concluded, or None."""
    if watched.damaged:
        return f"lines of the facts are damaged ({watched.damaged}), and what they said is lost"
    steps = max((int(one.get("steps") or 0) for one in watched.processes), default=0)
    if watched.unended and not facts.is_read_to(steps):
        return f"the facts stop within the {steps} watched steps: {UNENDED}"
    return None


def _nothing(watched: Watched, subject: str, status: int | None) -> Result:
    help: str | None = None
    if watched.errors:
        why = f"the watch itself failed: {watched.errors[0]}"
    elif watched.crashed:
        why, help = f"{_BEFORE} {watched.crashed[0]}", _MEND
    elif watched.blind:
        why, help = watched.blind[0], _READABLE
    elif watched.processes:
        why = "no optimizer of a model with a language head was made"
    elif watched.damaged:
        why = f"the facts cannot be read: all of their lines ({watched.damaged}) are damaged"
    elif watched.empty:
        why = "the facts are empty: the disk is full, or the command was killed as it began"
    else:
        why = (
            "no Python of the command came to a step of an optimizer of torch's, or PYTHONPATH did"
            " not reach it"
        )
    if watched.damaged:
        help = "copy the folder again, or run the command again"
    message = f"the command ended with status {status}: {why}" if status else why
    return _not_run(subject, message, help)


def _not_run(subject: str, why: str, help: str | None = None) -> Result:
    checks = dict.fromkeys((check.name for check in CHECKS), "not-run")
    details = {check.name: {"reason": why} for check in CHECKS}
    finding = Diagnostic(NOTHING_READ.name, why, help=help)
    return Result(subject, "not-run", checks, (finding,), details)
