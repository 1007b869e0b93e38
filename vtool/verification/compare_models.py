"""Compares what a trained model computes with what was exported or sent of it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from vtool.diagnostics import Diagnostic, Findings
from vtool.verification.rounding import tensor_distances, tolerances


def compare_logits(
    trained: nn.Module, exported: nn.Module, batches: Sequence[Mapping[str, Any]]
) -> list[Diagnostic]:
    """Compare the logits of two models, beyond what rounding makes of them.

    Neither model is changed. What rounding may change is measured on a copy of the trained one, so
    there has to be memory for that.

    Raises:
        Findings: `export-differs`, where it cannot be shown that they do not: without a batch, for
            models that are not in float32, and for one that returns no logits.
    """
    if not batches:
        raise _not_shown(
            "there is no batch to compare the models on",
            "give what a model is called with, such as {'input_ids': ids}",
        )
    for name, model in (("trained", trained), ("exported", exported)):
        dtypes = {one.dtype for one in model.parameters() if one.is_floating_point()}
        if dtypes - {torch.float32}:
            others = ", ".join(sorted(str(one) for one in dtypes - {torch.float32}))
            raise _not_shown(
                f"the {name} model has weights in {others}, whose rounding is as large as what is"
                " looked for",
                "hand over model.float()",
            )

    def logits(model: nn.Module) -> dict[str, Tensor]:
        with _evaluating(model), torch.no_grad():
            return {f"batch {n + 1}": _of(model(**batch)) for n, batch in enumerate(batches)}

    theirs = logits(trained)
    tokens = max(tensor[..., 0].numel() for tensor in theirs.values())
    allowed = tolerances(trained, tokens, logits, theirs)
    ours = logits(exported)
    if shapes := _shapes(ours, theirs):
        return [Diagnostic("export-differs", shapes)]
    worst = max(tensor_distances(ours, theirs, allowed), key=lambda one: one.ratio)
    if worst.ratio <= 1:
        return []
    message = (
        f"the exported model's logits are {worst.measured:.2g} of their norm away from the"
        f" trained model's, in {worst.where} (rounding allows {worst.allowed:.1g})"
    )
    help = "look at what is merged, scaled or renamed on the way from the one to the other"
    return [Diagnostic("export-differs", message, help=help)]


def _of(output: Any) -> Tensor:
    found = getattr(output, "logits", output)
    if not isinstance(found, Tensor):
        raise _not_shown(
            f"a model returned {type(output).__name__}, which has no logits",
            "hand over a model that returns logits, or an output with `logits`",
        )
    return found


def _not_shown(why: str, help: str) -> Findings:
    """Return the exception for models that cannot be compared: it is no pass."""
    return Findings(Diagnostic("export-differs", f"could not be compared: {why}", help))


def _shapes(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> str | None:
    for name, tensor in theirs.items():
        if ours[name].shape != tensor.shape:
            return (
                f"the exported model's logits have the shape {list(ours[name].shape)} in {name},"
                f" the trained model's {list(tensor.shape)}"
            )
    return None


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    before = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in before.items():
            module.training = training
