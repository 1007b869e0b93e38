"""Every shipped recipe's settings in force, against a copy that is kept: what changes in them shows
in a diff.

Renew the copies, and look at what has changed: make goldens
"""

import os
import re
import tempfile
from pathlib import Path

import pytest

from vtool.config.load import effective_yaml, examine
from vtool.config.shipped import recipe_names

GOLDEN = Path(__file__).parent / "golden"


def effective(name: str) -> str:
    """The settings, with stand-ins for what the recipe leaves open.

    Lines and columns, which say nothing of the settings, are left out.
    """
    open_ones = {
        "data.train": "data.train=[{format: digits, split: train}]",
        "model.path": "model.path=model",
    }
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            Path("model").mkdir()
            family = "qwen3_vl" if name.startswith("qwen3") else "qwen2_5_vl"
            Path("model/config.json").write_text(
                f'{{"model_type": "{family}", "vision_config": {{}}}}'
            )
            examined = examine(name)
            if examined.loaded is None:
                examined = examine(
                    name, [open_ones[str(finding.parameter)] for finding in examined.findings]
                )
        finally:
            os.chdir(before)
    assert examined.loaded is not None, examined.findings
    return re.sub(r"(\.yaml):\d+:\d+", r"\1", effective_yaml(examined.loaded))


@pytest.mark.parametrize("name", recipe_names())
def test_the_settings_of_a_shipped_recipe_have_not_changed_unseen(name: str) -> None:
    kept = GOLDEN / f"{name}.yaml"
    assert kept.exists(), f"renew the copies: {__doc__}"
    assert effective(name) == kept.read_text(encoding="utf-8"), (
        f"look at the difference, and renew the copy if it is meant: {__doc__}"
    )


def test_no_copy_is_left_of_a_recipe_that_has_gone() -> None:
    assert {file.stem for file in GOLDEN.glob("*.yaml")} == set(recipe_names())
