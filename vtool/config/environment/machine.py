"""Facts of a machine, read without torch: variables, versions of packages, CANN's files."""

import ast
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import Distribution

# What CANN's installers leave behind; torch_npu reads the same (torch_npu/utils/collect_env.py).
_INSTALLED = "*_install.info"


@dataclass(frozen=True, slots=True)
class Torch:
    """An installed torch."""

    version: str
    """The version in its metadata: `2.13.0+cpu`."""
    accelerator: str | None
    """The accelerator of the build: `cuda`, `hip` or `xpu`; None for a CPU build."""


@dataclass(frozen=True, slots=True)
class Cann:
    """The CANN that torch_npu would find."""

    home: Path | None
    """`ASCEND_HOME_PATH`."""
    packages: Mapping[str, str]
    """The versions of what is installed there, by package name."""
    problems: tuple[str, ...] = ()
    """Problems that make `import torch_npu` raise."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The facts that the checks are functions of."""

    environment: Mapping[str, str]
    torch: Torch | None
    torch_npu: str | None
    """The version."""
    wanted_torch: str | None
    """The bound in torch_npu's metadata: `==2.13.0.*`."""
    cann: Cann
    npus: int
    """Device files of NPUs; 0 where there are none, or a container hides them."""
    cores: int


def read_machine(
    environment: Mapping[str, str], path: Sequence[str] | None = None, devices: Path = Path("/dev")
) -> Machine:
    """Look at this machine.

    Args:
        path: the folders in which packages are looked for, as `sys.path` has them.
        devices: the folder of device files.
    """
    npu, wanted = _torch_npu(path)
    count = sum(
        1 for file in devices.glob("davinci*") if file.name.removeprefix("davinci").isdigit()
    )
    return Machine(
        environment,
        read_torch(path),
        npu,
        wanted,
        read_cann(environment),
        count,
        os.cpu_count() or 1,
    )


def read_torch(path: Sequence[str] | None = None) -> Torch | None:
    """Return the installed torch, from its metadata and its `version.py`, which is read as text."""
    distribution = find_distribution("torch", path)
    if distribution is None:
        return None
    built: dict[str, object] = {}
    try:
        for node in ast.parse(
            Path(str(distribution.locate_file("torch/version.py"))).read_bytes()
        ).body:
            match node:
                case (
                    ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=value))
                    | ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=value))
                ):
                    built[name] = value
    except (OSError, SyntaxError, ValueError):
        pass
    return Torch(
        distribution.version,
        next((name for name in ("cuda", "hip", "xpu") if built.get(name)), None),
    )


def read_cann(environment: Mapping[str, str]) -> Cann:
    """Return the CANN that the variables of its `set_env.sh` name, and its problems.

    The problems are those that torch_npu 2.13 raises for, in its words' order
    (torch_npu/_init/registry/registry_manager.py); where the variable is not set, it raises for
    libhccl.so, unless the loader finds that elsewhere.
    """
    given = environment.get("ASCEND_HOME_PATH")
    if given is None:
        folders = [
            folder for folder in environment.get("LD_LIBRARY_PATH", "").split(os.pathsep) if folder
        ]
        return Cann(
            None,
            {},
            (
                ()
                if any((Path(folder) / "libhccl.so").exists() for folder in folders)
                else ("ASCEND_HOME_PATH is not set, and LD_LIBRARY_PATH leads to no libhccl.so",)
            ),
        )
    home, opp = Path(given), environment.get("ASCEND_OPP_PATH")
    if not home.is_dir():
        return Cann(home, {}, (f"ASCEND_HOME_PATH is {given}, which is not there",))
    problems = []
    if opp is None:
        problems.append("ASCEND_OPP_PATH is not set")
    elif not Path(opp).is_dir():
        problems.append(f"ASCEND_OPP_PATH is {opp}, which is not there")
    problems += [
        f"{home / part} is not there"
        for part in ("runtime", "compiler")
        if not (home / part).exists()
    ]
    return Cann(home, dict(_packages(home)), tuple(problems))


def _packages(home: Path) -> Iterator[tuple[str, str]]:
    for file in sorted({*home.glob(_INSTALLED), *home.glob(f"*/{_INSTALLED}")}):
        try:
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        values = {
            key.strip(): value.strip() for key, _, value in (line.partition("=") for line in lines)
        }
        if "version" in values:
            yield (
                values.get("package_name", file.name.removesuffix(_INSTALLED[1:])),
                values["version"],
            )


def _torch_npu(path: Sequence[str] | None) -> tuple[str | None, str | None]:
    distribution = find_distribution("torch-npu", path)
    if distribution is None:
        return None, None
    wanted = (each for each in distribution.requires or () if each.startswith("torch="))
    return distribution.version, next(wanted, "").removeprefix("torch").strip() or None


def find_distribution(name: str, path: Sequence[str] | None = None) -> "Distribution | None":
    """Return an installed distribution; None where there is none.

    Args:
        path: the folders to look in, as `sys.path` has them, which is the default.
    """
    from importlib import metadata  # 10 ms, which most recipes need not wait for

    folders = list(sys.path if path is None else path)
    return next(iter(metadata.distributions(name=name, path=folders)), None)
