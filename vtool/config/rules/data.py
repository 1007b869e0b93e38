"""Rules about lengths, sizes and batches of rows."""

import os
from collections.abc import Iterator

from vtool.config.origins import Origins
from vtool.config.rules.rule import settings_rule
from vtool.config.schema import Run, Source
from vtool.diagnostics import Diagnostic, Rule


@settings_rule(
    Rule(
        name="micro-batch-larger-than-share",
        code="VT203",
        summary="data.micro_batch_size is more than the rows of a step that one process gets.",
        why=(
            "The forward pass never has that many rows: memory and speed are not those of the"
            " setting."
        ),
        bad="data.global_batch_size=32 data.micro_batch_size=64",
        good="data.global_batch_size=64 data.micro_batch_size=64",
        fix=(
            "Lower data.micro_batch_size to data.global_batch_size divided by the processes, or"
            " raise data.global_batch_size."
        ),
    ),
)
def micro_batch_larger_than_share(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that a micro-batch is not larger than the rows that one process gets of a step.

    Above the whole step it is a mistake on any number of processes. Above the share of one, it only
    says that the recipe was written for fewer: the results are the same. Where rows are packed,
    neither is reported, as the setting is not used.
    """
    if run.data.packing != "none" or run.data.micro_batch_size == "auto":
        return
    world = run.launch.nproc or 1
    micro, rows, processes = (
        run.data.micro_batch_size,
        run.data.global_batch_size,
        run.sharers(world),
    )
    share = run.rows_of_rank(world)
    name, origin = "data.micro_batch_size", origins.near("data.micro_batch_size")
    if micro > rows:
        yield Diagnostic(
            "micro-batch-larger-than-share",
            (
                f"data.micro_batch_size is {micro}, but a step has only {rows} rows"
                " (data.global_batch_size)"
            ),
            f"set data.micro_batch_size={share}, or raise data.global_batch_size",
            name,
            origin,
            f"at most {share}",
            str(micro),
        )
    elif micro > share:
        yield Diagnostic(
            "micro-batch-larger-than-share",
            (
                f"data.micro_batch_size is {micro}, but each of {processes} processes gets {share}"
                f" of a step's {rows} rows"
            ),
            f"nothing need be done; data.micro_batch_size={share} says what happens",
            name,
            origin,
            f"at most {share}",
            str(micro),
            severity="note",
        )


@settings_rule(
    Rule(
        name="max-length-missing",
        code="VT205",
        summary=(
            "data.on_overlong says what to do with rows that are too long, but data.max_length does"
            " not say what too long is."
        ),
        why="No row would ever be dropped or truncated.",
        bad="data.on_overlong=truncate",
        good="data.on_overlong=truncate data.max_length=256",
        fix="Set data.max_length, or leave data.on_overlong out.",
    ),
)
def max_length_missing(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that data.on_overlong is set only with data.max_length."""
    todo = run.data.on_overlong
    if todo != "error" and run.data.max_length is None:
        yield Diagnostic(
            "max-length-missing",
            f"data.on_overlong is {todo}, but data.max_length does not say what too long is",
            "set data.max_length, in tokens",
            "data.max_length",
            origins.near("data.on_overlong"),
        )


@settings_rule(
    Rule(
        name="packing-budget",
        code="VT218",
        summary=(
            "data.packing and data.micro_batch_tokens do not go together, or a row is longer than"
            " they allow."
        ),
        why=(
            "Rows that are packed are cut into forward passes by their tokens; a row that fits into"
            " none could not be trained on."
        ),
        bad="data.packing=token_budget",
        good="data.packing=token_budget data.micro_batch_tokens=2048",
        fix="Give both, or neither; the budget is at least the longest row's tokens.",
    ),
)
def packing_budget(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that packed rows, and only these, have a token budget, and the longest row fits."""
    packing, budget, longest = run.data.packing, run.data.micro_batch_tokens, run.data.max_length
    name = "data.micro_batch_tokens"
    if packing == "token_budget" and budget is None:
        yield Diagnostic(
            "packing-budget",
            "data.packing is token_budget, but data.micro_batch_tokens does not say how many",
            "set data.micro_batch_tokens",
            name,
            origins.near("data.packing"),
        )
    elif packing == "none" and budget is not None:
        yield Diagnostic(
            "packing-budget",
            f"{name} is {budget}, but data.packing is none: rows are counted, not tokens",
            "set data.packing=token_budget",
            name,
            origins.near(name),
        )
    elif budget is not None and longest is not None and longest > budget:
        yield Diagnostic(
            "packing-budget",
            (
                f"data.max_length is {longest}, but a forward pass has {budget} tokens ({name}): a"
                " row of that length has no room"
            ),
            f"set {name}={longest}, or a smaller data.max_length",
            name,
            origins.near(name),
        )


@settings_rule(
    Rule(
        name="evaluated-on-trained-rows",
        code="VT227",
        summary="data.validation or data.test has rows that data.train has too.",
        why=(
            "The model has seen the answers: its validation loss and its test scores say how well"
            " it remembers them, and look better than it is."
        ),
        bad="'data.validation=[{format: digits, split: train}]'",
        good="'data.validation=[{format: digits, split: validation}]'",
        fix="Hold rows back from data.train, and name only these.",
        severity="warning",
    ),
)
def evaluated_on_trained_rows(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that no entry of data.validation or data.test has the rows of one of data.train."""
    trained = {rows_key(entry): number for number, entry in enumerate(run.data.train)}
    for split in ("validation", "test"):
        for number, entry in enumerate(run.data.splits[split]):
            if (same := trained.get(rows_key(entry))) is not None:
                name = f"data.{split}.{number}"
                given = ", ".join(f"{key}: {value}" for key, value in given_in(entry).items())
                message = f"{name} has the rows of data.train.{same}: {given}"
                help = "hold rows back from data.train for it, or leave it out"
                yield Diagnostic(
                    "evaluated-on-trained-rows", message, help, name, origins.near(name)
                )


def given_in(entry: Source) -> dict[str, object]:
    """Return which rows an entry names, as it is written."""
    given = {**entry.own_rows(), **entry.files()}
    return {name: value for name, value in given.items() if value is not None}


def rows_key(entry: Source) -> tuple[object, ...]:
    """Return a key for an entry's rows: its files, by whichever path, and its selection."""
    files = entry.files()
    return *(os.path.realpath(file) for file in files.values()), *entry.own_rows().items()
