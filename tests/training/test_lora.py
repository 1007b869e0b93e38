"""Runs with adapters:

what is trained, what is saved and exported, that they resume, and what is reported when they
cannot.
"""

import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.engines.ranks import run_ranks
from tests.rows import mixed_rows, write_rows
from tests.runs import messages, read_lines, request
from vtool.data.collate import collate
from vtool.diagnostics import Findings
from vtool.engines.ranks import Ranks
from vtool.evaluation.predict import predict_answer
from vtool.models.build import load_model
from vtool.training.base import check_base, keep_base
from vtool.training.export_run import export_run
from vtool.training.run_folder import RunFolder
from vtool.training.session import RunRequest
from vtool.training.setup import set_up_run
from vtool.training.sft import train
from vtool.training.start import Start

RANK, ALPHA = 4, 12
MEGATRON = find_spec("megatron") is not None
SPREAD = ("engine.parallel.tensor=2", "engine.parallel.sequence=true")
PREFIX = "base_model.model."


def made_run(folder: Path, name: str, engine: str, *more: str) -> RunRequest:
    overrides = [
        messages(folder / "rows.jsonl"),
        f"data.test=[{{format:messages,path:'{folder / 'one.jsonl'}'}}]",
        "data.max_overlap_rows=1",
        *(
            "data.global_batch_size=6",
            "data.micro_batch_size=2",
            "data.image={min_pixels:784,max_pixels:3136}",
        ),
        *(
            "train={steps:6,epochs:null}",
            "optim.warmup_steps=2",
            "optim.lr=1e-2",
            "checkpoint={every_steps:2,keep_last:9}",
        ),
        *(
            "device.threads=1",
            "evaluation={batch_size:1,generate:{max_new_tokens:3}}",
            f"run.dir={folder / name}",
            f"engine={engine}",
        ),
        f"lora={{rank:{RANK},alpha:{ALPHA}}}",
    ]
    return request("rows", *overrides, *more)


def train_all(ranks: Ranks, *runs: RunRequest) -> None:
    torch.set_num_threads(1)
    for made in runs:
        assert train(made, ranks).status == "finished"


