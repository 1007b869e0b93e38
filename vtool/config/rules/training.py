"""Rules about how long a run trains, and what it does on the way."""

from collections.abc import Iterator

from vtool.config.origins import Origins
from vtool.config.resources import opened
from vtool.config.rules.rule import settings_rule
from vtool.config.schema import Run
from vtool.config.shipped import shipped_folder
from vtool.diagnostics import Diagnostic, Rule


@settings_rule(
    Rule(
        name="steps-or-epochs",
        code="VT201",
        summary="Of train.steps and train.epochs, both are given in one place, or neither.",
        why="With both, one would be ignored; with neither, there is no end and no schedule.",
        bad="train.steps=30 train.epochs=3",
        good="train.epochs=3",
        fix="Give one of them. One of yours takes the place of a recipe's other one.",
    ),
)
def steps_or_epochs(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that exactly one of train.steps and train.epochs is given."""
    steps, epochs = run.train.steps, run.train.epochs
    if steps is not None and epochs is not None:
        yield Diagnostic(
            "steps-or-epochs",
            (
                f"train.steps is {steps} and train.epochs is {epochs:g}, but only one can say how"
                " long to train"
            ),
            "leave one of them out",
            "train.epochs",
            origins.near("train.epochs"),
        )
    elif steps is None and epochs is None:
        yield Diagnostic(
            "steps-or-epochs",
            "neither train.steps nor train.epochs says how long to train",
            "set one of them: train.epochs=3",
            "train.steps",
            origins.near("train.steps"),
        )


@settings_rule(
    Rule(
        name="warmup-too-long",
        code="VT204",
        summary="optim.warmup_steps leaves no step to train at the learning rate that is set.",
        why=(
            "The run ends before optim.lr is reached, and looks like one with a learning rate too"
            " low."
        ),
        bad="train.steps=40 optim.warmup_steps=50",
        good="train.steps=40 optim.warmup_steps=4",
        fix="Lower optim.warmup_steps below train.steps, or train longer.",
    ),
)
def warmup_too_long(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that the warm-up ends before the training does.

    The number of steps of a run of epochs depends on the rows.
    """
    steps = run.train.steps
    if steps is not None and (warmup := run.optim.warmup(steps)) >= steps > 0 < warmup:
        yield Diagnostic(
            "warmup-too-long",
            (
                f"optim.warmup_steps is {warmup}, and the run ends after {steps} steps, before the"
                " learning rate is reached"
            ),
            f"set optim.warmup_steps below {steps}, or raise train.steps",
            "optim.warmup_steps",
            origins.near("optim.warmup_steps"),
            f"below {steps}",
            str(warmup),
        )


@settings_rule(
    Rule(
        name="two-warmups",
        code="VT246",
        summary="optim.warmup_steps and optim.warmup_ratio are given in one place.",
        why="One of the two would be ignored, and the learning rate rise for longer or shorter.",
        bad="optim.warmup_steps=50 optim.warmup_ratio=0.03",
        good="optim.warmup_ratio=0.03",
        fix="Leave one of the two out.",
    ),
)
def two_warmups(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that the warm-up is given in steps or as a share of them, not both."""
    steps, share = run.optim.warmup_steps, run.optim.warmup_ratio
    if steps and share is not None:
        yield Diagnostic(
            "two-warmups",
            f"optim.warmup_steps is {steps} and optim.warmup_ratio is {share:g}, but only one can"
            " say how long the learning rate rises",
            "leave one out, or turn it off: optim.warmup_steps=0, or optim.warmup_ratio=null",
            "optim.warmup_ratio",
            origins.near("optim.warmup_ratio"),
        )


@settings_rule(
    Rule(
        name="rate-of-random-weights",
        code="VT252",
        severity="warning",
        summary="A trained model begins with the learning rate of a recipe for random weights.",
        why=(
            "The rate of `rows`, 1e-3, is for a tiny model that knows nothing yet: it overwrites"
            " what a trained model has learnt, while the loss falls."
        ),
        bad="vtool validate-config rows data.train=rows/train.jsonl model.path=models/qwen",
        good="vtool validate-config rows/train.jsonl model.path=models/qwen",
        fix="Set optim.lr, such as 1e-5 for all weights; or extend `finetune`.",
    ),
)
def rate_of_random_weights(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that the rate of a shipped recipe for random weights is not left with model.path."""
    origin = origins.of("optim.lr")
    if origin is None or run.model.starts_from == "random" or run.lora is not None:
        return
    if opened(origin.file) != shipped_folder("recipes") / "rows.yaml":
        return
    yield Diagnostic(
        "rate-of-random-weights",
        f"optim.lr is {run.optim.lr:g}, of {origin.file}, which is for random weights; model.path"
        " has trained ones",
        "set optim.lr=1e-5, or one that you know to be right",
        "optim.lr",
        origin,
        seen=f"{run.optim.lr:g}",
    )


@settings_rule(
    Rule(
        name="evaluation-without-data",
        code="VT210",
        summary="evaluation.every_steps is set, but data.validation is empty.",
        why="There would be no validation loss, though it was asked for.",
        bad="evaluation.every_steps=100 data.validation=[]",
        good="evaluation.every_steps=null data.validation=[]",
        fix="Give data.validation, or set evaluation.every_steps to null.",
    ),
)
def evaluation_without_data(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that a run that evaluates on the way has validation rows."""
    every = run.evaluation.every_steps
    if every is not None and not run.data.has("validation"):
        yield Diagnostic(
            "evaluation-without-data",
            f"evaluation.every_steps is {every}, but data.validation is empty",
            "give data.validation or data.split.validation, or set evaluation.every_steps=null",
            "evaluation.every_steps",
            origins.near("evaluation.every_steps"),
        )
