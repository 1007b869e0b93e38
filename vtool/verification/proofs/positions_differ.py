"""Proof that the language model is given M-RoPE's positions."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from vtool.diagnostics import Rule
from vtool.verification.proofs.proof import (
    Difference,
    Proof,
    ProofContext,
    ProofResult,
    check_differences,
    not_run,
)

if TYPE_CHECKING:
    from torch import Tensor

    from vtool.data.collate import Batch
    from vtool.training.session import Session

RULE = Rule(
    name="positions-differ",
    code="VT725",
    summary="The language model is given other positions than M-RoPE's.",
    holds="The language model is given M-RoPE's positions.",
    why=(
        "Without mm_token_type_ids, or with plain positions in packed rows, transformers counts an"
        " image's tokens as text, and says nothing (axolotl#3817)."
    ),
    bad="data.drop_model_inputs=[mm_token_type_ids]",
    good="data.drop_model_inputs=[]",
    fix=(
        "Take mm_token_type_ids out of data.drop_model_inputs; otherwise report it with this line."
    ),
)


def compute(context: ProofContext) -> ProofResult:
    """Compare the positions in each row by itself, padded and packed with those of M-RoPE."""
    from vtool.verification import reference

    what = "positions that the language model is given, of rows by themselves, padded" + (
        ", and packed" if context.can_pack else ""
    )
    if context.processor.whole is not None:
        return not_run(RULE, what, "the model's own forward pass counts its positions")
    session, _ = context.open()
    rows = range(len(context.rows))
    cases = [
        (f"{reference.row_name(row)} by itself", session, context.batch(session, [row]))
        for row in rows
    ]
    cases.append(("padded", session, context.batch(session, rows)))
    if context.can_pack:
        packed, _ = context.open(**context.packing)
        cases.append(("packed", packed, context.batch(packed, rows, packed=True)))
    found = [
        difference
        for case, opened, batch in cases
        for difference in _compare_batch(context, opened, batch, case)
    ]
    message, help = "tokens are at other positions than M-RoPE gives them", None
    if reference.counts_images_as_text(context):
        message = (
            "mm_token_type_ids is left out, so that transformers counts an image's tokens as text,"
            " and M-RoPE does not"
        )
        help = "take mm_token_type_ids out of data.drop_model_inputs"
    return check_differences(RULE, what, found, message, help)


def _compare_batch(
    context: ProofContext, session: "Session", batch: "Batch", case: str
) -> Iterator[Difference]:
    import torch

    from vtool.verification import reference

    length, start = batch.inputs["input_ids"].shape[1], 0
    given = _given_positions(session, batch)
    given = torch.arange(length).expand(3, 1, -1) if given is None else given
    for line, place in enumerate(batch.indices):
        expected = reference.mrope_positions(context, context.samples[place])
        row, begin = (0, start) if batch.documents else (line, 0)
        start = begin + expected.shape[1]
        row = min(row, given.shape[1] - 1)  # positions may be given once for all rows
        here = given[-3:, row, begin:start]
        apart = (
            float((here - expected).abs().max()) if here.shape == expected.shape else float("inf")
        )
        yield Difference(f"{reference.row_name(place)} ({case})", apart, 0.0)


def _given_positions(session: "Session", batch: "Batch") -> "Tensor | None":
    """Return the positions, int64 [3 or 4, B, L], that the language model is called with."""
    from vtool.verification import steps

    given: list[Tensor | None] = []
    language = session.engine.module.model.language_model  # type: ignore[union-attr]
    hook = language.register_forward_pre_hook(  # type: ignore[union-attr]
        lambda _, __, named: given.append(named.get("position_ids")), with_kwargs=True
    )
    try:
        steps.compute_logits(session, batch)
    finally:
        hook.remove()
    return given[0]


PROOF = Proof(
    rule=RULE,
    compute=compute,
    section="What goes in",
    method=(
        "What the language model of transformers is *called with*, row by row, against M-RoPE"
        " computed here (arXiv 2409.12191, section 2.1)."
    ),
    catches=(
        "`mm_token_type_ids` dropped on the way, so that images are counted as text (where the"
        " recipe itself asks for that, `token-types-left-out` VT216 says so before, and the other"
        " proofs are of what it then computes); positions in one dimension in packed rows"
        " (axolotl#3817); positions that continue from one document into the next."
    ),
    upstream="LightX2V#1416",
)
