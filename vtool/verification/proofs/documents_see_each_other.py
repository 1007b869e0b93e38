"""Proof that a row's logits do not depend on the content of the other rows in its batch."""

from dataclasses import replace
from typing import TYPE_CHECKING

from vtool.diagnostics import Rule
from vtool.verification.proofs.proof import (
    ONE_ROW,
    Difference,
    Proof,
    ProofContext,
    ProofResult,
    check_differences,
    not_run,
)

if TYPE_CHECKING:
    from vtool.data.encode import Sample

RULE = Rule(
    name="documents-see-each-other",
    code="VT716",
    summary="A row's logits move when the content of another row in its batch is replaced.",
    holds="A row's logits stay when the content of another row in its batch is replaced.",
    why=(
        "Attention, convolutions or states continue from one document into the next: answers are"
        " learnt from what is not there at inference (transformers#46634, LLaMA-Factory#10659)."
    ),
    bad="a packed row with one causal mask over all its documents",
    good="attention inside each document",
    fix=(
        "Set data.packing=none where it is the packed case; where it is the padded one, the"
        " model's tower mixes images: report it."
    ),
)


def compute(context: ProofContext) -> ProofResult:
    """Replace the tokens and pixels of all other rows: no bit of a row's logits may move."""
    from vtool.verification import reference, steps

    what = "logits of a row while the others in its batch change" + (
        ", padded and packed" if context.can_pack else ""
    )
    if len(context.rows) < 2:
        return not_run(RULE, what, ONE_ROW)
    rows = range(len(context.rows))
    cases = [("padded", context.open()[0], False)]
    if context.can_pack:
        cases.append(("packed", context.open(**context.packing)[0], True))
    others = [_replace_content(context, sample) for sample in context.samples]
    found = []
    for case, session, packed in cases:
        before = steps.compute_logits(session, context.batch(session, rows, packed=packed))
        cache = session.rows["train"].cache
        for row in rows:
            cache.update(enumerate(others))
            cache[row] = context.samples[row]
            after = steps.compute_logits(session, context.batch(session, rows, packed=packed))
            cache.update(enumerate(context.samples))
            start = sum(context.lengths[:row]) if packed else 0
            own = (0 if packed else row), slice(start, start + context.lengths[row])
            apart = float((after[own] - before[own]).abs().max())
            found.append(Difference(f"{reference.row_name(row)} ({case})", apart, 0.0))
    return check_differences(
        RULE, what, found, "a row's logits move when another row's content does"
    )


def _replace_content(context: ProofContext, sample: "Sample") -> "Sample":
    """Return a sample of other words, in reverse order, and other pixels; as many of each."""
    import torch

    special = context.vocabulary.special
    ids = sample.input_ids.clone()
    plain = torch.tensor([int(token) not in special for token in ids])
    ids[plain] = ids[plain].flip(0)
    first = plain.nonzero()[0]
    ids[first] = next(
        word
        for word in range(len(context.vocabulary))
        if word not in special and word != int(ids[first])
    )
    inputs = {
        name: -tensor.flip(0) if name.startswith("pixel_values") else tensor
        for name, tensor in sample.visuals.inputs.items()
    }
    return replace(sample, input_ids=ids, visuals=replace(sample.visuals, inputs=inputs))


PROOF = Proof(
    rule=RULE,
    compute=compute,
    section="The forward pass",
    method=(
        "All the words and pixels of the other rows are replaced, padded and packed, and not a bit"
        " of this row's logits may move."
    ),
    catches=(
        "one causal mask over a packed row (transformers#39400, transformers#46634,"
        " LLaMA-Factory#10659), a tower that attends from one image into another."
    ),
    upstream="axolotl#3796",
)
