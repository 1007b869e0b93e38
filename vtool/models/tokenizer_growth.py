"""The growth of a text by a tokenizer's own replacements, before it is cut into tokens."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

MOST = 64
"""Times that a text may grow. Published tokenizers replace a character by three at most."""


def text_growth(tokenizer: Any) -> int:
    """Return how many times longer a tokenizer of transformers makes a text, at most.

    Replacements that follow each other multiply: eight of `a` by sixteen `a` make 4 GiB of one
    character.
    """
    grown = 1
    library = getattr(tokenizer, "backend_tokenizer", None)
    for name in ("normalizer", "pre_tokenizer", "decoder"):
        part, of_part = getattr(library, name, None), 1
        for step in _steps(json.loads(part.__getstate__()) if part is not None else None):
            if step.get("type") == "Replace":
                content, pattern = step.get("content"), step.get("pattern")
                length = len(content) if isinstance(content, str) else 1
                text = pattern.get("String") if isinstance(pattern, dict) else None
                of_part *= max(1, -(-length // max(1, len(text or " "))))
            elif step.get("type") == "Prepend":  # a text may have one character
                of_part *= max(1, len(str(step.get("prepend"))))
        grown = max(grown, of_part)
    return grown


def _steps(part: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the steps of a part, those of sequences inside too."""
    if not isinstance(part, dict):
        return
    inside = [part.get(key) for key in ("normalizers", "pretokenizers", "decoders")]
    for steps in inside:
        for step in steps if isinstance(steps, list) else ():
            yield from _steps(step)
    if not any(inside):
        yield part
