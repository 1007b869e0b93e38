"""The text of each token of a row: words keep their blanks, and what has no text has a mark."""

from collections.abc import Sequence
from typing import Any

_PART = "\ufffd"
"""Decoded from bytes that are no whole character."""
_MOST_BYTES = 4
"""The longest character in UTF-8: it may be as many tokens."""


def mark(token: int) -> str:
    """Return the mark of an id that has no text."""
    return f"⟨{token}⟩"


def token_texts(tokenizer: Any | None, ids: Sequence[int]) -> list[str]:
    """Return the text of each token as a part of the whole text.

    A character that several tokens make is the text of the first of them, and the others have
    none. Special tokens keep their names.

    Args:
        tokenizer: a `tokenizers.Tokenizer`; None: each token is its id and a blank.
        ids: a row, or a part of one.
    """
    if tokenizer is None:
        return [f"{token} " for token in ids]
    texts: list[str] = []
    context = 0  # where the tokens begin that show whether a word has a blank before it
    while len(texts) < len(ids):
        at = len(texts)
        before = _decode(tokenizer, ids[context:at])
        size, own = 1, _behind(tokenizer, ids[context : at + 1], before, ids[at])
        while own.endswith(_PART) and size < _MOST_BYTES and at + size < len(ids):
            size += 1
            own = _behind(tokenizer, ids[context : at + size], before, ids[at])
        if _PART in own:
            size, own = 1, ""
        texts += [own or mark(ids[at]), *[""] * (size - 1)]
        context = at
    return texts


def token_text(tokenizer: Any | None, token: int) -> str:
    """Return the text of a token by itself."""
    return token_texts(tokenizer, [token])[0]


def _decode(tokenizer: Any, ids: Sequence[int]) -> str:
    return str(tokenizer.decode(list(ids), skip_special_tokens=False)) if ids else ""


def _behind(tokenizer: Any, ids: Sequence[int], before: str, token: int) -> str:
    """Return the text that some tokens add to that before them."""
    whole = _decode(tokenizer, ids)
    if whole.startswith(before):
        return whole[len(before) :]
    return _decode(tokenizer, [token])  # a decoder that changes what is before a token, too
