"""Each text of a captured batch computed again by itself, and compared with the batch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from .kinds import batch_texts, text_numbers
from .learnt import PassRecord
from .model import FoundModel, has_dropout, holds_shards
from .places import convolves_in_tf32, multiplies_in_tf32, random_states_kept, to_float64
from .rows import Document, visual_owners, visuals_of_document

TEXTS, _DRAWS = 4, 2
_SMALL = 1 << 16
"""Elements of a buffer of which a copy is kept: larger ones are masks and tables."""


class NotComputedAlone(Exception):
    """Says why rows cannot be computed by themselves."""


def compare_alone(found: FoundModel, record: PassRecord) -> dict[str, Any]:
    """Compare rows in their batch with the same rows alone; return the fields of `alone`.

    Tolerance: what moving the output of every layer by one rounding of the arithmetic does, times
    the root of the longest sum in float32, whose terms are rounded one by one; times 2 in 16 bits,
    where sums are taken in float32 and rounded once. No weight is touched.

    Raises:
        NotRun: the batch, or the model as it is kept, does not allow it.
    """
    if not record.alone.get("inputs"):
        raise NotComputedAlone("nothing was kept of the micro-batch (VTOOL_WATCH_MIB)")
    inputs, hidden = record.alone["inputs"], record.alone["hidden"]
    if hidden is None:
        raise NotComputedAlone("its hidden states were not kept (VTOOL_WATCH_MIB)")
    _refuse(found, inputs)
    if tuple(inputs["input_ids"].shape) != tuple(hidden.shape[:-1]):
        raise NotComputedAlone(
            "the backbone gives hidden states of other places than those of the ids"
        )
    if isinstance(record.alone["given"].get("encoder_hidden_states"), Tensor):
        raise NotComputedAlone("the decoder is given what an encoder has made")
    ids = inputs["input_ids"]
    parted = {**inputs, "attention_mask": text_numbers(inputs.get("attention_mask"), ids)}
    texts = [_unpadded(found, ids, text) for text in batch_texts(parted, ids)]
    owners = visual_owners(parted, ids, texts, found.model.config)
    if owners is None:
        raise NotComputedAlone("images cannot be given to rows here")
    base = found.base
    was_training = base.training
    with state_kept(found, hidden.device), in_precision(hidden.device, record.autocast):
        heard: dict[str, Any] = {}
        with _positions_recorded(base, heard):
            alone, positions = [], []
            for number, text in enumerate(texts[:TEXTS]):
                heard.clear()
                alone.append(_run(base, record, owners, number, text))
                positions.append(heard.get("positions"))
        eps = coarsest(base, record.autocast, hidden.device)
        moved = 0.0
        for draw in range(_DRAWS):
            for one, text in zip(alone, texts[:1]):
                with shaken(base, eps, draw):
                    moved = max(moved, _apart(_run(base, record, owners, 0, text), one))
    low = eps > 1e-5
    longest = longest_product(base)
    compared: list[dict[str, Any]] = []
    for number, (text, one, own) in enumerate(zip(texts, alone, positions)):
        wide = 2.0 if low else math.sqrt(max(longest, len(text)))
        tolerance = max(moved, eps / 2) * wide
        columns = text.columns.to(hidden.device)
        batch = hidden[text.row, columns]
        size = to_float64(one).norm(dim=-1).clamp_min(1e-30)
        each = (to_float64(batch) - to_float64(one)).norm(dim=-1) / size
        beyond = (each > 10 * tolerance).nonzero()[:, 0].tolist()
        compared.append(
            {
                "row": text.row,
                "begin": text.begin,
                "tokens": len(text),
                "apart": _apart(batch, one),
                "tolerance": tolerance,
                "first_apart": beyond[0] if beyond else None,
                "positions_wrong": _wrong_positions(record.alone.get("positions"), own, text),
                "images": sum(owner.count(number) for owner in owners.values()),
            }
        )
    repeats = None
    if any(each["apart"] > each["tolerance"] for each in compared):
        with state_kept(found, hidden.device), in_precision(hidden.device, record.autocast):
            again = recomputed(base, record.alone["given"])
        repeats = again.shape == hidden.shape and all(
            _apart(hidden[text.row, at], again[text.row, at]) <= each["tolerance"]
            for text, each in zip(texts, compared)
            for at in [text.columns.to(hidden.device)]
        )
    ratios = [each["apart"] / each["tolerance"] for each in compared]
    return {
        "documents": compared,
        "worst_over_tolerance": max(ratios) if ratios else None,
        "precision": record.autocast or str(hidden.dtype),
        "dropout": was_training and has_dropout(base),
        "repeats": repeats,
    }


def targets_seen(record: PassRecord, true_hides: bool) -> dict[str, Any] | None:
    """Return at how many learnt places a mask of four dimensions has the next token, or padding.

    Numbers are what is added to scores: 0 where a position is seen. The mask of rows × positions
    that the model was given, if any, says what is padding.

    Args:
        true_hides: True in the mask hides a position (Megatron-core); elsewhere, it shows one.
    """
    mask = (record.alone.get("inputs") or {}).get("attention_mask")
    if record.at is None or not isinstance(mask, Tensor) or mask.dim() != 4:
        return None
    rows, length = record.shape[-2:]
    if mask.shape[-2:] != (length, length) or mask.shape[0] not in (1, rows):
        return None
    if mask.dtype == torch.bool:
        sees = ~mask[:, 0] if true_hides else mask[:, 0]
    elif mask.is_floating_point() and bool(mask.max() <= 0):
        sees = mask[:, 0] == 0
    else:
        return None  # 1 may mean that a position is seen
    at = record.at.to(mask.device)
    counts, own = {}, record.alone.get("row_mask")
    if isinstance(own, Tensor) and tuple(own.shape) == (rows, length):
        there = sees[(at // length).clamp_max(mask.shape[0] - 1), at % length]
        left_out = (own == 0).to(mask.device)
        counts["padding"] = int((there & left_out[at // length]).any(-1).sum())
        counts["learnt"] = len(at)
    at = at[at % length < length - 1]
    row = (at // length).clamp_max(mask.shape[0] - 1)
    seen = sees[row, at % length, at % length + 1]
    return {"tokens": len(at), "seen": int(seen.sum()), **counts}


def _unpadded(found: FoundModel, ids: Tensor, text: Document) -> Document:
    """Return a text without padding before it, which a mask of ones, or none, has not left out."""
    pads = [pad for pad in found.specials.get("pad", []) if pad not in found.ends]
    if not pads or text.places is not None:
        return text
    own = ids[text.row, text.begin : text.end].tolist()
    first = next((at for at, token in enumerate(own) if token not in pads), 0)
    if first < 2 or len(own) - first < 2:  # one may begin every text
        return text
    return Document(text.row, text.begin + first, text.end)


def _refuse(found: FoundModel, inputs: dict[str, Any]) -> None:
    if not isinstance(inputs.get("input_ids"), Tensor):
        raise NotComputedAlone("the model is not given ids")
    if inputs.get("embeddings_given") and any(name.startswith("pixel") for name in inputs):
        raise NotComputedAlone("the backbone is given embeddings with images in them")
    if inputs.get("embeddings_given") and _outside_embeddings(found, inputs["input_ids"]):
        raise NotComputedAlone(
            "ids that the embeddings do not have: what is made of them is not known"
        )
    mask = inputs.get("attention_mask")
    if isinstance(mask, Tensor) and mask.dim() > 2:
        if _looks_ahead(mask):
            raise NotComputedAlone("the mask lets tokens see what follows them")
        ids, counted = inputs["input_ids"], text_numbers(mask, inputs["input_ids"])
        if counted is None:
            raise NotComputedAlone("the mask of four dimensions does not show where a text begins")
        alike = (ids[:, :1] == ids[:, 1:2]) & (counted[:, :1] > 0)
        if not found.specials.get("pad") and bool(alike.any()):
            raise NotComputedAlone("rows may begin with padding, and no padding token is known")
    if holds_shards(found.base):
        raise NotComputedAlone("the weights are sharded: a forward pass would be a collective")
    if found.layout is None and _depends_on_length(found, inputs["input_ids"].shape[-1]):
        raise NotComputedAlone("the rotary embedding is another one for a batch as long as this")
    for name in ("inputs_embeds", "encoder_outputs", "decoder_input_ids", "input_features", "bbox"):
        if isinstance(inputs.get(name), Tensor) and not inputs.get("embeddings_given"):
            raise NotComputedAlone(f"the model is given {name}")


def _outside_embeddings(found: FoundModel, ids: Tensor) -> bool:
    """Return whether ids, of which the backbone was given embeddings, cannot be looked up.

    Such as −200 for an image: on a GPU, to look one up ends the process.
    """
    weight = getattr(found.model.get_input_embeddings(), "weight", None)
    rows = weight.shape[0] if isinstance(weight, Tensor) else None
    return rows is not None and bool(((ids < 0) | (ids >= rows)).any())


def _looks_ahead(mask: Tensor) -> bool:
    """Return whether a mask of rows × heads × queries × keys is more than causal."""
    sees = mask if mask.dtype == torch.bool else mask == 0
    return sees.shape[-1] == sees.shape[-2] and bool(sees.triu(1).any())


def _depends_on_length(found: FoundModel, length: int) -> bool:
    """Return whether a row's rotary embedding depends on the longest row of its batch."""
    for module in found.base.modules():
        kind = getattr(module, "rope_type", None)
        kinds = set(kind.values()) if isinstance(kind, dict) else {kind}
        if kinds & {"dynamic", "longrope"}:
            config = getattr(module, "config", None)
            given = getattr(config, "rope_parameters", None) or {}
            usual: Any = given.get("original_max_position_embeddings")
            usual = usual or getattr(config, "original_max_position_embeddings", None)
            if length > int(usual or getattr(module, "original_max_seq_len", 0)):
                return True
    return False


