"""The verdict on the rows of one split."""

from dataclasses import asdict
from typing import Any

from vtool.config.schema import Data
from vtool.diagnostics import RULES
from vtool.diagnostics.result import Result
from vtool.verification.rows import Audit

_OF_GROUPS, _OF_COORDINATES = "missing-group", "coordinates-not-rescaled"
"""Rules that rows are checked by only where the recipe has a setting for it."""

_OF_NAMES = "unknown-row"
"""A rule that is checked only where a row is asked for."""


def rules_of(stage: str) -> tuple[str, ...]:
    """Return the rules that the audit checks at a stage; it reports those that found nothing."""
    return tuple(rule.name for rule in RULES.values() if rule.stage == stage)


def audit_result(
    subject: str, audit: Audit, settings: Data, tokenizer: str | None = None
) -> Result:
    """Return the verdict on a split.

    In addition to its rules, `details` has `ledger` (with the tokens of each usable row) and
    `rows`, the rows shown; for a page, `look`.

    Args:
        tokenizer: what tokens are counted with, where it is not the tokenizer of a model.
    """
    failed = {finding.rule for finding in audit.findings if finding.severity != "note"}
    dropped = audit.ledger.dropped_by_rule
    reasons: dict[str, str] = {}
    if settings.max_length is None:
        reasons = dict.fromkeys(("overlong-row", "answer-cut-off"), "data.max_length is not given")
    elif settings.on_overlong != "truncate":
        reasons = {"answer-cut-off": f"data.on_overlong is {settings.on_overlong}"}
    if settings.root is None:
        reasons["outside-of-root"] = "data.root is not given"
    else:
        reasons["files-outside-folder"] = "data.root says where files have to be"
    if audit.split == "test":
        reasons["lengths-not-validated"] = "this is about data.validation"
    reasons |= audit.ledger.boxes.unlooked()
    reasons |= audit.reasons
    # The audit of a row ends at its first finding: where no row got to the end, what was not found
    # was not looked for.
    asked = {_OF_GROUPS: settings.split.group, _OF_COORDINATES: settings.coordinates}
    rules = [rule for rule in rules_of("row") if rule not in asked or asked[rule]]
    unreached = () if audit.ledger.kept else (*rules, *rules_of("quality"))
    checks = {
        rule: (
            "failed"
            if rule in failed
            else "not-run"
            if rule in unreached or rule in reasons
            else "passed"
        )
        for rule in (*rules, *rules_of("split"), *rules_of("quality"))
    }
    if audit.split != "train":
        warned = {finding.rule for finding in audit.findings}
        otherwise = "passed" if audit.ledger.kept else "not-run"
        checks |= {
            rule: "failed" if rule in warned else "not-run" if rule in reasons else otherwise
            for rule in rules_of("references")
        }
    if _OF_NAMES in failed:
        checks[_OF_NAMES] = "failed"
    reasons |= {
        rule: f"rows dropped: {count}" for rule, count in dropped.items() if rule not in failed
    }
    details: dict[str, dict[str, Any]] = {
        **{rule: {"measured": dict(counts)} for rule, counts in audit.measured.items()},
        **{rule: {"reason": reason} for rule, reason in reasons.items()},
        "ledger": {**audit.ledger.as_dict(), "lengths": list(audit.ledger.lengths)},
        "rows": {
            shown.row: {
                key: value
                for key, value in asdict(shown).items()
                if key != "row" and value is not None
            }
            for shown in audit.shown
        },
        **({"tokenizer": {"is": tokenizer}} if tokenizer else {}),
        **({"look": dict(audit.look)} if audit.look else {}),
    }
    errors = any(finding.severity == "error" for finding in audit.findings)
    return Result(subject, "unsafe" if errors else "clean", checks, audit.findings, details)
