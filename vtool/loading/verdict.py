"""The verdict on a subject: findings of every check that was asked, and one word for all."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from vtool.diagnostics import Diagnostic, Origin
from vtool.diagnostics.result import Result, Verdict
from vtool.loading.grading import GRADERS
from vtool.loading.probe.checks import NEED_ALL_NAMES
from vtool.loading.probe.facts import CheckFacts, Item, SubjectFacts
from vtool.loading.reach import paths_in_state
from vtool.loading.words import listed

NO_SOURCE = CheckFacts(reason="the sources do not include the one that it needs")
NAMES_DISCOVERED = CheckFacts(
    reason=(
        "the checkpoint's names were found by trying them on the class, and say nothing of others"
    )
)
_THREADS = "some run during the load: which tensors a finding names is chance"
REACHABLE = ("stale-reference", "stale-after-processing", "quantised-load")
"""Checks whose findings depend on which of the framework's paths hand over what does not stay."""


def judge(
    subject: str,
    facts: SubjectFacts,
    rules: Sequence[str],
    allow: Sequence[str] = (),
    cost: Mapping[str, Any] | None = None,
) -> Result:
    """Return a subject's result.

    Args:
        rules: the rules that are checked.
        allow: patterns of parameters and tensors that may be left unwritten or unread.
        cost: the time and the largest resident memory of the subject's process.
    """
    if facts.status != "judged":
        return _without_verdict(subject, facts, rules)
    checks: dict[str, str] = {}
    details: dict[str, dict[str, Any]] = {"subject": _describe(facts, cost)}
    findings: list[Diagnostic] = []
    for rule in rules:
        check = facts.checks.get(rule, NO_SOURCE)
        if facts.origin == "discovered" and rule in NEED_ALL_NAMES:
            check = NAMES_DISCOVERED
        if rule == "computes-differently" and check.items and (cause := _cause(findings)):
            check = CheckFacts(reason=f"{cause} says why it computes something else")
        if check.reason is not None:
            checks[rule] = "not-run"
            measured = {"measured": dict(check.measured)} if check.measured else {}
            details[rule] = {"reason": check.reason, **measured}
            continue
        about = facts if check.paths is None else replace(facts, paths=check.paths)
        items = [item for item in check.items if not _allowed(rule, item, allow)]
        graded = GRADERS[rule](rule, items, about) if items else ()
        found = [
            replace(_located(finding, subject, facts), by_chance=check.by_chance)
            for finding in graded
        ]
        findings += found
        serious = any(finding.severity != "note" for finding in found)
        checks[rule] = "failed" if serious else "passed"
        if detail := _detail(rule, check, about):
            details[rule] = detail
    verdict: Verdict = "not-run"
    if set(checks.values()) & {"passed", "failed"}:
        verdict = "unsafe" if any(finding.severity == "error" for finding in findings) else "clean"
    if verdict == "clean" and facts.values and facts.values["not_run"]:
        verdict = "not-run"  # names and shapes say nothing of values
    if verdict == "clean" and facts.reason:
        verdict = "not-run"  # a limit or a crash ended it before every check was come to
    return Result(subject, verdict, checks, tuple(findings), details)


def _cause(findings: Sequence[Diagnostic]) -> str | None:
    """Return the rule of an error about weights that the class does without."""
    errors = (one.rule for one in findings if one.severity == "error")
    return next((rule for rule in errors if rule in NEED_ALL_NAMES), None)


def _without_verdict(subject: str, facts: SubjectFacts, rules: Sequence[str]) -> Result:
    failed = facts.status == "failed"
    findings = (Diagnostic("load-failed", f"{subject}: {facts.reason}"),) if failed else ()
    checks: dict[str, str] = dict.fromkeys(rules, "not-run")
    if failed:
        checks["load-failed"] = "failed"
    details = {rules[0]: {"reason": facts.reason}}
    return Result(subject, "failed" if failed else "not-run", checks, findings, details)


def _located(finding: Diagnostic, subject: str, facts: SubjectFacts) -> Diagnostic:
    """Return a finding with its subject, its place, and the files that its tensors are in."""
    about = facts.about
    files = dict.fromkeys(about.files[one] for one in finding.tensors or () if one in about.files)
    message = f"{subject}: {finding.message}{f' (in {listed(list(files))})' if files else ''}"
    own = Origin(about.file, about.line) if about.file else None
    return replace(finding, message=message, origin=finding.origin or own)


def _describe(facts: SubjectFacts, cost: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return whose checkpoint went into which class, and what of the class was replaced."""
    about = facts.about
    twin_of = f"transformers' {about.like}" if about.like else "the class itself"
    checkpoint = {
        "given": (
            "random values under its own parameters' names" if about.own_names else "the user's own"
        ),
        "twin": f"of {twin_of} at tiny size",
        "discovered": "names that the class was found to take",
    }
    optional = {
        "ended": facts.reason,
        "dtype": about.dtype,
        "fields_guessed": about.fields,
        "no_twin": about.no_twin,
        "threads": any(check.by_chance for check in facts.checks.values()) and _THREADS,
        "took": cost,
        "values": facts.values and _values(facts.values),
    }
    # what a clean verdict rests on
    oracle = {
        "given": "the checkpoint's own names",
        "twin": f"the names of transformers' {about.like or 'class'}",
        "discovered": "loading only",
    }
    return {
        "class": about.class_name,
        "oracle": " and ".join((oracle[facts.origin], *_outputs_compared(facts))),
        "checkpoint": checkpoint[facts.origin],
        "parts_replaced": list(about.replaced),
        **{key: value for key, value in optional.items() if value},
    }


def _values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return how many tensors' values were compared, and the reasons why others were not."""
    reasons: dict[str, list[str]] = {}
    for name, why in values["not_run"].items():
        reasons.setdefault(why, []).append(name)
    return {
        "loaded": "part by part",
        "tensors": values["tensors"],
        "compared": values["compared"],
        **({"not_run": reasons} if reasons else {}),
    }


def _outputs_compared(facts: SubjectFacts) -> list[str]:
    """Return the outputs that were compared with transformers' class, in words."""
    measured = (facts.checks.get("computes-differently") or CheckFacts()).measured
    images = measured.get("images")
    found = [measured] if "compared" in measured else []
    found += [images] if isinstance(images, Mapping) else []
    return [f"its {one['compared']}" for one in found]


def _allowed(rule: str, item: Item, allow: Sequence[str]) -> bool:
    """Return True if the item may be left unwritten or unread, and that is what was found."""
    if rule == "never-loaded" and item.tensors:
        item = replace(item, parameter=None) if not _fits(item.parameter, allow) else item
    return (
        (item.rule or rule) in NEED_ALL_NAMES
        and bool(item.names)
        and all(_fits(name, allow) for name in item.names)
    )


def _fits(name: str | None, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name or "", pattern) for pattern in patterns)


def _detail(rule: str, check: CheckFacts, facts: SubjectFacts) -> dict[str, Any]:
    measured = dict(check.measured)
    detail: dict[str, Any] = {}
    if rule in REACHABLE and check.items:
        if rule == "stale-reference":
            detail["smallest_safe_slots"] = measured.pop("smallest_safe_slots", None)
        detail["reachable_via"] = paths_in_state(facts, "unprotected")
        detail["protected_by"] = paths_in_state(facts, "protected")
        detail["paths_not_run"] = {
            path: state
            for path, state in facts.paths.items()
            if state not in ("unprotected", "protected")
        }
    detail["measured"] = measured
    detail["parameters"] = [item.parameter for item in check.items if item.parameter]
    return {key: value for key, value in detail.items() if value}
