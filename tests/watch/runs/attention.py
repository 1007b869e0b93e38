"""Attention that is causal in some batches, and in others not."""

from collections.abc import Callable
from typing import Any

from tests.watch.runs.expected import Planted, error
from tests.watch.runs.loop import Batch, Row


def _masks_instead(make: Callable[[Any, Any], Any]) -> Callable[[Any], None]:
    """Have a model's backbone make its mask by another function: (mask of rows, positions).

    That returns where a position is seen, [rows, queries, keys], or None for the usual mask.
    """

    def built(model: Any) -> None:
        import sys

        import torch

        model = model.get_base_model() if hasattr(model, "peft_config") else model
        modeling: Any = sys.modules[type(model).__module__]
        usual = modeling.create_causal_mask

        def create(*args: Any, **given: Any) -> Any:
            embedded = given.get("inputs_embeds", given.get("input_embeds"))
            sees = make(given.get("attention_mask"), given.get("position_ids"))
            if sees is None:
                return usual(*args, **given)
            sees = sees[:, None].to(embedded.device)
            if given["config"]._attn_implementation == "sdpa":
                return sees
            least = torch.finfo(embedded.dtype).min
            return torch.zeros(sees.shape, dtype=embedded.dtype).masked_fill(~sees, least)

        modeling.create_causal_mask = create

    return built


def _padding_alone(mask: Any, positions: Any) -> Any:
    """Return the padding's mask, and nothing causal, where there is padding."""
    if mask is None or mask.dim() != 2 or bool(mask.all()):
        return None
    return mask.bool()[:, None, :].repeat(1, mask.shape[1], 1)


def _causal_where_full(mask: Any, positions: Any) -> Any:
    """Return a mask that is causal in rows without padding alone."""
    import torch

    seen = _padding_alone(mask, positions)
    if seen is None:
        return None
    full = mask.bool().all(1)[:, None, None]
    return seen & (torch.ones_like(seen).tril() | ~full)


def _next_seen_where_padded(mask: Any, positions: Any) -> Any:
    """Return a mask that is causal but for the next token, where there is padding."""
    import torch

    seen = _padding_alone(mask, positions)
    return None if seen is None else seen & torch.ones_like(seen).tril(1)


def _blocks(mask: Any, positions: Any) -> Any:
    """Return where two places are of one text of a packed row: each sees all of its own."""
    if positions is None or not bool((positions[:, 1:] == 0).any()):
        return None
    text = (positions == 0).cumsum(-1)
    return text[:, :, None] == text[:, None, :]


padding_alone = _masks_instead(_padding_alone)
causal_where_full = _masks_instead(_causal_where_full)
next_seen_where_padded = _masks_instead(_next_seen_where_padded)
blocks = _masks_instead(_blocks)


def blocks_seen_whole(batch: Batch) -> Batch:
    """Let each token of a packed row see all of its own text."""
    return batch | {"attention_mask": _blocks(None, batch["position_ids"])[:, None]}


def four_dimensions_where_padded(batch: Batch) -> Batch:
    """Give rows with padding a mask of four dimensions that is made of the padding alone."""
    import torch

    mask = batch["attention_mask"].bool()
    n = mask.shape[1]
    seen = mask[:, None, :].repeat(1, n, 1)
    full = mask.all(1)[:, None, None]
    return batch | {"attention_mask": (seen & (torch.ones(n, n).tril().bool() | ~full))[:, None]}


def first_step_of_one_length(rows: list[Row]) -> list[Row]:
    """Let the rows of the first step have one length: its batches have no padding."""
    width = min(len(row["input_ids"]) for row in rows[:4])

    def short(row: Row) -> Row:
        return {key: [*values[: width - 2], *values[-2:]] for key, values in row.items()}

    return [short(row) if at < 4 else row for at, row in enumerate(rows)]


PLANTED: dict[str, Planted] = {
    "causal where there is no padding": error("targets-seen", built=padding_alone),
    "causal where there is no padding, padded on the left": error(
        "targets-seen", built=padding_alone, padding="left"
    ),
    "causal where there is no padding, eager attention": error(
        "targets-seen", built=padding_alone, attention="eager"
    ),
    "causal where there is no padding, bfloat16 autocast": error(
        "targets-seen", built=padding_alone, autocast=True
    ),
    "causal where there is no padding, bfloat16 weights, eager attention": error(
        "targets-seen",
        built=padding_alone,
        attention="eager",
        dtype="bfloat16",
        lr=0.05,
    ),
    "causal where there is no padding, llama, padding in the second step": error(
        "targets-seen",
        family="llama",
        built=padding_alone,
        data=first_step_of_one_length,
    ),
    "causal where there is no padding, mixtral": error(
        "targets-seen", built=padding_alone, family="mixtral"
    ),
    "causal in rows without padding alone": error("targets-seen", built=causal_where_full, batch=3),
    "the next token seen where there is padding": error(
        "targets-seen", built=next_seen_where_padded
    ),
    "the next token seen where there is padding, bfloat16 autocast": error(
        "targets-seen", built=next_seen_where_padded, autocast=True
    ),
    "transformers' Trainer, causal where there is no padding": error(
        "targets-seen", trainer="hf", built=padding_alone
    ),
    "LoRA, causal where there is no padding": error(
        "targets-seen", adapters=True, built=padding_alone
    ),
    "packed, each text sees all of itself": error("targets-seen", packed=True, built=blocks),
    "packed, each text sees all of itself, bfloat16 autocast": error(
        "targets-seen", packed=True, built=blocks, autocast=True
    ),
    "packed, a mask of four dimensions that is not causal within texts": error(
        "targets-seen", packed=True, collated=blocks_seen_whole
    ),
    "a mask of four dimensions that is causal in rows without padding": error(
        "targets-seen",
        collated=four_dimensions_where_padded,
        data=first_step_of_one_length,
    ),
}
