"""Writes down what a wheel of torch_npu declares of the functions that vtool calls: names, places,
signatures. Nothing of it is imported.

pip download torch_npu==2.13.0 --no-deps && python -m tests.devices.record_torch_npu
torch_npu-2.13.0-*.whl > tests/devices/torch_npu.json
"""

import ast
import json
import sys
import zipfile
from typing import Any

PACKAGE = "torch_npu/npu"
PROFILER = "torch_npu/profiler"
CALLED = (
    *("device_count", "is_available", "manual_seed", "set_device"),
    *(
        "synchronize",
        "current_stream",
        "reset_peak_memory_stats",
        "max_memory_allocated",
        "get_device_name",
    ),
)


def recorded(wheel: zipfile.ZipFile) -> dict[str, Any]:
    """The wheel's version and the torch that it asks for;

    and of each function, where it is defined and its arguments.
    """
    metadata = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    lines = [line.partition(": ") for line in wheel.read(metadata).decode().splitlines()]
    requires = [
        value for key, _, value in lines if key == "Requires-Dist" and value.startswith("torch==")
    ]
    return {
        "torch_npu": next(value for key, _, value in lines if key == "Version"),
        "requires": requires,
        "torch.npu": {name: _function(wheel, name) for name in CALLED},
        "torch.npu.mstx": {
            name: _method(wheel, f"{PACKAGE}/mstx.py", "mstx", name)
            for name in ("range_start", "range_end")
        },
        "torch_npu.profiler": {
            "profile": _method(wheel, f"{PROFILER}/profiler.py", "profile", "__init__"),
            "tensorboard_trace_handler": _method(
                wheel, f"{PROFILER}/profiler.py", None, "tensorboard_trace_handler"
            ),
            "_ExperimentalConfig": _method(
                wheel, f"{PROFILER}/experimental_config.py", "_ExperimentalConfig", "__init__"
            ),
        },
        "torch_npu.profiler, names": {
            name: _names(wheel, file, name)
            for name, file in (
                ("ProfilerLevel", "experimental_config.py"),
                ("AiCMetrics", "experimental_config.py"),
                ("ExportType", "experimental_config.py"),
                ("ProfilerAction", "scheduler.py"),
            )
        },
        "torch_npu.profiler, offered": _offered(wheel, f"{PROFILER}/__init__.py"),
        "torch_npu.profiler.profile, set": _set(wheel, f"{PROFILER}/profiler.py", "profile"),
    }


def _class(wheel: zipfile.ZipFile, file: str, name: str) -> ast.ClassDef:
    return next(
        node
        for node in ast.parse(wheel.read(file)).body
        if isinstance(node, ast.ClassDef) and node.name == name
    )


def _method(wheel: zipfile.ZipFile, file: str, owner: str | None, name: str) -> dict[str, str]:
    """A method of a class, or a function of a file:

    its arguments without `self` and without types, which name what is not there.
    """
    body = _class(wheel, file, owner).body if owner else ast.parse(wheel.read(file)).body
    arguments = next(
        node for node in body if isinstance(node, ast.FunctionDef) and node.name == name
    ).args
    arguments.args = [one for one in arguments.args if one.arg != "self"]
    for one in (*arguments.args, *arguments.kwonlyargs):
        one.annotation = None
    # Defaults that are names of the wheel's own stand as text.
    arguments.defaults = [
        one if isinstance(one, ast.Constant) else ast.Constant(ast.unparse(one))
        for one in arguments.defaults
    ]
    return {"file": file, "arguments": ast.unparse(arguments)}


def _names(wheel: zipfile.ZipFile, file: str, owner: str) -> list[str]:
    """Return the names that a class's body sets."""
    body = _class(wheel, f"{PROFILER}/{file}", owner).body
    return [ast.unparse(node.targets[0]) for node in body if isinstance(node, ast.Assign)]


def _set(wheel: zipfile.ZipFile, file: str, owner: str) -> list[str]:
    """The attributes that a class's constructor sets."""
    made = next(
        node
        for node in _class(wheel, file, owner).body
        if isinstance(node, ast.FunctionDef) and node.name == "__init__"
    )
    found = [node.targets[0] for node in ast.walk(made) if isinstance(node, ast.Assign)]
    found += [node.target for node in ast.walk(made) if isinstance(node, ast.AnnAssign)]
    return sorted({one.attr for one in found if isinstance(one, ast.Attribute)})


def _offered(wheel: zipfile.ZipFile, file: str) -> list[str]:
    """A package's `__all__`."""
    body = ast.parse(wheel.read(file)).body
    return next(
        ast.literal_eval(node.value)
        for node in body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )


def _function(wheel: zipfile.ZipFile, name: str) -> dict[str, str]:
    """The file of the package `torch_npu.npu` that defines a function which the package offers, and
    the function's arguments.
    """
    offered = next(
        ast.literal_eval(node.value)
        for node in ast.parse(wheel.read(f"{PACKAGE}/__init__.py")).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    assert name in offered, f"torch_npu.npu does not offer {name}"
    for file in (
        file
        for file in sorted(wheel.namelist())
        if file.rpartition("/")[0] == PACKAGE and file.endswith(".py")
    ):
        for node in ast.parse(wheel.read(file)).body:
            if isinstance(node, ast.FunctionDef) and node.name == name:
                return {"file": file, "arguments": ast.unparse(node.args)}
    raise AssertionError(f"no file of {PACKAGE} defines {name}")


if __name__ == "__main__":
    with zipfile.ZipFile(sys.argv[1]) as opened:
        print(json.dumps(recorded(opened), indent=2))
