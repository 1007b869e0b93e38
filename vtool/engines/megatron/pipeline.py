"""Pipeline parallelism: consecutive layers on each stage, and hidden states from stage to stage.

Training goes by megatron-core's own schedule, one forward and one backward pass in turn (1F1B). It
asks each stage for its part of a micro-batch; the loss is a function of a whole model's logits,
which only the last stage has. So on every other stage the call of the model inside that function
ends where the stage does, with `StageEnded`, and the function with it.

Outside training all stages are called with the same inputs at the same time, pass hidden states on,
and get the last one's logits.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from vtool.engines.ranks import Ranks
from vtool.engines.spans import Span, null_span

B = TypeVar("B")


class StageEnded(Exception):
    """Raised to end a stage's forward pass, where the stage is not the model's last."""

    def __init__(self, hidden: Tensor) -> None:
        super().__init__("this pipeline stage is not the last")
        self.hidden = hidden


@dataclass
class Stage:
    """This rank's place in its pipeline."""

    ranks: Ranks
    """The stages of one pipeline, in order."""
    scheduled: bool = False
    """True if megatron-core's schedule brings hidden states here and takes them away."""

    @property
    def first(self) -> bool:
        """True on the stage that has the embedding."""
        return self.ranks.rank == 0

    @property
    def last(self) -> bool:
        """True on the stage that has the head."""
        return self.ranks.rank == self.ranks.world - 1

    @contextmanager
    def under_schedule(self) -> Iterator[None]:
        """Compute under megatron-core's schedule, which moves the hidden states."""
        self.scheduled = True
        try:
            yield
        finally:
            self.scheduled = False

    def receive(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return the hidden states that the stage before this one has sent."""
        assert not torch.is_grad_enabled(), (
            "gradients go through the stages by megatron-core's schedule alone"
        )
        hidden = torch.empty(*shape, dtype=dtype, device=self.ranks.device)
        dist.recv(hidden, group=self.ranks.group, group_src=self.ranks.rank - 1)
        return hidden

    def send_on(self, hidden: Tensor) -> None:
        """End this stage's forward pass: send hidden states to the next stage.

        Raises:
            StageEnded: under the schedule, which sends them itself.
        """
        if self.scheduled:
            raise StageEnded(hidden.contiguous())
        assert not torch.is_grad_enabled(), (
            "gradients go through the stages by megatron-core's schedule alone"
        )
        dist.send(hidden.contiguous(), group=self.ranks.group, group_dst=self.ranks.rank + 1)

    def from_last(self, tensor: Tensor) -> Tensor:
        """Return the last stage's tensor on every stage.

        Args:
            tensor: on the other stages only its shape and dtype matter.
        """
        if self.ranks.world == 1 or self.scheduled:
            return tensor
        tensor = tensor.contiguous()
        dist.broadcast(tensor, group=self.ranks.group, group_src=self.ranks.world - 1)
        return tensor


def without_tokens(
    module: Any, _arguments: Any, inputs: Mapping[str, Any]
) -> tuple[tuple[()], dict[str, Any]]:
    """Replace the inputs of a model on a stage behind the first; a forward pre-hook.

    Positions in three dimensions are computed, and there is nothing to embed.
    """
    given = dict(inputs)
    ids = given.pop("input_ids")
    for name in ("pixel_values", "pixel_values_videos", "mm_encoder_outputs"):
        given.pop(name, None)
    rows, length = ids.shape
    size = module.config.get_text_config().hidden_size
    given["inputs_embeds"] = torch.zeros((), device=ids.device).expand(rows, length, size)
    # As the stage with the tokens does, which is transformers' own code.
    if given.get("position_ids") is None:
        names = (
            "image_grid_thw",
            "video_grid_thw",
            "mm_token_type_ids",
            "attention_mask",
            "past_key_values",
            "inputs_embeds",
        )
        seconds = (
            {"second_per_grid_ts": given["second_per_grid_ts"]}
            if given.get("second_per_grid_ts") is not None
            else {}
        )
        found = module.model.compute_3d_position_ids(
            input_ids=ids, **seconds, **{name: given.get(name) for name in names}
        )
        # Without images there are none, and transformers, which sees no tokens here, would take the
        # last row's with images.
        given["position_ids"] = (
            torch.arange(length, device=ids.device).expand(3, rows, length)
            if found is None
            else found
        )
    return (), given


def no_features(
    pixel_values: Tensor | None = None, image_grid_thw: Tensor | None = None, **_: Any
) -> None:
    """Return no image features, on a stage behind the first.

    `generate` goes by the names of these arguments.
    """


def no_video_features(
    pixel_values_videos: Tensor | None = None, video_grid_thw: Tensor | None = None, **_: Any
) -> None:
    """Return no video features, on a stage behind the first."""


class Timers:
    """Timers that megatron-core's schedule starts and stops around its passes, as spans.

    It asks for one by its name before each start and stop. Those of anything else do nothing.
    """

    SPANS: ClassVar = {"forward-compute": "forward", "backward-compute": "backward"}

    def __init__(self, span: Span) -> None:
        self._span = span
        self._name: str | None = None
        self._open: list[AbstractContextManager[Any]] = []

    def __call__(self, name: str, log_level: int | None = None) -> "Timers":
        self._name = self.SPANS.get(name)
        return self

    def start(self, barrier: bool = False) -> None:
        """Open the span of the name that was asked for."""
        if self._name:
            self._open.append(self._span(self._name))
            self._open[-1].__enter__()

    def stop(self) -> None:
        """Close the span that was opened last."""
        if self._name:
            self._open.pop().__exit__(None, None, None)


def run_schedule(
    stage: Stage,
    gpt: nn.Module,
    batches: Sequence[B],
    nll: Callable[[B], Tensor],
    factor: float,
    no_sync: Callable[[], Any] | None,
    span: Span = null_span,
) -> Tensor:
    """Run forward and backward passes of all micro-batches, in megatron-core's order.

    Args:
        gpt: this stage's `GPTModel`.
        nll: the summed NLL of a micro-batch, on the last stage; elsewhere it ends with
            `StageEnded`.
        factor: what a loss is multiplied by in front of its backward pass.
        no_sync: megatron-core's DDP's; None where nothing of the language model is trained.
        span: around each of the schedule's passes. Between them, hidden states and their gradients
            go from stage to stage.

    Returns:
        The NLLs, on every stage, in the CPU's memory.
    """
    from megatron.core.pipeline_parallel import get_forward_backward_func

    config: Any = gpt.config
    config.no_sync_func = no_sync
    config.timers = None if span is null_span else Timers(span)
    # With a number of tokens next to it, the schedule divides a loss by both of these, unless
    # calculate_per_token_loss says otherwise.
    factor = factor if config.calculate_per_token_loss else factor * len(batches)
    one = torch.ones((), dtype=torch.int)

    def forward(remaining: Iterator[B], _gpt: Any) -> tuple[Tensor, Any]:
        try:
            loss = nll(next(remaining))
        except StageEnded as ended:
            return ended.hidden, None
        return loss * factor, lambda scaled: (scaled, one, loss.detach())

    with stage.under_schedule():
        found = get_forward_backward_func()(
            forward_step_func=forward,
            data_iterator=iter(batches),
            model=gpt,
            num_microbatches=len(batches),
            # Not looked at: micro-batches differ in both, and each comes with its shape
            # (variable_seq_lengths).
            seq_length=config.tensor_model_parallel_size,
            micro_batch_size=1,
            forward_only=False,
        )
    sums = torch.stack(found).tolist() if stage.last else [0.0] * len(batches)
    return torch.tensor(stage.ranks.all_gather(sums)[-1], dtype=torch.float64)
