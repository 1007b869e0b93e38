"""The proofs of `vtool verify RECIPE`, one file each, in the order in which they are made.

The list is torch-free: the files import torch inside functions only.
"""

from collections.abc import Sequence

from vtool.diagnostics import Diagnostic, Findings
from vtool.diagnostics.near_miss import did_you_mean, near
from vtool.verification.proofs import (
    attention_differs,
    documents_see_each_other,
    dummy_not_neutral,
    embeddings_written_in_place,
    evaluation_changes_training,
    export_differs,
    gradient_depends_on_packing,
    gradient_depends_on_ranks,
    gradient_depends_on_split,
    label_masks_disagree,
    loss_differs,
    padding_changes_row,
    positions_differ,
    resume_differs,
    rows_lost,
    text_only_differs,
    trained_set_differs,
)
from vtool.verification.proofs.proof import Proof

PROOFS: tuple[Proof, ...] = (
    label_masks_disagree.PROOF,
    rows_lost.PROOF,
    positions_differ.PROOF,
    loss_differs.PROOF,
    gradient_depends_on_split.PROOF,
    gradient_depends_on_packing.PROOF,
    padding_changes_row.PROOF,
    documents_see_each_other.PROOF,
    attention_differs.PROOF,
    embeddings_written_in_place.PROOF,
    dummy_not_neutral.PROOF,
    text_only_differs.PROOF,
    trained_set_differs.PROOF,
    gradient_depends_on_ranks.PROOF,
    evaluation_changes_training.PROOF,
    resume_differs.PROOF,
    export_differs.PROOF,
)
RULES = tuple(proof.rule for proof in PROOFS)
PROOF_NAMES = tuple(proof.name for proof in PROOFS)
FAST = tuple(proof.name for proof in PROOFS if proof.fast)
"""Proofs that one process makes, with --fast and before a run."""
PROOFS_ON_RANKS = tuple(proof.name for proof in PROOFS if proof.on_ranks)
"""Proofs that two processes make on the recipe's own engine, unless --fast is given."""


def proof_names(only: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the proofs that are asked for, by name or by code.

    Raises:
        Findings: `unknown-choice`, with the nearest names.
    """
    codes = {proof.rule.code.lower(): proof.name for proof in PROOFS}
    found = tuple(codes.get(name.lower(), name) for name in only)
    unknown = [
        Diagnostic(
            "unknown-choice",
            f"--only {name}: there is no such proof",
            did_you_mean(near(name, PROOF_NAMES)) or f"one of {', '.join(PROOF_NAMES)}",
        )
        for name in found
        if name not in PROOF_NAMES
    ]
    if unknown:
        raise Findings(unknown, fatal=True)
    return found
