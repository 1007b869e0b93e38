"""Tokenization of many texts by one call of the tokenizer's library."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from vtool.words import first_line

_AT_ONCE = 2**19
"""Characters of texts that go to the library by one call: it returns much for each token."""
_ENCODING = ("__call__", "_encode_plus", "_call_one", "_batch_encode_plus")
_DECODING = ("decode", "_decode")


class TokenizerPanics(ValueError):
    """The library `tokenizers` gives up at a text."""


def tokenize(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """Return the token ids of texts, as `tokenizer(text, add_special_tokens=False)` gives them.

    The first text goes through transformers, which also sets what its library is to do. The others
    go to the library at once, where transformers would do the same: its class overrides nothing
    there, and the first text has the same ids both ways.
    """
    if not texts:
        return []
    first = _by_itself(tokenizer, texts[0])
    library = _library(tokenizer, _ENCODING)
    if len(texts) > 2 and library is not None and not (library.truncation or library.padding):
        ids: list[list[int]] = []
        for some in _pieces(texts):
            with _panics_raised():
                encoded = library.encode_batch_fast(some, add_special_tokens=False)
            ids += [one.ids for one in encoded]
            if ids[0] != first:
                break
        else:
            return ids
    return [first, *(_by_itself(tokenizer, text) for text in texts[1:])]


def texts_of_tokens(tokenizer: Any, ids: Sequence[Sequence[int]]) -> list[str]:
    """Return the texts of token ids, as `tokenizer.decode` gives them, with all special tokens."""
    if not ids:
        return []
    first = _decoded(tokenizer, ids[0])
    library = _library(tokenizer, _DECODING)
    if len(ids) > 2 and library is not None:
        texts: list[str] = library.decode_batch(list(ids), skip_special_tokens=False)
        if texts[0] == first:
            return texts
    return [first, *(_decoded(tokenizer, each) for each in ids[1:])]


def _pieces(texts: Sequence[str]) -> Iterator[list[str]]:
    """Yield texts in their order, so many at once as have few characters."""
    some: list[str] = []
    size = 0
    for text in texts:
        if some and size + len(text) > _AT_ONCE:
            yield some
            some, size = [], 0
        some.append(text)
        size += len(text)
    yield some


def _library(tokenizer: Any, methods: Sequence[str]) -> Any:
    """Return the tokenizer of the library `tokenizers`; None where a method is the model's own."""
    own = (PreTrainedTokenizerFast, PreTrainedTokenizerBase)
    for method in methods:
        used = getattr(type(tokenizer), method, None)
        if used not in [getattr(one, method, None) for one in own] or method in vars(tokenizer):
            return None
    return getattr(tokenizer, "backend_tokenizer", None)


def _by_itself(tokenizer: Any, text: str) -> list[int]:
    with _panics_raised():
        return list(tokenizer(text, add_special_tokens=False).input_ids)


@contextmanager
def _panics_raised() -> Iterator[None]:
    """Raise a panic of the library as an error, which it is: a pattern that never ends, say.

    Raises:
        TokenizerPanics: it does.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise TokenizerPanics(first_line(error)) from error


def _decoded(tokenizer: Any, ids: Sequence[int]) -> str:
    text: str = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return text
