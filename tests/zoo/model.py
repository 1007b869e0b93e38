"""The forward pass: the dummy visual forward, masks, positions, and documents that share a row."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo.defect import Defect
from tests.zoo.looks import Proved
from vtool.models.spans import Spans

QWEN3 = ("model=qwen3_vl_tiny",)
PACKED = ("data.packing=token_budget", "data.micro_batch_tokens=256")
MODEL = "transformers.models.qwen2_5_vl.modeling_qwen2_5_vl:Qwen2_5_VLModel"
SDPA = "torch.nn.functional:scaled_dot_product_attention"
DUMMY, IN_PLACE = Proved("dummy-not-neutral"), Proved("embeddings-written-in-place")
LEAK, PADDING, POSITIONS = (
    Proved("documents-see-each-other", PACKED),
    Proved("padding-changes-row"),
    Proved("positions-differ"),
)
PACKING, EAGER = Proved("gradient-depends-on-packing", PACKED), Proved("attention-differs")


def adds_in_place(real: Any) -> Any:
    """In the model's own file: what is added to the embeddings is written into them."""

    def get_placeholder_mask(
        self: nn.Module, input_ids: Any, inputs_embeds: Tensor, *given: Any, **more: Any
    ) -> Any:
        inputs_embeds += 0.0 * inputs_embeds.mean()
        return real(self, input_ids, inputs_embeds, *given, **more)

    return get_placeholder_mask


def before_the_projector(_: Any) -> Any:
    """The first thing in the output is summed, and it is not what the language model is given."""
    return lambda self, output: iter([output.last_hidden_state])


def first_level(_: Any) -> Any:
    return lambda self, output: iter(output.pooler_output)


def no_tower(_: Any) -> Any:
    return lambda family, model, device, _index: torch.zeros((), device=device)


def times_zero(_: Any) -> Any:
    def dummy_visual(family: Any, model: Any, device: torch.device, _index: Any) -> Tensor:
        pixels, grid = family.smallest_image(model, device).values()
        output = model.model.get_image_features(pixels, grid, return_dict=True)
        return torch.stack([0.0 * term.mean() for term in family.features(output)]).sum()

    return dummy_visual


def width_of_another(_: Any) -> Any:
    """3 channels × 2 frames × 14 × 14 pixels, whatever the tower's own patches are."""
    return lambda self, model, device: {
        "pixel_values": torch.zeros(4, 1176, device=device),
        "image_grid_thw": torch.tensor([[1, 2, 2]], device=device),
    }


def ones(_: Any) -> Any:
    return lambda keep: torch.ones_like(keep, dtype=torch.long)


def inverted(real: Any) -> Any:
    """A mask in which True was to be masked, given to one who takes True for kept."""

    def attention(query: Any, key: Any, value: Any, attn_mask: Any = None, **more: Any) -> Any:
        mask = ~attn_mask if attn_mask is not None and attn_mask.dtype == torch.bool else attn_mask
        return real(query, key, value, attn_mask=mask, **more)

    return attention


def without_types(real: Any) -> Any:
    return lambda inputs, drop: real(inputs, [*drop, "mm_token_type_ids"])


def first_image_alone(real: Any) -> Any:
    """The first image of a row has its own positions, and the others those of text."""

    def get_rope_index(
        self: Any,
        input_ids: Tensor,
        mm_token_type_ids: Tensor,
        image_grid_thw: Any = None,
        **more: Any,
    ) -> Any:
        types, grids, image = mm_token_type_ids.clone(), [], 0
        for row in types:
            starts = ((row == 1) & (row.roll(1) != 1)).nonzero().flatten().tolist()
            grids += [image_grid_thw[image]] if starts else []
            image += len(starts)
            if len(starts) > 1:
                row[starts[1] :] = 0
        given = torch.stack(grids) if grids else None
        return real(self, input_ids, mm_token_type_ids=types, image_grid_thw=given, **more)

    return get_rope_index


def carried_on(real: Any) -> Any:
    """Each row of a batch begins at the position where the one before it ends."""

    def get_rope_index(self: Any, *given: Any, **more: Any) -> Any:
        positions, deltas = real(self, *given, **more)
        for row in range(1, positions.shape[1]):
            positions[:, row] += positions[:, row - 1].max() + 1
        return positions, deltas

    return get_rope_index


def one_dimension(_: Any) -> Any:
    """A range for each document, its images' tokens like any other."""

    def with_positions(batch: Any, model: Any) -> Any:
        if batch.documents is None:
            return batch
        ranges = torch.cat([torch.arange(length) for length in batch.documents.lengths])
        return replace(batch, inputs={**batch.inputs, "position_ids": ranges.expand(3, 1, -1)})

    return with_positions


def whole_row(real: Any) -> Any:
    """A mask comes along, and the documents are not looked at."""

    def attention(
        module: Any,
        query: Any,
        key: Any,
        value: Any,
        mask: Any,
        *,
        documents: Any = None,
        **more: Any,
    ) -> Any:
        return real(
            module,
            query,
            key,
            value,
            mask,
            documents=None if documents is None else Spans.of((documents.tokens,)),
            **more,
        )

    return attention


def one_too_far(real: Any) -> Any:
    """The ends of documents are one token late."""

    def attention(
        module: Any,
        query: Any,
        key: Any,
        value: Any,
        mask: Any,
        *,
        documents: Any = None,
        **more: Any,
    ) -> Any:
        if documents is not None and len(documents.lengths) > 1:
            first, *between, last = documents.lengths
            documents = Spans.of((first + 1, *between, last - 1))
        return real(module, query, key, value, mask, documents=documents, **more)

    return attention


