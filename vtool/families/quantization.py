"""Read from a model's config.json whether its weights are quantized already. Torch-free."""

from typing import Any

QUANTIZED_HELP = (
    "train from the weights that it was made of (lora.base_dtype=nf4 quantizes a base here); if its"
    " files hold plain weights, take quantization_config out of config.json"
)


def quantized_already(config: Any) -> str | None:
    """Return the note of a config.json on how its weights are quantized; None: it has none.

    transformers makes other modules for such a folder, whose weights cannot be trained.
    """
    parts = (config, config.get("text_config")) if isinstance(config, dict) else ()
    for part in parts:
        given = part.get("quantization_config") if isinstance(part, dict) else None
        if given:
            method = given.get("quant_method", "not named") if isinstance(given, dict) else given
            return f"quantized already: its config.json has a quantization_config ({method})"
    return None