def after(folder: Path, step: int) -> str:
    return f"checkpoint.resume={folder / 'checkpoints' / f'step-{step:06d}'}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`straight`:

    random weights on one process. The others take its base for a model's folder. `A-B` resumes with
    B after A's step 2.
    """
    made = tmp_path_factory.mktemp("lora")
    write_rows(made / "rows.jsonl", mixed_rows(made, 16, text_only=(1, 2, 9)))
    write_rows(made / "one.jsonl", mixed_rows(made, 1))
    train_all(Ranks(), made_run(made, "straight", "ddp"))
    shutil.copytree(made / "straight/base", made / "model")
    pretrained = (f"model.path={made / 'model'}", "model.size=null")
    train_all(Ranks(), made_run(made, "pretrained", "ddp", *pretrained))
    run_ranks(
        train_all,
        2,
        made_run(made, "ddp", "ddp", *pretrained),
        made_run(made, "fsdp2", "fsdp2", *pretrained),
    )
    if MEGATRON:
        run_ranks(train_all, 2, made_run(made, "tp2", "megatron", *pretrained, *SPREAD))
        run_ranks(
            train_all,
            2,
            made_run(made, "ddp-tp2", "megatron", *pretrained, *SPREAD, after(made / "ddp", 2)),
        )
        run_ranks(
            train_all, 1, made_run(made, "tp2-ddp", "ddp", *pretrained, after(made / "tp2", 2))
        )
    run_ranks(
        train_all, 2, made_run(made, "ddp-fsdp2", "fsdp2", *pretrained, after(made / "ddp", 2))
    )
    train_all(
        Ranks(),
        made_run(made, "fsdp2-ddp", "ddp", *pretrained, after(made / "fsdp2", 2)),
        made_run(made, "straight-ddp", "ddp", after(made / "straight", 2)),
    )
    return made


NAMES = [
    "pretrained",
    "ddp",
    "fsdp2",
    "ddp-fsdp2",
    "fsdp2-ddp",
    "straight-ddp",
    *(("tp2", "ddp-tp2", "tp2-ddp") if MEGATRON else ()),
]


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_it_trains_scores_and_resumes_as_one_process_does(folder: Path, name: str) -> None:
    straight = {line["step"]: line for line in read_lines(folder / "straight/metrics.jsonl")}
    ours = read_lines(folder / name / "metrics.jsonl")
    assert [line["step"] for line in ours] == list(range(ours[0]["step"], 7))
    for line in ours:
        assert line["loss"] == pytest.approx(straight[line["step"]]["loss"], rel=1e-5)
        assert line["grad_norm"] == pytest.approx(straight[line["step"]]["grad_norm"], rel=1e-4)
    assert ours[-1]["loss"] < straight[1]["loss"] - 0.1
    results = [
        json.loads((folder / each / "result.json").read_text()) for each in ("straight", name)
    ]
    assert results[1]["test_nll"] == pytest.approx(results[0]["test_nll"], abs=1e-5)
    assert (
        results[1]["trained_parameters"]
        == results[0]["trained_parameters"]
        < results[0]["parameters"] / 5
    )


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_the_adapter_is_one_folder_whichever_engine_trained_it(folder: Path, name: str) -> None:
    ours, theirs = (
        {path.name: path for path in (folder / each / "export").iterdir()}
        for each in (name, "straight")
    )
    assert ours.keys() == theirs.keys()
    assert "config.json" not in ours
    configs = [json.loads(files["adapter_config.json"].read_text()) for files in (ours, theirs)]
    bases = [Path(config.pop("base_model_name_or_path")) for config in configs]
    assert configs[0] == configs[1]
    assert all(base.is_absolute() and (base / "config.json").exists() for base in bases)
    mine, wanted = (load_file(files["adapter_model.safetensors"]) for files in (ours, theirs))
    assert {key: (value.shape, value.dtype) for key, value in mine.items()} == {
        key: (value.shape, value.dtype) for key, value in wanted.items()
    }
    assert max(float((mine[key] - wanted[key]).abs().max()) for key in wanted) <= 1e-4
    assert all(value.abs().max() > 0 for key, value in mine.items() if "lora_B" in key)


@pytest.mark.full
def test_a_checkpoint_holds_the_adapter_alone(folder: Path) -> None:
    kept = load_file(folder / "fsdp2/checkpoints/step-000006/model.safetensors")
    adapter = load_file(folder / "fsdp2/export/adapter_model.safetensors")
    assert kept.keys() == adapter.keys()
    assert all(torch.equal(kept[key], adapter[key]) for key in kept)
    assert {
        key.rpartition(".")[0]
        for key in load_file(folder / "fsdp2/checkpoints/step-000006/optimizer.safetensors")
    } == kept.keys()


@pytest.mark.full
def test_the_base_is_never_changed(folder: Path) -> None:
    one, other = (
        load_file(folder / each / "model.safetensors") for each in ("straight/base", "model")
    )
    assert all(torch.equal(one[key], other[key]) for key in one)
    written = json.loads((folder / "straight/base.json").read_text())
    assert written == json.loads((folder / "fsdp2/base.json").read_text())


def batch_of(folder: Path, name: str) -> dict[str, Any]:
    run_folder = RunFolder(folder / "again" / name)
    run_folder.path.mkdir(parents=True, exist_ok=True)
    opened, _ = set_up_run(
        made_run(folder, f"again/{name}", "ddp"), run_folder, Start(None), Ranks()
    )
    rows = opened.rows["train"]
    return collate([rows.sample(index) for index in range(4)], rows.processor).inputs


@pytest.mark.full
def test_peft_opens_the_adapter_and_merged_it_gives_the_same_logits(folder: Path) -> None:
    from peft import PeftModel  # takes seconds

    merged_folder, step = export_run(folder / "ddp", merge=True)
    assert (merged_folder, step) == (folder / "ddp/merged", 6)
    inputs = batch_of(folder, "logits")
    base = load_model(folder / "model", "qwen2_5_vl", torch.float32, "sdpa").eval()
    with torch.no_grad():
        plain = base(**inputs).logits
        adapted = (
            PeftModel.from_pretrained(base, str(folder / "ddp/export")).eval()(**inputs).logits
        )
        merged = (
            load_model(merged_folder, "qwen2_5_vl", torch.float32, "sdpa").eval()(**inputs).logits
        )
    assert float((adapted - merged).abs().max()) <= 1e-5
    assert float((adapted - plain).abs().max()) > 1e-2


@pytest.mark.full
def test_merged_is_base_and_scale_times_b_times_a_for_each_tensor(folder: Path) -> None:
    """verl#7285: a "merged" model that is the base, byte for byte."""
    merged, _ = export_run(folder / "fsdp2", folder / "merged-elsewhere", merge=True)
    base, ours = (
        load_file(folder / "model/model.safetensors"),
        load_file(merged / "model.safetensors"),
    )
    adapter = load_file(folder / "fsdp2/export/adapter_model.safetensors")
    assert base.keys() == ours.keys()
    # A file has the names of transformers 4, an adapter those of 5.
    stems = {stem(name): name for name in base}
    seen = set()
    for key, a in adapter.items():
        if "lora_A" in key:
            name = stems[stem(key.removeprefix(PREFIX).replace(".lora_A", ""))]
            b = adapter[key.replace("lora_A", "lora_B")]
            wanted = base[name].double() + ALPHA / RANK * (b.double() @ a.double())
            assert float((ours[name].double() - wanted).abs().max()) <= 1e-6
            assert not torch.equal(ours[name], base[name])
            seen.add(name)
    assert len(seen) == len(adapter) // 2
    for name in base.keys() - seen:
        assert torch.equal(ours[name], base[name]), name