def _run(
    base: Any, record: PassRecord, owners: dict[str, list[int]], number: int, text: Document
) -> Tensor:
    inputs = record.alone["inputs"]
    columns = text.columns.to(inputs["input_ids"].device)
    given = {"input_ids": inputs["input_ids"][text.row, columns][None], "use_cache": False}
    given |= _switches(record.alone["given"])
    given.update(visuals_of_document(inputs, owners, number))
    names = ["mm_token_type_ids", "token_type_ids"]
    if isinstance(inputs.get("labels"), Tensor):  # of PaliGemma: its backbone makes the mask
        names.append("labels")
        given["attention_mask"] = torch.ones_like(given["input_ids"])
    for name in names:
        if isinstance(inputs.get(name), Tensor) and inputs[name].shape == inputs["input_ids"].shape:
            given[name] = inputs[name][text.row, columns][None]
    seconds, videos = inputs.get("second_per_grid_ts"), owners.get("pixel_values_videos", [])
    if isinstance(seconds, Tensor) and number in videos and len(seconds) == len(videos):
        given["second_per_grid_ts"] = seconds[[k for k, n in enumerate(videos) if n == number]]
    return hidden_of(base(**given))[0]


def _switches(given: dict[str, Any]) -> dict[str, bool]:
    """Return the arguments that turn parts of a backbone on or off, such as BLIP's `is_decoder`."""
    return {
        name: value
        for name, value in given.items()
        if isinstance(value, bool) and not name.startswith(("use_", "return_", "output_"))
    }


