"""The rows that doctor prints about a machine."""

import os
import platform
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vtool.config.environment.machine import Machine
from vtool.config.schema import Megatron
from vtool.doctor.frameworks import FRAMEWORKS, FrameworkVersions
from vtool.doctor.packages import RequiredPackage, distribution_version
from vtool.doctor.recipe import Needs
from vtool.doctor.torch_answer import TorchAnswer

_ALWAYS_SHOWN = ("transformers", "tokenizers", "safetensors", "peft")
"""Packages that have a row of their own even where they fit."""


@dataclass(frozen=True, slots=True)
class TableRow:
    """One line of the table: a thing, its state, and a note."""

    section: str
    name: str
    state: str
    note: str = ""


def machine_rows(machine: Machine) -> Iterator[TableRow]:
    """Yield the rows about Python, the cores and CANN."""
    yield TableRow("machine", "python", platform.python_version(), sys.executable)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    cores = str(len(os.sched_getaffinity(0)))
    yield TableRow("machine", "cores", cores, f"{memory:.0f} GiB of memory, {platform.machine()}")
    if machine.cann.home is not None:
        versions = ", ".join(f"{name} {version}" for name, version in machine.cann.packages.items())
        yield TableRow("machine", "CANN", versions or "no *_install.info", str(machine.cann.home))


def torch_rows(machine: Machine, answer: TorchAnswer | None) -> Iterator[TableRow]:
    """Yield the rows about torch and its devices."""
    if machine.torch is None:
        yield TableRow("torch", "torch", "not installed", "pip install 'vtool[train]'")
        return
    accelerator, version = machine.torch.accelerator, machine.torch.version
    built = f"a build for {accelerator.upper() if accelerator else 'CPUs'}"
    fails = answer is not None and answer.error is not None
    yield TableRow("torch", "torch", f"{version} fails" if fails else version, built)
    if answer is None or fails:
        return
    unseen = "no device is seen"
    yield TableRow("torch", "cpu", "usable")
    no_cuda = unseen if accelerator == "cuda" else "this build of torch has no CUDA"
    yield _device_row("cuda", answer.cuda, no_cuda)
    no_npu = "torch_npu is not installed: pip install 'vtool[npu]'"
    yield _device_row(
        "npu", answer.npu, answer.npu_error or unseen if machine.torch_npu else no_npu
    )
    if answer.torchvision_error:
        yield TableRow("torch", "images", "no", answer.torchvision_error)
    elif answer.torchvision:
        yield TableRow("torch", "images", "torchvision", answer.torchvision)
    else:
        other = "torchvision, which vLLM and other trainers use, is not installed"
        yield TableRow("torch", "images", "PIL", other)


def _device_row(kind: str, names: Sequence[str], otherwise: str) -> TableRow:
    count = f"{len(names)} device{'s' * (len(names) > 1)}" if names else "no"
    return TableRow("torch", kind, count, ", ".join(dict.fromkeys(names)) or otherwise)


def engine_rows(answer: TorchAnswer | None, needs: Needs | None) -> Iterator[TableRow]:
    """Yield the rows about the engines that torch and the packages allow."""
    run = needs.run if needs else None
    if needs is not None and run is None:
        return
    usable, why = "usable", ""
    if answer is None or answer.error is not None:
        usable = "not usable"
        why = "torch is not installed" if answer is None else "torch does not import"
    if run is None or not isinstance(run.engine, Megatron):
        yield TableRow("engines", "ddp, fsdp2" if run is None else run.engine.kind, usable, why)
    if run is None or isinstance(run.engine, Megatron):
        if core := distribution_version("megatron-core"):
            te = distribution_version("transformer-engine")
            layers = "without Transformer Engine, megatron-core's own layers"
            note = f"megatron-core {core}; {f'Transformer Engine {te}' if te else layers}"
            yield TableRow("engines", "megatron", usable, note)
        else:
            yield TableRow("engines", "megatron", "not installed", "pip install 'vtool[megatron]'")


def package_rows(packages: Sequence[RequiredPackage]) -> Iterator[TableRow]:
    """Yield a row for each package that does not fit, and for some that do; count the others."""
    others = 0
    for package in packages:
        if package.name == "torch":
            continue
        if package.fits and package.name not in _ALWAYS_SHOWN:
            others += 1
            continue
        bounds = f"asked for: {package.requirement.specifier}" if not package.fits else ""
        yield TableRow("packages", package.name, package.version or "not installed", bounds)
    if others:
        bounds = "all within the bounds that vtool asks for"
        yield TableRow("packages", "others", f"{others} installed", bounds)


def framework_rows(interpreter: FrameworkVersions | None) -> Iterator[TableRow]:
    """Yield the rows about the frameworks of load-check and their interpreter."""
    if interpreter is None:
        return
    state = "fails" if interpreter.error else "usable"
    yield TableRow("load-check", "interpreter", state, interpreter.error or interpreter.python)
    for name, framework in FRAMEWORKS.items() if not interpreter.error else ():
        version = interpreter.versions.get(name)
        hint = "" if version else framework.install
        yield TableRow("load-check", name, version or "not installed", hint)
