"""Rules about sources of rows that are mixed, and about rows that are held back."""

from collections.abc import Iterator, Sequence
from fractions import Fraction

from vtool.config.origins import Origins
from vtool.config.rules.data import given_in, rows_key
from vtool.config.rules.rule import settings_rule
from vtool.config.schema import Run, Source
from vtool.diagnostics import Diagnostic, Rule

_HOW_THEY_ARE_READ = ("format", "image_folder", "ignore", "texts")
"""Settings of an entry that do not say which rows of its file it has."""


@settings_rule(
    Rule(
        name="split-conflict",
        code="VT233",
        summary="data.split cannot hold back what it says, or says it beside other rows.",
        why=(
            "It would not be known which rows a score is of, or there would be none left to train"
            " on."
        ),
        bad="data.validation=[] data.test=[] data.split.validation=0.5 data.split.test=0.5",
        good=(
            "'data.train=[{format: messages, path: rows/train.jsonl}]' data.validation=[]"
            " data.test=[] data.split.validation=0.05 data.split.test=0.05"
        ),
        fix=(
            "Give data.validation or data.split.validation, and data.test or data.split.test, not"
            " both; fractions together are below 1."
        ),
    ),
)
def split_conflict(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that data.split leaves rows to train on, and holds back no split that has its own."""
    shares = run.data.split.shares
    if shares and sum(Fraction(str(share)) for share in shares.values()) >= 1:
        listed = " and ".join(f"data.split.{split}={share:g}" for split, share in shares.items())
        yield _split(origins, "data.split", f"{listed} leave no rows to train on", "lower them")
    for split, share in shares.items():
        if run.data.splits[split]:
            name = f"data.split.{split}"
            message = f"{name} is {share:g}, but data.{split} has rows of its own"
            help = f"set data.{split}=[] to hold rows back, or leave {name} out"
            yield _split(origins, name, message, help)
    if run.data.split.group is not None and shares:
        for number, entry in enumerate(run.data.train):
            if not entry.has_keys:
                message = (
                    f"data.train.{number} is of the format {entry.format}, whose rows have no keys"
                )
                help = "leave data.split.group out"
                yield _split(origins, "data.split.group", message, help)


def _split(origins: Origins, name: str, message: str, help: str) -> Diagnostic:
    return Diagnostic("split-conflict", message, help, name, origins.near(name))


@settings_rule(
    Rule(
        name="source-listed-twice",
        code="VT234",
        summary="A source of rows, or the name of one, is listed twice in one split.",
        why=(
            "Its rows are learnt, or scored, more often than others, and each is counted as several"
            " rows."
        ),
        bad=(
            "'data.train=[{format: messages, path: rows/train.jsonl}, {format: auto, path:"
            " rows/train.jsonl}]'"
        ),
        good="'data.train=[{format: messages, path: rows/train.jsonl, repeat: 2}]'",
        fix="List it once; `repeat` says how often its rows are trained on in an epoch.",
    ),
)
def source_listed_twice(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that no two entries of a split have the same rows, by whichever path, or name."""
    for split, entries in run.data.splits.items():
        keys = [("rows", *_place(entry)) for entry in entries]
        for number, first in _again(keys):
            name = f"data.{split}.{number}"
            given = ", ".join(f"{key}: {value}" for key, value in given_in(entries[number]).items())
            help = "list it once" + ("; to train on it more often: repeat: 2" * (split == "train"))
            message = f"{name} has the rows of data.{split}.{first}: {given}"
            yield Diagnostic("source-listed-twice", message, help, name, origins.near(name))
        for number, first in _again([entry.name for entry in entries]):
            name = f"data.{split}.{number}.name"
            message = f"{name} is {entries[number].name}, as data.{split}.{first}.name is"
            help = "give each source a name of its own"
            yield Diagnostic("source-listed-twice", message, help, name, origins.near(name))


def _place(entry: Source) -> tuple[object, ...]:
    """Return a key for an entry's rows that is the same however they are read."""
    if not entry.files():
        return rows_key(entry)
    return tuple(
        part
        for part in rows_key(entry)
        if not (isinstance(part, tuple) and part[0] in _HOW_THEY_ARE_READ)
    )


def _again(keys: Sequence[object]) -> Iterator[tuple[int, int]]:
    """Yield each place of a value that was there before, with its first place; None is no value."""
    first: dict[object, int] = {}
    for number, key in enumerate(keys):
        if key is not None and (before := first.setdefault(key, number)) != number:
            yield number, before


@settings_rule(
    Rule(
        name="mixture-conflict",
        code="VT235",
        summary="`weight` and `repeat` of the sources do not say how much of each is trained on.",
        why="Parts of an epoch are known only where each source says its own, in one way.",
        bad=(
            "'data.train=[{format: digits, split: train, weight: 3}, {format: messages, path:"
            " rows/train.jsonl}]'"
        ),
        good=(
            "'data.train=[{format: digits, split: train, weight: 3}, {format: messages, path:"
            " rows/train.jsonl, weight: 1}]'"
        ),
        fix=(
            "Give every source of data.train a weight, or none; one has a weight or a repeat, and"
            " rows that are evaluated have neither."
        ),
    ),
)
def mixture_conflict(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that all sources of data.train have a weight or none has, and no evaluated source."""
    train = run.data.train
    weighted = [number for number, entry in enumerate(train) if entry.weight is not None]
    for number, entry in enumerate(train):
        name = f"data.train.{number}"
        if entry.weight is not None and entry.repeat is not None:
            message = f"{name} has both weight: {entry.weight:g} and repeat: {entry.repeat:g}"
            help = (
                "give it one of them: a weight is relative to other sources, a repeat is by itself"
            )
        elif weighted and entry.weight is None:
            message = f"{name} has no weight, and data.train.{weighted[0]} has one"
            help = "give every source of data.train a weight, or none"
        else:
            continue
        yield Diagnostic("mixture-conflict", message, help, name, origins.near(name))
    for split in ("validation", "test"):
        for number, entry in enumerate(run.data.splits[split]):
            for key, value in (("weight", entry.weight), ("repeat", entry.repeat)):
                if value is not None:
                    name = f"data.{split}.{number}.{key}"
                    message = f"{name} is {value:g}, but each row is evaluated once"
                    help = "leave it out; `limit` takes a part of the rows"
                    yield Diagnostic("mixture-conflict", message, help, name, origins.near(name))
