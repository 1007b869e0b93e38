"""What `wrap_config` and `ddp_config` of the engine `megatron` come to: the fields of
megatron-core's DDP, or what contradicts what.

verl passed `ddp_config` to its bridge and left `wrap_config` out; the bridge's own default, a
distributed optimizer, then met a plain one, and the weights of the ranks drifted apart without an
error (verl#5775). So one place makes the fields, for every bridge, and a value overrides nothing
silently. Measured with megatron-core 0.16.1; paths in comments are in `megatron/core`. Needs
neither it nor torch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from vtool.config.schema.megatron import DdpConfig, WrapConfig

_FSDP = "only Megatron FSDP reads it, and the DDP of this engine is megatron-core's plain one"
_EIGHT_BITS = "weights are gathered in the dtype of model.dtype"
# What the plain DDP never reads (distributed/distributed_data_parallel.py,
# param_and_grad_buffer.py), or what is not built here.
_NEVER: dict[str, str] = {
    **dict.fromkeys(
        (
            "use_megatron_fsdp",
            "use_custom_fsdp",
            "data_parallel_sharding_strategy",
            "outer_dp_sharding_strategy",
            "gradient_reduce_div_fusion",
            "suggested_communication_unit_size",
            "preserve_fp32_weights",
            "keep_fp8_transpose_cache",
            "fsdp_double_buffer",
            "fsdp_manual_registration",
        ),
        _FSDP,
    ),
    "fp8_param_gather": _EIGHT_BITS,
    "reuse_grad_buf_for_mxfp8_param_ag": _EIGHT_BITS,
    "delay_wgrad_compute": (
        "the layers of this engine do not put it off, and their DDP would ignore it"
    ),
}
# Megatron-core's own defaults of what is never read: to write them changes nothing, and is let be.
_DEFAULTS: dict[str, Any] = {
    "data_parallel_sharding_strategy": "no_shard",
    "outer_dp_sharding_strategy": "no_shard",
    "gradient_reduce_div_fusion": True,
    "preserve_fp32_weights": True,
}


@dataclass(frozen=True, slots=True)
class Problem:
    """What cannot be, of one setting."""

    parameter: str
    """Of the engine, such as `ddp_config.overlap_param_gather`; or of the model."""
    message: str
    help: str

    @property
    def setting(self) -> str:
        """The setting's dotted name in a recipe."""
        return self.parameter if self.parameter.startswith("model.") else f"engine.{self.parameter}"


@dataclass(frozen=True, slots=True)
class _Needs:
    """A setting that megatron-core ignores, or asserts on, without another one."""

    setting: str
    other: str
    met: Callable[[Mapping[str, Any]], bool]
    otherwise: str


