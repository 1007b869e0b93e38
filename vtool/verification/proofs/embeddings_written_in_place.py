"""Proof that no operation of the forward pass writes into the embeddings."""

import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vtool.diagnostics import Origin, Rule
from vtool.verification.proofs.proof import Proof, ProofContext, ProofResult, failed, passed

if TYPE_CHECKING:
    from torch import Tensor


RULE = Rule(
    name="embeddings-written-in-place",
    code="VT711",
    summary="An operation of the forward pass writes into the embeddings in place.",
    holds="No operation of the forward pass writes into the embeddings in place.",
    why=(
        "The result of an embedding is needed in the backward pass, or is a view of a leaf:"
        " autograd raises, or, behind a wrapper that hides the view, gradients are silently those"
        " of other numbers (verl#5881)."
    ),
    bad="inputs_embeds += image_features",
    good="inputs_embeds = inputs_embeds.masked_scatter(mask, image_features)",
    fix="Make the named line return a new tensor.",
)


def compute(context: ProofContext) -> ProofResult:
    """Watch every operation of forward passes with images, without, and with the dummy."""
    from vtool.models.dummy_visual import dummy_visual_forward

    with_images, without = context.rows_with_images(), context.rows_without_images()
    cases = {
        name: (rows, dummy)
        for name, rows, dummy in (
            ("with images", with_images, False),
            ("without", without, False),
            ("with the dummy in their place", without, True),
        )
        if rows
    }
    what = f"every operation of the forward pass, {', '.join(cases)}"
    session, _ = context.open()
    model = session.engine.module
    for rows, dummy in cases.values():
        batch = context.batch(session, rows)
        inserted = dummy_visual_forward(context.family, model) if dummy else nullcontext()
        with inserted, _record_writes(model) as writes:
            model(**batch.inputs, use_cache=False)
        if writes:
            operation, origin = writes[0]
            where = f"{origin.file}:{origin.line}: " if origin else ""
            return failed(
                RULE,
                what,
                (
                    f"{where}{operation} writes into the embeddings, which a backward pass, or"
                    " whoever holds a view of them, may need"
                ),
                origin=origin,
            )
    return passed(RULE, what)


@contextmanager
def _record_writes(model: Any) -> Iterator[list[tuple[str, Origin | None]]]:
    """Yield a list that gets each operation that writes into the embeddings, and its line."""
    from torch import Tensor
    from torch.utils._python_dispatch import TorchDispatchMode

    storages: list[Any] = []
    writes: list[tuple[str, Origin | None]] = []

    class WriteRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(
            self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            for place, argument in enumerate(operation._schema.arguments):
                if argument.alias_info is None or not argument.alias_info.is_write:
                    continue
                given = args[place] if place < len(args) else (kwargs or {}).get(argument.name)
                for tensor in given if isinstance(given, list | tuple) else [given]:
                    if isinstance(tensor, Tensor) and any(
                        tensor.untyped_storage()._cdata == storage._cdata for storage in storages
                    ):
                        writes.append((str(operation), _calling_line()))
            return operation(*args, **(kwargs or {}))

    def after_embedding(_module: Any, _inputs: Any, embedded: "Tensor") -> None:
        storages.append(embedded.untyped_storage())

    def before_language_model(_module: Any, _inputs: Any, named: Mapping[str, Any]) -> None:
        if isinstance(embedded := named.get("inputs_embeds"), Tensor):
            storages.append(embedded.untyped_storage())

    layer, language = model.get_input_embeddings(), model.get_decoder()
    hooks = [
        layer.register_forward_hook(after_embedding, prepend=True),  # the layer's own result
        layer.register_forward_hook(after_embedding),  # what other hooks have made of it
        language.register_forward_pre_hook(before_language_model, with_kwargs=True),
    ]
    try:
        with WriteRecorder():  # type: ignore[no-untyped-call]
            yield writes
    finally:
        for hook in hooks:
            hook.remove()


def _calling_line() -> Origin | None:
    """Return the innermost running line that is neither torch's nor of `vtool.verification`."""
    import torch

    own = (f"{Path(torch.__file__).parent}/", str(Path(__file__).parents[1]))
    for frame in reversed(traceback.extract_stack()):
        if not frame.filename.startswith(own):
            return Origin(frame.filename, frame.lineno)
    return None


PROOF = Proof(
    rule=RULE,
    compute=compute,
    section="The forward pass",
    method=(
        "Every operation of the forward pass is watched, with images, without, and with the dummy;"
        " one that writes into the embeddings is named with its file and line, of [your own"
        " file](families.md#a-class-of-your-own-modelmodeling) too"
        " (`model.modeling=my_qwen.py:MyQwen`)."
    ),
    catches="`inputs_embeds += 0.0 * …` of verl#5881.",
    upstream="verl#5881",
)
