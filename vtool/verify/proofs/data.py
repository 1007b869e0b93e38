"""Proofs of what goes in: labels, positions, and which rows."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from vtool.data.chat import IGNORED
from vtool.data.collate import Batch
from vtool.data.labels import same_text
from vtool.data.loader import MicroBatch, micro_batches_for_step
from vtool.data.packing import with_positions
from vtool.data.plan import Plan
from vtool.training.session import Session
from vtool.verify.proofs import reference
from vtool.verify.proofs.context import ProofContext
from vtool.verify.proofs.proof import Difference, Proof, failed, held, listed

PLANNED = 97  # rows of a plan that no batch, rank or micro-batch divides
RANKS = (1, 2, 3)


def label_masks(context: ProofContext) -> Proof:
    """`label-masks-disagree`: two ways of masking, and the words of the row."""
    rule, what = (
        "label-masks-disagree",
        f"labels of {len(context.rows)} rows against the characters of their answers",
    )
    context = context.as_encoded()
    untold = []
    for place, sample in enumerate(context.samples):
        row = context.rows[place]
        found = reference.labels_by_offsets(context, place)
        if isinstance(found, str):
            untold.append(found)
            continue
        inside, text = found
        ids, supervised = reference.collapsed(context, sample)
        tokenizer = context.processor.tokenizer
        whole = tokenizer(_whole(context, place), add_special_tokens=False).input_ids
        if whole == ids or (sample.truncated and whole[: len(ids)] == ids):
            wrong = [
                at
                for at, (one, other) in enumerate(zip(supervised, inside, strict=False))
                if one != other
            ]
            if wrong:
                token = tokenizer.decode([ids[wrong[0]]])
                kind = (
                    "is supervised, and is not of an answer"
                    if supervised[wrong[0]]
                    else "is of an answer, and is not supervised"
                )
                return failed(
                    rule, what, f"{row.id}: token {wrong[0]}, {token!r}, {kind}{_more(wrong)}"
                )
        # the pieces that a chat is tokenized in give other tokens than all of it at once: their
        # text is the same
        else:
            kept = sample.labels[sample.labels != IGNORED].tolist()
            decoded = tokenizer.decode(
                kept, skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
            if not same_text(decoded, text, truncated=sample.truncated):
                return failed(
                    rule,
                    what,
                    f"{row.id}: what is supervised is not what the answers are",
                    expected=repr(text),
                    seen=repr(decoded),
                )
    if len(untold) == len(context.rows):
        return Proof(rule, what, "not-run", reason=untold[0])
    return Proof(rule, what, "passed", 0.0, 0.0)


def _more(wrong: list[int]) -> str:
    return f", and so are {len(wrong) - 1} more" if len(wrong) > 1 else ""


def _whole(context: ProofContext, place: int) -> str:
    row = context.rows[place]
    text: str = context.processor.tokenizer.apply_chat_template(
        list(row.messages), tools=row.tools, tokenize=False
    )
    return text


def positions(context: ProofContext) -> Proof:
    """`positions-differ`: what the language model is given, padded and packed."""
    rule = "positions-differ"
    what = "positions that the language model is given, of rows by themselves, padded" + (
        ", and packed" if context.packs else ""
    )
    session, _ = context.open()
    places = range(len(context.rows))
    cases = [
        (f"{reference.row_name(place)} by itself", session, context.batch(session, [place]))
        for place in places
    ]
    cases.append(("padded", session, context.batch(session, places)))
    if context.packs:
        packed, _ = context.open(**context.packing)
        cases.append(("packed", packed, context.batch(packed, places, packed=True)))
    differences = [
        difference
        for case, opened, batch in cases
        for difference in _positions(context, opened, batch, case)
    ]
    if reference.counts_images_as_text(context):
        message = (
            "mm_token_type_ids is left out, so that transformers counts an image's tokens as text,"
            " and M-RoPE does not"
        )
        return held(
            rule, what, differences, message, "take mm_token_type_ids out of data.drop_model_inputs"
        )
    return held(rule, what, differences, "tokens are at other positions than M-RoPE gives them")


def _positions(
    context: ProofContext, session: Session, batch: Batch, case: str
) -> Iterator[Difference]:
    given = position_ids(session, batch)
    length = batch.inputs["input_ids"].shape[1]
    start = 0
    for line, place in enumerate(batch.indices):
        wanted = reference.positions(context, context.samples[place])
        row, own = (
            (0, slice(start, start + wanted.shape[1]))
            if batch.documents
            else (line, slice(0, wanted.shape[1]))
        )
        start = own.stop
        seen = torch.arange(length).expand(3, 1, -1) if given is None else given
        row = min(row, seen.shape[1] - 1)  # positions may be given once for all rows
        here = seen[-3:, row, own]
        apart = float((here - wanted).abs().max()) if here.shape == wanted.shape else float("inf")
        yield Difference(f"{reference.row_name(place)} ({case})", apart, 0.0)


def position_ids(session: Session, batch: Batch) -> Tensor | None:
    """int64 [3 or 4, B, L]: what the language model of transformers is called with."""
    seen: list[Tensor | None] = []
    model = session.engine.module
    language = model.model.language_model  # type: ignore[union-attr]
    hook = language.register_forward_pre_hook(  # type: ignore[union-attr]
        lambda _, __, given: seen.append(given.get("position_ids")), with_kwargs=True
    )
    try:
        forward(session, batch)
    finally:
        hook.remove()
    return seen[0]


def forward(session: Session, batch: Batch) -> Tensor:
    """Logits [B, L, V] of all tokens of a micro-batch, as the run computes them."""
    batch = with_positions(batch, session.engine.module)
    packed = {} if batch.documents is None else {"documents": batch.documents.lengths}
    with torch.no_grad(), session.engine.autocast():
        found: Tensor = session.engine.module(**batch.inputs, **packed, use_cache=False).logits
    return found


def rows_lost(context: ProofContext) -> Proof:
    """`rows-lost`:

    each row once an epoch, whatever the ranks, in another order each time; and a batch has the rows
    that it says.
    """
    rule, what = (
        "rows-lost",
        (
            f"{PLANNED} rows over two epochs on {listed([str(one) for one in RANKS])} ranks; the"
            " tokens of each batch"
        ),
    )
    batch_size = min(context.asked_batch, PLANNED)
    plan = Plan(PLANNED, batch_size, context.run.run.seed)
    lengths = tuple(int(one) for one in np.random.RandomState(0).randint(4, 64, PLANNED))
    settings = context.run.data
    if settings.micro_batch_tokens is not None:
        settings = settings.model_copy(
            update={"micro_batch_tokens": max(settings.micro_batch_tokens, 64)}
        )
    orders = []
    for epoch in (0, 1):
        steps = range(epoch * plan.steps_per_epoch + 1, (epoch + 1) * plan.steps_per_epoch + 1)
        orders.append([row for step in steps for row in plan.step(step).tolist()])
        for world in RANKS:
            seen = [
                row
                for step in steps
                for rank in range(world)
                for one in micro_batches_for_step(
                    settings, plan, range(PLANNED), lengths, step, rank, world
                )
                if one.counts
                for row in one.rows
            ]
            if sorted(seen) != list(range(PLANNED)):
                twice, never = len(seen) - len(set(seen)), PLANNED - len(set(seen))
                message = (
                    f"epoch {epoch + 1} on {world} ranks: of {PLANNED} rows {never} are in no"
                    f" batch, and {twice} are in one more than once"
                )
                return failed(rule, what, message)
    if orders[0] == orders[1]:
        return failed(rule, what, "the second epoch has its rows in the order of the first")
    session, _ = context.open()
    for micro_batch in (
        MicroBatch(tuple(range(len(context.rows)))),
        MicroBatch((len(context.rows) - 1, 0)),
    ):
        batch = session.rows["train"][micro_batch]
        for line, place in enumerate(micro_batch.rows):
            wanted = context.samples[place].input_ids
            if batch.indices[line] != place or not torch.equal(
                batch.inputs["input_ids"][line, : len(wanted)], wanted
            ):
                return failed(
                    rule, what, f"a batch of row {place + 1} has the tokens of another row"
                )
    return Proof(rule, what, "passed", 0.0, 0.0)
