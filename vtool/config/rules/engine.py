"""The rule about settings that an engine does not support."""

from collections.abc import Iterator
from pathlib import Path

from vtool.config.attention import ATTENTION_KEY, attention_conflict
from vtool.config.origins import Origins
from vtool.config.rules.rule import settings_rule
from vtool.config.schema import Fsdp2, Megatron, Run
from vtool.diagnostics import Diagnostic, Rule
from vtool.families import family_facts
from vtool.families.modeling_file import SETTING
from vtool.families.windows import packing_conflict, window_of_folder

NOT_BUILT_ON_ENGINE = Rule(
    name="not-built-on-engine",
    code="VT222",
    summary="A setting asks for what the engine does not do, or not on this device.",
    why="It would be ignored, or fail in the first step.",
    bad="engine=megatron model.dtype=float64",
    good="engine=megatron model.dtype=float32",
    fix="Leave the setting out, or use another engine or device.",
)


def _of_learnt(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Yield a finding for each setting that needs code of a family of vtool's own."""
    asked = (
        ("attention", run.model.attention not in ("sdpa", "eager"), "sdpa"),
        ("gradient_checkpointing", run.model.gradient_checkpointing == "auto", "full"),
    )
    for name, not_built, instead in asked:
        if not_built:
            setting, value = f"model.{name}", getattr(run.model, name)
            yield Diagnostic(
                "not-built-on-engine",
                f"{setting} is {value}, which is not proved for models of type {run.model.family}",
                f"set {setting}={instead}",
                setting,
                origins.near(setting),
            )


@settings_rule(NOT_BUILT_ON_ENGINE)
def packing_not_built(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that engine, model family and attention kernel can keep packed documents apart."""
    if (
        run.data.packing != "none"
        and isinstance(run.engine, Megatron)
        and run.device.kind in ("cuda", "npu")
    ):
        yield Diagnostic(
            "not-built-on-engine",
            (
                "data.packing is token_budget, and engine=megatron packs rows on a CPU alone:"
                " Transformer Engine wants another form"
            ),
            "set engine=fsdp2, or data.packing=none",
            "data.packing",
            origins.near("data.packing"),
        )
    if family_facts(run.model.family).is_learnt:
        yield from _of_learnt(run, origins)
    if run.data.packing != "none" and family_facts(run.model.family).recurrent:
        yield Diagnostic(
            "not-built-on-engine",
            (
                "data.packing is token_budget, but the convolutions and states of"
                f" {run.model.family} continue from one document into the next"
            ),
            "set data.packing=none",
            "data.packing",
            origins.near("data.packing"),
        )
    if run.data.packing != "none" and run.model.attention == "eager":
        yield Diagnostic(
            "not-built-on-engine",
            (
                f"data.packing is {run.data.packing}, but model.attention=eager has no attention by"
                " document"
            ),
            "set model.attention=sdpa",
            "model.attention",
            origins.near("model.attention"),
        )
    without_windows = isinstance(run.engine, Megatron) or run.device.kind == "npu"
    if run.data.packing != "none" and run.model.path is not None and without_windows:
        window = window_of_folder(Path(run.model.path), run.model.family)
        if found := packing_conflict(window, run.data.micro_batch_tokens):
            yield Diagnostic(
                "not-built-on-engine", *found, "data.packing", origins.near("data.packing")
            )


@settings_rule(NOT_BUILT_ON_ENGINE)
def attention_not_built(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that model.attention can run on this device, and in model.dtype."""
    if found := attention_conflict(run.model, run.device.kind):
        yield Diagnostic("not-built-on-engine", *found, ATTENTION_KEY, origins.near(ATTENTION_KEY))


@settings_rule(NOT_BUILT_ON_ENGINE)
def modeling_on_megatron(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that model.modeling is not set with engine=megatron, which has layers of its own."""
    if run.model.modeling is not None and isinstance(run.engine, Megatron):
        yield Diagnostic(
            "not-built-on-engine",
            (
                "model.modeling names a class, but engine=megatron computes with layers of"
                " megatron-core's: it would not be used"
            ),
            "leave it out, or set engine=fsdp2 or engine=ddp",
            SETTING,
            origins.near(SETTING),
        )


@settings_rule(NOT_BUILT_ON_ENGINE)
def dropout_on_megatron(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that lora.dropout is 0 with engine=megatron, whose ranks would draw other masks."""
    if isinstance(run.engine, Megatron) and run.lora is not None and run.lora.dropout:
        yield Diagnostic(
            "not-built-on-engine",
            (
                f"lora.dropout is {run.lora.dropout}, but engine=megatron has no dropout: its ranks"
                " would draw other masks"
            ),
            "set lora.dropout=0.0, or use engine=fsdp2",
            "lora.dropout",
            origins.near("lora.dropout"),
        )


@settings_rule(NOT_BUILT_ON_ENGINE)
def adapters_of_peft_on_megatron(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that lora.dora and lora.modules_to_save are not set with engine=megatron."""
    if run.lora is None or not isinstance(run.engine, Megatron):
        return
    for setting, asked, what in (
        ("lora.dora", run.lora.dora, "the length of a row that is cut over ranks"),
        ("lora.modules_to_save", run.lora.modules_to_save, "whole copies next to its own modules"),
    ):
        if asked:
            yield Diagnostic(
                "not-built-on-engine",
                f"{setting} is set, but engine=megatron has not {what}",
                "leave it out, or set engine=fsdp2 or engine=ddp",
                setting,
                origins.near(setting),
            )


@settings_rule(NOT_BUILT_ON_ENGINE)
def narrow_base_not_built(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that engine, device and model.dtype allow lora.base_dtype.

    One in NF4 is packed: no engine cuts it, and bitsandbytes has what computes with it.
    """
    if run.lora is None or run.lora.base_dtype == "float32":
        return
    name, reason, other = "lora.base_dtype", None, ""
    packed = run.lora.base_dtype == "nf4"
    if isinstance(run.engine, Megatron):
        reason = "engine=megatron keeps its weights in dtypes of its own"
        other = ", or engine=ddp" if packed else ""
    elif packed and isinstance(run.engine, Fsdp2):
        reason = "engine=fsdp2 cuts weights by rows, and a packed one has none"
        other = ", or engine=ddp"
    elif packed and run.device.kind == "npu":
        reason = "bitsandbytes has no kernel for an NPU"
    elif packed and run.model.dtype == "float64":
        reason = "model.dtype is float64, in which bitsandbytes does not compute"
        other = ", or model.dtype=float32"
    elif not packed and run.model.dtype != "bfloat16":
        reason = f"model.dtype is {run.model.dtype}: a product would be of two dtypes"
        other = ", or model.dtype=bfloat16"
    elif run.lora.dora:
        reason = "lora.dora takes the length of its rows, which would be a rounded number"
    if reason is not None:
        yield Diagnostic(
            "not-built-on-engine",
            f"{name} is {run.lora.base_dtype}, but {reason}",
            f"set {name}=float32{other}",
            name,
            origins.near(name),
        )


@settings_rule(NOT_BUILT_ON_ENGINE)
def narrow_states_not_built(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that engine and model.dtype allow optim.states=8bit."""
    if run.optim.states != "8bit":
        return
    name, reason, other = "optim.states", None, ""
    if isinstance(run.engine, Megatron):
        reason, other = "engine=megatron updates by megatron-core's own Adam", ", or engine=fsdp2"
    elif run.model.dtype == "float64":
        reason = "model.dtype is float64, and such an update is computed in float32"
        other = ", or model.dtype=float32"
    if reason is not None:
        yield Diagnostic(
            "not-built-on-engine",
            f"{name} is 8bit, but {reason}",
            f"set {name}=float32{other}",
            name,
            origins.near(name),
        )


@settings_rule(NOT_BUILT_ON_ENGINE)
def recompute_not_planned(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that model.gradient_checkpointing is not auto with engine=megatron: it has no plan."""
    name = "model.gradient_checkpointing"
    if run.model.gradient_checkpointing == "auto" and isinstance(run.engine, Megatron):
        yield Diagnostic(
            "not-built-on-engine",
            f"{name} is auto, and no plan is made of engine=megatron, by which to choose",
            f"set {name}=full, or a number of blocks; or engine=fsdp2",
            name,
            origins.near(name),
        )
