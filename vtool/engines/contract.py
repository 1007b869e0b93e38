"""What an engine is: the part that makes a model train on devices.

The training loop knows N, the supervised tokens of a global step over all ranks and micro-batches,
before the first backward. An engine is given the summed negative log-likelihood (NLL) of each
micro-batch, and N, and leaves Σ over ranks ∂(ΣNLL)/N in the gradients: the same whatever the number
of ranks and micro-batches, and before any clipping. It is never given a mean.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from vtool.config.readback import Observed
from vtool.engines.ranks import Ranks
from vtool.engines.spans import Span, null_span
from vtool.models.adapters import Adapter

B = TypeVar("B")


@dataclass(frozen=True, slots=True)
class Member:
    """A parameter that a live optimizer updates."""

    name: str
    """In files: transformers' own; of a matrix that is made of several, that of the first."""
    dimensions: int
    """Of the whole parameter, whatever of it is here."""
    dtype: torch.dtype
    """What it is updated in."""


@dataclass(frozen=True, slots=True)
class Group:
    """One of the groups of a live optimizer, as it is there."""

    optimizer: Any
    settings: Mapping[str, Any]
    members: tuple[Member, ...]


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
    """Those of them that are trained."""

    def forward_backward(
        self,
        batches: Sequence[B],
        nll: Callable[[Callable[..., Any], B], Tensor],
        supervised: int,
        *,
        every_parameter: bool,
        span: Span = null_span,
    ) -> list[float]:
        """Gradients of one global step.

        Args:
            batches: this rank's micro-batches, at least one.
            nll: given a callable model and a micro-batch, its summed NLL, a scalar.
            supervised: N, over all ranks and micro-batches.
            every_parameter: whether each trainable parameter takes part in each micro-batch of each
                rank. Where it is false, those that take part in none keep no gradient, and their
                weights and optimizer state stay as they are, to the byte.
            span: what the engine does is done inside `span("forward")` and `span("backward")`,
                which sums gradients over ranks too.

        Returns:
            The summed NLL of each micro-batch of this rank.
        """

    def clip_gradient(self, largest: float | None) -> float:
        """Scale the gradient down to a norm of `largest` (None:

        do not) and return its norm over all ranks before that.
        """

    def gradients(self) -> dict[str, Tensor]:
        """A copy of the gradients that there are, by names in files and whole;

        on rank 0, and asked for on every rank. For proofs.
        """

    def optimizer_step(self, lr: float) -> None:
        """Update the weights with this learning rate, and let the gradients go."""

    def autocast(self) -> AbstractContextManager[Any]:
        """The compute dtype, for a forward pass outside `forward_backward`."""

    def evaluating(self) -> AbstractContextManager[None]:
        """Evaluation mode.

        Meanwhile a rank may run `module` as often as it likes: no forward pass waits for a rank
        with other rows.
        """

    def iter_hf_weights(self, adapter: Adapter = "merged") -> Iterator[tuple[str, Tensor]]:
        """Parameters and persistent buffers by transformers' names, one whole tensor after the
        other, each once however many names it has.

        Each is gathered when it is asked for, on the engine's device and in the precision that it
        is trained in, and is given to every
        rank: all ranks go through all of it at the same time. It may be a weight itself: what is
            kept must be copied.

        Args:
            adapter: of a model with adapters, its weights with these merged in, its weights without
                them, or the adapters only, by peft's names. Of a model without, the first two are
                the same, and the last is nothing.
        """

    def model_state(self) -> dict[str, Tensor]:
        """What a checkpoint keeps of the model: all of it, or, where adapters are what is trained,
        these.

        Every rank asks at the same time. Rank 0 gets all of it; others may get nothing. An engine
        that has tensors whole gives them
        themselves, on its device: what is kept beyond the next step must be copied. One that
        gathers them does so into the CPU's memory.
        """

    def optimizer_state(self) -> dict[str, Tensor]:
        """The optimizer's state as `<parameter>.<entry>`;

        asked for and given as `model_state` is.
        """

    def load_state(self, model: Mapping[str, Tensor], optimizer: Mapping[str, Tensor]) -> None:
        """Take up what `model_state` and `optimizer_state` gave on rank 0, of this engine or of
        another; every rank is given all of it.
        """

    def observe(self, part: Callable[[str], str]) -> Iterator[Observed]:
        """What the live objects of the engine have of the settings `engine`, and of those of
        `model` and `lora` that they carry out.

        Every rank asks; nothing is computed, and nothing is said to another rank.

        Args:
            part: which of `model.freeze` a parameter or layer is of, by transformers' name.
        """

    def optimizer_groups(self) -> Iterator[Group]:
        """The groups of the live optimizers on this rank."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """This rank's parameters by their names in files;

        of a matrix that is made of several, by that of the first.
        """
