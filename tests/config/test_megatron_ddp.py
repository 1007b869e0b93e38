"""The fields of wrap_config and ddp_config, and every one that is refused.

Without megatron-core.
"""

import ast
from pathlib import Path
from typing import Any

import pytest

from vtool.config.environment.machine import find_distribution
from vtool.config.megatron_ddp import CONFLICTS, live_fields, problems
from vtool.config.megatron_versions import DDP_CONFIG_FILE
from vtool.config.schema.megatron import DdpConfig, WrapConfig


def found(
    wrap: dict[str, Any] | None = None,
    ddp: dict[str, Any] | None = None,
    dtype: str = "float32",
    cpu: bool = True,
) -> list[str]:
    return [
        one.parameter
        for one in problems(
            WrapConfig(**(wrap or {})), DdpConfig(**(ddp or {})), dtype=dtype, cpu=cpu
        )
    ]


def test_what_is_harmless_is_megatron_cores_own_default() -> None:
    found = find_distribution("megatron-core")
    if found is None:
        pytest.skip("megatron-core is not installed")
    source = ast.parse(Path(str(found.locate_file(DDP_CONFIG_FILE))).read_text("utf-8"))
    (config,) = (each for each in source.body if isinstance(each, ast.ClassDef))
    defaults = {
        each.target.id: ast.literal_eval(each.value)
        for each in config.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name) and each.value
    }
    asked = [each for each in CONFLICTS if "which would have no effect" in each.why]
    names = {each.parameter.removeprefix("ddp_config."): each.harmless for each in asked}
    assert len(names) > 10
    assert {name: defaults[name] for name in names if name in defaults} == {
        name: harmless for name, harmless in names.items() if name in defaults
    }


DISTRIBUTED = {"use_distributed_optimizer": True}


@pytest.mark.parametrize("wrap", [{}, DISTRIBUTED])
def test_the_wrapper_says_which_optimizer_and_ddp_follows(wrap: dict[str, Any]) -> None:
    """With nothing else said, which verl#5775 lost."""
    assert found(wrap) == []
    fields = live_fields(WrapConfig(**wrap), DdpConfig())
    assert fields == {"use_distributed_optimizer": bool(wrap), "grad_reduce_in_fp32": True}


@pytest.mark.parametrize(
    ("wrap", "ddp"),
    [
        (
            {},
            {
                "use_distributed_optimizer": False,
                "grad_reduce_in_fp32": True,
                "check_for_nan_in_grad": True,
            },
        ),
        (
            DISTRIBUTED,
            {
                "use_distributed_optimizer": True,
                "overlap_grad_reduce": True,
                "overlap_param_gather": True,
                "bucket_size": 9,
            },
        ),
        (
            DISTRIBUTED,
            {
                "pad_buckets_for_high_nccl_busbw": True,
                "reduce_scatter_with_fp32_accumulation": True,
            },
        ),
        (
            {},
            {
                "average_in_collective": True,
                "overlap_grad_reduce": True,
                "num_distributed_optimizer_instances": 1,
            },
        ),
        (
            {},
            {
                "data_parallel_sharding_strategy": "no_shard",
                "use_megatron_fsdp": False,
                "preserve_fp32_weights": True,
            },
        ),
    ],
)
def test_what_goes_together_passes_as_it_was_written(
    wrap: dict[str, Any], ddp: dict[str, Any]
) -> None:
    assert found(wrap, ddp) == []
    assert live_fields(WrapConfig(**wrap), DdpConfig(**ddp)).items() >= ddp.items()


@pytest.mark.parametrize(
    ("wrap", "ddp", "expected"),
    [
        ({}, DISTRIBUTED, ["use_distributed_optimizer"]),
        (DISTRIBUTED, {"use_distributed_optimizer": False}, ["use_distributed_optimizer"]),
        ({}, {"overlap_param_gather": True, "overlap_grad_reduce": True}, ["overlap_param_gather"]),
        (DISTRIBUTED, {"overlap_param_gather": True}, ["overlap_param_gather"]),
        ({}, {"overlap_param_gather": True}, ["overlap_param_gather", "overlap_param_gather"]),
        ({}, {"align_param_gather": True}, ["align_param_gather"]),
        ({}, {"bucket_size": 100}, ["bucket_size"]),
        ({}, {"use_megatron_fsdp": True}, ["use_megatron_fsdp"]),
        ({}, {"use_custom_fsdp": True}, ["use_custom_fsdp"]),
        ({}, {"data_parallel_sharding_strategy": "optim"}, ["data_parallel_sharding_strategy"]),
        ({}, {"preserve_fp32_weights": False}, ["preserve_fp32_weights"]),
        (DISTRIBUTED, {"fp8_param_gather": True}, ["fp8_param_gather"]),
        ({}, {"pad_buckets_for_high_nccl_busbw": True}, ["pad_buckets_for_high_nccl_busbw"]),
        (
            {},
            {"reduce_scatter_with_fp32_accumulation": True},
            ["reduce_scatter_with_fp32_accumulation"],
        ),
        (
            DISTRIBUTED,
            {"reduce_scatter_with_fp32_accumulation": True, "average_in_collective": True},
            ["average_in_collective"],
        ),
        (
            DISTRIBUTED,
            {"num_distributed_optimizer_instances": 2},
            ["num_distributed_optimizer_instances"],
        ),
        ({}, {"delay_wgrad_compute": True}, ["delay_wgrad_compute"]),
        ({}, {"disable_symmetric_registration": True}, ["disable_symmetric_registration"]),
        ({}, {"nccl_ub": True}, ["nccl_ub"]),
    ],
)
def test_what_contradicts_or_would_be_ignored_is_refused(
    wrap: dict[str, Any], ddp: dict[str, Any], expected: list[str]
) -> None:
    assert found(wrap, ddp) == [f"ddp_config.{name}" for name in expected]


def test_the_device_and_the_dtype_matter_where_they_do() -> None:
    assert found({}, {"nccl_ub": True}, cpu=False) == []
    assert found({}, {"grad_reduce_in_fp32": False}) == []
    assert found({}, {"grad_reduce_in_fp32": False}, dtype="bfloat16") == [
        "ddp_config.grad_reduce_in_fp32"
    ]


@pytest.mark.parametrize(
    "name",
    [
        "wrap_with_ddp",
        "is_value_model",
        "use_layer_wise_distributed_optimizer",
        "use_megatron_fsdp",
    ],
)
def test_wrappers_that_are_not_built_are_refused(name: str) -> None:
    assert found({name: name != "wrap_with_ddp"}) == [f"wrap_config.{name}"]


def test_without_the_wrapper_no_setting_of_it_is_taken() -> None:
    (one,) = problems(
        WrapConfig(wrap_with_ddp=False),
        DdpConfig(overlap_grad_reduce=True),
        dtype="float32",
        cpu=True,
    )
    assert "ddp_config.overlap_grad_reduce would then have no effect" in one.message


def test_everything_is_reported_at_once() -> None:
    wrap, ddp = (
        {"is_value_model": True},
        {
            "use_distributed_optimizer": True,
            "use_megatron_fsdp": True,
            "bucket_size": 1,
        },
    )
    assert len(found(wrap, ddp)) == 4


def test_the_fields_are_those_of_megatron_core() -> None:
    config = pytest.importorskip(
        "megatron.core.distributed.distributed_data_parallel_config"
    ).DistributedDataParallelConfig
    from dataclasses import fields

    assert set(DdpConfig.model_fields) == {field.name for field in fields(config)}
