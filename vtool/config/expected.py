"""Expected values of a run's live objects, by the names under which these are observed.

Pure, and torch-free. A setting whose field says `ReadBack` is expected as it is. Here are the
others: those that mean something only with other settings, and those that several objects have a
part in (a component's learning rate, a layer's adapter), where the name says what is observed, and
the `Expected` which setting is meant.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from vtool.config.readback import Expectation, Expected
from vtool.config.schema import (
    Data,
    Lora,
    Megatron,
    Model,
    Optim,
    Run,
    Settings,
    Source,
    trained_components,
)
from vtool.config.schema.base import ReadBack
from vtool.config.settings import arrival_of
from vtool.families.linear_layers import ends_in, is_inside, select_layers
from vtool.families.modeling_file import resolve_modeling

CHECKPOINTING = "model.gradient_checkpointing"
AGAIN, KEPT = "activations computed again", "activations kept"
COMPONENTS = ("vision", "projector", "language")
"""The components of a model that `model.freeze` and `optim.groups` name."""


def expected_settings(run: Run) -> dict[str, Expectation]:
    """Return everything that is expected of a run's objects.

    Nothing is expected of a setting that leaves the value to a default elsewhere (null, `auto`).
    """
    values = dict(_read_back(run)) | _in_context(run)
    found: dict[str, Expectation] = {
        name: Expected(name, value) for name, value in values.items() if value is not None
    }
    if run.model.gradient_checkpointing != "auto":  # for which a run chooses before
        found[CHECKPOINTING] = recomputed_blocks(run.model)
    found |= _by_length(run)
    found |= _rows(run.data) | _dtypes(run.model.dtype) | _optimizer_groups(run.optim)
    if run.lora is not None:
        found["lora.layers"] = adapted_layer(run.lora, trained_components(run.model.freeze))
        found["lora.whole"] = trained_whole(run.lora)
        if run.lora.base_dtype == "nf4":
            found["lora.base_dtype"] = kept_in_nf4
    if isinstance(run.engine, Megatron):
        shares, wide = (
            "engine.wrap_config.use_distributed_optimizer",
            "engine.ddp_config.grad_reduce_in_fp32",
        )
        found = {
            "engine.ddp_config.use_distributed_optimizer": found[shares],
            wide: Expected(wide, True),
        } | found
    return found


def weight_decay(setting: str, value: float) -> Callable[[bool], Expected]:
    """Return a function that gives the weight decay expected of an optimizer group.

    Matrices decay by `value`; biases and norms do not decay.
    """
    return lambda decays: Expected(
        setting, value if decays else 0.0, "" if decays else "a decay of biases and norms of "
    )


def recomputed_blocks(model: Model) -> Callable[[int], Expected]:
    """Return a function that says of a block, by its place from 0, whether it computes again."""
    return lambda place: Expected(
        CHECKPOINTING, AGAIN if place < model.recomputed(place + 1) else KEPT
    )


def adapted_layer(
    lora: Lora, components: Collection[str | None] | None = None
) -> Callable[..., Expected | None]:
    """Return a function that expects, by a linear layer's name and component, an adapter or none.

    Args:
        components: those that are trained; None for a model of which that is not known.
    """

    def expected(layer: str, component: str | None = None) -> Expected | None:
        if _is_whole(layer, lora):
            return None
        adapted = bool(select_layers([layer], lora.targets, lora.exclude))
        if components is not None and component not in components:
            return Expected(f"model.freeze.{component}", "no adapter")
        excluded = not adapted and select_layers([layer], lora.targets)
        return Expected(
            "lora.exclude" if excluded else "lora.targets",
            "an adapter" if adapted else "no adapter",
        )

    return expected


def trained_whole(lora: Lora) -> Callable[..., Expected]:
    """Return a function that expects, by a module's name, a copy that is trained whole, or none."""
    return lambda layer, _component=None: Expected(
        "lora.modules_to_save",
        "a copy that is trained whole" if _is_whole(layer, lora) else "none",
    )


def kept_in_nf4(_layer: str, component: str | None = None) -> Expected:
    """Return the dtype expected of a frozen layer: only the language model's are packed."""
    kept = "nf4" if component in ("language", None) else "float32"
    what = "" if kept == "nf4" else f"a {component} in {kept} beside "
    return Expected("lora.base_dtype", kept, what)


def _is_whole(layer: str, lora: Lora) -> bool:
    asked = lora.modules_to_save
    return is_inside(layer, asked) or any(ends_in(layer, module) for module in asked)


