"""The sizes of models with random weights. Torch-free, so that checks can read it."""

# Widths are numbers of features. The text's head_dim (hidden / heads) is 32: the smallest that
# vLLM's CPU attention serves.
_TINY = {
    "hidden": 128,
    "intermediate": 256,
    "layers": 2,
    "heads": 4,
    "kv_heads": 2,
    "positions": 2048,
    "vision_depth": 4,
    "vision_hidden": 128,
    "vision_intermediate": 256,
    "vision_heads": 4,
}
# Where a tower learns a vector for each place of an image, their number, a square; the grid is
# stretched over an image of another size.
_WITH_POSITIONS = {**_TINY, "vision_positions": 16}
SIZES: dict[str, dict[str, dict[str, int]]] = {
    "qwen2_vl": {"tiny": _TINY},
    "qwen2_5_vl": {"tiny": _TINY},
    # What a tower's level adds after the last layer is seen by no other token: one layer more than
    # there are levels.
    "qwen3_vl": {"tiny": {**_WITH_POSITIONS, "layers": 3}},
    "qwen3_5": {"tiny": {**_WITH_POSITIONS, "linear_heads": 4}},
    "glm4v": {"tiny": _WITH_POSITIONS},
}