def recomputed(base: Any, given: dict[str, Any]) -> Tensor:
    """Return the hidden states of the whole batch, computed once more as it was."""
    try:
        return hidden_of(base(**given))
    except Exception as error:
        raise NotComputedAlone(
            f"the batch could not be computed once more: {error!r}"[:200]
        ) from error


def hidden_of(out: Any) -> Tensor:
    """Return the last hidden states of what a backbone returns."""
    hidden: Tensor = out.last_hidden_state if hasattr(out, "last_hidden_state") else out[0]
    return hidden.detach()


@contextmanager
def shaken(base: Any, eps: float, draw: int) -> Iterator[None]:
    """Move each layer's output by one rounding, in a direction that is drawn."""
    generators: dict[torch.device, torch.Generator] = {}

    def shake(module: Any, args: Any, output: Any) -> Any:
        if not isinstance(output, Tensor) or not output.is_floating_point():
            return None
        generator = generators.get(output.device)
        if generator is None:
            generator = torch.Generator(output.device).manual_seed(draw + 1)
            generators[output.device] = generator
        sign = torch.randint(
            0, 2, output.shape, generator=generator, device=output.device, dtype=torch.int8
        )
        return output * (1 + (2 * sign - 1).to(output.dtype) * eps)

    leaves = [m for m in base.modules() if next(m.parameters(recurse=False), None) is not None]
    handles = [m.register_forward_hook(shake) for m in leaves]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def state_kept(found: FoundModel, device: torch.device) -> Iterator[None]:
    """Restore what a forward pass of ours could change: modes, buffers, random states, gradients.

    Some rotary embeddings store how long the longest batch was.
    """
    kept = [
        (
            m,
            dict(vars(m)),
            {
                name: (b, b.clone() if b is not None and b.numel() <= _SMALL else None)
                for name, b in m._buffers.items()
            },
        )
        for m in found.model.modules()
    ]
    devices = {device, *(p.device for p in found.model.parameters())}
    with random_states_kept(devices), torch.no_grad():
        try:
            for module, _, _ in kept:
                module.training = False
            yield
        finally:
            for module, values, buffers in kept:
                vars(module).update(values)
                for name, (buffer, copy) in buffers.items():
                    module._buffers[name] = buffer
                    if copy is not None and not torch.equal(buffer, copy):
                        buffer.copy_(copy)


