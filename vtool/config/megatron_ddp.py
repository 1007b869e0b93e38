"""Megatron-core's DDP config, made from `wrap_config` and `ddp_config` of the engine `megatron`.

verl passed `ddp_config` to its bridge and left `wrap_config` out. The bridge's own default, a
distributed optimizer, then met a plain one, and the weights of the ranks drifted apart without an
error (verl#5775). So one function makes the fields, for every bridge, and a value that cannot take
effect is a conflict. Measured with megatron-core 0.16.1, whose files are named by their paths in
`megatron/core`. Needs neither megatron-core nor torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from vtool.config.schema.base import NotValid
from vtool.config.schema.megatron import DdpConfig, WrapConfig
from vtool.config.schema.training import Optim
from vtool.diagnostics.near_miss import one_of


@dataclass(frozen=True, slots=True)
class Problem:
    """A setting of the engine that cannot be as it is."""

    parameter: str
    """A parameter of the engine, such as `ddp_config.overlap_param_gather`, or of the model."""
    message: str
    help: str

    @property
    def setting(self) -> str:
        """The setting's dotted name in a recipe."""
        return self.parameter if self.parameter.startswith("model.") else f"engine.{self.parameter}"


@dataclass(frozen=True, slots=True)
class Conflict:
    """A field whose value cannot take effect, always or under a condition."""

    parameter: str
    """With its group, such as `ddp_config.nccl_ub`."""
    why: str
    """The message, from behind the value."""
    help: str = "leave it out"
    harmless: Any = False
    """The one value that is no conflict: it asks for nothing, or for what is done in any case."""
    when: Mapping[str, Any] = field(default_factory=dict)
    """The values that make it a conflict: of DDP fields, `model.dtype`, and `device` "cpu"."""

    def problem(self, facts: Mapping[str, Any]) -> Problem | None:
        """Return the conflict of the field where it is given, or None.

        Args:
            facts: values by the names of `parameter` and `when`; a name that is missing is false.
        """
        value = facts.get(self.parameter, self.harmless)
        if value == self.harmless or any(
            facts.get(name, False) != needed for name, needed in self.when.items()
        ):
            return None
        return Problem(self.parameter, f"{self.parameter} is {_yaml(value)}{self.why}", self.help)


def _yaml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


_DISTRIBUTED = "use_distributed_optimizer"
_FSDP = "only Megatron FSDP reads it, and the DDP of this engine is megatron-core's plain one"
_EIGHT_BITS = "weights are gathered in the dtype of model.dtype"
_IGNORED = "it is silently ignored"
_OPTIMIZERS = one_of(get_args(Optim.model_fields["name"].annotation))

# Fields that the plain DDP never reads (distributed/distributed_data_parallel.py,
# param_and_grad_buffer.py), or that ask for what is not built here. Megatron-core's own default of
# each is harmless.
_OF_FSDP: Mapping[Any, tuple[str, ...]] = {
    False: (
        *("use_megatron_fsdp", "use_custom_fsdp", "keep_fp8_transpose_cache"),
        *("fsdp_double_buffer", "fsdp_manual_registration"),
    ),
    True: ("gradient_reduce_div_fusion", "preserve_fp32_weights"),
    "no_shard": ("data_parallel_sharding_strategy", "outer_dp_sharding_strategy"),
    None: ("suggested_communication_unit_size",),
}
_UNREAD = (
    *((name, _FSDP, default) for default, names in _OF_FSDP.items() for name in names),
    ("fp8_param_gather", _EIGHT_BITS, False),
    ("reuse_grad_buf_for_mxfp8_param_ag", _EIGHT_BITS, False),
    (
        "delay_wgrad_compute",
        "the layers of this engine do not put it off, and their DDP would ignore it",
        False,
    ),
)
# Fields that megatron-core ignores, or asserts on, unless another one is true.
_NEEDS = (
    ("overlap_param_gather", _DISTRIBUTED, _IGNORED),
    ("overlap_param_gather", "overlap_grad_reduce", "weights are gathered too late"),
    ("align_param_gather", "overlap_param_gather", _IGNORED),
    ("bucket_size", "overlap_grad_reduce", "it is silently set to no limit"),
    ("pad_buckets_for_high_nccl_busbw", _DISTRIBUTED, _IGNORED),
    ("reduce_scatter_with_fp32_accumulation", _DISTRIBUTED, _IGNORED),
    ("disable_symmetric_registration", "nccl_ub", _IGNORED),
)
_NOT_BUILT = (
    ("is_value_model", "a model is trained with its language head"),
    (
        "use_layer_wise_distributed_optimizer",
        f"it goes with the optimizer Muon, and optim.name takes {_OPTIMIZERS}",
    ),
    ("use_megatron_fsdp", "the engine fsdp2 shards weights: engine=fsdp2"),
)


