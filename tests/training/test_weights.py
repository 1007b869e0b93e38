"""Runs that begin with the weights of another: all of them, nothing else, on every engine."""

import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.engines.state import optimizer_of
from tests.rows import mixed_rows, write_rows
from tests.runs import messages, read_lines, request
from vtool.diagnostics import Diagnostic, Findings
from vtool.engines.ranks import Ranks
from vtool.models.adapters import is_adapter_name
from vtool.models.build import load_model
from vtool.training.export_run import export_run
from vtool.training.run_folder import RunFolder
from vtool.training.session import RunRequest, Session
from vtool.training.setup import set_up_run
from vtool.training.sft import train
from vtool.training.start import find_start

LORA = "lora={rank:3,alpha:5}"
ENGINES = ["ddp", "fsdp2", *(["megatron"] if find_spec("megatron") else [])]


def made(folder: Path, name: str, *more: str) -> RunRequest:
    return request(
        "rows",
        messages(folder / "rows.jsonl"),
        *("data.global_batch_size=4", "data.image={min_pixels:784,max_pixels:784}"),
        *("train.steps=2", "optim.lr=1e-2", "device.threads=1", f"run.dir={folder / name}", *more),
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with whole weights, and one with adapters."""
    folder = tmp_path_factory.mktemp("weights")
    write_rows(folder / "rows.jsonl", mixed_rows(folder, 8, text_only=(1,)))
    for name, more in (("whole", ()), ("adapted", (LORA,))):
        assert train(made(folder, name, *more), Ranks()).status == "finished"
    return folder


def begun(run: RunRequest) -> Session:
    """The session of a run that is about to take its first step."""
    own = RunFolder(run.run.folder)
    own.path.mkdir(parents=True, exist_ok=True)
    opened, progress = set_up_run(run, own, find_start(own, run.run, run.effective), Ranks())
    assert progress.step == 0
    return opened


def finding(run: RunRequest) -> Diagnostic:
    with pytest.raises(Findings) as caught:
        begun(run)
    return caught.value.diagnostics[0]


def saved(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "checkpoints/step-000002/model.safetensors")


def base_of(run: Path) -> dict[str, torch.Tensor]:
    """The weights beneath a run's adapters, as transformers reads them."""
    found: dict[str, torch.Tensor] = load_model(
        run / "base", "qwen2_5_vl", torch.float32, "sdpa"
    ).state_dict()
    return found


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("source", ["", "/checkpoints/step-000002", "/export"])
def test_a_run_begins_with_the_weights_it_names_to_the_bit(
    folder: Path, tmp_path: Path, engine: str, source: str
) -> None:
    named = f"train.from={folder}/whole{source}"
    opened = begun(made(folder, f"{tmp_path}/run", named, f"engine={engine}", "run.seed=7"))
    own, wanted = dict(opened.engine.iter_hf_weights()), saved(folder / "whole")
    assert own.keys() == wanted.keys()
    assert all(torch.equal(own[name], wanted[name]) for name in wanted)
    assert optimizer_of(opened.engine) == {} or engine == "megatron"


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("source", ["", "/export"])
def test_adapters_continue_over_the_weights_that_they_are_for(
    folder: Path, tmp_path: Path, engine: str, source: str
) -> None:
    named = f"train.from={folder}/adapted{source}"
    opened = begun(made(folder, f"{tmp_path}/run", named, LORA, f"engine={engine}", "run.seed=7"))
    own, wanted = dict(opened.engine.iter_hf_weights("only")), saved(folder / "adapted")
    assert own.keys() == wanted.keys()
    assert all(torch.equal(own[name], wanted[name]) for name in wanted)
    base = base_of(folder / "adapted")
    beneath = dict(opened.engine.iter_hf_weights("none"))
    assert all(torch.equal(tensor, base[name]) for name, tensor in beneath.items())


@pytest.mark.full
def test_new_adapters_are_trained_over_whole_weights_which_the_run_keeps(
    folder: Path, tmp_path: Path
) -> None:
    run = made(folder, f"{tmp_path}/run", f"train.from={folder}/whole", LORA)
    assert train(run, Ranks()).status == "finished"
    base, wanted = base_of(tmp_path / "run"), saved(folder / "whole")
    assert all(torch.equal(base[name], wanted[name]) for name in wanted)
    assert all(map(is_adapter_name, saved(tmp_path / "run")))
    # merged, and trained on as a whole
    merged, _ = export_run(tmp_path / "run", merge=True)
    again = begun(made(folder, f"{tmp_path}/again", f"train.from={merged}"))
    assert dict(again.engine.iter_hf_weights()).keys() == wanted.keys()


def test_the_run_says_what_it_began_with_and_the_same_command_resumes_it(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = (f"{tmp_path}/run", f"train.from={folder}/whole", "checkpoint.every_steps=1")
    assert train(made(folder, *given), Ranks()).status == "finished"
    assert f"begins with the weights of {folder}/whole/checkpoints/step-000002" in (
        capsys.readouterr().out
    )
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert result["from"] == json.loads((tmp_path / "run/from.json").read_text())
    assert result["from"]["path"] == str(folder / "whole/checkpoints/step-000002")
    straight = saved(tmp_path / "run")
    (tmp_path / "run/result.json").unlink()
    shutil.rmtree(tmp_path / "run/checkpoints/step-000002")
    assert train(made(folder, *given), Ranks()).status == "finished"
    assert "begins with" not in capsys.readouterr().out
    assert all(
        torch.equal(tensor, straight[name]) for name, tensor in saved(tmp_path / "run").items()
    )


def test_what_does_not_fit_is_named(folder: Path, tmp_path: Path) -> None:
    def refusal(source: str, *more: str) -> str:
        found = finding(made(folder, f"{tmp_path}/{len(more)}", f"train.from={source}", *more))
        return f"{found.rule}: {found.message} → {found.remedy}"

    other = refusal(f"{folder}/whole", "model.family=glm4v")
    assert other.startswith("unfit-weights: ")
    assert "it is a model of type qwen2_5_vl, but model.family is glm4v" in other
    assert "unfit-weights" in refusal(str(folder))
    merge = refusal(f"{folder}/adapted")
    assert f"vtool export {folder}/adapted --merge" in merge
    assert "rank 3, and lora's have 4 → set lora.rank=3 lora.alpha=5" in refusal(
        f"{folder}/adapted", "lora={rank:4,alpha:5}"
    )
    assert "the model has no" in refusal(
        f"{folder}/adapted", "lora={rank:3,alpha:5,targets:[q_proj]}", "run.seed=1"
    )


def test_sizes_and_shapes_that_differ_are_named(folder: Path, tmp_path: Path) -> None:
    export = shutil.copytree(folder / "whole/export", tmp_path / "export")
    config = json.loads((export / "config.json").read_text())
    wide = config["text_config"]["intermediate_size"]
    config["text_config"]["intermediate_size"] += 8
    (export / "config.json").write_text(json.dumps(config))
    found = finding(made(folder, f"{tmp_path}/run", f"train.from={export}"))
    assert found.rule == "unfit-weights"
    assert f"intermediate {wide + 8}, not {wide}" in found.message


def test_a_checkpoint_or_a_base_that_has_changed_is_refused(folder: Path, tmp_path: Path) -> None:
    damaged = shutil.copytree(folder / "whole", tmp_path / "whole")
    file = damaged / "checkpoints/step-000002/model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    found = finding(made(folder, f"{tmp_path}/run", f"train.from={damaged}"))
    assert found.rule == "corrupt-checkpoint"
    moved = shutil.copytree(folder / "adapted", tmp_path / "adapted")
    shutil.copy(folder / "whole/export/model.safetensors", moved / "base/model.safetensors")
    assert (
        finding(made(folder, f"{tmp_path}/2", f"train.from={moved}", LORA)).rule == "base-changed"
    )


def test_the_advice_on_other_settings_works_when_it_is_typed(folder: Path, tmp_path: Path) -> None:
    own = shutil.copytree(folder / "whole", tmp_path / "run")
    found = finding(made(folder, str(own), "optim.lr=1e-3"))
    assert found.rule == "run-folder-taken"
    advised = f"run.dir={tmp_path}/run-2", f"train.from={own}"
    assert all(each in found.remedy for each in advised)
    assert train(made(folder, str(own), "optim.lr=1e-3", *advised), Ranks()).status == "finished"
    asked = made(folder, f"{tmp_path}/3", "optim.lr=1e-3", f"checkpoint.resume={own}")
    assert f"train.from={own}/checkpoints/step-000002" in finding(asked).remedy


def test_the_advice_on_other_rows_works_when_it_is_typed(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", mixed_rows(tmp_path, 6))
    assert train(made(tmp_path, "run"), Ranks()).status == "finished"
    (tmp_path / "run/result.json").unlink()
    write_rows(rows, read_lines(rows) * 2)
    found = finding(made(tmp_path, "run"))
    assert found.rule == "data-changed"
    assert f"train.from={tmp_path}/run" in found.remedy
    again = made(tmp_path, "2", f"train.from={tmp_path}/run")
    assert train(again, Ranks()).status == "finished"


def test_the_weights_of_a_run_with_another_model_are_refused(folder: Path, tmp_path: Path) -> None:
    other = shutil.copytree(folder / "whole/export", tmp_path / "other")
    path = f"model.path={other}", "model.size=null"
    found = finding(made(folder, f"{tmp_path}/1", f"train.from={folder}/whole", *path))
    assert found.rule == "unfit-weights"
    assert f"with model.path null, and model.path is {other}" in found.message
    begun(made(folder, f"{tmp_path}/2", f"train.from={other}", *path))
    own = f"model.path={folder}/whole/export", "model.size=null"
    begun(made(folder, f"{tmp_path}/3", f"train.from={folder}/whole", *own))


def test_another_model_is_not_advised_to_begin_with_the_weights_of_the_first(
    folder: Path, tmp_path: Path
) -> None:
    own = shutil.copytree(folder / "whole", tmp_path / "run")
    path = f"model.path={folder}/whole/export"
    found = finding(made(folder, str(own), path, "model.size=null"))
    assert found.rule == "run-folder-taken"
    assert "train.from" not in found.remedy
