"""The shipped recipes:

what they ask to be given, and that nothing stands against them once it is.
"""

import json
from pathlib import Path

import pytest

from vtool.config import load
from vtool.config.environment.npu import PACKAGE_RULES
from vtool.config.load import examine
from vtool.diagnostics import Findings

SHIPPED = sorted(path.stem for path in Path(load.__file__).parents[2].glob("recipes/*.yaml"))
LOADED = {"load_check", "rl_weight_sync", "runai", "vllm_all"}
"""The recipes of `load-check`, which train nothing."""
TRAINED = [name for name in SHIPPED if name not in LOADED]
OF_A_MODEL_FOLDER = [name for name in SHIPPED if name.startswith("qwen") or name == "finetune"]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows, and a folder of each family with what Qwen2.5-VL-7B's config.json says of its heads."""
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").touch()
    text = {
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "hidden_size": 3584,
        "num_hidden_layers": 28,
    }
    for family in ("qwen2_5_vl", "qwen3_vl"):
        Path(family).mkdir()
        Path(f"{family}/config.json").write_text(
            json.dumps({"model_type": family, "vision_config": {}, **text})
        )


def folder_of(name: str) -> str:
    """The setting that gives a recipe a folder of its family."""
    return f"model.path={'qwen3_vl' if name.startswith('qwen3') else 'qwen2_5_vl'}"


def test_there_are_some_for_a_small_model_for_a_large_one_and_for_loading() -> None:
    assert {"digits", "rows", "vllm_all"} < set(SHIPPED)
    assert OF_A_MODEL_FOLDER


@pytest.mark.parametrize("name", SHIPPED)
def test_nothing_stands_against_it_once_what_it_leaves_open_is_given(name: str) -> None:
    given = []
    try:
        found = examine(name, []).findings
    except Findings as refused:
        found = refused.diagnostics
    rows, folder = "data.train=[{format: messages, path: rows.jsonl}]", folder_of(name)
    for finding in found:
        assert finding.rule == "missing-key", finding.message
        given.append({"data.train": rows, "model.path": folder}[str(finding.parameter)])
    given += ["launch.nproc=8"] if name in OF_A_MODEL_FOLDER else []
    examined = examine(name, given)
    assert examined.loaded is not None
    assert examined.findings == ()
    # these, where torch_npu is
    assert {check for rule, check in examined.checks.items() if rule not in PACKAGE_RULES} == {
        "passed"
    }


@pytest.mark.parametrize("name", OF_A_MODEL_FOLDER)
def test_a_recipe_for_a_large_model_asks_for_the_model_and_the_rows(name: str) -> None:
    assert {finding.parameter for finding in examine(name, []).findings} == {
        "model.path",
        "data.train",
    }


@pytest.mark.full
@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("steps", [1, 9])
def test_a_run_of_a_few_steps_is_refused_by_no_warm_up(name: str, steps: int) -> None:
    rows = "data.train=[{format: messages, path: rows.jsonl}]"
    given = [rows] if name in (*OF_A_MODEL_FOLDER, "rows") else []
    given += [folder_of(name), "launch.nproc=8"] if name in OF_A_MODEL_FOLDER else []
    examined = examine(name, [*given, f"train.steps={steps}"])
    assert examined.findings == ()
    assert examined.loaded is not None
    assert examined.loaded.run.optim.warmup(steps) < steps
