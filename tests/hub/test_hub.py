"""Names of the hub, against a stand-in for it (`stand_in.py`): none can be reached here."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.commands import run_vtool, vtool
from tests.hub.stand_in import Hub, serving
from vtool.config.load import effective_yaml, load_run
from vtool.diagnostics import Findings
from vtool.hub.cache import find_cached_model, missing_files
from vtool.hub.download import download
from vtool.hub.names import HubName, hub_name

NAME = "org/digits"
OR_ELSE = "; or give its folder: model.path=FOLDER"
MODEL = (f"model.path={NAME}", "model.size=null")


@pytest.fixture
def hub(
    trained: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Hub]:
    """A hub with the short run's export, and an empty cache."""
    export = trained[0] / "runs/digits/export"
    names = (NAME, "org/gated", "org/broken")
    with serving(Hub(models=dict.fromkeys(names, export), gated={"org/gated"})) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache/hub"))
        for name in ("HF_HUB_OFFLINE", "HF_TOKEN", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
            monkeypatch.delenv(name, raising=False)
        yield hub


def downloaded(folder: Path, *command: str | Path) -> str:
    """The standard output of a command that may download."""
    done = run_vtool(folder, *command)
    assert done.status == 0, done.output
    return done.stdout


def test_a_name_is_no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert hub_name("Qwen/Qwen2.5-VL-3B-Instruct") == HubName("Qwen/Qwen2.5-VL-3B-Instruct")
    assert hub_name("a/b@v1") == HubName("a/b", "v1") == hub_name("a/b", "v1")
    assert HubName("a/b", "v1").download == "hf download a/b --revision v1"
    for path in ("./a/b", "/a/b", "../a", "a", "a/b/c", "~/a", "a/b@", "a /b", "a/"):
        assert hub_name(path) is None
    (tmp_path / "models").mkdir()
    assert hub_name("models/qwen") is None, "it is a slip in a path"


def test_predict_downloads_once_and_asks_what_the_folder_is_asked(
    hub: Hub, trained: tuple[Path, str], tmp_path: Path
) -> None:
    image = trained[0] / "runs/digits/samples/00000.png"
    asked = (image, "--question", "Which digit is shown?")
    first = downloaded(tmp_path, "predict", NAME, *asked)
    requests = len(hub.asked)
    assert requests > 0
    assert downloaded(tmp_path, "predict", NAME, *asked) == first
    assert len(hub.asked) == requests, "what is in the cache is not asked for again"
    own = run_vtool(tmp_path, "predict", trained[0] / "runs/digits/export", *asked)
    assert own.stdout == first


def test_a_folder_that_is_there_wins_over_the_name(
    hub: Hub, trained: tuple[Path, str], tmp_path: Path
) -> None:
    (tmp_path / "org").mkdir()
    (tmp_path / NAME).symlink_to(trained[0] / "runs/digits/export")
    vtool(tmp_path, "validate-config", "digits", *MODEL)
    assert hub.asked == []


def test_checking_downloads_nothing_and_says_the_command(hub: Hub, tmp_path: Path) -> None:
    output = vtool(tmp_path, "validate-config", "digits", *MODEL, status=1)
    assert f"error[hub-model-absent VT850]: {NAME} is no folder here" in output
    assert "1 failed, " in output.rpartition("; checks: ")[2]
    assert f"help: hf download {NAME}{OR_ELSE}" in output
    pinned = (f"model.path={NAME}@v1", "model.size=null")
    output = vtool(tmp_path, "validate-config", "digits", *pinned, status=1)
    assert f"help: hf download {NAME} --revision v1{OR_ELSE}" in output
    assert hub.asked == []


def test_a_run_keeps_the_commit_of_the_name(hub: Hub, tmp_path: Path) -> None:
    download(HubName(NAME))
    for given in (
        MODEL,
        (*MODEL, f"model.revision={hub.commit(NAME)}"),
        (f"{MODEL[0]}@main", MODEL[1]),
    ):
        loaded = load_run("digits", given)
        model = yaml.safe_load(effective_yaml(loaded))["model"]
        assert model["revision"] == loaded.run.model.revision == hub.commit(NAME)
        assert model["path"] == loaded.run.model.path
        assert Path(model["path"]).parts[-2:] == ("snapshots", hub.commit(NAME))
    again = load_run(
        "digits", [f"model.{key}={model[key]}" for key in ("path", "revision")] + [MODEL[1]]
    )
    assert again.run == loaded.run, "what a run keeps is a recipe"
    with pytest.raises(Findings, match=r"hub-model-absent .*@0000"):
        load_run("digits", [*MODEL, "model.revision=" + "0" * 40])
    with pytest.raises(Findings, match=r"model\.revision is v1, and model\.path is not set"):
        load_run("digits", ["model.revision=v1"])


@pytest.mark.full
def test_train_downloads_what_is_not_there(hub: Hub, tmp_path: Path) -> None:
    settings = ("train.steps=1", "run.dir=run", "--no-preflight")
    done = run_vtool(tmp_path, "train", "sft", "digits", *MODEL, *settings)
    assert done.status == 0, done.output
    assert f"downloading {NAME}: hf download {NAME}" in done.stderr
    model = yaml.safe_load((tmp_path / "run/config.yaml").read_text())["model"]
    assert model["revision"] == hub.commit(NAME)


def test_load_check_takes_a_name(hub: Hub, tmp_path: Path) -> None:
    files = ("load-check", NAME, "--format", "json")
    assert "hub-model-absent" in vtool(tmp_path, *files, status=2)
    download(HubName(NAME))
    (result,) = json.loads(run_vtool(tmp_path, *files).stdout)["results"]
    assert result["subject"] == NAME
    # the class is asked where vLLM is installed: not-run elsewhere
    assert result["verdict"] in ("clean", "not-run")
    assert "passed" in result["checks"].values(), "its files were audited"


def test_what_the_user_has_set_offline_stays_so(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    output = vtool(tmp_path, "predict", NAME, "--question", "Hi?", status=2)
    assert "hub-model-absent" in output
    assert f"help: hf download {NAME}\n" in output
    assert hub.asked == []


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("org/none", "error[hub-name-unknown VT851]: the hub has no org/none"),
        (f"{NAME}@v9", f"error[hub-name-unknown VT851]: the hub has no revision v9 of {NAME}"),
        ("org/gated", "error[hub-gated VT852]: org/gated: its owner"),
    ],
)
def test_what_the_hub_does_not_give_is_one_finding(
    hub: Hub, tmp_path: Path, name: str, message: str
) -> None:
    output = vtool(tmp_path, "predict", name, "--question", "Hi?", status=2)
    assert message in output
    assert output.count("error[") == 1
    assert "Traceback" not in output