@contextmanager
def in_precision(device: torch.device, autocast: str | None) -> Iterator[None]:
    """Compute as a pass did: with its autocast, or with none."""
    kind = device.type
    if autocast is None:
        with torch.autocast(kind, enabled=False):
            yield
    else:
        dtype = getattr(torch, autocast.rsplit(".", maxsplit=1)[-1])
        with torch.autocast(kind, dtype=dtype, cache_enabled=False):
            yield


@contextmanager
def _positions_recorded(base: Any, into: dict[str, Any]) -> Iterator[None]:
    """Record the positions that the text's rotary embedding is called with."""

    def hook(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        given = kwargs.get("position_ids", args[1] if len(args) > 1 else None)
        if isinstance(given, Tensor):
            into["positions"] = given.detach()

    handles = [
        m.register_forward_pre_hook(hook, with_kwargs=True)
        for n, m in base.named_modules()
        if type(m).__name__.endswith("RotaryEmbedding")
        and "vis" not in n
        and "Vision" not in type(m).__name__
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _wrong_positions(batch: Any, own: Any, text: Document) -> int | None:
    """Return at how many places positions differ, up to a constant: None if they are unknown."""
    if not isinstance(batch, Tensor) or not isinstance(own, Tensor):
        return None
    if batch.dim() < 2 or own.dim() != batch.dim() or own.shape[-1] != len(text):
        return None
    batch, own = batch.cpu(), own.cpu()
    if batch.shape[-1] < text.end:
        return None
    mine = batch[..., min(text.row, batch.shape[-2] - 1), :][..., text.columns]
    apart = (mine - own[..., 0, :]).reshape(-1, len(text))
    return int((apart != apart[:, :1]).any(0).sum() + (apart[:, 0] != apart[0, 0]).any())


def longest_product(base: Any) -> int:
    """Return the terms of the longest sum of a model's products."""
    return max((p.shape[-1] for p in base.parameters() if p.dim() > 1), default=1)


def _apart(one: Tensor, other: Tensor) -> float:
    size = to_float64(other).norm().clamp_min(1e-30)
    return float((to_float64(one) - to_float64(other)).norm() / size)


def coarsest(base: Any, autocast: str | None, device: torch.device) -> float:
    """Return the distance between numbers about 1 in the coarsest arithmetic that may be used.

    Of two shapes, one may be multiplied in TF32 and the other not.
    """
    kept = next(p for p in base.parameters() if p.is_floating_point()).dtype
    used = getattr(torch, autocast.rsplit(".", maxsplit=1)[-1]) if autocast else kept
    if used == torch.float32 and _is_in_tf32(base, device):
        return 2.0**-10
    return max(float(torch.finfo(used).eps), 2.0**-23)  # in float64, norms are in float32 too


def _is_in_tf32(base: Any, device: torch.device) -> bool:
    if multiplies_in_tf32(device):
        return True
    convolution: Any = torch.nn.modules.conv._ConvNd
    return convolves_in_tf32(device) and any(isinstance(m, convolution) for m in base.modules())
