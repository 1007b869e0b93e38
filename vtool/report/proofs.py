"""The proofs that a run began with, from its proofs.json."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vtool.diagnostics import RULES
from vtool.report.words import difference

_ORDER = {"failed": 0, "passed": 1, "not-run": 2}


@dataclass(frozen=True, slots=True)
class ProofRow:
    """One proof, in words."""

    state: str
    rule: str
    code: str
    measured: str
    allowed: str
    what: str
    claim: str = ""
    """What holds; or, of a proof that failed, what does not."""


@dataclass(frozen=True, slots=True)
class Proofs:
    """All proofs, and the model and rows that they were made with."""

    asked: bool
    """False where the run was started with --no-preflight."""
    on: str
    changes: tuple[str, ...]
    rows: tuple[ProofRow, ...]


def read_proofs(folder: Path) -> Proofs | None:
    """Return the proofs of a run; None where there is no such file, or none that can be read.

    Nothing is known then, and nothing is said to have passed.
    """
    try:
        record: Any = json.loads((folder / "proofs.json").read_text())
        details: Mapping[str, Any] = record["details"]
        rows = [
            _row(rule, state, details.get(rule, {})) for rule, state in record["checks"].items()
        ]
        on = details.get("proofs", {})
        about = (
            f"{on['model']}, on {len(on['rows'])} rows of data.train, in {on['seconds']:.1f} s"
            if on
            else ""
        )
        return Proofs(
            bool(record["preflight"]),
            about,
            tuple(on.get("smaller", ())),
            tuple(sorted(rows, key=lambda row: _ORDER[row.state])),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _row(rule: str, state: str, detail: Mapping[str, Any]) -> ProofRow:
    known = RULES.get(rule)
    reason = detail.get("reason", "")
    return ProofRow(
        state=state if state in _ORDER else "not-run",
        rule=rule,
        code=known.code if known else "",
        measured=difference(detail.get("measured"), "0"),
        allowed=difference(detail.get("tolerance"), "none"),
        what="; ".join(part for part in (detail.get("what", ""), reason) if part),
        claim=known.claim(state) if known else "",
    )
