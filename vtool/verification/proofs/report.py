"""The report of all proofs of a recipe. Torch-free, so that commands read it without torch."""

from dataclasses import dataclass
from typing import Any

from vtool.verification.proofs import FAST
from vtool.verification.proofs.proof import ProofResult


@dataclass(frozen=True, slots=True)
class ProofReport:
    """The results of all proofs of a recipe, and the small run that they were made on."""

    proofs: tuple[ProofResult, ...]
    changes: tuple[str, ...]
    """Differences of the small run from the recipe, in words."""
    rows: tuple[str, ...]
    model: str
    seconds: float

    def checks(self) -> dict[str, str]:
        """Return the state of each proof, by rule."""
        return {proof.rule: proof.state for proof in self.proofs}

    def details(self) -> dict[str, dict[str, Any]]:
        """Return by rule what was measured, and under `proofs` what the small run was."""
        names = ("what", "measured", "tolerance", "reason")
        return {
            **{
                proof.rule: {
                    name: value
                    for name in names
                    if (value := getattr(proof, name)) not in (None, "")
                }
                for proof in self.proofs
            },
            "proofs": {
                "model": self.model,
                "rows": list(self.rows),
                "smaller": list(self.changes),
                "seconds": round(self.seconds, 3),
            },
        }

    def as_record(self) -> dict[str, Any]:
        """Return the content of a run's proofs.json."""
        return {"version": 1, "preflight": True, "checks": self.checks(), "details": self.details()}


def record_without_proofs(reason: str = "") -> dict[str, Any]:
    """Return the content of proofs.json of a run that began without proofs.

    Args:
        reason: why they could not be made; empty where they were not asked for.
    """
    return {
        "version": 1,
        "preflight": bool(reason),
        "checks": dict.fromkeys(FAST, "not-run"),
        "details": {rule: {"reason": reason} for rule in FAST if reason},
    }
