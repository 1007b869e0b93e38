"""The injected folder runs in any environment: its imports, and what it needs of Python."""

import ast
import sys
from pathlib import Path

import pytest

import vtool

FOLDER = Path(vtool.__file__).parent / "watch/inject"
FILES = sorted(FOLDER.rglob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=[file.name for file in FILES])
def test_it_imports_the_standard_library_and_torch_alone(file: Path) -> None:
    allowed = {*sys.stdlib_module_names, "torch", "vtool_watch"}
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            assert {alias.name.split(".")[0] for alias in node.names} <= allowed
        if isinstance(node, ast.ImportFrom):
            assert node.level == 1 or str(node.module).split(".")[0] in allowed


@pytest.mark.parametrize("file", FILES, ids=[file.name for file in FILES])
def test_it_is_python_3_9(file: Path) -> None:
    text = file.read_text("utf-8")
    ast.parse(text, feature_version=(3, 9))
    assert "__future__ import annotations" in text or '"""' in text.splitlines()[0]


def test_the_folder_on_the_path_hides_nothing_but_sitecustomize() -> None:
    here = {path.stem for path in FOLDER.iterdir() if not path.name.startswith("__pycache__")}
    assert here == {"__init__", "sitecustomize", "vtool_watch"}
