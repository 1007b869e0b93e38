"""Settings compared with the live objects of any trainer, by the readers that vtool itself uses."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pydantic import ValidationError
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from vtool.config.expected import (
    CHECKPOINTING,
    adapted_layer,
    recomputed_blocks,
    weight_decay,
)
from vtool.config.readback import Expectation, Expected, Observed, compare_readback, observe_values
from vtool.config.schema import Lora, Model
from vtool.config.settings import all_settings
from vtool.diagnostics import Diagnostic, Findings
from vtool.diagnostics.near_miss import did_you_mean, near
from vtool.engines import ddp, fsdp2
from vtool.families import can_train
from vtool.families.family import load_family
from vtool.models import observe_model
from vtool.training.optimizer import observe_group


def compare_objects(settings: Mapping[str, Any], objects: Mapping[str, Any]) -> list[Diagnostic]:
    """Compare settings with the objects that are to have them. Nothing is changed or computed.

    Args:
        settings: values by vtool's names of settings, such as `{"optim.betas": (0.9, 0.95),
            "engine.wrap_config.use_distributed_optimizer": False}`. `docs/live.md` lists those that
            objects show.
        objects: by names of your own: models, bare or wrapped, as torch's DDP, FSDP2, megatron-core
            and peft wrap them; optimizers, torch's or megatron-core's, also inside accelerate's;
            lists of these.

    Returns:
        `setting-not-arrived` for each value that is another in an object; `setting-not-shown` for
        each setting that no object shows. Nothing, where all of it has arrived.

    Raises:
        Findings: `unknown-key` for each name that is no setting's; `wrong-type` for a value that
            the setting does not take; `setting-not-shown` for an object of another kind.
    """
    names = [setting.name for setting in all_settings() if not setting.groups]
    if unknown := [name for name in settings if name not in names]:
        raise Findings(
            Diagnostic(
                "unknown-key",
                f"there is no setting `{name}`",
                did_you_mean(near(name, names)),
                name,
            )
            for name in unknown
        )
    observed = list(observe_objects(objects))
    found = compare_readback(_expected(settings), observed)
    shown = {one.name for one in observed}
    if "lora.layers" in shown:
        shown |= {"lora.targets", "lora.exclude"}
    given = ", ".join(f"{name} ({type(one).__name__})" for name, one in objects.items())
    return found + [
        Diagnostic(
            "setting-not-shown",
            f"`{name}` was to be compared, and nothing that is given shows it:"
            f" {given or 'nothing'}",
            parameter=name,
        )
        for name in settings
        if name not in shown
    ]


def observe_objects(objects: Mapping[str, Any]) -> Iterator[Observed]:
    """Yield the settings that each object shows.

    Raises:
        Findings: `setting-not-shown`, for an object that is neither a model nor an optimizer, nor a
            list of these.
    """
    for name, given in objects.items():
        for one in given if isinstance(given, list | tuple) else (given,):
            if isinstance(one, nn.Module):
                yield from _observe_model(one)
            elif hasattr(one, "param_groups"):
                yield from _observe_optimizer(name, one)
            else:
                raise Findings(
                    Diagnostic(
                        "setting-not-shown",
                        f"{name} is neither a model nor an optimizer, but {type(one).__name__}",
                        "give a model, an optimizer or a list of these",
                    )
                )


def _expected(settings: Mapping[str, Any]) -> dict[str, Expectation]:
    expected: dict[str, Expectation] = {
        name: Expected(name, value) for name, value in settings.items() if value is not None
    }
    if "optim.weight_decay" in expected:
        expected["optim.weight_decay"] = weight_decay(
            "optim.weight_decay", settings["optim.weight_decay"]
        )
    if CHECKPOINTING in expected:
        with _refused(CHECKPOINTING, settings[CHECKPOINTING]):
            asked = Model.model_validate({"gradient_checkpointing": settings[CHECKPOINTING]})
        if asked.gradient_checkpointing == "auto":
            del expected[CHECKPOINTING]
        else:
            expected[CHECKPOINTING] = recomputed_blocks(asked)
    if "lora.targets" in settings or "lora.exclude" in settings:
        ends = {"targets": settings.get("lora.targets"), "exclude": settings.get("lora.exclude")}
        given = {name: value for name, value in ends.items() if value is not None}
        with _refused("lora", given):
            lora = Lora.model_validate(
                {name: tuple(one) if isinstance(one, list) else one for name, one in given.items()}
            )
        expected["lora.layers"] = adapted_layer(lora)
    return expected


@contextmanager
def _refused(name: str, value: Any) -> Iterator[None]:
    """Raise as a finding what the schema says against the value of a setting.

    Raises:
        Findings: `wrong-type`.
    """
    try:
        yield
    except ValidationError as error:
        message = f"`{name}` does not take {value!r}: {error.errors()[0]['msg']}"
        raise Findings(Diagnostic("wrong-type", message, parameter=name)) from None


def _observe_model(model: nn.Module) -> Iterator[Observed]:
    inner: Any = model
    if isinstance(model, DistributedDataParallel):
        yield from ddp.observe_ddp(model)
        inner = model.module
    elif _is_of_megatron(model) and hasattr(model, "ddp_config"):
        from vtool.engines.megatron.observe_megatron import observe_megatron_ddp

        yield from observe_megatron_ddp(model, f"megatron-core's {type(model).__name__}")
        inner = model.module
    elif any(isinstance(part, FSDPModule) for part in model.modules()):
        yield from fsdp2.observe_fsdp2(model)
    else:
        unwrapped = {"engine.kind": "none", "engine.wrap_config.wrap_with_ddp": False}
        yield from observe_values(unwrapped, f"{type(model).__name__}, which nothing wraps,")
    if hasattr(inner, "config") and not _is_of_megatron(inner):
        yield from observe_model.observe_layers(inner)
        yield Observed("model.family", inner.config.model_type, "the model's config")
    if any(hasattr(layer, "lora_A") for layer in inner.modules()):
        yield from observe_model.observe_adapters(inner)
    elif can_train(getattr(getattr(inner, "config", None), "model_type", None)):
        component = load_family(inner.config.model_type).component
        yield from observe_model.observe_frozen(inner.named_parameters(), component)


def _observe_optimizer(name: str, optimizer: Any) -> Iterator[Observed]:
    if _is_of_megatron(optimizer):
        from vtool.engines.megatron.observe_megatron import observe_megatron_optimizer

        yield from observe_megatron_optimizer(optimizer)
        for chained in getattr(optimizer, "chained_optimizers", None) or [optimizer]:
            yield from _observe_groups(name, chained.optimizer)
    else:  # accelerate's AcceleratedOptimizer has the optimizer inside
        yield from _observe_groups(name, getattr(optimizer, "optimizer", optimizer))


def _observe_groups(name: str, optimizer: Any) -> Iterator[Observed]:
    groups: list[dict[str, Any]] = optimizer.param_groups
    # megatron-core's shares are flat, so that no matrix can be found among them: its groups with a
    # decay are taken for those of matrices.
    flat = all(parameter.dim() < 2 for group in groups for parameter in group["params"])
    for number, group in enumerate(groups):
        where = f"{name}: {type(optimizer).__name__}, group {number},"
        yield from observe_group(optimizer, group, where)
        # A schedule of torch's keeps the rate that it multiplies; megatron's has it as the highest.
        yield Observed("optim.lr", group.get("initial_lr", group.get("max_lr", group["lr"])), where)
        decay = group["weight_decay"]
        # Not every trainer leaves biases and norms without decay: only matrices are compared.
        if (flat and decay > 0) or any(parameter.dim() >= 2 for parameter in group["params"]):
            yield Observed("optim.weight_decay", decay, where, (True,))


def _is_of_megatron(one: Any) -> bool:
    return any(base.__module__.startswith("megatron.") for base in type(one).__mro__)
