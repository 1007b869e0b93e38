"""SECURITY.md names for each threat a test that is there."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_test_that_holds_a_threat_is_there() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "SECURITY.md").read_text())
    assert len(named) > 20
    for file, name in named:
        tree = ast.parse((ROOT / file).read_text())
        there = {each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)}
        assert name in there, f"{file} has no {name}"


def test_every_threat_has_a_test() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    table = text.partition("| threat |")[2].partition("\n\n")[0].splitlines()[2:]
    assert table
    assert all(re.search(r"`tests/[\w/]+\.py::\w+` \|$", line) for line in table)
