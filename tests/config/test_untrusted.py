"""A stranger's recipe shows no value of the environment, and no file outside of its folder."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from vtool.cli.app import app
from vtool.config.load import examine
from vtool.diagnostics import Diagnostic, Findings

SECRET = "hunter2"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "repo" / "recipes").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "secret.yaml").write_text(f"{SECRET}: {SECRET}\n")
    (tmp_path / "elsewhere" / "broken.yaml").write_text(f"{SECRET}: {SECRET}: x\n")
    monkeypatch.chdir(tmp_path / "repo")
    monkeypatch.setenv("TOKEN", SECRET)
    return tmp_path


def typed(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["validate-config", "--untrusted", *arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def written(text: str) -> str:
    Path("recipes/mine.yaml").write_text(text)
    return "recipes/mine.yaml"


def findings(recipe: str, *overrides: str) -> tuple[Diagnostic, ...]:
    try:
        return examine(recipe, overrides, trusted=False).findings
    except Findings as found:
        return found.diagnostics


REFERENCES = [
    "${oc.env:TOKEN}",
    "${oc.env:TOKEN,x}",
    "${oc.env:NOTHING,${oc.env:TOKEN}}",
    "${oc.decode:${oc.env:TOKEN}}",
    "${oc.decode:'${oc.env:TOKEN}'}",
    "${oc.create:[${oc.env:TOKEN}]}",
    "${optim.${oc.env:TOKEN}}",
    "${oc.select:${oc.env:TOKEN},${oc.env:TOKEN}}",
    "${${oc.env:TOKEN}:x}",
    "a${oc.env:TOKEN}b",
    "${run.name}",
    "${oc.select:run.name}",
    "${oc.dict.values:run}",
    "${oc.deprecated:run.name}",
]


@pytest.mark.parametrize("reference", REFERENCES)
@pytest.mark.parametrize("format", ["full", "concise", "json", "sarif", "github"])
def test_a_variable_stays_a_name(reference: str, format: str) -> None:
    head = 'defaults: [digits]\nrun: {name: "${oc.env:TOKEN}"}\n'
    recipe = written(f'{head}model: {{attention: "{reference}"}}\n')
    code, output = typed(recipe, "--format", format)
    assert SECRET not in output
    assert (code, "not-looked-at" in output or "VT008" in output) == (0, True)


@pytest.mark.parametrize("reference", REFERENCES)
def test_a_variable_of_an_argument_stays_a_name(reference: str) -> None:
    given = [f"model.attention={reference}", "run.name=${oc.env:TOKEN}"]
    code, output = typed("digits", *given, "--format", "full")
    assert SECRET not in output
    assert code in (0, 2)  # Hydra's grammar does not take all of them unquoted


def test_what_depends_on_a_variable_is_reported_each_time_and_kept_as_it_is_written() -> None:
    run = "run: {name: '${oc.env:X}', dir: '${run.name}!'}"
    recipe = written(f"defaults: [digits, _self_]\n{run}\nlora: {{targets: ['${{run.dir}}']}}\n")
    found = findings(recipe)
    assert [each.parameter for each in found if each.rule == "not-looked-at"] == [
        "run.name",
        "run.dir",
        "lora.targets.0",
    ]
    assert "'${run.name}!'" in typed(recipe, "--show")[1].replace('"', "'")


def test_what_depends_on_a_variable_is_not_checked_and_the_rest_is() -> None:
    recipe = written('defaults: [digits]\ntrain: {steps: "${oc.env:STEPS}", epochs: 2}\n')
    examined = examine(recipe, ["data.on_overlong=drop"], trusted=False)
    assert {each.rule for each in examined.findings} == {"not-looked-at", "max-length-missing"}
    assert examined.checks["warmup-too-long"] == "not-run"


def test_settings_are_shown_with_the_variables_name() -> None:
    recipe = written('defaults: [digits]\nrun: {name: "${oc.env:TOKEN}"}\n')
    code, output = typed(recipe, "--show")
    assert code == 0
    assert SECRET not in output
    assert 'name: "${oc.env:TOKEN}"  # recipes/mine.yaml:2:13' in output


@pytest.mark.parametrize(
    "entry",
    [
        "../../elsewhere/secret@_global_",
        "../../elsewhere/broken@_global_",
        "{../../elsewhere@_global_: secret}",
        "optional ../../elsewhere/secret@_global_",
        "{optional ../../elsewhere@_global_: secret}",
        "../../elsewhere/nothing@_global_",
        "link@_global_",
        "folder/secret@_global_",
        "{folder@_global_: secret}",
        '"${oc.env:TOKEN}"',
        '{/optim: "${oc.env:TOKEN}"}',
        '{override /optim: "${oc.env:TOKEN}"}',
        '"/optim@${oc.env:TOKEN}: adamw"',
        "file:///etc/secret",
        "pkg://elsewhere.secret",
    ],
)
def test_a_defaults_list_does_not_lead_out(entry: str, folder: Path) -> None:
    Path("recipes/link.yaml").symlink_to(folder / "elsewhere" / "secret.yaml")
    Path("recipes/folder").symlink_to(folder / "elsewhere")
    code, output = typed(written(f"defaults: [digits, {entry}]\n"))
    assert code in (1, 2)
    assert SECRET not in output


def test_a_search_path_of_hydras_is_no_way_out(folder: Path) -> None:
    code, output = typed(
        written(
            f"defaults: [digits, /secret@_global_]\nhydra: {{searchpath: ['file://{folder}']}}\n"
        )
    )
    assert code == 2
    assert SECRET not in output


@pytest.mark.parametrize("linked", ["recipes/mine.yaml", "recipes"])
def test_a_recipe_behind_a_link_is_refused(linked: str, folder: Path) -> None:
    (folder / "elsewhere" / "mine.yaml").write_text(f"{SECRET}: 1\n")
    if linked == "recipes":
        Path("recipes").rmdir()
        Path("recipes").symlink_to(folder / "elsewhere")
    else:
        Path(linked).symlink_to(folder / "elsewhere" / "mine.yaml")
    code, output = typed("recipes/mine.yaml")
    assert (code, SECRET in output) == (2, False)
    assert "unreadable-file" in output


@pytest.mark.parametrize(
    "setting",
    [
        "model: {path: ../elsewhere/model}",
        "model: {path: recipes/linked}",
        "model: {path: recipes/model}",
        "model: {modeling: '../elsewhere/code.py:Wrong'}",
        "data: {train: [{format: messages, path: ../elsewhere/hunter}]}",
        "data: {test: [{format: llava, path: ../elsewhere/hunter}]}",
        "checkpoint: {resume: ../elsewhere/hunter}",
    ],
)
def test_a_path_that_leads_out_is_not_looked_at(setting: str, folder: Path) -> None:
    outside = folder / "elsewhere"
    (outside / "model").mkdir()
    (outside / "model" / "config.json").write_text(f'{{"model_type": "{SECRET}"}}')
    (outside / "code.py").write_text(f"raise SystemExit\nclass {SECRET}: ...\n")
    (outside / f"{SECRET}.jsonl").touch()
    Path("recipes/linked").symlink_to(outside / "model")
    Path("recipes/model").mkdir()
    Path("recipes/model/config.json").symlink_to(outside / "model" / "config.json")
    recipe = written(f"defaults: [digits]\n{setting}\n")
    _, output = typed(recipe, "model.size=null" if "model:" in setting else "run.seed=1")
    assert SECRET not in output
    assert "not-looked-at" in output


def test_paths_inside_are_checked(folder: Path) -> None:
    Path("recipes/rows.jsonl").touch()
    rows = "data: {train: [{format: messages, path: recipes/rows.jsonl}]}"
    assert findings(written(f"defaults: [digits]\n{rows}\n")) == ()
    missing = rows.replace("rows.jsonl", "rosw.jsonl")
    (found,) = findings(written(f"defaults: [digits]\n{missing}\n"))
    assert found.rule == "path-not-found"


@pytest.mark.full
def test_shipped_recipes_are_as_clean_as_without_it() -> None:
    from vtool.config.shipped import recipe_names

    for name in recipe_names():
        given = ["data.train=[{format:digits,split:train}]"] if name == "rows" else []
        trusted = {each.rule for each in examine(name, given).findings}
        assert {each.rule for each in findings(name, *given)} - {"not-looked-at"} <= trusted, name


def test_nothing_is_built_or_imported_for_it() -> None:
    assert typed("digits", "--live")[0] == 2


def test_a_recipe_of_verl_keeps_variables_as_names() -> None:
    recipe = written("trainer: {total_training_steps: '${oc.env:TOKEN}', device: cuda}\n")
    done = CliRunner().invoke(
        app, ["validate-config", "--untrusted", "--from", "verl", recipe, "--format", "json"]
    )
    assert SECRET not in done.output


def test_variables_of_an_npus_machine_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", f"1, {SECRET}")
    assert (
        SECRET in CliRunner().invoke(app, ["validate-config", "digits", "device.kind=npu"]).output
    )
    assert SECRET not in typed("digits", "device.kind=npu")[1]
