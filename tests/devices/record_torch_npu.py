"""Writes down what a wheel of torch_npu declares of the functions that vtool calls: names, places, signatures. Nothing of it is imported.

pip download torch_npu==2.13.0 --no-deps && python -m tests.devices.record_torch_npu torch_npu-2.13.0-*.whl > tests/devices/torch_npu.json
"""

import ast
import json
import sys
import zipfile
from typing import Any

PACKAGE = "torch_npu/npu"
CALLED = ("device_count", "is_available", "manual_seed", "set_device")


def recorded(wheel: zipfile.ZipFile) -> dict[str, Any]:
    """The wheel's version and the torch that it asks for; and of each function, where it is defined and its arguments."""
    metadata = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    lines = [line.partition(": ") for line in wheel.read(metadata).decode().splitlines()]
    requires = [value for key, _, value in lines if key == "Requires-Dist" and value.startswith("torch==")]
    return {
        "torch_npu": next(value for key, _, value in lines if key == "Version"),
        "requires": requires,
        "torch.npu": {name: _function(wheel, name) for name in CALLED},
    }


def _function(wheel: zipfile.ZipFile, name: str) -> dict[str, str]:
    """The file of the package `torch_npu.npu` that defines a function which the package offers, and the function's arguments."""
    offered = next(
        ast.literal_eval(node.value)
        for node in ast.parse(wheel.read(f"{PACKAGE}/__init__.py")).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    assert name in offered, f"torch_npu.npu does not offer {name}"
    for file in (file for file in sorted(wheel.namelist()) if file.rpartition("/")[0] == PACKAGE and file.endswith(".py")):
        for node in ast.parse(wheel.read(file)).body:
            if isinstance(node, ast.FunctionDef) and node.name == name:
                return {"file": file, "arguments": ast.unparse(node.args)}
    raise AssertionError(f"no file of {PACKAGE} defines {name}")


if __name__ == "__main__":
    with zipfile.ZipFile(sys.argv[1]) as opened:
        print(json.dumps(recorded(opened), indent=2))
