"""Mistakes in the scale of a step, and in the weights of tokens beside weights of classes."""

from collections.abc import Callable
from typing import Any

from tests.watch.runs import changes
from tests.watch.runs.expected import Planted, error, note, warning
from tests.watch.runs.loop import END, VOCABULARY


def class_weights(times: float, ids: range) -> Callable[[Any, Any, Any], Any]:
    """Weigh some ids more than others."""

    def loss(logits: Any, labels: Any, model: Any) -> Any:
        import torch
        import torch.nn.functional as F  # noqa: N812

        weight = torch.ones(VOCABULARY)
        weight[ids.start : ids.stop : ids.step] = times
        flat = logits[:, :-1].float().flatten(0, 1)
        return F.cross_entropy(flat, labels[:, 1:].flatten(), weight=weight, reduction="sum")

    return loss


def focal(logits: Any, labels: Any, model: Any) -> Any:
    """Weigh each token by what the model does not yet know of it."""
    import torch.nn.functional as F  # noqa: N812

    flat = logits[:, :-1].float().flatten(0, 1)
    losses = F.cross_entropy(flat, labels[:, 1:].flatten(), reduction="none")
    return ((1 - (-losses.detach()).exp()) ** 2 * losses).sum()


def a_sum(tokens: list[int], index: int, everyone: int, world: int) -> float:
    return 1.0


def a_sum_over_rows(tokens: list[int], index: int, everyone: int, world: int) -> float:
    return 4.0


def second_lost(tokens: list[int], index: int, everyone: int, world: int) -> float:
    """Multiply the loss of the second micro-batch by zero."""
    return float("inf") if index == 1 else everyone / world


def lost_now_and_then() -> Callable[[list[int], int, int, int], float]:
    """Multiply the loss of a micro-batch of the second step by zero."""
    calls = [0]

    def divide(tokens: list[int], index: int, everyone: int, world: int) -> float:
        calls[0] += 1
        return float("inf") if calls[0] == 4 else everyone / world

    return divide


def hooked(times: float) -> Callable[[Any], None]:
    """Multiply the gradient of the final norm, in the backward pass."""

    def built(model: Any) -> None:
        model.model.norm.weight.register_hook(lambda gradient: gradient * times)

    return built


def unprepared(model: Any, optimizer: Any) -> None:
    """Have accelerate accumulate gradients, and step at each micro-batch all the same."""
    from accelerate.state import GradientState

    GradientState()._set_sync_gradients(False)


ENDS, WORDS = range(END, END + 1), range(20, VOCABULARY, 10)
PLANTED: dict[str, Planted] = {
    "a mean of means, the end token weighs 1.02": error(
        "token-weights-differ", divide=changes.mean_of_micro, loss=class_weights(1.02, ENDS)
    ),
    "a mean of means, each tenth word weighs 2": error(
        "token-weights-differ",
        divide=changes.mean_of_micro,
        loss=class_weights(2.0, WORDS),
        accumulate=3,
    ),
    "a mean of means, the end token weighs 2, bfloat16 autocast": error(
        "token-weights-differ",
        divide=changes.mean_of_micro,
        loss=class_weights(2.0, ENDS),
        accumulate=3,
        autocast=True,
    ),
    "a mean of each rank, the end token weighs 1.02, DDP": error(
        "token-weights-differ",
        divide=changes.mean_of_rank,
        loss=class_weights(1.02, ENDS),
        world=2,
    ),
    "the end token weighs 1.02": note("token-weights-differ", loss=class_weights(1.02, ENDS)),
    "each tenth word weighs 2, bfloat16 weights": note(
        "token-weights-differ", loss=class_weights(2.0, WORDS), dtype="bfloat16", lr=0.05
    ),
    "a focal loss": note("token-weights-differ", loss=focal),
    "the loss a sum": note("gradient-scaled", divide=a_sum),
    "the loss a sum, DDP": note("gradient-scaled", divide=a_sum, world=2),
    "the loss a sum over rows": note("gradient-scaled", divide=a_sum_over_rows),
    "a micro-batch times zero": warning("gradient-scaled", divide=second_lost, accumulate=3),
    "a micro-batch times zero, DDP": warning(
        "gradient-scaled", divide=second_lost, accumulate=3, world=2
    ),
    "a micro-batch times zero in one step": warning("gradient-scaled", divide=lost_now_and_then()),
    "an optimizer that accelerate did not prepare": warning(
        "gradient-scaled",
        divide=lambda tokens, index, everyone, world: everyone * 2,
        accumulate=1,
        made=unprepared,
    ),
    "the final norm's gradient a tenth, by a hook": warning(
        "layers-scaled-apart", built=hooked(0.1)
    ),
    "the final norm's gradient tripled, by a hook, DDP": warning(
        "layers-scaled-apart", built=hooked(3.0), world=2
    ),
}
