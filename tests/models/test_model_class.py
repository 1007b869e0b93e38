"""A modeling file of the user's own:

copies of every family's are taken; what does not fit is one finding, with the file's own line.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.each_family import EACH_FAMILY
from tests.models.tiny import IDS, VOCABULARY
from vtool.diagnostics import Diagnostic, Findings
from vtool.families.family import load_family
from vtool.models.model_class import describe_modeling, model_class, recorded_modeling

HEAD = """
import torch
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import (
    Qwen2_5_VLForConditionalGeneration as Own,
    Qwen2_5_VLModel,
)
"""
# By what is wrong: the rest of the file, and words of the finding. Where a line is the user's, it
# is marked.
WRONG = {
    "raises": (
        "raise KeyError('no such thing')  # here",
        "importing it raises KeyError: 'no such thing'",
    ),
    "exits": ("import sys; sys.exit(3)  # here", "importing it raises SystemExit: 3"),
    "imports nothing": (
        "import no_such_package  # here",
        "importing it raises ModuleNotFoundError: No module named 'no_such_package'",
    ),
    "another's line": (
        "import torch; torch.ones(2).reshape(3)  # here",
        "importing it raises RuntimeError: shape",
    ),
    "no module": ("class Mine: ...", "Mine does not derive from transformers' PreTrainedModel"),
    "a bare module": (
        "class Mine(torch.nn.Module): ...",
        "Mine does not derive from transformers' PreTrainedModel",
    ),
    "another module": (
        "class Mine(Qwen2_5_VLModel): ...",
        "its weights are not those of Qwen2_5_VLForConditionalGeneration",
    ),
    "no constructor": (
        "class Mine(Own):\n    def __init__(self, config):\n"
        "        super().__init__(config.nothing)  # here",
        "building it at tiny size raises AttributeError",
    ),
    "one weight more": (
        "class Mine(Own):\n    def __init__(self, config):\n        super().__init__(config)\n"
        "        self.more = torch.nn.Linear(2, 2)",
        "Mine has more.weight and 1 more: its weights are not those of "
        "Qwen2_5_VLForConditionalGeneration",
    ),
    "the tower elsewhere": (
        "class Mine(Own):\n    def __init__(self, config):\n        super().__init__(config)\n"
        "        self.model.tower = self.model.visual\n        del self.model.visual",
        "Mine lacks model.visual.",
    ),
    "another shape": (
        "class Mine(Own):\n    def __init__(self, config):\n        super().__init__(config)\n"
        "        self.model.visual.merger.mlp[2].bias = torch.nn.Parameter(torch.zeros(3))",
        "Mine has in another shape model.visual.merger.mlp.2.bias",
    ),
    "features that are not unpacked": (
        "class Mine(Own):\n    def __init__(self, config):\n        super().__init__(config)\n"
        "        self.model.get_image_features = lambda *_, **more: torch.zeros(1)",
        "computing with it at tiny size raises AttributeError: 'Tensor' object has no attribute "
        "'pooler_output'",
    ),
    "other features": (
        "class Mine(Own):\n    def __init__(self, config):\n        super().__init__(config)\n"
        "        got = self.model.get_image_features\n"
        "        def twice(*given, **more):\n            output = got(*given, **more)\n"
        "            output.pooler_output = list(output.pooler_output) * 2\n"
        "            return output\n"
        "        self.model.get_image_features = twice",
        "get_image_features gives 2 tensors",
    ),
    "a forward pass that raises": (
        "class Mine(Own):\n    def forward(self, input_ids=None, **more):\n"
        "        return input_ids.nothing  # here",
        "computing with it at tiny size raises AttributeError: 'Tensor' object has no attribute "
        "'nothing'",
    ),
    "a forward pass that generation cannot call": (
        "class Mine(Own):\n    def forward(self, *given, **more):\n"
        "        return super().forward(*given, **more)",
        "computing with it at tiny size raises ValueError: The following `model_kwargs` are not "
        "used by the model",
    ),
    "the last logits alone": (
        "class Mine(Own):\n    def forward(self, input_ids=None, pixel_values=None, "
        "image_grid_thw=None, mm_token_type_ids=None, **more):\n"
        "        return super().forward(input_ids=input_ids, pixel_values=pixel_values,\n"
        "                               image_grid_thw=image_grid_thw,\n"
        "                               mm_token_type_ids=mm_token_type_ids,\n"
        "                               **{**more, 'logits_to_keep': 1})",
        "its forward pass gives logits of (1, 1, 16), in the place of (1, 4, 16)",
    ),
}


def finding(name: str, modeling: str) -> Diagnostic:
    with pytest.raises(Findings) as raised:
        model_class(name, modeling)
    (found,) = raised.value.diagnostics
    return found


@pytest.mark.parametrize("what", WRONG)
def test_a_class_that_does_not_fit_is_one_finding_with_the_files_own_line(
    what: str, tmp_path: Path
) -> None:
    text, words = WRONG[what]
    file = tmp_path / "mine.py"
    file.write_text(HEAD + text + "\n" + ("" if "class Mine" in text else "class Mine: ...\n"))
    found = finding("qwen2_5_vl", f"{file}:Mine")
    assert (found.rule, found.parameter) == ("model-class-does-not-fit", "model.modeling")
    assert words in found.message
    if "# here" in text:
        assert found.origin is not None
        assert "# here" in file.read_text().splitlines()[(found.origin.line or 0) - 1]
        assert f"mine.py:{found.origin.line}: " in found.message


def test_a_file_is_looked_at_again_where_its_text_is_another(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(HEAD + "class Mine: ...\n")
    assert finding("qwen2_5_vl", f"{file}:Mine").rule == "model-class-does-not-fit"
    file.write_text(HEAD + "class Mine(Own): ...\n")
    made = model_class("qwen2_5_vl", f"{file}:Mine")
    assert made.__name__ == "Mine"
    assert model_class("qwen2_5_vl", f"{file}:Mine") is made
    for number in (1, 2, 3):  # of the same size, in the same second
        file.write_text(HEAD + f"class Mine(Own):\n    number = {number}\n")
        assert model_class("qwen2_5_vl", f"{file}:Mine").number == number


def test_a_file_imports_what_lies_next_to_it(tmp_path: Path) -> None:
    (tmp_path / "beside_mine.py").write_text("NUMBER = 7\n")
    (tmp_path / "mine.py").write_text(
        HEAD + "import beside_mine\nclass Mine(Own):\n    number = beside_mine.NUMBER\n"
    )
    assert model_class("qwen2_5_vl", f"{tmp_path / 'mine.py'}:Mine").number == 7
    assert not list(tmp_path.glob("__pycache__/mine*"))


@pytest.mark.parametrize("name", EACH_FAMILY)
def test_a_copy_of_transformers_own_file_computes_what_that_does_to_the_bit(
    name: str, tmp_path: Path
) -> None:
    """The file is copied unchanged, with its relative imports.

    Its class is another, and not derived from transformers'.
    """
    own = load_family(name).model_class()
    source = Path(__import__("sys").modules[own.__module__].__file__ or "")
    copy = tmp_path / source.name
    copy.write_bytes(source.read_bytes())
    made = model_class(name, f"{copy}:{own.__name__}")
    assert not issubclass(made, own)
    ids = torch.randint(7, VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(1))
    logits: list[Any] = []
    for kind in (own, made):
        torch.manual_seed(0)
        model = kind._from_config(
            load_family(name).random_config("tiny", VOCABULARY, IDS), attn_implementation="sdpa"
        )
        logits.append(
            model(input_ids=ids, mm_token_type_ids=torch.zeros_like(ids), use_cache=False).logits
        )
    assert torch.equal(*logits)


def test_trying_a_class_draws_nothing_of_the_runs_random_numbers(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(HEAD + "class Mine(Own): ...\n")
    torch.manual_seed(3)
    before = torch.get_rng_state()
    model_class("qwen2_5_vl", f"{tmp_path / 'mine.py'}:Mine")
    assert torch.equal(torch.get_rng_state(), before)


def test_the_file_that_a_run_names_must_be_the_same_and_not_come_with_the_folder(
    tmp_path: Path,
) -> None:
    import json

    run, file = tmp_path / "run", tmp_path / "mine.py"
    run.mkdir()
    assert recorded_modeling(run) is None
    file.write_text("class Mine: ...\n")
    (run / "modeling.json").write_text(json.dumps(describe_modeling(f"{file}:Mine")))
    assert recorded_modeling(run) == f"{file}:Mine"

    def rule() -> str:
        with pytest.raises(Findings) as raised:
            recorded_modeling(run)
        return raised.value.diagnostics[0].rule

    file.write_text("class Mine: pass\n")
    assert rule() == "modeling-changed"
    file.unlink()
    assert rule() == "modeling-changed"
    (run / "mine.py").write_text("raise SystemExit\n")
    (run / "modeling.json").write_text(json.dumps(describe_modeling(f"{run / 'mine.py'}:Mine")))
    assert rule() == "not-a-run"
    (run / "modeling.json").write_text(
        json.dumps(describe_modeling(f"{run / 'mine.py'}:Mine") | {"file": "mine.py"})
    )
    assert rule() == "not-a-run"
    (run / "modeling.json").write_text("{}")
    assert rule() == "not-a-run"