def _on(*names: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda fields: all(bool(fields.get(name)) for name in names)


_DISTRIBUTED = "wrap_config.use_distributed_optimizer=true"
_NEEDS = (
    _Needs(
        "overlap_param_gather",
        _DISTRIBUTED,
        _on("use_distributed_optimizer"),
        "it is silently ignored",
    ),
    _Needs(
        "overlap_param_gather",
        "ddp_config.overlap_grad_reduce=true",
        _on("overlap_grad_reduce"),
        "weights are gathered too late",
    ),
    _Needs(
        "align_param_gather",
        "ddp_config.overlap_param_gather=true",
        _on("overlap_param_gather"),
        "it is silently ignored",
    ),
    _Needs(
        "bucket_size",
        "ddp_config.overlap_grad_reduce=true",
        _on("overlap_grad_reduce"),
        "it is silently set to no limit",
    ),
    _Needs(
        "pad_buckets_for_high_nccl_busbw",
        _DISTRIBUTED,
        _on("use_distributed_optimizer"),
        "it is silently ignored",
    ),
    _Needs(
        "reduce_scatter_with_fp32_accumulation",
        _DISTRIBUTED,
        _on("use_distributed_optimizer"),
        "it is silently ignored",
    ),
    _Needs(
        "disable_symmetric_registration",
        "ddp_config.nccl_ub=true",
        _on("nccl_ub"),
        "it is silently ignored",
    ),
)


def problems(wrap: WrapConfig, ddp: DdpConfig, *, dtype: str, cpu: bool) -> list[Problem]:
    """All that contradicts itself, at once.

    Args:
        dtype: `model.dtype`.
        cpu: whether the run is on a CPU.
    """
    given = _given(ddp)
    found = list(_of_the_wrapper(wrap, given))
    if (
        given.get("use_distributed_optimizer", wrap.use_distributed_optimizer)
        is not wrap.use_distributed_optimizer
    ):
        written, wanted = (
            _yes(given["use_distributed_optimizer"]),
            _yes(wrap.use_distributed_optimizer),
        )
        found.append(
            Problem(
                "ddp_config.use_distributed_optimizer",
                f"ddp_config.use_distributed_optimizer is {written}, but"
                f" wrap_config.use_distributed_optimizer, and with it the optimizer, is {wanted}:"
                " the weights of the ranks would drift apart",
                "set it in wrap_config alone",
            )
        )
    if given.get("grad_reduce_in_fp32") is False and dtype == "bfloat16":
        message = (
            "ddp_config.grad_reduce_in_fp32 is false, but gradients are reduced in float32 on every"
            " engine"
        )
        found.append(Problem("ddp_config.grad_reduce_in_fp32", message, "leave it out"))
    for name, why in _NEVER.items():
        if name in given and given[name] != _DEFAULTS.get(name, False):
            message = f"ddp_config.{name} is {_yes(given[name])}, which would have no effect: {why}"
            found.append(Problem(f"ddp_config.{name}", message, "leave it out"))
    fields = live_fields(wrap, ddp)
    for rule in _NEEDS:
        if given.get(rule.setting) and not rule.met(fields):
            message = (
                f"ddp_config.{rule.setting} is {_yes(given[rule.setting])} without {rule.other}:"
                f" {rule.otherwise}"
            )
            found.append(
                Problem(f"ddp_config.{rule.setting}", message, f"set {rule.other}, or leave it out")
            )
    if fields.get("reduce_scatter_with_fp32_accumulation") and fields.get("average_in_collective"):
        message = (
            "ddp_config.average_in_collective is true with reduce_scatter_with_fp32_accumulation,"
            " which only adds up"
        )
        found.append(Problem("ddp_config.average_in_collective", message, "leave one of them out"))
    if given.get("num_distributed_optimizer_instances", 1) > 1:
        message = (
            "ddp_config.num_distributed_optimizer_instances is more than 1, and one group of all"
            " data parallel processes is built"
        )
        found.append(
            Problem("ddp_config.num_distributed_optimizer_instances", message, "leave it out")
        )
    if given.get("nccl_ub") and cpu:
        found.append(
            Problem(
                "ddp_config.nccl_ub",
                "ddp_config.nccl_ub is true, but there is no NCCL on a CPU",
                "leave it out",
            )
        )
    return found


def live_fields(wrap: WrapConfig, ddp: DdpConfig) -> dict[str, Any]:
    """The fields of `DistributedDataParallelConfig` that differ from megatron-core's defaults, or
    that a bridge has other defaults of.

    mbridge 0.15.1 begins with `use_distributed_optimizer` and `grad_reduce_in_fp32`, both true,
    megatron-core with both false.
    """
    return {
        "use_distributed_optimizer": wrap.use_distributed_optimizer,
        "grad_reduce_in_fp32": True,
    } | _given(ddp)


def _of_the_wrapper(wrap: WrapConfig, given: Mapping[str, Any]) -> list[Problem]:
    found = []
    if not wrap.wrap_with_ddp:
        if given:
            listed = ", ".join(f"ddp_config.{name}" for name in given)
            message = f"wrap_config.wrap_with_ddp is false, but {listed} would then have no effect"
            found.append(
                Problem(
                    "wrap_config.wrap_with_ddp",
                    message,
                    "leave ddp_config empty, or wrap_with_ddp out",
                )
            )
        else:
            message = (
                "wrap_config.wrap_with_ddp is false: megatron-core's optimizers take the gradients"
                " from its DDP, and none would be there"
            )
            found.append(Problem("wrap_config.wrap_with_ddp", message, "leave it out"))
    for name, why in (
        ("is_value_model", "a model is trained with its language head"),
        (
            "use_layer_wise_distributed_optimizer",
            "it goes with the optimizer Muon, and optim.name is adamw",
        ),
        ("use_megatron_fsdp", "the engine fsdp2 shards weights: engine=fsdp2"),
    ):
        if getattr(wrap, name):
            found.append(
                Problem(
                    f"wrap_config.{name}",
                    f"wrap_config.{name} is true, which is not built: {why}",
                    "leave it out",
                )
            )
    return found


def _given(ddp: DdpConfig) -> dict[str, Any]:
    return {name: value for name, value in ddp.model_dump().items() if value is not None}


def _yes(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
