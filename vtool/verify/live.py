"""`compare`: settings asked for against the live objects of any trainer.

The same readers tell vtool's own runs, before their first step (`vtool.training.observe_run`), and
`vtool validate-config --live`.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from vtool.config.expected import adapted_layer, weight_decay
from vtool.config.readback import Expectation, Expected, Observed, compare_readback
from vtool.config.schema import Lora
from vtool.config.settings import all_settings
from vtool.diagnostics import Diagnostic
from vtool.diagnostics.near_miss import did_you_mean, near
from vtool.engines import ddp, fsdp2
from vtool.models import read_back as models
from vtool.training.optimizer import observe_group


def compare(asked: Mapping[str, Any], objects: Mapping[str, Any]) -> list[Diagnostic]:
    """Hold settings against the objects that are to have them. Nothing is changed, built or
    computed.

    Args:
        asked: values by vtool's names of settings, such as `{"optim.betas": (0.9, 0.95),
            "engine.wrap_config.use_distributed_optimizer": False}`. `docs/live.md` lists those that
            can be told.
        objects: by names of your own: models, bare or wrapped, as torch's DDP, FSDP2, megatron-core
            and peft wrap them; optimizers, torch's or megatron-core's, also inside accelerate's;
            lists of these.

    Returns:
        `setting-not-arrived` for each value that is another in an object; `setting-not-shown` for
        each setting that no object shows. Nothing, where all of it has arrived.

    Raises:
        ValueError: for a name that is no setting's.
    """
    names = [setting.name for setting in all_settings() if not setting.groups]
    for name in asked:
        if name not in names:
            help = did_you_mean(near(name, names))
            raise ValueError(f"there is no setting {name}{f'; {help}' if help else ''}")
    seen = list(read_back(objects))
    wanted = _wanted(asked)
    found = compare_readback(wanted, seen)
    shown = {one.name for one in seen} | (
        {"lora.targets", "lora.exclude"}
        if any(one.name == "lora.layers" for one in seen)
        else set()
    )
    given = (
        ", ".join(f"{name} ({type(one).__name__})" for name, one in objects.items()) or "nothing"
    )
    for name in asked:
        if name not in shown:
            message = f"`{name}` was to be compared, and nothing that is given shows it: {given}"
            found.append(Diagnostic("setting-not-shown", message, parameter=name))
    return found


def read_back(objects: Mapping[str, Any]) -> Iterator[Observed]:
    """What each object has of vtool's settings."""
    for name, one in objects.items():
        for each in one if isinstance(one, list | tuple) else (one,):
            if isinstance(each, nn.Module):
                yield from _module(each)
            elif hasattr(each, "param_groups"):
                yield from _optimizer(name, each)
            else:
                raise ValueError(
                    f"{name} is neither a model nor an optimizer, but {type(each).__name__}"
                )


def _wanted(asked: Mapping[str, Any]) -> dict[str, Expectation]:
    wanted: dict[str, Expectation] = {
        name: Expected(name, value) for name, value in asked.items() if value is not None
    }
    if "optim.weight_decay" in wanted:
        wanted["optim.weight_decay"] = weight_decay(
            "optim.weight_decay", asked["optim.weight_decay"]
        )
    if "lora.targets" in asked or "lora.exclude" in asked:
        targets = None if asked.get("lora.targets") is None else tuple(asked["lora.targets"])
        wanted["lora.layers"] = adapted_layer(
            Lora(targets=targets, exclude=tuple(asked.get("lora.exclude", ())))
        )
    return wanted


def _module(model: nn.Module) -> Iterator[Observed]:
    inner: Any = model
    kind = "none"
    if isinstance(model, DistributedDataParallel):
        yield from ddp.observe_ddp(model)
        inner = model.module
    elif _of_megatron(model) and hasattr(model, "ddp_config"):
        from vtool.engines.megatron.observe_megatron import observe_megatron_ddp

        yield from observe_megatron_ddp(model, f"megatron-core's {type(model).__name__}")
        inner = model.module
    elif any(isinstance(part, FSDPModule) for part in model.modules()):
        yield from fsdp2.observe_fsdp2(model)
    else:
        yield Observed("engine.kind", kind, f"{type(model).__name__}, which nothing wraps,")
        yield Observed(
            "engine.wrap_config.wrap_with_ddp",
            False,
            f"{type(model).__name__}, which nothing wraps,",
        )
    layers = list(inner.modules())
    if hasattr(inner, "config") and not _of_megatron(inner):
        yield from models.read_back(inner)
        yield Observed("model.family", inner.config.model_type, "the model's config")
    if any(hasattr(layer, "lora_A") for layer in layers):
        yield from models.read_adapters(inner)


def _optimizer(name: str, optimizer: Any) -> Iterator[Observed]:
    if _of_megatron(optimizer):
        from vtool.engines.megatron.observe_megatron import observe_megatron_optimizer

        yield from observe_megatron_optimizer(optimizer)
        for one in getattr(optimizer, "chained_optimizers", None) or [optimizer]:
            yield from _groups(name, one.optimizer)
    else:  # accelerate's AcceleratedOptimizer has the optimizer inside
        yield from _groups(name, getattr(optimizer, "optimizer", optimizer))


def _groups(name: str, optimizer: Any) -> Iterator[Observed]:
    groups: list[dict[str, Any]] = optimizer.param_groups
    # Of shares that are flat, as megatron-core's are, which are of matrices cannot be told: the
    # groups with a decay are taken for these.
    flat = all(parameter.dim() < 2 for group in groups for parameter in group["params"])
    for number, group in enumerate(groups):
        where = f"{name}: {type(optimizer).__name__}, group {number},"
        yield from observe_group(optimizer, group, where)
        # A schedule of torch's keeps the rate that it multiplies; megatron's has it as the highest.
        yield Observed("optim.lr", group.get("initial_lr", group.get("max_lr", group["lr"])), where)
        for decays in _decaying(group["params"], flat and group["weight_decay"] > 0):
            yield Observed("optim.weight_decay", group["weight_decay"], where, (decays,))


def _decaying(parameters: Iterable[Any], taken: bool) -> Iterator[bool]:
    """That a group has matrices.

    What others do with biases and norms is theirs: not every trainer leaves these undecayed.
    """
    if taken or any(parameter.dim() >= 2 for parameter in parameters):
        yield True


def _of_megatron(one: Any) -> bool:
    return any(base.__module__.startswith("megatron.") for base in type(one).__mro__)
