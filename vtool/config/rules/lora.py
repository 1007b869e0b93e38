"""Rules about what is trained: frozen components, and adapters."""

from collections.abc import Iterator, Mapping, Sequence

from vtool.config.origins import Origins
from vtool.config.schema import Megatron, Run, trained_components
from vtool.diagnostics import Diagnostic
from vtool.diagnostics.near_miss import did_you_mean, near
from vtool.families import FAMILIES
from vtool.families.linear_layers import select_layers


def nothing_to_train(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that some component is trained."""
    if not trained_components(run.model.freeze):
        message = "model.freeze names all parts of the model: nothing is left to train"
        yield Diagnostic(
            "nothing-to-train",
            message,
            "leave one of them out",
            "model.freeze",
            origins.near("model.freeze.language"),
        )


def targets(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that each name in lora.targets and lora.exclude names a linear layer.

    And that some layer gets an adapter.
    """
    components = trained_components(run.model.freeze)
    if run.lora is None or not components:
        return
    layers = FAMILIES[run.model.family].linear_layers
    trained = [name for component in components for name in layers[component]]
    given = [("lora.targets", run.lora.targets or ()), ("lora.exclude", run.lora.exclude)]
    found = False
    for setting, names in given:
        for number, target in enumerate(names):
            if problem := _problem(setting, target, layers, components):
                found = True
                name = f"{setting}.{number}"
                yield Diagnostic("lora-target", *problem, name, origins.near(name), seen=target)
    if not found and not select_layers(trained, run.lora.targets, run.lora.exclude):
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


def _problem(
    setting: str, target: str, layers: Mapping[str, tuple[str, ...]], components: Sequence[str]
) -> tuple[str, str] | None:
    """Return what is wrong with a name in `setting`, and what to do; None where nothing is."""
    named = [component for component, names in layers.items() if select_layers(names, (target,))]
    if not named:
        ends = sorted({_end(name) for names in layers.values() for name in names})
        return (
            f"{setting} has {target}, which no linear layer's name ends in",
            did_you_mean(near(target, ends))
            or f"name some of {', '.join(ends)}, or more of a layer's name",
        )
    if setting == "lora.targets" and not set(named) & set(components):
        return (
            f"lora.targets has {target}, which is in what model.freeze says is not trained:"
            f" {', '.join(named)}",
            f"leave it out, or set model.freeze.{named[0]}=false",
        )
    return None


def _end(name: str) -> str:
    """Return the shortest end of a layer's name that tells it apart: numbers alone do not."""
    words = name.split(".")
    return ".".join(words[-3:] if words[-1].isdigit() else words[-1:])


def dropout_on_megatron(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that there is no dropout: megatron-core's random states differ from other engines'."""
    if isinstance(run.engine, Megatron) and run.lora is not None and run.lora.dropout:
        message = (
            f"lora.dropout is {run.lora.dropout}, but engine=megatron has no dropout: its ranks"
            " would draw other masks"
        )
        help = "set lora.dropout=0.0, or use engine=fsdp2"
        yield Diagnostic(
            "not-built-on-engine", message, help, "lora.dropout", origins.near("lora.dropout")
        )


def groups_of_frozen_components(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that the optimizer is told nothing about a component that is frozen."""
    for component, frozen in run.model.freeze.model_dump().items():
        given = getattr(run.optim.groups, component).model_dump(exclude_none=True)
        if frozen and given:
            name = f"optim.groups.{component}.{next(iter(given))}"
            message = (
                f"{name} is set, but model.freeze.{component} is true: that part is not trained"
            )
            yield Diagnostic(
                "ignored-setting",
                message,
                f"leave it out, or set model.freeze.{component}=false",
                name,
                origins.near(name),
            )
