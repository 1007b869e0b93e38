"""The origin of a value, to the column; and the output of `--show`."""

from pathlib import Path

import pytest
import yaml

from vtool.config.load import effective_yaml, examine, load_run
from vtool.config.origins import COMMAND_LINE
from vtool.config.resources import opened
from vtool.config.shipped import shipped_folder
from vtool.diagnostics import Origin


def at(origin: Origin | None) -> str:
    """The text that an origin points at, up to the end of the word."""
    assert origin is not None
    assert origin.line is not None
    assert origin.column is not None
    line = opened(origin.file).read_text().splitlines()[origin.line - 1]
    return line[origin.column - 1 :]


def test_every_value_of_a_shipped_recipe_is_where_its_origin_says() -> None:
    loaded = load_run("digits")
    origins = loaded.origins
    assert str(origins.of("optim.lr")).startswith("recipes/digits.yaml:")
    assert at(origins.of("optim.lr")).startswith("3.0e-3")
    assert at(origins.of("data.train.0.split")).startswith("train, shifted: true}")
    assert at(origins.of("optim.betas.1")).startswith("0.98]")
    assert at(origins.of("evaluation.generate.max_new_tokens")).startswith("4}")


def test_a_value_of_a_group_comes_from_the_groups_file() -> None:
    origin = load_run("digits").origins.of("optim.schedule")
    assert origin is not None
    assert origin.file == "configs/optim/adamw.yaml"
    assert at(origin) == "cosine"
    assert shipped_folder("configs") / "optim" / "adamw.yaml" == opened(origin.file)


def test_a_default_has_no_origin() -> None:
    assert load_run("digits").origins.of("optim.eps") is None


def test_the_command_line_is_the_last_word() -> None:
    origins = load_run(
        "digits",
        ["optim.lr=1", "data.image={min_pixels: 1}", "data.test=[{format: digits, split: test}]"],
    ).origins
    assert {
        origins.of(name)
        for name in ("optim.lr", "data.image.min_pixels", "data.test", "data.test.0.split")
    } == {COMMAND_LINE}
    assert at(origins.of("data.image.max_pixels")).startswith("1024}")


def test_a_file_is_named_as_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sub").mkdir()
    Path("sub/base.yaml").write_text("defaults: [digits, _self_]\nrun:\n  seed: 3\n")
    Path("sub/mine.yaml").write_text("defaults: [base, _self_]\noptim:\n  lr:   0.5 # fast\n")
    origins = load_run("sub/mine.yaml").origins
    assert str(origins.of("optim.lr")) == "sub/mine.yaml:3:9"
    assert str(origins.of("run.seed")) == "sub/base.yaml:3:9"
    assert str(origins.of("optim.warmup_ratio")).startswith("recipes/digits.yaml:")
    assert (
        str(load_run(str(tmp_path / "sub" / "mine.yaml")).origins.of("optim.lr"))
        == f"{tmp_path}/sub/mine.yaml:3:9"
    )


def test_a_file_of_ones_own_is_not_taken_for_a_shipped_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("recipes").mkdir()
    Path("recipes/digits.yaml").write_text("defaults: [digits, _self_]\nrun: {seed: 3}\n")
    origins = load_run("recipes/digits.yaml").origins
    assert str(origins.of("run.seed")) == "./recipes/digits.yaml:2:13"
    assert str(origins.of("kind")).startswith("recipes/digits.yaml:")


def test_a_list_that_is_replaced_leaves_no_origin_behind(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(
        "defaults: [digits]\ndata: {train: [{format: digits, split: train}, {format: digits, split:"
        " test}]}\n"
    )
    (tmp_path / "mine.yaml").write_text(
        "defaults: [base]\ndata: {train: [{format: digits, split: test}]}\n"
    )
    origins = load_run(str(tmp_path / "mine.yaml")).origins
    assert origins.of("data.train.0.split") is not None
    assert origins.of("data.train.1.split") is None


def test_anchors_and_merge_keys_point_at_what_they_stand_for(tmp_path: Path) -> None:
    text = (
        "defaults: [digits]\ndata:\n  test: [&t {format: digits, split: test}]\n  validation:\n   "
        " - <<: *t\n      split: validation\n"
    )
    (tmp_path / "mine.yaml").write_text(text)
    loaded = load_run(str(tmp_path / "mine.yaml"))
    assert loaded.run.data.validation[0].split == "validation"  # type: ignore[union-attr]
    assert str(loaded.origins.of("data.validation.0.format")).endswith("mine.yaml:3:22")
    assert str(loaded.origins.of("data.validation.0.split")).endswith("mine.yaml:6:14")


def test_a_finding_points_at_the_key_that_is_wrong_or_at_the_value(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "defaults: [digits]\noptim:\n  lrr: 1\n  lr: x\ndata:\n  test:\n    - {format: messages}\n"
    )
    places = {
        finding.rule: str(finding.origin).rpartition("/")[2]
        for finding in examine(str(tmp_path / "mine.yaml")).findings
    }
    assert places == {
        "unknown-key": "mine.yaml:3:3",
        "wrong-type": "mine.yaml:4:7",
        "missing-key": "mine.yaml:7:7",
    }


class TestEffectiveYaml:
    """The settings in force, as a recipe with origins in comments."""

    def test_is_a_recipe_of_the_same_run(self, tmp_path: Path) -> None:
        awkward = [
            "run.name='7'",
            r"run.dir='a # b: \'c\' é'",
            "optim.eps=1e-12",
            "optim.clip_norm=null",
            "data.drop_model_inputs=[mm_token_type_ids]",
        ]
        first = load_run("digits", awkward)
        (tmp_path / "again.yaml").write_text(effective_yaml(first))
        assert load_run(str(tmp_path / "again.yaml")).run == first.run

    @pytest.mark.parametrize(
        "name",
        [
            "1e-3",
            "yes",
            "null",
            "0x1F",
            "1_000",
            "a: b",
            "-",
            "~",
            "12:30:00",
            "2026-01-01",
            "é",
            "a\nb",
            ".inf",
        ],
    )
    def test_texts_stay_texts(self, name: str, tmp_path: Path) -> None:
        loaded = load_run("digits", ["run.name=x"])
        text = effective_yaml(loaded).replace(
            "name: x", f"name: {yaml.safe_dump(name, default_style=chr(34)).strip()}"
        )
        (tmp_path / "one.yaml").write_text(text)
        one = load_run(str(tmp_path / "one.yaml"))
        (tmp_path / "two.yaml").write_text(effective_yaml(one))
        assert load_run(str(tmp_path / "two.yaml")).run.run.name == name
        assert yaml.safe_load(effective_yaml(one)) == one.plain

    def test_names_the_origin_of_every_line_that_sets_a_value(self) -> None:
        loaded = load_run("digits", ["optim.lr=1e-4", "optim.betas.0=0.5"])
        lines = effective_yaml(loaded).splitlines()
        assert all(
            "  # " in line for line in lines if not line.startswith("#") and not line.endswith(":")
        )
        assert "  lr: 0.0001  # command line" in lines
        assert "  eps: 1.0e-08  # default" in lines
        (betas,) = (line for line in lines if "betas" in line)
        assert betas.startswith("  betas: [0.5, 0.98]  # recipes/digits.yaml:")
        assert betas.endswith(", command line") or "command line" in betas
