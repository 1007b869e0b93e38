from pathlib import Path

import pytest

from vtool.config.load import examine, load_run

RECIPE = """\
defaults: [rows, _self_]
data:
  train:
    - {format: messages, path: ./rows/my.jsonl}
    - {format: llava, path: rows.json, image_folder: ./images}
train: {from: ./first}
"""


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for folder in ("kept/rows", "kept/first", "here"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "kept/rows/my.jsonl").touch()
    (tmp_path / "here/rows.json").write_text("[]")
    (tmp_path / "kept/mine.yaml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "kept/mine.yaml"


@pytest.mark.parametrize("typed", ["{}", "../kept/mine.yaml"])
def test_paths_that_begin_with_a_dot_start_at_the_recipe(recipe: Path, typed: str) -> None:
    name = typed.format(recipe)
    folder, run = Path(name).parent, load_run(name).run
    first, second = (entry.model_dump() for entry in run.data.train)
    assert first["path"] == str(folder / "rows/my.jsonl")
    assert (second["path"], second["image_folder"]) == ("rows.json", str(folder / "images"))
    assert run.train.source == str(folder / "first")


def test_those_of_the_command_line_start_where_vtool_is_run(recipe: Path) -> None:
    given = "data.train=[{format: messages, path: ./rows/my.jsonl}]"
    (found,) = examine(str(recipe), [given]).findings
    assert found.rule == "path-not-found"


def test_a_recipe_that_is_extended_keeps_its_own_paths(recipe: Path, tmp_path: Path) -> None:
    (recipe.parent / "more").mkdir()
    other = recipe.parent / "other.yaml"
    other.write_text("defaults: [mine, _self_]\ndata: {root: ./rows}\n")
    run = load_run(str(other)).run
    assert run.data.root == str(recipe.parent / "rows")
    assert run.train.source == str(recipe.parent / "first")


def test_in_the_working_folder_a_path_is_no_word(
    recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(recipe.parent)
    Path("never").mkdir()
    Path("again.yaml").write_text("defaults: [digits, _self_]\ncheckpoint: {resume: ./never}\n")
    assert load_run("again.yaml").run.checkpoint.resume == "./never"


def test_a_path_that_would_be_right_at_the_recipe_says_what_to_write(recipe: Path) -> None:
    recipe.write_text(RECIPE.replace("./rows/my.jsonl", "rows/my.jsonl"))
    (found,) = examine(str(recipe), []).findings
    there = recipe.parent / "rows/my.jsonl"
    assert found.help == f"it is at {there}: in a recipe write ./rows/my.jsonl"
