"""The reference that proofs compare with: one row at a time, by transformers' own forward pass.

Its inputs are made here. Nothing of the loop, the batches, the loss or the engines is used, so that
a mistake in them is not repeated here.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property
from math import hypot, prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from vtool.data.chat import IGNORED
from vtool.data.encode import Sample
from vtool.data.media import load_picture
from vtool.diagnostics import Diagnostic
from vtool.models.adapters import saved_name
from vtool.verification.not_provable import NotProvable, ProofNotMade
from vtool.verification.rounding import tolerances
from vtool.verification.unpack_base import unpack_base

if TYPE_CHECKING:
    from vtool.verification.context import ProofContext

_REPEATS = 1e-5
"""The largest difference of two equal forward passes, as a part of the logits' norm.

Threads may add in another order; what is drawn at random differs by far more.
"""
_NOT_ALONE = "the processor encodes an image otherwise where the chat shows more of them later"
LARGEST_ROUNDING = 0.1
"""The largest tolerance, as a part of the reference's norm, that still means something.

On digits it is 1e-5.
"""


class Reference:
    """Gradients and logits of a context's rows, computed when the first proof asks for them."""

    def __init__(self, context: "ProofContext") -> None:
        self._context = context

    @cached_property
    def _both(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return gradient_and_logits(self._context, unpack_base(self._context.model()))

    @property
    def gradient(self) -> dict[str, Tensor]:
        """∂(ΣNLL)/N of a step of all rows, by names in files."""
        return self._both[0]

    @property
    def logits(self) -> dict[str, Tensor]:
        """Logits [L, V] of each row by itself, by `row_name`."""
        return self._both[1]

    @cached_property
    def tolerances(self) -> dict[str, float]:
        """The difference that rounding makes, as a norm, for each gradient and each row's logits.

        Raises:
            ProofNotMade: where it is so large that nothing could be shown.
        """

        def compute(model: nn.Module) -> dict[str, Tensor]:
            gradient, logits = gradient_and_logits(self._context, model)
            return gradient | logits

        tokens, here = sum(self._context.lengths), self.gradient | self.logits
        model = unpack_base(self._context.model())
        allowed = tolerances(model, tokens, compute, here)
        for kind, tensors in (("gradient", self.gradient), ("logits", self.logits)):
            size = hypot(*(float(tensor.double().norm()) for tensor in tensors.values()))
            part = hypot(*(allowed[name] for name in tensors)) / (size or 1.0)
            if part > LARGEST_ROUNDING:
                raise ProofNotMade(
                    f"rounding alone counts for {part:.0%} of the {kind}'s norm: nothing could be"
                    " distinguished from it"
                )
        return allowed


def gradient_and_logits(
    context: "ProofContext", model: nn.Module
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return ∂(ΣNLL)/N over all rows, by names in files, and each row's logits [L, V]."""
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


def check_repeatable(context: "ProofContext") -> None:
    """Compute one row twice with the model that is trained.

    Raises:
        NotProvable: where the results differ, for then something is drawn at random.
    """
    place, model = next(iter(context.rows_with_images()), 0), context.model()
    with torch.no_grad():
        first, second = (logits(context, model, context.samples[place]) for _ in range(2))
    apart, size = float((first - second).double().norm()), float(first.double().norm())
    if apart > _REPEATS * size:
        message = (
            f"something in the model draws at random: the logits of {row_name(place)}, asked for"
            f" twice, are {apart / size:.1g} of their norm apart"
        )
        help = "draw nothing where the rates of dropout are 0 and the model is in evaluation mode"
        raise NotProvable(Diagnostic("model-class-does-not-fit", message, help))


def mean_loss(context: "ProofContext", logits_of_rows: Mapping[str, Tensor]) -> float:
    """Return ΣNLL/N over all rows, in float64, from the logits [L, V] of each row by itself."""
    losses = (
        float(nll(logits_of_rows[row_name(place)], sample.labels))
        for place, sample in enumerate(context.samples)
    )
    return sum(losses) / context.supervised


def row_logits(context: "ProofContext", model: nn.Module) -> dict[str, Tensor]:
    """Return the logits [L, V] of each row by itself, by `row_name`."""
    with torch.no_grad():
        return {
            row_name(place): logits(context, model, sample)
            for place, sample in enumerate(context.samples)
        }


def row_name(place: int) -> str:
    """Return the name of a row in findings."""
    return f"row {place + 1}"


def logits(context: "ProofContext", model: Any, sample: Sample) -> Tensor:
    """Return the logits [L, V] of one row by itself, without mask or padding."""
    result: Tensor = model(**model_inputs(context, sample), use_cache=False).logits[0]
    return result


def model_inputs(context: "ProofContext", sample: Sample) -> dict[str, Tensor]:
    """Return the model's arguments for one row by itself."""
    ids, tokens = sample.input_ids[None], context.processor.ids
    if (whole := context.processor.whole) is not None:  # the model counts its positions itself
        plain = torch.zeros_like(ids)
        types = {name: sample.visuals.tokens.get(name, plain[0]) for name in whole.token_inputs}
        return {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            **{name: one[None] for name, one in types.items()},
            **sample.visuals.inputs,
        }
    positions = (
        _text_positions(sample)
        if counts_images_as_text(context)
        else mrope_positions(context, sample)
    )
    given = {
        "input_ids": ids,
        "mm_token_type_ids": (ids == tokens.image).long() + 2 * (ids == tokens.video),
        "position_ids": positions[:, None],
        **sample.visuals.inputs,
    }
    dropped = context.run.data.drop_model_inputs
    return {name: tensor for name, tensor in given.items() if name not in dropped}


def counts_images_as_text(context: "ProofContext") -> bool:
    """Return whether the recipe drops what distinguishes an image's tokens from text.

    The recipe then computes with such positions; `positions-differ` says so.
    """
    dropped = context.run.data.drop_model_inputs
    return "mm_token_type_ids" in dropped and "image_grid_thw" not in dropped


def _text_positions(sample: Sample) -> Tensor:
    return torch.arange(len(sample.input_ids)).expand(3, -1)


def nll(scores: Tensor, labels: Tensor) -> Tensor:
    """Return Σ −log p(token t + 1 | tokens to t) over the supervised tokens, in float64.

    Args:
        scores: logits [L, V].
        labels: int64 [L], `IGNORED` where a token is not supervised.
    """
    places = [place for place in range(1, len(labels)) if labels[place] != IGNORED]
    if not places:
        return scores.sum().double() * 0
    chances = scores[[place - 1 for place in places]].double().log_softmax(-1)
    return -chances[range(len(places)), labels[places]].sum()


def mrope_positions(context: "ProofContext", sample: Sample) -> Tensor:
    """Return M-RoPE's position of each token in time, height and width, int64 [3, L].

    As Qwen2-VL (arXiv 2409.12191, section 2.1) defines them. Text counts on in all three at once.
    An image's tokens have the time at which it begins, and their row and column counted from there;
    the next token is one after the largest row or column. So do a video's, whose frames are later
    and later: by one, or by their seconds. Where the recipe drops the grids, there is no image, and
    all of it is text. Where it drops `mm_token_type_ids` alone, this is still M-RoPE's position,
    which the recipe's is not (`counts_images_as_text`).
    """
    if "image_grid_thw" in context.run.data.drop_model_inputs:
        return _text_positions(sample)
    merge, seconds = (
        context.processor.image_processor.merge_size,
        sample.visuals.inputs.get("second_per_grid_ts"),
    )
    grids = _patch_grids(context, sample)
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


def _patch_grids(context: "ProofContext", sample: Sample) -> dict[int, Iterator[list[int]]]:
    """Return the patches along time, height and width of each image and video, by its token."""
    images, videos = (
        [] if grid is None else grid.tolist()
        for grid in map(sample.visuals.inputs.get, ("image_grid_thw", "video_grid_thw"))
    )
    if context.family.facts.separate_frames:
        videos = [[1, high, wide] for times, high, wide in videos for _ in range(times)]
    return {context.processor.ids.image: iter(images), context.processor.ids.video: iter(videos)}


def find_answers_by_offsets(context: "ProofContext", place: int) -> tuple[list[bool], str] | str:
    """Find the tokens of a row that are to be supervised in its whole chat, tokenized at once.

    A token is supervised where its characters are between the prompt that the template writes for
    an answer and the end of the token that ends it.

    Returns:
        For each token, an image's counted once, whether it is supervised; and the answers' text. Or
        the reason why it cannot be found.
    """
    row, tokenizer = context.rows[place], context.tokenizer
    if row.videos and context.family.facts.separate_frames:
        return "the times of a video's frames stand in the text, which the template does not write"
    end = tokenizer.convert_ids_to_tokens(context.processor.ids.end)

    def write(turns: int, *, prompt: bool) -> str:
        return str(
            tokenizer.apply_chat_template(
                list(row.messages[:turns]),
                tools=row.tools,
                tokenize=False,
                add_generation_prompt=prompt,
            )
        )

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
        return "the tokenizer does not give the characters of its tokens"
    inside = [
        any(begin <= first and last <= close for begin, close in spans) and last > first
        for first, last in encoded["offset_mapping"]
    ]
    return inside, "".join(whole[begin:close] for begin, close in spans)


def find_answers_by_prompts(
    context: "ProofContext", place: int
) -> tuple[list[int], list[bool], str] | str:
    """Find the tokens of a row that are to be supervised by how many a server's prompts have.

    transformers' processor encodes the prompt before each answer, and the chat up to its end, as a
    server does: what is supervised lies between.

    Returns:
        The token ids of the whole chat, for each whether it is supervised, and the answers' text.
        Or the reason why it cannot be found.
    """
    row, processor = context.rows[place], context.processor
    assert processor.whole is not None, "only such a family is asked"
    pictures = [
        load_picture(row, one, "broken-image", "its image", processor.pictures)[0]
        for one in row.images
    ]
    end = context.tokenizer.convert_ids_to_tokens(processor.ids.end)

    def write(turns: int, *, prompt: bool) -> str:
        return str(
            context.tokenizer.apply_chat_template(
                list(row.messages[:turns]),
                tools=row.tools,
                tokenize=False,
                add_generation_prompt=prompt,
            )
        )

    def served(text: str, turns: int) -> list[int]:
        shown = sum(kind == "image" for kind in row.visuals(turns))
        assert processor.whole is not None
        return processor.whole.as_served(text, pictures[:shown])

    whole = write(len(row.messages), prompt=False)
    ids = served(whole, len(row.messages))
    inside, texts = [False] * len(ids), []
    for turn, message in enumerate(row.messages):
        if message["role"] != "assistant" or message.get("weight") == 0:
            continue
        prompt = write(turn, prompt=True)
        close = whole.find(end, len(prompt))
        if close < 0 or not whole.startswith(prompt):
            return f"the template does not end the answers with {end}"
        upto = whole[: close + len(end)]
        texts.append(upto[len(prompt) :])
        asked, last = served(prompt, turn), len(served(upto, turn))
        if ids[: len(asked)] != asked:
            return _NOT_ALONE
        inside[len(asked) : last] = [True] * (last - len(asked))
    return ids, inside, "".join(texts)


def collapse_visual_tokens(context: "ProofContext", sample: Sample) -> tuple[list[int], list[bool]]:
    """Return a sample's tokens, one for each image or video, and whether they are supervised."""
    ids, keep, place = sample.input_ids.tolist(), [], 0
    merge = context.processor.image_processor.merge_size**2
    grids = _patch_grids(context, sample)
    while place < len(ids):
        keep.append(place)
        place += prod(next(grids[ids[place]])) // merge if ids[place] in grids else 1
    return [ids[kept] for kept in keep], [bool(sample.labels[kept] != IGNORED) for kept in keep]
