"""A tiny Qwen2.5-VL and its images, which have grids: two by two places each."""

from typing import Any

from tests.watch.runs.loop import IMAGE, Batch, Row

VIDEO = 9
"""No row has it."""


def config(text: dict[str, Any]) -> Any:
    """Return the config of a Qwen2.5-VL around a language model of these sizes."""
    from transformers import Qwen2_5_VLConfig

    seen = {"depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 64}
    seen |= {"out_hidden_size": text["hidden_size"], "fullatt_block_indexes": [0]}
    rope = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 1e4}
    return Qwen2_5_VLConfig(
        text_config={**text, "rope_parameters": rope},
        vision_config=seen,
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        tie_word_embeddings=False,
    )


def of_rows(taken: list[Row], ids: Any) -> Batch:
    """Return the inputs that a processor makes besides the ids of padded rows."""
    import torch

    draw = torch.Generator().manual_seed(sum(sum(row["input_ids"]) for row in taken))
    return {
        "pixel_values": torch.rand(16 * len(taken), 3 * 2 * 14 * 14, generator=draw),
        "image_grid_thw": torch.tensor([[1, 4, 4]] * len(taken)),
        "mm_token_type_ids": (ids == IMAGE).long(),
    }


def without_types(batch: Batch) -> Batch:
    """Leave out the inputs by which transformers finds images."""
    return {name: value for name, value in batch.items() if name != "mm_token_type_ids"}


def text_behind_moved(model: Any) -> None:
    """Have the model's own positions continue after an image as if it were longer."""
    index = model.model.get_rope_index

    def wrong(ids: Any, *args: Any, **kwargs: Any) -> Any:
        places, deltas = index(ids, *args, **kwargs)
        behind = (ids == IMAGE).cumsum(-1).eq(4) & (ids != IMAGE)
        return places + 3 * behind, deltas

    model.model.get_rope_index = wrong
