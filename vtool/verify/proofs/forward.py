"""Proofs of the forward pass:

the loss, padding, documents that share a row, attention, and what writes over the embeddings.
"""

import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from vtool.data.collate import collate_prompts
from vtool.data.encode import Prompt, Sample
from vtool.diagnostics import Diagnostic, Origin
from vtool.evaluation.evaluate import mean_nll
from vtool.models.dummy_visual import dummy_visual_forward
from vtool.verify.proofs import reference
from vtool.verify.proofs.context import ONE_ROW, ProofContext
from vtool.verify.proofs.data import forward
from vtool.verify.proofs.gradient import take
from vtool.verify.proofs.proof import Difference, Proof, held
from vtool.verify.proofs.rounding import ROUNDING, differences

Allowed = Mapping[str, float]
_OURS = str(Path(__file__).parents[2])  # vtool itself


def loss(context: ProofContext, alone: Mapping[str, Tensor], allowed: Allowed) -> Proof:
    """`loss-differs`:

    the loop's loss and N, and the NLL of an evaluation, against those of each row by itself.
    """
    rule = "loss-differs"
    what = (
        f"the loss of a step and of an evaluation of {len(context.rows)} rows against −log p of each"
        " supervised token, in float64"
    )
    session, progress = context.open(micro_batch_size=2)
    with session.engine.evaluating(), torch.no_grad():
        scored = mean_nll(
            session.engine, session.rows["train"], range(len(context.rows)), batch_size=2
        )
    taken = take(session, progress)
    wanted = reference.loss(context, alone)
    # Of a mean of NLLs: what the logits of a row may move, its largest share of the loss.
    tolerance = max(ROUNDING * wanted, max(allowed.values()) / context.supervised)
    found = [
        Difference("the loss", abs(taken.loss - wanted), tolerance),
        Difference("the NLL of an evaluation", abs(scored - wanted), tolerance),
        Difference(
            "the number of supervised tokens",
            float(abs(taken.supervised - context.supervised)),
            0.0,
        ),
    ]
    return held(rule, what, found, "the loss of a step is not that of its rows")


def padding(context: ProofContext, alone: Mapping[str, Tensor], allowed: Allowed) -> Proof:
    """`padding-changes-row`: right for training, left for answers."""
    dropped = context.run.data.drop_model_inputs
    # without it, answers are asked for one by one, and nothing is padded on the left
    masked = "attention_mask" not in dropped
    sides = "right and left" if masked else "right"
    rule, what = (
        "padding-changes-row",
        f"logits of {len(context.rows)} rows in one batch, padded {sides}, against each by itself",
    )
    if len(context.rows) < 2:
        return Proof(rule, what, "not-run", reason=ONE_ROW)
    session, _ = context.open()
    right = forward(session, context.batch(session, range(len(context.rows))))
    prompts = [Prompt(one.index, one.input_ids, one.visuals, "") for one in context.samples]
    padded = [("padded right", right, 0)]
    if masked:
        with torch.no_grad(), session.engine.autocast():
            left = session.engine.module(
                **collate_prompts(prompts, context.processor, dropped), use_cache=False
            ).logits
        padded.append(("padded left", left, left.shape[1]))
    found = []
    for place, length in enumerate(context.lengths):
        name = reference.row_name(place)
        for case, all_rows, end in padded:
            row = all_rows[place, max(0, end - length) : end or length]
            found += differences({name: row}, {name: alone[name]}, allowed, case)
    return held(rule, what, found, "a row's logits depend on the rows beside it")


def attention(context: ProofContext, alone: Mapping[str, Tensor], allowed: Allowed) -> Proof:
    """`attention-differs`: the chosen implementation against transformers' plain one."""
    rule, chosen = "attention-differs", context.run.model.attention
    what = f"logits with model.attention={chosen} against eager"
    if chosen == "eager":
        return Proof(rule, what, "not-run", reason="model.attention is eager")
    model = context.model()
    model.set_attn_implementation("eager")  # type: ignore[operator]
    return held(
        rule,
        what,
        differences(reference.all_logits(context, model), alone, allowed),
        "attention computes something else",
    )


