"""Rules about how long a run trains, and what it does on the way."""

from collections.abc import Callable, Iterator

from vtool.config.schema import Run
from vtool.diagnostics import Diagnostic, Origin

Where = Callable[[str], Origin | None]


def steps_or_epochs(run: Run, where: Where) -> Iterator[Diagnostic]:
    steps, epochs = run.train.steps, run.train.epochs
    if steps is not None and epochs is not None:
        message = f"train.steps is {steps} and train.epochs is {epochs}: only one can say how long to train"
        yield Diagnostic("steps-or-epochs", message, "set the other one to null", "train.epochs", where("train.epochs"))
    if steps is None and epochs is None:
        message = "neither train.steps nor train.epochs says how long to train"
        yield Diagnostic("steps-or-epochs", message, "set one: train.epochs=3", "train.steps", where("train"))


def warmup_too_long(run: Run, where: Where) -> Iterator[Diagnostic]:
    warmup, steps = run.optim.warmup_steps, run.train.steps
    if steps is not None and 0 < warmup >= steps:
        message = f"optim.warmup_steps is {warmup}, and the run has {steps} steps"
        yield Diagnostic("warmup-too-long", message, None, "optim.warmup_steps", where("optim.warmup_steps"), f"< {steps}", str(warmup))


def evaluation_without_data(run: Run, where: Where) -> Iterator[Diagnostic]:
    if run.evaluation.every_steps is not None and not run.data.validation:
        message = f"evaluation.every_steps is {run.evaluation.every_steps}, but data.validation is empty"
        help = "give data.validation, or set evaluation.every_steps=null"
        yield Diagnostic("evaluation-without-data", message, help, "evaluation.every_steps", where("evaluation.every_steps"))


RULES = (steps_or_epochs, warmup_too_long, evaluation_without_data)
