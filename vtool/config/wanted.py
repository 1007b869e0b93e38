"""What a run's settings ask of its live objects, by the names under which `read_back` functions see
it. Pure, and torch-free.

Most names are those of settings. Where several settings speak of one thing (a part's learning rate,
a layer's adapter), or one setting of several (a compute dtype, and the dtype of the weights behind
it), the name says what is seen, and the `Wanted` which setting is meant.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from vtool.config.read_back import Asked, Expected
from vtool.config.schema import Ddp, Fsdp2, Lora, Megatron, Optim, Run, Source, trained_components
from vtool.families.linear_layers import select_layers
from vtool.families.modeling_file import resolve_modeling

COMPONENTS = ("vision", "projector", "language")


def wanted(run: Run) -> dict[str, Asked]:
    """All that is asked of the objects of a run.

    What a setting leaves to its default elsewhere (null, `auto`) is not asked.
    """
    found: dict[str, Asked] = {}
    for name, value in _plain(run):
        if value is not None:
            found[name] = Expected(name, value)
    found |= _data(run) | _model(run) | _optim(run.optim) | _engine(run)
    if run.lora is not None:
        found |= _lora(run.lora, trained_components(run.model.freeze))
    return found


def weight_decay(setting: str, value: float) -> Callable[..., Expected | None]:
    """The decay of a group: of matrices, what is asked, and of biases and norms nothing."""
    return lambda decays: Expected(
        setting, value if decays else 0.0, "" if decays else "a decay of biases and norms of "
    )


def adapted(
    lora: Lora, components: Collection[str | None] | None = None
) -> Callable[..., Expected]:
    """Whether a linear layer has an adapter, by its name, and the part of the model that it is in."""

    def asked(layer: str, component: str | None = None) -> Expected:
        frozen = components is not None and component not in components
        excluded = (
            not frozen
            and bool(select_layers([layer], lora.targets))
            and not select_layers([layer], lora.targets, lora.exclude)
        )
        setting = (
            f"model.freeze.{component}"
            if frozen
            else "lora.exclude"
            if excluded
            else "lora.targets"
        )
        return Expected(
            setting,
            "an adapter"
            if select_layers([layer], lora.targets, lora.exclude) and not frozen
            else "no adapter",
        )

    return asked


def _plain(run: Run) -> Iterable[tuple[str, Any]]:
    """Settings that are asked as they are."""
    model, data, image, video = run.model, run.data, run.data.image, run.data.video
    yield "run.dir", str(run.folder)
    yield "run.seed", run.run.seed
    yield "launch.nproc", run.launch.nproc
    yield "device.kind", None if run.device.kind == "auto" else run.device.kind
    yield "device.threads", run.device.threads
    yield "model.family", model.family
    yield "model.modeling", None if model.modeling is None else resolve_modeling(model.modeling)
    yield "model.size", model.size if model.starts_from == "random" else None
    yield "model.attention", model.attention
    yield "model.gradient_checkpointing", model.gradient_checkpointing
    yield "data.global_batch_size", data.global_batch_size
    yield "data.packing", data.packing
    yield "data.image.min_pixels", image.min_pixels
    yield "data.image.max_pixels", image.max_pixels
    yield "data.video.fps", video.fps
    yield "data.video.max_frames", video.max_frames
    yield "data.video.min_pixels", video.min_pixels
    yield "data.video.max_pixels", video.max_pixels
    yield "train.steps", run.train.steps
    yield "train.epochs", run.train.epochs


def _data(run: Run) -> dict[str, Asked]:
    def micro_batch(rows: int) -> Expected:
        return Expected(
            "data.micro_batch_size", min(run.data.micro_batch_size, rows), "a first micro-batch of "
        )

    found: dict[str, Asked] = {"data.micro_batch_size": micro_batch}
    for split in ("train", "validation", "test"):
        entries = getattr(run.data, split)
        for name in (name for entry in entries for name in type(entry).model_fields):
            found[f"data.{split}.{name}"] = partial(_entry, entries, f"data.{split}", name)
    return found


def _entry(entries: Sequence[Source], where: str, name: str, number: int) -> Expected:
    """A setting of one entry of a list of rows, by its number."""
    value = None
    if number < len(entries):
        entry = entries[number]
        value = (
            str(Path(entry.files()[name])) if name in entry.files() else getattr(entry, name, None)
        )
    return Expected(f"{where}.{number}.{name}", value)


def _model(run: Run) -> dict[str, Asked]:
    dtype = run.model.dtype
    found: dict[str, Asked] = {
        "model.dtype": Expected("model.dtype", dtype),
        # A pure bfloat16 AdamW loses updates of 1e-5 without a word.
        "model.dtype.weights": Expected(
            "model.dtype", "float64" if dtype == "float64" else "float32", "trained weights in "
        ),
        "model.dtype.reduction": Expected(
            "model.dtype", "float64" if dtype == "float64" else "float32", "sums of gradients in "
        ),
    }
    for component in COMPONENTS:
        frozen = getattr(run.model.freeze, component)
        # adapters freeze what they are beside; which layers have one is seen by itself
        if frozen or run.lora is None:
            found[f"model.freeze.{component}"] = Expected(f"model.freeze.{component}", frozen)
    return found


def _optim(optim: Optim) -> dict[str, Asked]:
    # Over one step a constant rate, warm-up or not, is one and the same.
    warmup = 0 if optim.schedule == "constant" and optim.warmup_steps == 1 else optim.warmup_steps
    found: dict[str, Asked] = {
        "optim.name": Expected("optim.name", optim.name),
        "optim.lr": Expected("optim.lr", optim.lr),
        "optim.betas": Expected("optim.betas", optim.betas),
        "optim.eps": Expected("optim.eps", optim.eps),
        "optim.schedule": Expected("optim.schedule", optim.schedule),
        "optim.warmup_steps": Expected("optim.warmup_steps", warmup),
    }
    for component in COMPONENTS:
        own, name = getattr(optim.groups, component), f"optim.groups.{component}"
        found[f"{name}.lr"] = (
            Expected("optim.lr", optim.lr) if own.lr is None else Expected(f"{name}.lr", own.lr)
        )
        decay = (
            ("optim.weight_decay", optim.weight_decay)
            if own.weight_decay is None
            else (f"{name}.weight_decay", own.weight_decay)
        )
        found[f"{name}.weight_decay"] = weight_decay(*decay)
    return found


def _engine(run: Run) -> dict[str, Asked]:
    match run.engine:
        case Ddp() | Fsdp2():
            found = {
                f"engine.{name}": Expected(f"engine.{name}", value)
                for name, value in run.engine.model_dump().items()
            }
        case Megatron():
            plain = {
                f"engine.{name}": Expected(f"engine.{name}", getattr(run.engine, name))
                for name in ("kind", "bridge")
            }
            found = {**plain, **_megatron(run.engine)}
    return {**found}


def _megatron(engine: Megatron) -> dict[str, Expected]:
    found = {}
    for group in ("parallel", "wrap_config", "ddp_config", "transformer_config"):
        for name, value in getattr(engine, group).model_dump().items():
            if value is not None:
                found[f"engine.{group}.{name}"] = Expected(f"engine.{group}.{name}", value)
    shares = Expected(
        "engine.wrap_config.use_distributed_optimizer", engine.wrap_config.use_distributed_optimizer
    )
    found.setdefault("engine.ddp_config.use_distributed_optimizer", shares)
    found.setdefault(
        "engine.ddp_config.grad_reduce_in_fp32",
        Expected("engine.ddp_config.grad_reduce_in_fp32", True),
    )
    return found


def _lora(lora: Lora, components: Collection[str]) -> dict[str, Asked]:
    return {
        "lora.rank": Expected("lora.rank", lora.rank),
        "lora.alpha": Expected("lora.alpha", lora.scale * lora.rank),
        "lora.dropout": Expected("lora.dropout", lora.dropout),
        "lora.layers": adapted(lora, components),
    }
