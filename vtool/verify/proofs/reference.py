"""The same numbers by another way: one row at a time, by transformers' own forward pass, with
inputs that are made here.

Nothing of the loop, the batches, the loss or the engines is used, so that what is wrong in them is
not wrong here too.
"""

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from vtool.data.chat import IGNORED
from vtool.data.encode import Sample
from vtool.models.adapters import saved_name
from vtool.verify.proofs.context import ProofContext
from vtool.verify.proved import NotProvable

REPEATS = 1e-5
"""Of the logits' norm:

several threads may add in another order, and what is drawn at random is far above it.
"""


def gradient_and_logits(
    context: ProofContext, model: nn.Module
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """∂(ΣNLL)/N over all rows, by names in files;

    and [L, V] of each row by itself, by its place.
    """
    model.zero_grad(set_to_none=True)
    scores = {}
    for place, sample in enumerate(context.samples):
        scored = logits(context, model, sample)
        loss = nll(scored, sample.labels) / context.supervised
        if loss.requires_grad:
            loss.backward()  # type: ignore[no-untyped-call]
        scores[row_name(place)] = scored.detach()
    return {
        saved_name(name): parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }, scores


def must_repeat(context: ProofContext) -> None:
    """The same row twice, through the same model, as it is trained.

    Raises:
        NotProvable: where that gives two results. Then nothing can be told from what is drawn at
            random.
    """
    place, model = next(iter(context.with_images()), 0), context.model()
    with torch.no_grad():
        first, second = (logits(context, model, context.samples[place]) for _ in range(2))
    apart, size = float((first - second).double().norm()), float(first.double().norm())
    if apart > REPEATS * size:
        part = apart / size
        raise NotProvable(
            f"something in the model draws at random: the logits of {row_name(place)}, asked for"
            f" twice, are {part:.1g} of their norm apart"
        )


def loss(context: ProofContext, alone: Mapping[str, Tensor]) -> float:
    """ΣNLL/N over all rows, in float64, from the [L, V] logits of each row by itself."""
    return (
        sum(
            float(nll(alone[row_name(place)], sample.labels))
            for place, sample in enumerate(context.samples)
        )
        / context.supervised
    )


def all_logits(context: ProofContext, model: nn.Module) -> dict[str, Tensor]:
    """[L, V] of each row by itself, by its place."""
    with torch.no_grad():
        return {
            row_name(place): logits(context, model, sample)
            for place, sample in enumerate(context.samples)
        }


def row_name(place: int) -> str:
    """What a row is called in proofs."""
    return f"row {place + 1}"


def logits(context: ProofContext, model: Any, sample: Sample) -> Tensor:
    """[L, V] of one row, by itself: no mask, no padding, and positions that are made here."""
    result: Tensor = model(**inputs(context, sample), use_cache=False).logits[0]
    return result


def inputs(context: ProofContext, sample: Sample) -> dict[str, Tensor]:
    """The model's arguments for one row by itself."""
    ids = sample.input_ids[None]
    given = {
        "input_ids": ids,
        "mm_token_type_ids": (
            (ids == context.processor.ids.image).long() + 2 * (ids == context.processor.ids.video)
        ),
        "position_ids": (
            _counted(sample) if counts_images_as_text(context) else positions(context, sample)
        )[:, None],
    }
    given |= sample.visuals.tensors()
    return {
        name: tensor
        for name, tensor in given.items()
        if name not in context.run.data.drop_model_inputs
    }


def counts_images_as_text(context: ProofContext) -> bool:
    """Whether the recipe leaves out what tells an image's tokens from text.

    That is then what it computes; `positions-differ` says so.
    """
    dropped = context.run.data.drop_model_inputs
    return "mm_token_type_ids" in dropped and "image_grid_thw" not in dropped


def _counted(sample: Sample) -> Tensor:
    return torch.arange(len(sample.input_ids)).expand(3, -1)


def nll(scores: Tensor, labels: Tensor) -> Tensor:
    """Σ −log p(token t + 1 | tokens to t) over the supervised tokens:

    [L, V] and [L] to a float64 scalar.
    """
    places = [place for place in range(1, len(labels)) if labels[place] != IGNORED]
    chances = scores[[place - 1 for place in places]].double().log_softmax(-1)
    return (
        -chances[range(len(places)), labels[places]].sum() if places else scores.sum().double() * 0
    )


def positions(context: ProofContext, sample: Sample) -> Tensor:
    """int64 [3, L]: M-RoPE's position of each token in time, height and width (Qwen2-VL, arXiv
    2409.12191, section 2.1).

    Text counts on in all three at once. An image's tokens have the time at which it begins, and
    their row and column counted from there; the next token is one after the largest row or column.
    So do a video's, whose frames are later and later: by one, or by their seconds. Where the recipe
    leaves the grids out, there is no image, and all of it is text. Where it leaves out
    `mm_token_type_ids` alone, this is still M-RoPE's position, which the recipe's is not
    (`counts_images_as_text`).
    """
    if "image_grid_thw" in context.run.data.drop_model_inputs:
        return _counted(sample)
    merge, seconds = context.processor.image_processor.merge_size, sample.visuals.second_per_grid_ts
    grids = _runs(context, sample)
    config: Any = context.bare.config
    ticks = iter(
        [] if seconds is None else (seconds * config.vision_config.tokens_per_second).tolist()
    )
    ids, found, place, now = sample.input_ids.tolist(), [], 0, 0
    while place < len(ids):
        if ids[place] not in grids:
            found.append((now, now, now))
            place, now = place + 1, now + 1
            continue
        times, high, wide = next(grids[ids[place]])
        tick = next(ticks, 1.0) if ids[place] == context.processor.ids.video else 1.0
        high, wide = high // merge, wide // merge
        found += [
            (now + int(t * tick), now + y, now + x)
            for t in range(times)
            for y in range(high)
            for x in range(wide)
        ]
        place, now = place + times * high * wide, now + max(high, wide)
    return torch.tensor(found).T


def _runs(context: ProofContext, sample: Sample) -> dict[int, Iterator[list[int]]]:
    """Patches along time, height and width of each run of image tokens, and of video tokens."""
    images, videos = (
        [] if grid is None else grid.tolist()
        for grid in (sample.visuals.image_grid_thw, sample.visuals.video_grid_thw)
    )
    if context.family.facts.separate_frames:
        videos = [[1, high, wide] for times, high, wide in videos for _ in range(times)]
    return {context.processor.ids.image: iter(images), context.processor.ids.video: iter(videos)}


def labels_by_offsets(context: ProofContext, place: int) -> tuple[list[bool], str] | str:
    """Which tokens of a row are to be supervised, found another way: the chat is tokenized whole,
    and a token is supervised where its characters are between the prompt that the template writes
    for an answer and the end of the token that ends it.

    Returns:
        For each token, an image's counted once, whether it is; and their text. Or why it cannot be
        told.
    """
    row, tokenizer = context.rows[place], context.processor.tokenizer
    if row.videos and context.family.facts.separate_frames:
        return "the times of a video's frames stand in the text, which the template does not write"
    end = tokenizer.convert_ids_to_tokens(context.processor.ids.end)

    def write(turns: int, *, prompt: bool) -> str:
        text: str = tokenizer.apply_chat_template(
            list(row.messages[:turns]),
            tools=row.tools,
            tokenize=False,
            add_generation_prompt=prompt,
        )
        return text

    whole = write(len(row.messages), prompt=False)
    spans = []
    for turn, message in enumerate(row.messages):
        if message["role"] != "assistant" or message.get("weight") == 0:
            continue
        begin = len(write(turn, prompt=True))
        close = whole.find(end, begin)
        if close < 0:
            return f"the template does not end the answers with {end}"
        spans.append((begin, close + len(end)))
    try:
        encoded = tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True)
    except NotImplementedError:
        return "the tokenizer does not tell the characters of its tokens"
    inside = [
        any(begin <= first and last <= close for begin, close in spans) and last > first
        for first, last in encoded["offset_mapping"]
    ]
    return inside, "".join(whole[begin:close] for begin, close in spans)


def collapsed(context: ProofContext, sample: Sample) -> tuple[list[int], list[bool]]:
    """A sample's tokens, each image's and each video's as one, and whether they are supervised."""
    ids, keep, place = sample.input_ids.tolist(), [], 0
    merge = context.processor.image_processor.merge_size**2
    grids = _runs(context, sample)
    while place < len(ids):
        keep.append(place)
        place += prod(next(grids[ids[place]])) // merge if ids[place] in grids else 1
    return [ids[one] for one in keep], [bool(sample.labels[one] != IGNORED) for one in keep]
