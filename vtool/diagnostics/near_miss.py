"""Guesses of what was meant by an unknown word."""

import re
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher

_MOST_LETTERS = 0.7
"""A likeness below which words that share no part are others."""


def near(word: str, words: Iterable[str], limit: int = 3) -> list[str]:
    """Return the most similar words, the likeliest first, without those far behind it."""
    scored = sorted(
        ((_likeness(word.casefold(), other.casefold()), other) for other in words),
        key=lambda pair: (-pair[0], pair[1]),
    )
    best = scored[0][0] if scored else 0.0
    return [other for score, other in scored[:limit] if score >= max(0.6, best - 0.1)]


def likely_words(word: str, words: Iterable[str]) -> list[str]:
    """Return words as `near` does, of which each has most parts, or most letters, of `word`."""
    parts = set(_words(word))
    return [
        other
        for other in near(word, words)
        if 2 * len(parts.intersection(_words(other))) > len(parts)
        or other.casefold().startswith(word.casefold())
        or _likeness(word.casefold(), other.casefold()) >= _MOST_LETTERS
    ]


def ending(word: str, names: Iterable[str]) -> list[str]:
    """Return the dotted names that end in `word`: `data.micro_batch_size` for `batch_size`."""
    return [name for name in names if f"_{_leaf(name)}".endswith(f"_{word}")]


def containing(word: str, names: Iterable[str]) -> list[str]:
    """Return the dotted names whose last part has all words: `optim.warmup_ratio` for `warmup`."""
    return [name for name in names if set(_words(word)) <= set(_words(_leaf(name)))]


def same_words(word: str, names: Iterable[str]) -> list[str]:
    """Return the dotted names whose last part has the same words, or is short for it.

    `lr` is short for `learning_rate`.
    """
    parts = _words(word)
    return [
        name
        for name in names
        if (leaf := _words(_leaf(name))) == parts or _short_for("".join(leaf), parts)
    ]


def overlapping(word: str, names: Iterable[str], limit: int = 3) -> list[str]:
    """Return the dotted names that share the most words: `train.epochs` for `num_train_epochs`."""
    parts = set(_words(word))
    scored = []
    for name in names:
        leaf = set(_words(_leaf(name)))
        if leaf <= parts or len(leaf & parts) > 1:
            scored.append((len(parts & set(_words(name))), name))
    best = max((score for score, _ in scored), default=0)
    return [name for score, name in scored if score == best][:limit]


def did_you_mean(candidates: Sequence[str]) -> str | None:
    """Return a question for the user; None where there are no candidates."""
    return f"did you mean {one_of(candidates)}?" if candidates else None


def one_of(words: Iterable[object]) -> str:
    """Return words, of which there is at least one, as "`a`, `b` or `c`"."""
    *others, last = (f"`{word}`" for word in words)
    return f"{', '.join(others)} or {last}" if others else last


def _likeness(word: str, other: str) -> float:
    short, long = sorted((word, other), key=len)
    begins = 0.6 if len(short) > 1 and long.startswith(short) else 0.0
    return max(SequenceMatcher(None, word, other).ratio(), begins)


def _leaf(name: str) -> str:
    return name.rpartition(".")[2]


def _words(text: str) -> list[str]:
    return [
        word
        for word in re.split(r"[._\-\s]+", re.sub(r"([a-z])([A-Z])", r"\1_\2", text).casefold())
        if word
    ]


def _short_for(short: str, words: Sequence[str]) -> bool:
    return len(words) > 1 and short == "".join(word[0] for word in words)
