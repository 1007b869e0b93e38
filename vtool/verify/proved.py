"""What is proved of a recipe, and what comes of it. Torch-free, as the command is that asks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vtool.config.schema import Run

if TYPE_CHECKING:
    from vtool.verify.proofs.proof import Proof

PROCESSES = 2
ALONE = (
    "label-masks-disagree",
    "rows-lost",
    "positions-differ",
    "loss-differs",
    "gradient-depends-on-split",
    "gradient-depends-on-packing",
    "padding-changes-row",
    "documents-see-each-other",
    "attention-differs",
    "embeddings-written-in-place",
    "dummy-not-neutral",
    "text-only-differs",
    "trained-set-differs",
)
"""Proofs that one process can make."""
RANKED = (
    "text-only-differs",
    "trained-set-differs",
    "gradient-depends-on-ranks",
    "resume-differs",
    "export-differs",
)
"""Proofs that are made on the recipe's own engine, by two processes;

the first two, with --fast, by one on its bare model.
"""


class NotProvable(Exception):
    """Why no proof of a recipe can be made, where that is nothing against it."""


@dataclass(frozen=True, slots=True)
class ProveTask:
    """What each process is given."""

    run: Run
    rules: tuple[str, ...]
    full_size: bool


@dataclass(frozen=True, slots=True)
class Proved:
    """What all proofs have come to."""

    proofs: "tuple[Proof, ...]"
    changes: tuple[str, ...]
    """What was smaller than in the recipe, in words."""
    rows: tuple[str, ...]
    model: str
    seconds: float

    def checks(self) -> dict[str, str]:
        """By rule, how each has ended."""
        return {proof.rule: proof.state for proof in self.proofs}

    def details(self) -> dict[str, dict[str, Any]]:
        """By rule, what was measured, and `proofs`: what they stand on."""
        found: dict[str, dict[str, Any]] = {}
        for proof in self.proofs:
            given = {
                "what": proof.what,
                "measured": proof.measured,
                "tolerance": proof.tolerance,
                "reason": proof.reason,
            }
            found[proof.rule] = {
                key: value for key, value in given.items() if value not in (None, "")
            }
        found["proofs"] = {
            "model": self.model,
            "rows": list(self.rows),
            "smaller": list(self.changes),
            "seconds": round(self.seconds, 3),
        }
        return found


def as_record(
    proved: Proved | None, why_not: str = "", rules: Sequence[str] = ALONE
) -> Mapping[str, Any]:
    """What a run keeps in its folder of the proofs that it began with; None: there are none.

    Args:
        why_not: why they could not be made; empty where they were not asked for.
    """
    if proved is None:
        details = {rule: {"reason": why_not} for rule in rules if why_not}
        return {
            "version": 1,
            "preflight": bool(why_not),
            "checks": dict.fromkeys(rules, "not-run"),
            "details": details,
        }
    return {"version": 1, "preflight": True, "checks": proved.checks(), "details": proved.details()}
