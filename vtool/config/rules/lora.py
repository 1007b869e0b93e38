"""Rules about what is trained: frozen parts, and adapters."""

from collections.abc import Iterator

from vtool.config.lora import LINEAR, chosen, names_it, trained_parts
from vtool.config.origins import Origins
from vtool.config.schema import Megatron, Run
from vtool.diagnostics import Diagnostic
from vtool.diagnostics.near_miss import did_you_mean, near


def nothing_to_train(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Something is left that can learn."""
    if not trained_parts(run.model.freeze):
        message = "model.freeze names all parts of the model: nothing is left to train"
        yield Diagnostic(
            "nothing-to-train",
            message,
            "leave one of them out",
            "model.freeze",
            origins.near("model.freeze.language"),
        )


def targets(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Each name in lora.targets and lora.exclude names a linear layer, and some layer gets an
    adapter.
    """
    parts = trained_parts(run.model.freeze)
    if run.lora is None or not parts:
        return
    everywhere = [name for names in LINEAR[run.model.family].values() for name in names]
    trained = [name for part in parts for name in LINEAR[run.model.family][part]]
    found = False
    for setting, given in (
        ("lora.targets", run.lora.targets or ()),
        ("lora.exclude", run.lora.exclude),
    ):
        for number, target in enumerate(given):
            problem = None
            if not any(names_it(target, name) for name in everywhere):
                problem = f"{setting} has {target}, which no linear layer's name ends in"
                ends = sorted({_end(name) for name in everywhere})
                help = (
                    did_you_mean(near(target, ends))
                    or f"name some of {', '.join(ends)}, or more of a layer's name"
                )
            elif setting == "lora.targets" and not any(names_it(target, name) for name in trained):
                frozen = [
                    part
                    for part, names in LINEAR[run.model.family].items()
                    if any(names_it(target, name) for name in names)
                ]
                problem = (
                    f"lora.targets has {target}, which is in what model.freeze says is not trained:"
                    f" {', '.join(frozen)}"
                )
                help = f"leave it out, or set model.freeze.{frozen[0]}=false"
            if problem:
                found = True
                yield Diagnostic(
                    "lora-target",
                    problem,
                    help,
                    f"{setting}.{number}",
                    origins.near(f"{setting}.{number}"),
                    seen=target,
                )
    if not found and not chosen(trained, run.lora):
        message = (
            "lora.exclude takes away every linear layer that lora.targets names: there is no"
            " adapter to train"
        )
        yield Diagnostic(
            "lora-target",
            message,
            "leave some of it out",
            "lora.exclude",
            origins.near("lora.exclude"),
        )


def _end(name: str) -> str:
    """The shortest end of a layer's name that says what it is: numbers alone do not."""
    parts = name.split(".")
    return ".".join(parts[-3:] if parts[-1].isdigit() else parts[-1:])


def dropout_on_megatron(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Megatron-core's random states are not those of the other engines."""
    if isinstance(run.engine, Megatron) and run.lora is not None and run.lora.dropout:
        message = (
            f"lora.dropout is {run.lora.dropout}, but engine=megatron has no dropout: its ranks"
            " would draw other masks"
        )
        help = "set lora.dropout=0.0, or use engine=fsdp2"
        yield Diagnostic(
            "not-built-on-engine", message, help, "lora.dropout", origins.near("lora.dropout")
        )


def groups_of_frozen_parts(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """The optimizer is told nothing about a part that it does not see."""
    for part in ("vision", "projector", "language"):
        given = getattr(run.optim.groups, part).model_dump(exclude_none=True)
        if given and getattr(run.model.freeze, part):
            name = f"optim.groups.{part}.{next(iter(given))}"
            message = f"{name} is set, but model.freeze.{part} is true: that part is not trained"
            yield Diagnostic(
                "ignored-setting",
                message,
                f"leave it out, or set model.freeze.{part}=false",
                name,
                origins.near(name),
            )
