"""A model's folder whose tokenizer does what Qwen's does, and the one that vtool trains on rows
does not.
"""

import json
from pathlib import Path

from vtool.config.load import load_run
from vtool.models.build import model_config
from vtool.models.processor import new_processor

# Of Qwen2's tokenizer.json.
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def qwen_like(folder: Path) -> Path:
    """Text is made NFC and cut as Qwen's, and two newlines are one token: an answer that begins
    with one is cut otherwise by itself than in its chat. Characters that were not seen are bytes.
    There are no weights.
    """
    run = load_run("digits").run
    processor = new_processor(
        run.model, run.data.image, ["system user assistant\nWhat is this? It is a cat."]
    )
    processor.save(folder)
    # one row more than this tokenizer has tokens: of the two newlines
    model_config(run.model, processor, len(processor.tokenizer) + 1).save_pretrained(folder)
    file = folder / "tokenizer.json"
    made = json.loads(file.read_text())
    made["normalizer"] = {"type": "NFC"}
    split = {"type": "Split", "pattern": {"Regex": _SPLIT}, "behavior": "Isolated", "invert": False}
    as_bytes = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": False,
    }
    made["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, as_bytes]}
    vocabulary = made["model"]["vocab"]
    vocabulary["ĊĊ"] = 1 + max(
        *vocabulary.values(), *(token["id"] for token in made["added_tokens"])
    )
    made["model"]["merges"].append(["Ċ", "Ċ"])
    file.write_text(json.dumps(made))
    return folder
