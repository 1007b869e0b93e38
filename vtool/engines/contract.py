"""The contract of engines, which make a model train on devices.

The training loop knows N, the supervised tokens of a global step over all ranks and micro-batches,
before the first backward. An engine is given the summed negative log-likelihood (NLL) of each
micro-batch, and N, and leaves Σ over ranks ∂(ΣNLL)/N in the gradients: the same whatever the number
of ranks and micro-batches, and before any clipping. It is never given a mean.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from vtool.config.readback import Observed
from vtool.config.schema import Optim
from vtool.engines.ranks import Ranks
from vtool.engines.spans import Span, null_span
from vtool.models.adapters import Adapter

B = TypeVar("B")
"""A micro-batch, into which an engine does not look."""
Owner = Callable[[int], int | None]
"""Given the bytes of a whole tensor, the rank that is to have it; None: every rank is.

All ranks ask it the same in the same order, once for each tensor, or once for tensors that an
engine keeps as one matrix. It may count what it is asked, and answers alike on all of them.
"""


def to_all_ranks(_: int) -> None:
    """Give a tensor to every rank; an `Owner`."""


def to_rank_zero(_: int) -> int:
    """Give a tensor to rank 0 alone; an `Owner`."""
    return 0


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A parameter that a live optimizer updates."""

    name: str
    """The name in files, which is transformers'. A matrix made of several has the first's."""
    dimensions: int
    """The dimensions of the whole parameter, whatever share of it is on this rank."""
    dtype: torch.dtype
    """The dtype it is updated in."""


@dataclass(frozen=True, slots=True)
class OptimizerGroup:
    """A parameter group of a live optimizer."""

    optimizer: Any
    settings: Mapping[str, Any]
    members: tuple[GroupMember, ...]


@dataclass(frozen=True, slots=True)
class EngineInputs:
    """Everything that an engine is built from. It sees neither rows nor a recipe."""

    module: nn.Module
    """The model, with its adapters and with what is frozen frozen. The engine takes it over."""
    blocks: Sequence[nn.Module]
    """Modules that are gathered and freed together, inner ones before those around them."""
    settings: Any
    """The engine's own, of `vtool.config.schema.EngineSettings`."""
    optim: Optim
    ranks: Ranks
    compute_dtype: torch.dtype
    component: Callable[[str], str]
    """Given a parameter's name in files, which of `optim.groups` it is of."""
    build_optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    """For engines whose parameters are a torch module's own."""
    checkpointing: int
    """The number of blocks, the first ones in the order of computation, that compute activations
    again in the backward pass (`model.gradient_checkpointing`). The model's own do so already.
    """
    packed: bool
    """A row may be several documents, which must not see each other."""
    weights: Mapping[str, Tensor] = field(default_factory=dict)
    """Values of the module's parameters on the meta device: whole tensors by names in files, in any
    dtype. One is read where it is looked into: an engine cuts its share out first.
    """


class Engine(Protocol):
    """One rank's share of a model that trains."""

    module: nn.Module
    """The bare model, for evaluation."""
    data: Ranks
    """This rank among those that compute different rows.

    Ranks that share the work of a row are one here, and are given the same rows.
    """
    size: int
    """Parameters of the whole model."""
    trained: int
    """Parameters that are trained."""

    def forward_backward(
        self,
        batches: Sequence[B],
        nll: Callable[[Callable[..., Any], B], Tensor],
        supervised: int,
        *,
        every_parameter: bool,
        span: Span = null_span,
    ) -> Tensor:
        """Compute the gradients of one global step.

        Args:
            batches: this rank's micro-batches, at least one.
            nll: given a callable model and a micro-batch, its summed NLL, a scalar.
            supervised: N, over all ranks and micro-batches.
            every_parameter: whether each trainable parameter takes part in each micro-batch of each
                rank. Where it is false, those that take part in none keep no gradient, and their
                weights and optimizer state stay as they are, to the byte.
            span: the engine computes inside `span("forward")` and `span("backward")`; the latter
                includes the sum of gradients over ranks.

        Returns:
            The summed NLL of each micro-batch of this rank, on the device: whoever reads them waits
            until it has computed them.
        """

    def clip_gradient(self, largest: float | None) -> Tensor:
        """Scale the gradient down to a norm of `largest`, if any, and return the norm before that.

        The norm is that of the whole gradient, over all ranks: a scalar on the device. A gradient
        whose norm is not finite stays as it is.
        """

    def gradients(self) -> dict[str, Tensor]:
        """Return a copy of the gradients that there are, whole and by names in files.

        Every rank calls it; rank 0 has the result. For proofs.
        """

    def optimizer_step(self, lr: float) -> None:
        """Update the weights with this learning rate, and free the gradients."""

    def autocast(self) -> AbstractContextManager[Any]:
        """Return a context with the compute dtype, for passes outside `forward_backward`."""

    def evaluating(self) -> AbstractContextManager[None]:
        """Return a context in which the model is in evaluation mode.

        Inside, a rank may run `module` as often as it likes: no forward pass waits for a rank with
        other rows.
        """

    def iter_hf_weights(
        self, adapter: Adapter = "merged", owner: Owner = to_all_ranks
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield parameters and persistent buffers by transformers' names, one whole tensor each.

        A tensor is yielded once, however many names it has. It is gathered when it is asked for, on
        the engine's device and in the precision that it is trained in. It is yielded to its owner,
        and to no other rank, which gives its share of it and holds nothing of the rest; where it
        has none, to every rank. All ranks iterate at the same time, to the end. A tensor may be a
        weight itself: copy what is kept.

        Args:
            adapter: "merged": weights with adapters merged in; "none": weights without them;
                "only": the adapters, by peft's names. Without adapters, the first two are equal,
                and the last is empty.
            owner: given the bytes of what is yielded, who has it.
        """

    def model_state(self, owner: Owner = to_all_ranks) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors that a checkpoint keeps: all, or the adapters if there are any.

        As `iter_hf_weights` does: whole, one at a time, each to its owner.
        """

    def optimizer_state(self, owner: Owner = to_all_ranks) -> Iterator[tuple[str, Tensor]]:
        """Yield the optimizer's state as `<parameter>.<entry>`, in the way of `model_state`."""

    def load_state(self, model: Mapping[str, Tensor], optimizer: Mapping[str, Tensor]) -> None:
        """Load what `model_state` and `optimizer_state` gave, of this engine or another.

        Every rank is given all of it, and looks into its share alone: a tensor may be a file's,
        which is read where it is looked into.
        """

    def observe(self, component: Callable[[str], str]) -> Iterator[Observed]:
        """Yield the settings `engine`, `model` and `lora` as the engine's live objects have them.

        Every rank calls it; nothing is computed or communicated.

        Args:
            component: given transformers' name of a parameter or layer, which of `model.freeze` it
                is of.
        """

    def optimizer_groups(self) -> Iterator[OptimizerGroup]:
        """Yield the parameter groups of the live optimizers on this rank."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield this rank's parameters by their names in files.

        A matrix made of several goes by the name of the first.
        """
