"""Checks for an Ascend NPU: versions that fit, CANN, and settings that it supports.

Imports nothing of torch_npu.
"""

import re
from collections.abc import Iterator

from vtool.config.environment.machine import Cann, Machine
from vtool.config.environment.variables import VISIBLE, check_variables, visible_devices
from vtool.config.origins import Origins
from vtool.config.rules.device import bound_otherwise
from vtool.config.schema import Megatron, Run
from vtool.diagnostics import Diagnostic

NPU_ONLY_RULES = ("not-on-npu", "forked-workers", "npu-mask-convention")
NPU_SETTINGS_RULES = ("device-missing", "launch-conflict", *NPU_ONLY_RULES)
VARIABLE_RULES = (
    "device-list-cut-off",
    "environment-value",
    "allocator-conflict",
    "ignored-variable",
)
PACKAGE_RULES = ("version-mismatch", "two-accelerators", "cann-not-found")
RULES = (*PACKAGE_RULES, *VARIABLE_RULES, *NPU_SETTINGS_RULES)
"""The rules that a recipe with device.kind=npu is checked against, besides those of every recipe.
"""


def check_machine(machine: Machine) -> Iterator[Diagnostic]:
    """Check the packages and the variables, whatever the recipe."""
    yield from check_packages(machine)
    yield from check_variables(machine.environment, npus=machine.npus, cores=machine.cores)


def unanswered_rules(machine: Machine) -> dict[str, str]:
    """Return, by rule, why this machine cannot answer it; the recipe may run on another."""
    return (
        {} if machine.torch_npu else dict.fromkeys(PACKAGE_RULES, "torch_npu is not installed here")
    )


def check_packages(machine: Machine) -> Iterator[Diagnostic]:
    """Check torch_npu, where it is installed, against torch and CANN."""
    if machine.torch_npu is None:
        return
    npu, torch = machine.torch_npu, machine.torch
    if (
        torch is not None
        and machine.wanted_torch is not None
        and not _fits(torch.version, machine.wanted_torch)
    ):
        release = machine.wanted_torch.removeprefix("==").removesuffix(".*")
        yield Diagnostic(
            "version-mismatch",
            (
                f"torch_npu {npu} asks for torch{machine.wanted_torch}, and torch {torch.version}"
                " is installed: undefined symbols at import"
            ),
            f"pip install torch=={release}, or torch_npu of torch's own version",
            "torch_npu",
            expected=f"torch{machine.wanted_torch}",
            seen=torch.version,
        )
    if torch is not None and torch.accelerator is not None:
        yield Diagnostic(
            "two-accelerators",
            (
                f"torch {torch.version} is a build for {torch.accelerator.upper()}, and torch_npu"
                " is installed next to it: `import torch` raises `Two accelerators cannot be used"
                " at the same time` where the other one's driver is found"
            ),
            parameter="torch",
            seen=torch.accelerator,
        )
    yield from _cann(machine.cann, npu)


def _cann(cann: Cann, npu: str) -> Iterator[Diagnostic]:
    for problem in cann.problems:
        yield Diagnostic(
            "cann-not-found",
            (
                f"torch_npu {npu} is installed and CANN is not found: {problem}; `import torch`"
                " itself then raises"
            ),
            parameter="ASCEND_OPP_PATH" if "OPP" in problem else "ASCEND_HOME_PATH",
        )
    if len(set(cann.packages.values())) > 1:
        listed = ", ".join(f"{name} {version}" for name, version in cann.packages.items())
        yield Diagnostic(
            "version-mismatch",
            f"the parts of CANN in {cann.home} are not of one version: {listed}",
            "install toolkit, kernels and NNAL of one version",
            "ASCEND_HOME_PATH",
            seen=listed,
        )


def check_settings(run: Run, origins: Origins, machine: Machine) -> Iterator[Diagnostic]:
    """Check the settings that an NPU does not support, or takes in another sense."""
    if run.model.dtype == "float64":
        yield Diagnostic(
            "not-on-npu",
            (
                "model.dtype is float64, which operations on NPUs reject one by one, or compute on"
                " a slow core beside"
            ),
            "set model.dtype=bfloat16 or float32",
            "model.dtype",
            origins.near("model.dtype"),
        )
    given = machine.environment.get(VISIBLE)
    wanted = run.launch.nproc or 1
    if given is not None and (left := len(visible_devices(given))) < wanted:
        yield Diagnostic(
            "device-missing",
            f"{wanted} processes need an NPU each, and {VISIBLE}=`{given}` leaves {left}",
            "name more devices, or lower launch.nproc",
            VISIBLE,
            seen=given,
        )
    if conflict := bound_otherwise(run, machine.environment, origins):
        yield conflict
    if run.data.workers:
        yield Diagnostic(
            "forked-workers",
            (
                f"data.workers is {run.data.workers}: workers are forked, and what touches the NPU"
                " in one raises `Cannot re-initialize NPU in forked subprocess`; vtool's own only"
                " read and encode rows, on the CPU"
            ),
            None,
            "data.workers",
            origins.near("data.workers"),
        )
    if isinstance(run.engine, Megatron):
        yield Diagnostic(
            "npu-mask-convention",
            (
                "engine=megatron on an NPU: a mask [B, S] of transformers says True = attend,"
                " megatron-core's [B, 1, S, S] and npu_fusion_attention's say True = masked; one in"
                " the other's place is an error for two rows, and silently wrong for one"
            ),
            None,
            "engine.kind",
            origins.near("engine.kind"),
        )


def _fits(version: str, wanted: str) -> bool:
    """Return whether a version such as `2.13.0+cpu` fits one such as `==2.13.0.*`.

    torch_npu has no other kind of bound.
    """
    release = wanted.removeprefix("==").removesuffix(".*").strip()
    plain = version.partition("+")[0]
    return plain == release or (
        wanted.endswith(".*")
        and re.match(re.escape(release) + r"(\.|a|b|rc|\.post|$)", plain) is not None
    )