def test_a_machine_without_a_connection_is_told_so_and_not_to_download(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # where nothing listens
    output = vtool(tmp_path, "predict", "org/none", "--question", "Hi?", status=2)
    assert "which has no connection to the hub (http://127.0.0.1:9)\n" in output
    assert "copy that folder here and give its path: model.path=FOLDER" in output
    assert output.count("error[") == 1


@pytest.mark.full
def test_half_a_download_is_reported_and_resumed(hub: Hub, tmp_path: Path) -> None:
    hub.fails_after = 3
    output = vtool(tmp_path, "predict", "org/broken", "--question", "Hi?", status=2)
    assert "org/broken could not be downloaded" in output
    recipe = ("digits", "model.path=org/broken", "model.size=null")
    output = vtool(tmp_path, "validate-config", *recipe, status=1)
    assert "error[hub-incomplete VT853]: org/broken" in output
    assert f"help: hf download org/broken{OR_ELSE}" in output
    hub.fails_after = None
    downloaded(tmp_path, "predict", "org/broken", "--question", "Which digit is shown?")
    vtool(tmp_path, "validate-config", *recipe)


@pytest.mark.parametrize("above", ["models/", ""])
def test_modelscopes_cache_comes_second_where_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, above: str
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache/hub"))
    monkeypatch.setenv("MODELSCOPE_CACHE", str(tmp_path / "scope"))
    folder = tmp_path / f"scope/{above}Qwen/Qwen2___5-VL"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    model = HubName("Qwen/Qwen2.5-VL", None)
    monkeypatch.setattr("vtool.hub.cache.find_spec", lambda name: name != "modelscope" or None)
    with pytest.raises(Findings, match="hub-model-absent"):
        find_cached_model(model)
    monkeypatch.setattr("vtool.hub.cache.find_spec", lambda name: True)
    with pytest.raises(Findings, match="hub-incomplete"):
        find_cached_model(model)
    (folder / "model.safetensors").write_text("")
    assert find_cached_model(model).folder == folder
    assert find_cached_model(model).commit is None
    with pytest.raises(Findings, match="hub-model-absent"):  # which revision it is, nobody knows
        find_cached_model(HubName("Qwen/Qwen2.5-VL", "v1"))


def test_shards_that_the_index_names_are_missed(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert missing_files(tmp_path) == ["model.safetensors"]
    shards = [f"model-{n}-of-3.safetensors" for n in (1, 2, 3)]
    index = {"weight_map": {"a": shards[0], "b": shards[1], "c": shards[2], "d": shards[2]}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / shards[1]).write_text("")
    assert missing_files(tmp_path) == [shards[0], shards[2]]
    (tmp_path / shards[0]).symlink_to(tmp_path / "blob")
    assert missing_files(tmp_path) == [shards[0], shards[2]]
    (tmp_path / "model.safetensors.index.json").write_text("{")
    assert missing_files(tmp_path) == ["model.safetensors.index.json"]


def test_a_strangers_recipe_asks_neither_hub_nor_cache(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise AssertionError("the cache was looked at")

    monkeypatch.setattr("vtool.config.hub_model.find_cached_model", refused)
    text = f"defaults: [digits, _self_]\nmodel: {{path: {NAME}, size: null}}\n"
    (tmp_path / "theirs.yaml").write_text(text)
    output = vtool(tmp_path, "validate-config", "theirs.yaml", "--untrusted")
    assert "`model.path` may name a model of a hub" in output
    assert hub.asked == []


def test_an_export_is_pushed_as_it_is_private_and_by_the_users_token(
    hub: Hub, trained: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(trained[0] / "runs/digits", tmp_path / "run", symlinks=True)
    output = vtool(tmp_path, "export", "run", "--push", "me/digits", status=1)
    assert "error[hub-push-failed VT854]: me/digits: " in output
    assert "hf auth login" in output
    monkeypatch.setenv("HF_TOKEN", "may-write")
    output = vtool(tmp_path, "export", "run", "--push", "me/digits")
    assert f"sent to {hub.url}/me/digits (commit {'c' * 40})" in output
    (created,) = hub.created
    assert "private" in (created.get("visibility"), "private" * bool(created.get("private")))
    files = {file.name: file.read_bytes() for file in (tmp_path / "run/export").iterdir()}
    assert {name: hub.pushed[name] for name in files} == files
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    output = vtool(tmp_path, "export", "run", "--push", "me/digits", status=1)
    assert "HF_HUB_OFFLINE is set" in output


def test_a_local_folder_is_checked_without_the_hubs_library(
    trained: tuple[Path, str], tmp_path: Path
) -> None:
    code = (
        "import sys; from vtool.config.load import load_run;"
        f"load_run('digits', ['model.path={trained[0]}/runs/digits/export', 'model.size=null']);"
        "print({'torch', 'huggingface_hub'} & sys.modules.keys())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=True,
        env=dict(os.environ),
    )
    assert done.stdout == "set()\n"
