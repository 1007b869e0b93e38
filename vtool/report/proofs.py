"""The proofs that a run began with, from its proofs.json."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vtool.contents import read_small_json
from vtool.diagnostics import RULES
from vtool.report.words import difference

_ORDER = {"failed": 0, "passed": 1, "not-run": 2}


def read_proofs(folder: Path) -> dict[str, Any] | None:
    """Return the proofs of a run, as `proofs.html.j2` shows them, and what they were made with.

    None where there is no such file, or none that can be read: nothing is known then, and nothing
    counts as passed. `asked` is false where the run was started with --no-preflight.
    """
    try:
        record: Any = read_small_json(folder / "proofs.json")
        details: Mapping[str, Any] = record["details"]
        rows = [
            _row(rule, state, details.get(rule, {})) for rule, state in record["checks"].items()
        ]
        on = details.get("proofs", {})
        return {
            "asked": bool(record["preflight"]),
            "on": (
                f"{on['model']}, on {len(on['rows'])} rows of data.train, in {on['seconds']:.1f} s"
                if on
                else ""
            ),
            "changes": tuple(on.get("smaller", ())),
            "rows": sorted(rows, key=lambda row: _ORDER[row["state"]]),
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _row(rule: str, state: str, detail: Mapping[str, Any]) -> dict[str, str]:
    known = RULES.get(rule)
    return {
        "state": state if state in _ORDER else "not-run",
        "rule": rule,
        "code": known.code if known else "",
        "measured": difference(detail.get("measured"), "0"),
        "allowed": difference(detail.get("tolerance"), "none"),
        "claim": known.claim(state) if known else "",  # what holds, or what does not
        "what": "; ".join(filter(None, (detail.get("what"), detail.get("reason")))),
    }
