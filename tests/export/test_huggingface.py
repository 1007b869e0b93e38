"""The export is the trained model, with all that its server needs; nothing there is lost."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from tests.rows import mixed_rows, write_rows
from tests.runs import messages, request
from vtool.diagnostics import Findings
from vtool.engines.ranks import Ranks
from vtool.export.huggingface import write_export
from vtool.models.processor import load_processor
from vtool.training.export_run import export_run
from vtool.training.sft import train


def trained(rows: Path, name: str, *more: str) -> Path:
    overrides = [
        "data.global_batch_size=4",
        "data.micro_batch_size=4",
        "train={steps:2,epochs:null}",
        "optim.warmup_steps=0",
    ]
    overrides += [
        "checkpoint.every_steps=1",
        "data.image={min_pixels:784,max_pixels:784}",
        f"run.dir={rows.parent / name}",
    ]
    return train(request("rows", messages(rows), *overrides, *more), Ranks()).folder


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    return write_rows(folder / "rows.jsonl", mixed_rows(folder, 8))


@pytest.fixture(scope="module")
def base(rows: Path) -> Path:
    """A folder as a hub has it: with settings for generating that vtool does not use itself."""
    folder = trained(rows, "base") / "export"
    settings = json.loads((folder / "generation_config.json").read_text())
    end = settings["eos_token_id"]
    settings |= {
        "repetition_penalty": 1.05,
        "temperature": 1e-06,
        "do_sample": True,
        "eos_token_id": [end, settings["pad_token_id"]],
    }
    (folder / "generation_config.json").write_text(json.dumps(settings))
    return folder


def test_a_folders_settings_for_generating_are_carried_on(rows: Path, base: Path) -> None:
    export = trained(rows, "tuned", f"model.path={base}", "model.size=null") / "export"
    kept = json.loads((export / "generation_config.json").read_text())
    given = json.loads((base / "generation_config.json").read_text())
    changed = {key for key in given.keys() | kept.keys() if given.get(key) != kept.get(key)}
    assert changed <= {"transformers_version", "_from_model_config"}


def test_settings_for_generating_that_cannot_be_read_are_reported_and_not_kept(
    rows: Path, base: Path
) -> None:
    broken = rows.parent / "broken"
    shutil.copytree(base, broken)
    (broken / "generation_config.json").write_text("{")
    with pytest.raises(Findings, match=r"generation_config\.json cannot be read"):
        trained(rows, "of-broken", f"model.path={broken}", "model.size=null")
    (broken / "generation_config.json").unlink()
    assert trained(rows, "of-broken", f"model.path={broken}", "model.size=null")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_checkpoint_exported_later_gives_the_same_bytes(
    rows: Path, base: Path, dtype: str
) -> None:
    run = trained(
        rows, f"again-{dtype}", f"model.path={base}", "model.size=null", f"model.dtype={dtype}"
    )
    folder, step = export_run(run, run / "again")
    assert step == 2
    names = sorted(path.name for path in (run / "export").iterdir())
    assert names == sorted(path.name for path in folder.iterdir())
    for name in names:
        assert (folder / name).read_bytes() == (run / "export" / name).read_bytes(), name


def test_what_is_there_is_not_overwritten(rows: Path, base: Path) -> None:
    (rows.parent / "notes").mkdir()
    (rows.parent / "notes" / "mine.txt").write_text("kept")
    with pytest.raises(Findings, match="not empty"):
        export_run(base.parent, rows.parent / "notes")
    assert [path.name for path in (rows.parent / "notes").iterdir()] == ["mine.txt"]
    with pytest.raises(Findings, match="File name too long"):
        export_run(base.parent, rows.parent / ("x" * 300))


def test_an_export_that_cannot_be_written_leaves_the_one_before(base: Path) -> None:
    """A limit on the size of a file stands in for a full disk:

    the same error comes out of the same write.
    """
    import resource

    before = {path.name: path.read_bytes() for path in base.iterdir()}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(Findings, match="run-folder-unwritable"):
            export_run(base.parent)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert before == {path.name: path.read_bytes() for path in base.iterdir()}
    assert not list(base.parent.glob(".writing*"))


def test_weights_kept_in_float32_in_a_model_in_bfloat16_are_opened_in_float32(
    rows: Path, base: Path
) -> None:
    """Megatron-core has such a tower: it computes in bfloat16, and is saved from float32."""
    from transformers import AutoModelForImageTextToText

    model = AutoModelForImageTextToText.from_pretrained(base)
    state = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    opened = load_processor(base, "qwen2_5_vl")
    folder = write_export(
        model.to(torch.bfloat16), state, opened, "qwen2_5_vl", rows.parent / "kept"
    )
    config = json.loads((folder / "config.json").read_text())
    assert {
        part["dtype"]
        for part in (config, config["text_config"], config["vision_config"])
        if "dtype" in part
    } == {"float32"}
    again = AutoModelForImageTextToText.from_pretrained(folder)
    assert again.dtype == torch.float32
    assert all(torch.equal(parameter, state[name]) for name, parameter in again.named_parameters())


def test_files_of_the_users_in_an_older_export_are_set_aside(
    rows: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained(rows, "with-a-card")
    before = {path.name: path.read_bytes() for path in (run / "export").iterdir()}
    export_run(run)
    assert not list(run.glob("*set-aside*"))  # an export alone is just replaced
    (run / "export" / "README.md").write_text("my model card")
    capsys.readouterr()
    export_run(run)
    (aside,) = run.glob("export.set-aside-*")
    assert (aside / "README.md").read_text() == "my model card"
    assert before == {path.name: path.read_bytes() for path in (run / "export").iterdir()}
    message = capsys.readouterr().err
    assert "README.md" in message
    assert aside.name in message
    assert not list(run.glob(".removing*"))
