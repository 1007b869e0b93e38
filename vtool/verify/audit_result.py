"""The verdict on the rows of one split."""

from dataclasses import asdict
from typing import Any

from vtool.config.schema import Data
from vtool.diagnostics import rules_data
from vtool.diagnostics.result import Result
from vtool.verify.rows import Audit

ROW_RULES, SPLIT_RULES, HELD_OUT_RULES = (
    tuple(rule.name for rule in rules_data.RULES if rule.stage == stage)
    for stage in ("row", "split", "references")
)
"""Rules that the audit reports as passed where it found nothing: of every row; of a split, even
where no row of it can be used; and of the splits that are evaluated on.
"""


def audit_result(subject: str, audit: Audit, settings: Data) -> Result:
    """Return the verdict on a split.

    Beside its rules, `details` has `ledger` (with the tokens of each usable row) and `rows`, the
    rows shown.
    """
    failed = {finding.rule for finding in audit.findings if finding.severity == "error"}
    dropped = audit.ledger.dropped_by_rule
    reasons: dict[str, str] = {}
    if settings.max_length is None:
        reasons = dict.fromkeys(("overlong-row", "answer-cut-off"), "data.max_length is not given")
    elif settings.on_overlong != "truncate":
        reasons = {"answer-cut-off": f"data.on_overlong is {settings.on_overlong}"}
    found = failed | dropped.keys()
    found |= {"answer-cut-off", "end-token-unsupervised"} if audit.ledger.cut else set()
    # The audit of a row ends at its first finding: where no row got to the end, what was not found
    # was not looked for.
    unreached = () if audit.ledger.kept else ROW_RULES
    checks = {
        rule: (
            "failed"
            if rule in found
            else "not-run"
            if rule in unreached or rule in reasons
            else "passed"
        )
        for rule in (*ROW_RULES, *SPLIT_RULES)
    }
    if audit.split != "train":
        warned = {finding.rule for finding in audit.findings}
        otherwise = "passed" if audit.ledger.kept else "not-run"
        checks |= {rule: "failed" if rule in warned else otherwise for rule in HELD_OUT_RULES}
    details: dict[str, dict[str, Any]] = {
        rule: {"reason": reason} for rule, reason in reasons.items()
    }
    details |= {
        rule: {"reason": f"rows dropped: {count}"}
        for rule, count in dropped.items()
        if rule not in failed
    }
    details["ledger"] = {**audit.ledger.as_dict(), "lengths": list(audit.ledger.lengths)}
    details["rows"] = {
        shown.row: {
            key: value for key, value in asdict(shown).items() if key != "row" and value is not None
        }
        for shown in audit.shown
    }
    return Result(subject, "unsafe" if failed else "clean", checks, audit.findings, details)