def leak(context: ProofContext) -> Proof:
    """`documents-see-each-other`:

    another row's tokens and pixels are replaced, and this row's logits must not move a bit.
    """
    rule = "documents-see-each-other"
    what = "logits of a row while the others in its batch change" + (
        ", padded and packed" if context.packs else ""
    )
    if len(context.rows) < 2:
        return Proof(rule, what, "not-run", reason=ONE_ROW)
    places = range(len(context.rows))
    session, _ = context.open()
    cases = [("padded", session, False)]
    if context.packs:
        cases.append(("packed", context.open(**context.packing)[0], True))
    found = []
    for case, opened, packed in cases:
        before = forward(opened, context.batch(opened, places, packed=packed))
        for kept in places:
            others = replace(
                context,
                samples=tuple(
                    one if at == kept else _changed(context, one)
                    for at, one in enumerate(context.samples)
                ),
            )
            rows = opened.rows["train"]
            rows.cache.update({one.index: one for one in others.samples})
            after = forward(opened, context.batch(opened, places, packed=packed))
            rows.cache.update({one.index: one for one in context.samples})
            own = _own(context, kept, packed=packed)
            apart = float((after[own] - before[own]).abs().max())
            found.append(Difference(f"{reference.row_name(kept)} ({case})", apart, 0.0))
    return held(rule, what, found, "a row's logits move when another row's content does")


def _own(context: ProofContext, place: int, *, packed: bool) -> tuple[int, slice]:
    start = sum(context.lengths[:place]) if packed else 0
    return (0 if packed else place), slice(start, start + context.lengths[place])


def _changed(context: ProofContext, sample: Sample) -> Sample:
    """Other words, in the other order, and other pixels; as many of each."""
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
    given = sample.visuals.tensors()
    pixels = {
        name: -tensor.flip(0) for name, tensor in given.items() if name.startswith("pixel_values")
    }
    return replace(sample, input_ids=ids, visuals=replace(sample.visuals, **pixels))


def written_in_place(context: ProofContext) -> Proof:
    """`embeddings-written-in-place`: no operation of the forward pass writes into the embeddings,
    as they come from their layer and as the language model is given them; with images, without, and
    with the dummy in their place (verl#5881).
    """
    ways = {
        "with images": (context.with_images(), False),
        "without": (context.without_images(), False),
        "with the dummy in their place": (context.without_images(), True),
    }
    cases = {name: way for name, way in ways.items() if way[0]}
    rule, what = (
        "embeddings-written-in-place",
        f"every operation of the forward pass, {', '.join(cases)}",
    )
    session, _ = context.open()
    model = session.engine.module
    for places, dummy in cases.values():
        batch = context.batch(session, places)
        with (
            dummy_visual_forward(context.family, model) if dummy else nullcontext(),
            _watching(model) as watch,
        ):
            model(**batch.inputs, use_cache=False)
        if watch.written:
            operation, origin = watch.written[0]
            where = f"{origin.file}:{origin.line}: " if origin else ""
            message = (
                f"{where}{operation} writes into the embeddings, which a backward pass, or whoever"
                " holds a view of them, may need"
            )
            return Proof(rule, what, "failed", finding=Diagnostic(rule, message, origin=origin))
    return Proof(rule, what, "passed", 0.0, 0.0)


@contextmanager
def _watching(model: Any) -> Iterator["_Watch"]:
    """Meanwhile what writes into the embeddings is noted."""
    watch = _Watch()

    def made(_module: nn.Module, _inputs: Any, embedded: Tensor) -> None:
        watch.storages.append(embedded.untyped_storage())

    def given(_module: nn.Module, _inputs: Any, named: Mapping[str, Any]) -> None:
        if isinstance(embedded := named.get("inputs_embeds"), Tensor):
            watch.storages.append(embedded.untyped_storage())

    layer = model.get_input_embeddings()
    # The layer's own result, what other hooks have made of it, and what goes into the language
    # model.
    hooks = [layer.register_forward_hook(made, prepend=True), layer.register_forward_hook(made)]
    hooks.append(model.model.language_model.register_forward_pre_hook(given, with_kwargs=True))
    try:
        with watch:
            yield watch
    finally:
        for hook in hooks:
            hook.remove()


class _Watch(TorchDispatchMode):
    """Sees every operation, and those that write into one of `storages`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.storages: list[torch.UntypedStorage] = []
        self.written: list[tuple[str, Origin | None]] = []

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        for place, argument in enumerate(operation._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            given = args[place] if place < len(args) else (kwargs or {}).get(argument.name)
            for tensor in given if isinstance(given, list | tuple) else [given]:
                if isinstance(tensor, Tensor) and any(
                    tensor.untyped_storage()._cdata == one._cdata for one in self.storages
                ):
                    self.written.append((str(operation), _caller()))
        return operation(*args, **(kwargs or {}))


def _caller() -> Origin | None:
    """The line of a model's code that is running:

    the innermost that is neither torch's nor vtool's proofs'.
    """
    own = f"{Path(torch.__file__).parent}/"
    for frame in reversed(traceback.extract_stack()):
        if not frame.filename.startswith((own, f"{_OURS}/verify")):
            return Origin(frame.filename, frame.lineno)
    return None