def _read_back(group: Settings, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each setting that is read back, with its value; not those in lists of groups."""
    for leaf, field in type(group).model_fields.items():
        value = getattr(group, leaf)
        if isinstance(value, Settings):
            yield from _read_back(value, f"{prefix}{leaf}.")
        elif isinstance(arrival_of(type(group), field), ReadBack):
            yield f"{prefix}{leaf}", value


def _in_context(run: Run) -> dict[str, Any]:
    """Return the settings that mean something else, or nothing, with other settings."""
    model, optim = run.model, run.optim
    values: dict[str, Any] = {
        "run.dir": str(run.folder),
        "device.kind": None if run.device.kind == "auto" else run.device.kind,
        "data.image.backend": None if run.data.image.backend == "auto" else run.data.image.backend,
        "model.modeling": model.modeling and resolve_modeling(model.modeling),
        "model.size": model.size if model.starts_from == "random" else None,
        # adapters freeze the weights next to them; which layers have one is observed by itself
        **{
            f"model.freeze.{name}": getattr(model.freeze, name) or (None if run.lora else False)
            for name in COMPONENTS
        },
        # by block and by group, below
        CHECKPOINTING: None,
        "data.micro_batch_size": None,
        "optim.weight_decay": None,
        "lora.targets": None,
        "lora.exclude": None,
        "lora.modules_to_save": None,
    }
    if run.data.image.sixteen_bit == "refuse":
        values["data.image.sixteen_bit_range"] = None
    if run.lora is not None:
        values["lora.alpha"] = run.lora.scale * run.lora.rank
        if model.dtype == "float64":
            values["lora.base_dtype"] = "float64"
    if optim.schedule == "constant":
        values["optim.min_lr_ratio"] = None  # nothing falls
    # by the number of steps, below
    return values | {"optim.warmup_steps": None, "optim.warmup_ratio": None, "train.epochs": None}


def _by_length(run: Run) -> dict[str, Expectation]:
    """Return the expected warm-up and epochs, which depend on the number of steps."""
    optim, train = run.optim, run.train

    def warmup(total: int) -> Expected:
        steps = optim.warmup(total)
        if steps == 1 and optim.is_flat(total):
            steps = 0  # over one step, both are the same constant rate
        if optim.warmup_ratio is None:
            return Expected("optim.warmup_steps", steps)
        return Expected("optim.warmup_ratio", steps, f"a warm-up, of {total} steps, of ")

    found: dict[str, Expectation] = {"optim.warmup_steps": warmup}
    if train.epochs is not None:
        found["train.epochs"] = lambda steps_per_epoch: Expected(
            "train.epochs", train.total(steps_per_epoch) / steps_per_epoch
        )
    return found


def _rows(data: Data) -> dict[str, Expectation]:
    found: dict[str, Expectation] = {"data.micro_batch_size": lambda rows: _micro_batch(data, rows)}
    for split, entries in data.splits.items():
        for entry in entries:
            for leaf, field in type(entry).model_fields.items():
                if isinstance(arrival_of(type(entry), field), ReadBack):
                    found[f"data.{split}.{leaf}"] = partial(_entry, entries, f"data.{split}", leaf)
    return found


def _micro_batch(data: Data, rows: int) -> Expected | None:
    size = data.micro_batch_size
    if size == "auto":  # which is chosen before
        return None
    return Expected("data.micro_batch_size", min(size, rows), "a first micro-batch of ")


def _entry(entries: Sequence[Source], prefix: str, leaf: str, number: int) -> Expected:
    """Return the expected file or setting of one entry of a list of rows."""
    value = None
    if number < len(entries):
        file = entries[number].files().get(leaf)
        value = str(Path(file)) if file else getattr(entries[number], leaf, None)
    return Expected(f"{prefix}.{number}.{leaf}", value)


def _dtypes(dtype: str) -> dict[str, Expectation]:
    # AdamW on bfloat16 weights silently loses updates of 1e-5.
    wide = "float64" if dtype == "float64" else "float32"
    return {
        "model.dtype.weights": Expected("model.dtype", wide, "trained weights in "),
        "model.dtype.reduction": Expected("model.dtype", wide, "sums of gradients in "),
    }


def _optimizer_groups(optim: Optim) -> dict[str, Expectation]:
    found: dict[str, Expectation] = {}
    for component in COMPONENTS:
        own, name = getattr(optim.groups, component), f"optim.groups.{component}"
        rate, decay = f"{name}.lr", f"{name}.weight_decay"
        found[rate] = Expected("optim.lr", optim.lr) if own.lr is None else Expected(rate, own.lr)
        found[decay] = (
            weight_decay("optim.weight_decay", optim.weight_decay)
            if own.weight_decay is None
            else weight_decay(decay, own.weight_decay)
        )
    return found