def stem(name: str) -> str:
    return name.removeprefix("model.").replace("language_model.", "").replace("model.", "")


@pytest.mark.full
def test_an_adapter_that_is_exported_later_is_the_same_to_the_byte(folder: Path) -> None:
    again, _ = export_run(folder / "fsdp2", folder / "later")
    for path in (folder / "fsdp2/export").iterdir():
        assert path.read_bytes() == (again / path.name).read_bytes(), path.name


@pytest.mark.full
def test_the_run_answers_as_its_merged_model_does(folder: Path) -> None:
    export_run(folder / "ddp-fsdp2", merge=True)
    image, question = [str(folder / "0-0.png")], "Is this number 0?"
    adapted = predict_answer(folder / "ddp-fsdp2", image, question, None, 5)
    assert adapted == predict_answer(folder / "ddp-fsdp2/merged", image, question, None, 5)


@pytest.mark.full
def test_only_a_run_with_an_adapter_is_merged(folder: Path) -> None:
    train_all(Ranks(), made_run(folder, "whole", "ddp", "lora=null", "train.steps=3"))
    with pytest.raises(Findings, match="nothing-to-merge"):
        export_run(folder / "whole", merge=True)


@pytest.mark.full
def test_a_base_that_has_changed_is_refused(folder: Path) -> None:
    """Added to other weights, an adapter gives another model, and no error."""
    model = folder / "fickle"
    shutil.copytree(folder / "model", model)
    asked = ("train.steps=4", f"model.path={model}", "model.size=null")
    train_all(Ranks(), made_run(folder, "of-fickle", "ddp", *asked))
    (folder / "of-fickle/result.json").unlink()
    weights = bytearray((model / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (model / "model.safetensors").write_bytes(weights)
    for attempt in (
        lambda: train(made_run(folder, "of-fickle", "ddp", *asked), Ranks()),
        lambda: train(
            made_run(folder, "another", "ddp", *asked, after(folder / "of-fickle", 2)), Ranks()
        ),
        lambda: export_run(folder / "of-fickle", folder / "no-1", merge=True),
        lambda: export_run(folder / "of-fickle", folder / "no-2"),
    ):
        with pytest.raises(Findings, match=r"base-changed.*model\.safetensors"):
            attempt()


@pytest.mark.parametrize("weights", ["model.safetensors", "pytorch_model.bin"])
def test_a_base_is_held_to_its_weights_of_either_kind_and_to_its_config(
    tmp_path: Path, weights: str
) -> None:
    model, run_folder = tmp_path / "model", RunFolder(tmp_path / "run")
    for path in (model, run_folder.path):
        path.mkdir()
    files = {
        "config.json": b'{"model_type": "qwen2_5_vl", "vision_config": {}}',
        weights: b"weights",
        "training_args.bin": b"of another tool",
    }
    for name, content in files.items():
        (model / name).write_bytes(content)
    run = request("digits_lora", f"model.path={model}", "model.size=null").run
    no_processor: Any = None  # a folder's weights are left where they are
    keep_base(run, run_folder, no_processor, Start(None))
    (model / "training_args.bin").write_bytes(b"other")
    check_base(run_folder, model)
    for name in ("config.json", weights):
        (model / name).write_bytes(files[name].replace(b"e", b"E", 1))
        with pytest.raises(Findings, match=f"base-changed.*began with: {name}"):
            check_base(run_folder, model)
        (model / name).unlink()
        with pytest.raises(Findings, match=f"base-changed.*began with: {name}"):
            check_base(run_folder, model)
        (model / name).write_bytes(files[name])


@pytest.mark.full
@pytest.mark.parametrize("name", ["straight", "pretrained"])
def test_a_run_that_was_moved_answers_still(folder: Path, name: str) -> None:
    moved = folder / f"moved-{name}"
    shutil.copytree(folder / name, moved)
    if name == "straight":
        config = moved / "export/adapter_config.json"
        config.write_text(
            config.read_text().replace(str(folder / "straight/base"), str(folder / "gone"))
        )
    assert (
        predict_answer(moved, [str(folder / "0-0.png")], "Is this number 0?", None, 3) is not None
    )


@pytest.mark.full
def test_a_rank_stabilized_adapter_is_alpha_over_the_root_of_the_rank_everywhere(
    tmp_path: Path,
) -> None:
    """In the layer, in the merged export, and in peft's own file."""
    write_rows(tmp_path / "rows.jsonl", mixed_rows(tmp_path, 8, text_only=(1,)))
    write_rows(tmp_path / "one.jsonl", mixed_rows(tmp_path, 1))
    made = made_run(tmp_path, "run", "ddp", "lora.rslora=true", "train.steps=3")
    train_all(Ranks(), made)
    scale = ALPHA / RANK**0.5
    config = json.loads((tmp_path / "run/export/adapter_config.json").read_text())
    assert (config["lora_alpha"], config["r"], config["use_rslora"]) == (ALPHA, RANK, True)
    adapter = load_file(tmp_path / "run/checkpoints/step-000003/model.safetensors")
    merged, _ = export_run(tmp_path / "run", merge=True)
    base, whole = (load_file(at / "model.safetensors") for at in (tmp_path / "run/base", merged))
    name = "model.layers.0.self_attn.q_proj.weight"
    stem = f"{PREFIX}model.language_model.layers.0.self_attn.q_proj"
    a, b = (adapter[f"{stem}.lora_{which}.weight"].double() for which in "AB")
    wanted = base[name].double() + scale * (b @ a)
    assert float((b @ a).abs().max()) > 0
    assert torch.allclose(whole[name].double(), wanted, rtol=0, atol=1e-6)


WHOLE = ("lora={rank:4,alpha:12,dora:true,modules_to_save:[merger]}", "model.size=null")
"""Every row of a weight has a length of its own, and the projector is trained whole."""


def other_runs(folder: Path) -> None:
    write_rows(folder / "rows.jsonl", mixed_rows(folder, 16, text_only=(1, 2, 9)))
    write_rows(folder / "one.jsonl", mixed_rows(folder, 1))
    train_all(Ranks(), made_run(folder, "first", "ddp", "train.steps=3"))
    shutil.copytree(folder / "first/base", folder / "model")


@pytest.mark.full
def test_lengths_and_whole_modules_are_merged_as_their_formula_says(tmp_path: Path) -> None:
    """W' = m · (W + s · B · A) / ‖W + s · B · A‖ by rows (DoRA, equation 5), in float64."""
    from peft import PeftModel  # takes seconds

    other_runs(tmp_path)
    made = made_run(tmp_path, "run", "ddp", *WHOLE, f"model.path={tmp_path / 'model'}")
    train_all(Ranks(), made)
    adapter = load_file(tmp_path / "run/export/adapter_model.safetensors")
    config = json.loads((tmp_path / "run/export/adapter_config.json").read_text())
    parts = [f"model.visual.merger.{name}" for name in ("ln_q", "mlp.0", "mlp.2")]
    assert (config["use_dora"], config["modules_to_save"]) == (True, parts)
    assert not [name for name in adapter if ".merger." in name and "lora" in name]
    merged, _ = export_run(tmp_path / "run", merge=True)
    base, whole = (load_file(at / "model.safetensors") for at in (tmp_path / "model", merged))
    stems = {stem(name): name for name in base}
    seen = set()
    for key, lengths in adapter.items():
        if key.endswith(".lora_magnitude_vector"):
            at = key.removesuffix(".lora_magnitude_vector")
            name = stems[stem(at.removeprefix(PREFIX) + ".weight")]
            a, b = (adapter[f"{at}.lora_{which}.weight"].double() for which in "AB")
            moved = base[name].double() + ALPHA / RANK * (b @ a)
            wanted = lengths.double()[:, None] * moved / moved.square().sum(1, True).sqrt()
            assert float((whole[name].double() - wanted).abs().max()) <= 1e-6
            before = base[name].double().square().sum(1).sqrt()
            assert float((lengths.double() - before).abs().max()) > 1e-4, "no length was trained"
            seen.add(name)
        elif ".merger." in key:
            name = stems[stem(key.removeprefix(PREFIX))]
            assert torch.equal(whole[name], lengths)
            assert not torch.equal(whole[name], base[name])
            seen.add(name)
    assert len(seen) == len([key for key in adapter if ".lora_A." not in key]) - len(
        [key for key in adapter if ".lora_B." in key]
    )
    for name in base.keys() - seen:
        assert torch.equal(whole[name], base[name]), name
    # peft, which opens the export by itself, computes what the merged model does
    inputs = batch_of(tmp_path, "logits")
    bare = load_model(tmp_path / "model", "qwen2_5_vl", torch.float32, "sdpa").eval()
    with torch.no_grad():
        opened = PeftModel.from_pretrained(bare, str(tmp_path / "run/export")).eval()
        one = load_model(merged, "qwen2_5_vl", torch.float32, "sdpa").eval()
        difference = opened(**inputs).logits - one(**inputs).logits
    assert float(difference.abs().max()) <= 1e-5


@pytest.mark.full
def test_lengths_and_whole_modules_are_the_same_on_sharded_ranks(tmp_path: Path) -> None:
    other_runs(tmp_path)
    more = (*WHOLE, f"model.path={tmp_path / 'model'}")
    train_all(Ranks(), made_run(tmp_path, "one", "ddp", *more))
    run_ranks(
        train_all,
        2,
        made_run(tmp_path, "ddp", "ddp", *more),
        made_run(tmp_path, "fsdp2", "fsdp2", *more),
    )
    changed = made_run(tmp_path, "ddp-fsdp2", "fsdp2", *more, after(tmp_path / "ddp", 2))
    run_ranks(train_all, 2, changed)
    wanted = load_file(tmp_path / "one/export/adapter_model.safetensors")
    for name in ("ddp", "fsdp2", "ddp-fsdp2"):
        ours = load_file(tmp_path / name / "export/adapter_model.safetensors")
        assert ours.keys() == wanted.keys()
        assert max(float((ours[key] - wanted[key]).abs().max()) for key in wanted) <= 1e-4


def test_a_module_that_is_tied_or_not_there_is_refused_before_a_step(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.jsonl", mixed_rows(tmp_path, 8))
    write_rows(tmp_path / "one.jsonl", mixed_rows(tmp_path, 1))
    with pytest.raises(Findings, match=r"whose weight is .*embed_tokens.weight too"):
        train_all(Ranks(), made_run(tmp_path, "tied", "ddp", "lora.modules_to_save=[lm_head]"))