def _written(name: str) -> str:
    """Return the setting that makes a DDP field true."""
    return f"{'wrap_config' if name == _DISTRIBUTED else 'ddp_config'}.{name}=true"


CONFLICTS: tuple[Conflict, ...] = (
    *(Conflict(f"wrap_config.{name}", f", which is not built: {why}") for name, why in _NOT_BUILT),
    *(
        Conflict(
            f"ddp_config.{_DISTRIBUTED}",
            f", but wrap_config.{_DISTRIBUTED}, and with it the optimizer, is {_yaml(wrapped)}: the"
            " weights of the ranks would drift apart",
            "set it in wrap_config alone",
            harmless=wrapped,
            when={f"wrap_config.{_DISTRIBUTED}": wrapped},
        )
        for wrapped in (False, True)
    ),
    Conflict(
        "ddp_config.grad_reduce_in_fp32",
        ", but gradients are reduced in float32 on every engine",
        harmless=True,
        when={"model.dtype": "bfloat16"},
    ),
    *(
        Conflict(f"ddp_config.{name}", f", which would have no effect: {why}", harmless=harmless)
        for name, why, harmless in _UNREAD
    ),
    *(
        Conflict(
            f"ddp_config.{name}",
            f" without {_written(other)}: {otherwise}",
            f"set {_written(other)}, or leave it out",
            when={other: False},
        )
        for name, other, otherwise in _NEEDS
    ),
    Conflict(
        "ddp_config.average_in_collective",
        " with reduce_scatter_with_fp32_accumulation, which only adds up",
        "leave one of them out",
        when={"reduce_scatter_with_fp32_accumulation": True},
    ),
    Conflict(
        "ddp_config.num_distributed_optimizer_instances",
        ", and one group of all data parallel processes is built",
        harmless=1,
    ),
    Conflict("ddp_config.nccl_ub", ", but there is no NCCL on a CPU", when={"device": "cpu"}),
)
"""Every conflict, in the order in which they are reported."""


def problems(wrap: WrapConfig, ddp: DdpConfig, *, dtype: str, cpu: bool) -> list[Problem]:
    """Return everything in the two groups that contradicts something else, or would be ignored.

    Args:
        dtype: `model.dtype`.
        cpu: whether the run is on a CPU.

    Raises:
        NotValid: a field has no valid value, and nothing is wrong with what the others say.
    """
    given, unknown = _valid(ddp)
    facts = {
        **{f"wrap_config.{name}": value for name, value in wrap},
        **{f"ddp_config.{name}": value for name, value in given.items()},
        **_live(wrap, given),
        "model.dtype": dtype,
        "device": "cpu" if cpu else "",
    }
    found = [] if wrap.wrap_with_ddp else [_without_wrapper(given)]
    read = [each for each in CONFLICTS if unknown.isdisjoint((each.parameter, *each.when))]
    found += [one for conflict in read if (one := conflict.problem(facts))]
    if len(read) < len(CONFLICTS) and not found:
        raise NotValid("ddp_config")
    return found


def live_fields(wrap: WrapConfig, ddp: DdpConfig) -> dict[str, Any]:
    """Return the fields of `DistributedDataParallelConfig` that are not left to its defaults.

    mbridge 0.15.1 begins with `use_distributed_optimizer` and `grad_reduce_in_fp32`, both true,
    megatron-core with both false: these two are always there.
    """
    return _live(wrap, _given(ddp))


def _live(wrap: WrapConfig, given: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "use_distributed_optimizer": wrap.use_distributed_optimizer,
        "grad_reduce_in_fp32": True,
        **given,
    }


def _without_wrapper(given: Mapping[str, Any]) -> Problem:
    name = "wrap_config.wrap_with_ddp"
    if given:
        listed = ", ".join(f"ddp_config.{field}" for field in given)
        return Problem(
            name,
            f"{name} is false, but {listed} would then have no effect",
            "leave ddp_config empty, or wrap_with_ddp out",
        )
    return Problem(
        name,
        (
            f"{name} is false: megatron-core's optimizers take the gradients from its DDP, and none"
            " would be there"
        ),
        "leave it out",
    )


def _valid(ddp: DdpConfig) -> tuple[dict[str, Any], frozenset[str]]:
    """Return the fields that are given, and the names in facts of those with no valid value."""
    given: dict[str, Any] = {}
    unknown: set[str] = set()
    for name in DdpConfig.model_fields:
        try:
            if (value := getattr(ddp, name)) is not None:
                given[name] = value
        except NotValid:
            unknown |= {name, f"ddp_config.{name}"}
    return given, frozenset(unknown)


def _given(ddp: DdpConfig) -> dict[str, Any]:
    return ddp.model_dump(exclude_none=True)
