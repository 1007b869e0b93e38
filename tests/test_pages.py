"""Names on the pages, and names that modules export, are in the code."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_style import PAGES, ROOT

PLACED = re.compile(r"`(_?[A-Z]\w+)`,?\s+(?:in|of|\()\s*\[?`([\w/]+\.py)`")
"""A class or constant, with the file that a page names behind it."""


def placed_names() -> Iterator[tuple[str, str, str]]:
    """Yield each page, a name that it has, and the file in which it says that the name is."""
    for page in PAGES:
        for name, file in PLACED.findall(page.read_text("utf-8")):
            yield page.name, name, file


def names_in(file: Path) -> set[str]:
    """Return the classes and variables of a file, of any depth."""
    nodes = list(ast.walk(ast.parse(file.read_text("utf-8"))))
    return {node.name for node in nodes if isinstance(node, ast.ClassDef)} | {
        node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


def test_a_name_is_in_the_file_that_a_page_names() -> None:
    found = list(placed_names())
    wrong = []
    for page, name, file in found:
        files = [path for path in (ROOT / file, ROOT / "vtool" / file) if path.exists()]
        files = files or [*ROOT.glob(f"vtool/**/{file}"), *ROOT.glob(f"tests/**/{file}")]
        if not any(name in names_in(path) for path in files):
            wrong.append(f"{page}: there is no {name} in {file}")
    assert len(found) > 30
    assert wrong == [], "\n".join(wrong)


EXPORTING = [
    ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for file in sorted(ROOT.glob("vtool/**/*.py"))
    if re.search(r"^__all__ = ", file.read_text("utf-8"), re.MULTILINE)
]


@pytest.mark.parametrize("name", EXPORTING)
def test_a_module_has_what_it_exports(name: str) -> None:
    module = importlib.import_module(name)
    assert [one for one in module.__all__ if not hasattr(module, one)] == []
