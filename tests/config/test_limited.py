"""A stranger's recipe is read in a process that has no environment, and that the kernel ends."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from vtool.cli.app import app
from vtool.config import limited
from vtool.config.limited import in_child
from vtool.config.load import examine
from vtool.diagnostics import Findings

RECIPE = "mine.yaml"
LINES = [f'a{n}: "${{a{n - 1}}}${{a{n - 1}}}"\n' for n in range(1, 40)]
DOUBLING = "defaults: [digits, _self_]\na0: xxxxxxxxxx\n" + "".join(LINES)


def variables(recipe: str) -> dict[str, str]:
    return dict(os.environ)


def busy(recipe: str) -> None:
    while True:
        pass


def large(recipe: str) -> bytes:
    return b"x" * 3 * 2**30


def long(recipe: str) -> str:
    return "x" * 5_000_000


def wrong(recipe: str) -> None:
    raise KeyError("a mistake of ours")


def test_no_variable_is_there_and_all_are_for_a_recipe_that_is_trusted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setenv("TOKEN", "hunter2")
    assert in_child(variables, RECIPE) == {}
    assert in_child(variables, RECIPE, trusted=True)["TOKEN"] == "hunter2"
    assert in_child(variables, RECIPE) == {}


@pytest.mark.parametrize("function", [busy, large, long], ids=lambda each: each.__name__)
def test_what_takes_too_much_is_a_finding(
    function: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limited, "SECONDS", 0.5)
    with pytest.raises(Findings) as caught:
        in_child(function, RECIPE)  # type: ignore[arg-type]
    assert [each.rule for each in caught.value.diagnostics] == ["broken-reference"]
    assert caught.value.fatal


def test_a_mistake_of_ours_is_no_finding() -> None:
    with pytest.raises(RuntimeError, match="a mistake of ours"):
        in_child(wrong, RECIPE)


@pytest.mark.parametrize("trusted", [True, False])
def test_a_file_that_is_merged_over_references_that_double_is_a_finding(
    trusted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OmegaConf follows a reference that another file sets anew."""
    monkeypatch.setattr(limited, "SECONDS", 0.5)
    (tmp_path / "r.yaml").write_text(DOUBLING)
    (tmp_path / "mine.yaml").write_text("defaults: [r, _self_]\na39: 1\n")
    with pytest.raises(Findings) as caught:
        examine(str(tmp_path / "mine.yaml"), trusted=trusted)
    assert caught.value.diagnostics[0].rule == "broken-reference"


@pytest.mark.parametrize("link", [False, True])
def test_a_file_that_the_script_of_a_trainer_names_elsewhere_is_not_opened(
    link: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "repo").mkdir()
    monkeypatch.chdir(tmp_path / "repo")
    (tmp_path / "secret.yaml").write_text("hunter2: 1\nhunter2: 2\n")
    Path("own.yaml").symlink_to(tmp_path / "secret.yaml")
    named = "own.yaml" if link else "../secret.yaml"
    words = "sft.py --model_name_or_path m --max_steps 3"
    Path("run.sh").write_text(f"accelerate launch --config_file {named} {words}\n")
    Path("sft.py").write_text("from trl import SFTConfig, SFTTrainer\n")
    given = ["validate-config", "run.sh", "--from", "trl", "--format", "json"]
    assert "hunter2" in CliRunner().invoke(app, given).output
    done = CliRunner().invoke(app, [*given, "--untrusted"])
    assert (done.exit_code, "hunter2" in done.output) == (0, False)


@pytest.mark.parametrize("text", ["tokenized_path: {}", "deepspeed: {}", "dataset_dir: {}", ""])
def test_whether_something_is_there_elsewhere_is_not_told(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "repo").mkdir()
    monkeypatch.chdir(tmp_path / "repo")
    named = [tmp_path / "here", tmp_path / "gone"]
    named[0].mkdir()
    (named[0] / "dataset_info.json").write_text("{}")
    told = []
    for each in named:
        model = "Qwen/Qwen2.5-VL-3B-Instruct" if text else str(each)
        lines = ["stage: sft", "dataset: a", f"model_name_or_path: {model}", text.format(each)]
        Path("r.yaml").write_text("\n".join(lines))
        given = ["validate-config", "r.yaml", "--from", "llamafactory", "--untrusted"]
        done = CliRunner().invoke(app, given)
        assert done.exit_code in (0, 1)
        told.append(done.output.replace(str(each), "PATH"))
    assert told[0] == told[1]


def test_a_file_beside_a_checkout_of_vtool_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkout is on Python's path, where what lies beside the code is nobody else's business."""
    monkeypatch.chdir(tmp_path)
    named = os.path.relpath(Path(__file__).parent / "golden" / "digits")
    Path("r.yaml").write_text(f"defaults: [digits, '{named}@_global_', _self_]\n")
    assert Path(f"{named}.yaml").is_file()
    with pytest.raises(Findings) as caught:
        examine("r.yaml", trusted=False)
    assert [each.rule for each in caught.value.diagnostics] == ["bad-defaults-list"]
