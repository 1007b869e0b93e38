"""Tiny random folders of transformers' image-text-to-text types, saved by transformers itself.

Run beside torchvision, it writes those of types whose processors need that.
"""

import inspect
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers.models.auto import (
    feature_extraction_auto,
    image_processing_auto,
    processing_auto,
    video_processing_auto,
)

from tests.families.tiny_types import IDS, TOKENS, TYPES, Tiny
from vtool.families.any_facts import transformers_types

TEMPLATE = (
    "{%- for message in messages -%}<|im_start|>{{ message['role'] }}\n"
    "{%- if message['content'] is string -%}{{ message['content'] }}{%- else -%}"
    "{%- for part in message['content'] -%}"
    "{%- if part['type'] == 'image' -%}MARK{%- else -%}{{ part['text'] }}{%- endif -%}"
    "{%- endfor -%}{%- endif -%}<|im_end|>\n{% endfor -%}"
    "{%- if add_generation_prompt -%}<|im_start|>assistant\n{%- endif -%}"
)


def tokenizer(names: Mapping[str, str]) -> Any:
    """Return a tokenizer of bytes without merges."""
    vocabulary = dict(IDS)
    for byte in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocabulary[byte] = len(vocabulary)
    made = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(one, special=True, normalized=False) for one in TOKENS])
    named = {"image_token": "<image>", "video_token": "<video>", "audio_token": "<audio>"}
    named |= {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"}
    named |= {"boa_token": "<boa>", "eoa_token": "<eoa>"}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<|im_end|>",
        unk_token="<unk>",
        extra_special_tokens={**named, **names},
        model_max_length=100_000,
    )


def write_folder(kind: str, folder: Path) -> None:
    """Write a model with random weights and its processor, as `save_pretrained` does."""
    tiny = TYPES[kind]
    torch.manual_seed(0)
    model_class = getattr(transformers, transformers_types()[kind])
    config = model_class.config_class(**tiny.config)
    model = model_class(config).float()
    for name, weight in model.named_parameters():  # no norm of ones, no bias of zeros
        if "norm" in name or weight.std(correction=0) == 0 or not weight.isfinite().all():
            with torch.no_grad():
                kept = weight.nan_to_num(0).clamp(-1, 1)
                weight.copy_(kept + 0.05 * torch.randn_like(weight))
    model.generation_config.eos_token_id = IDS["<|im_end|>"]
    model.save_pretrained(folder)
    _processor(kind, tiny).save_pretrained(folder)


def _processor(kind: str, tiny: Tiny) -> Any:
    named = tiny.image_processor or image_processing_auto.IMAGE_PROCESSOR_MAPPING_NAMES[kind]
    images = _class_of(named, tiny.images)
    own = tiny.classes.get("processor") or processing_auto.PROCESSOR_MAPPING_NAMES[kind]
    make = getattr(transformers, own)
    given: dict[str, Any] = {}
    for name in inspect.signature(make.__init__).parameters:
        if name == "image_processor":
            given[name] = images
        elif name == "tokenizer":
            given[name] = tokenizer(tiny.names)
        elif name == "video_processor":
            videos = tiny.classes.get(name) or (
                video_processing_auto.VIDEO_PROCESSOR_MAPPING_NAMES.get(kind)
            )
            videos = videos.get("torchvision") if isinstance(videos, dict) else videos
            given[name] = getattr(transformers, videos)() if videos else None
        elif name == "feature_extractor":
            sound = feature_extraction_auto.FEATURE_EXTRACTOR_MAPPING_NAMES.get(kind)
            given[name] = getattr(transformers, sound)() if sound else None
    made = make(**given, **tiny.processor)
    made.chat_template = TEMPLATE.replace("MARK", tiny.mark)
    return made


def _class_of(named: Any, settings: Mapping[str, Any]) -> Any:
    if isinstance(named, dict):
        named = named.get("torchvision") or named["pil"]
    from vtool.models.backends import why_no_torchvision

    suffix = "Pil" if why_no_torchvision() else ""
    return getattr(transformers, f"{named}{suffix}")(**settings)


if __name__ == "__main__":
    base = Path(sys.argv[1])
    for one in sys.argv[2:]:
        write_folder(one, base / one)
        print(json.dumps({"type": one}), flush=True)