def whole_batch(real: Any) -> Any:
    """The tower is given one span: all images of a batch."""

    def tower_attention(module: Any, query: Any, key: Any, value: Any, **more: Any) -> Any:
        whole = Spans.of((query.shape[2],))
        given = {**more, "cu_seq_lens_q": whole.ends, "spans": (whole,)}
        return real(module, query, key, value, **given)

    return tower_attention


def sees_the_future(real: Any) -> Any:
    return lambda *given, is_causal=False, **more: real(*given, is_causal=False, **more)


DEFECTS = (
    Defect(
        "embeddings-added-in-place",
        "verl#5881",
        "The dummy's term is added in place: autograd may need what was there.",
        "embeddings-written-in-place",
        IN_PLACE,
        f"{MODEL}.get_placeholder_mask",
        adds_in_place,
        mentions="add_",
    ),
    Defect(
        "tower-left-out",
        "trl#6617",
        "On text alone the tower takes no part: other ranks wait for its gradients.",
        "dummy-not-neutral",
        DUMMY,
        "vtool.models.dummy_visual:dummy_visual_term",
        no_tower,
        mentions="gets no gradient",
    ),
    Defect(
        "output-not-unpacked",
        "verl#5881",
        "The dummy sums what the tower has before its projector, which is left without a gradient.",
        "dummy-not-neutral",
        DUMMY,
        "vtool.families.family:Family.features",
        before_the_projector,
        mentions="merger",
    ),
    Defect(
        "deepstack-left-out",
        "EasyR1#530",
        "The dummy leaves the features of deepstack out: their projectors have no gradient.",
        "dummy-not-neutral",
        Proved("dummy-not-neutral", QWEN3),
        "vtool.families.qwen3_vl.model:Qwen3VL.features",
        first_level,
        mentions="deepstack",
    ),
    Defect(
        "nan-times-zero",
        "verl#5881",
        "0 · NaN is NaN: where the tower overflows on zeros, the loss of text alone is lost.",
        "dummy-not-neutral",
        DUMMY,
        "vtool.models.dummy_visual:dummy_visual_term",
        times_zero,
        mentions="gives NaN",
    ),
    Defect(
        "patch-width-in-the-code",
        "verl#5881",
        "The dummy's patches are as wide as those of another family's tower.",
        "dummy-not-neutral",
        Proved("dummy-not-neutral", QWEN3),
        "vtool.families.family:Family.smallest_image",
        width_of_another,
    ),
    Defect(
        "mask-of-ones",
        "Automodel#3704",
        "Padding on the left is not found, and the mask is all ones: tokens look at padding.",
        "padding-changes-row",
        PADDING,
        "vtool.data.collate:to_hf_2d",
        ones,
    ),
    Defect(
        "mask-inverted",
        "transformers#38094",
        "A mask in which True is masked meets one who takes True for kept.",
        "padding-changes-row",
        PADDING,
        SDPA,
        inverted,
    ),
    Defect(
        "future-seen",
        "transformers#48769",
        "With sdpa nothing says that attention is causal: tokens see what they are to predict.",
        "attention-differs",
        EAGER,
        SDPA,
        sees_the_future,
    ),
    Defect(
        "token-types-dropped",
        "LightX2V#1416",
        "mm_token_type_ids is dropped: images silently get the positions of text.",
        "positions-differ",
        POSITIONS,
        "vtool.data.collate:_without",
        without_types,
    ),
    Defect(
        "later-images-flat",
        "mlx-vlm#1282",
        "Every image of a row but the first gets the positions of text.",
        "positions-differ",
        POSITIONS,
        f"{MODEL}.get_rope_index",
        first_image_alone,
    ),
    Defect(
        "positions-carried-on",
        "nanoVLM#201",
        "Positions run on from one sample into the next.",
        "positions-differ",
        POSITIONS,
        f"{MODEL}.get_rope_index",
        carried_on,
        mentions="padded",
    ),
    Defect(
        "positions-of-one-dimension",
        "Automodel#2172",
        "Packed rows get a range for each document, instead of M-RoPE's positions.",
        "gradient-depends-on-packing",
        PACKING,
        "vtool.training.step:with_positions",
        one_dimension,
    ),
    Defect(
        "documents-not-told-apart",
        "axolotl#3796",
        "Packed documents attend to those before them in the row.",
        "documents-see-each-other",
        LEAK,
        "vtool.models.attention:attention",
        whole_row,
        mentions="packed",
    ),
    Defect(
        "document-ends-shifted",
        "axolotl#1375",
        "The lengths of packed documents are wrong by one.",
        "documents-see-each-other",
        LEAK,
        "vtool.models.attention:attention",
        one_too_far,
        mentions="packed",
    ),
    Defect(
        "images-not-told-apart",
        "sglang#9426",
        "The tower's attention has no ends of images: each patch sees those of all images.",
        "documents-see-each-other",
        LEAK,
        "vtool.models.attention:tower_attention",
        whole_batch,
        mentions="padded",
    ),
    Defect(
        "documents-in-the-gradient",
        "transformers#46634",
        "A mask of ones turns the detection of packing off; the loss still falls.",
        "gradient-depends-on-packing",
        PACKING,
        "vtool.models.attention:attention",
        whole_row,
    ),
)
