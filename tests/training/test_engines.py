"""A run goes from engine to engine, and from one number of ranks to another, and ends the same:

its checkpoints are of no engine.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.engines.ranks import run_ranks
from tests.rows import mixed_rows, write_rows
from tests.runs import messages, read_lines, request
from vtool.engines.ranks import Ranks
from vtool.training.session import RunRequest
from vtool.training.sft import train

pytestmark = pytest.mark.full


def made_run(folder: Path, name: str, engine: str, *more: str) -> RunRequest:
    """8 steps;

    an evaluation on the way, of three rows, and one at the end, of one: ranks have unequally many,
    or none.
    """
    overrides = [
        messages(folder / "rows.jsonl"),
        f"data.validation=[{{format:messages,path:'{folder / 'three.jsonl'}'}}]",
        f"data.test=[{{format:messages,path:'{folder / 'one.jsonl'}'}}]",
        "data.max_overlap_rows=1",
        *(
            "data.global_batch_size=6",
            "data.micro_batch_size=2",
            "data.image={min_pixels:784,max_pixels:3136}",
        ),
        *(
            "train={steps:8,epochs:null}",
            "optim.warmup_steps=2",
            "checkpoint={every_steps:2,keep_last:9}",
            "device.threads=1",
        ),
        *(
            "evaluation={every_steps:3,batch_size:1,generate:{max_new_tokens:3}}",
            f"run.dir={folder / name}",
            f"engine={engine}",
        ),
    ]
    return request("rows", *overrides, *more)


def train_all(ranks: Ranks, runs: Sequence[RunRequest]) -> None:
    torch.set_num_threads(1)
    for made in runs:
        assert train(made, ranks).status == "finished"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs that begin with 2 ranks of an engine, resume after step 2 on another number or another
    engine, and after step 4 again.
    """
    made = tmp_path_factory.mktemp("engines")
    write_rows(made / "rows.jsonl", mixed_rows(made, 16, text_only=(1, 2, 9)))
    for name, count in (("three", 3), ("one", 1)):
        write_rows(made / f"{name}.jsonl", mixed_rows(made, count))

    def after(step: int, name: str) -> str:
        return f"checkpoint.resume={made / name / 'checkpoints' / f'step-{step:06d}'}"

    train_all(Ranks(), [made_run(made, "straight", "ddp")])
    run_ranks(train_all, 2, [made_run(made, "fsdp2", "fsdp2"), made_run(made, "ddp", "ddp")])
    from_fsdp2, from_ddp = after(2, "fsdp2"), after(2, "ddp")
    train_all(
        Ranks(),
        [
            made_run(made, "fsdp2-2-1", "fsdp2", from_fsdp2),
            made_run(made, "fsdp2-ddp", "ddp", from_fsdp2),
        ],
    )
    last = [
        made_run(made, "fsdp2-2-1-2", "fsdp2", after(4, "fsdp2-2-1")),
        made_run(made, "fsdp2-ddp-fsdp2", "fsdp2", after(4, "fsdp2-ddp")),
        made_run(made, "ddp-fsdp2", "fsdp2", from_ddp),
    ]
    run_ranks(train_all, 2, last)
    return made


NAMES = ["fsdp2", "ddp", "fsdp2-2-1", "fsdp2-ddp", "fsdp2-2-1-2", "fsdp2-ddp-fsdp2", "ddp-fsdp2"]


@pytest.mark.parametrize("name", NAMES)
def test_it_resumes_with_the_same_losses_and_scores(folder: Path, name: str) -> None:
    straight = {
        line["step"]: line
        for line in read_lines(folder / "straight/metrics.jsonl")
        if "loss" in line
    }
    ours = [line for line in read_lines(folder / name / "metrics.jsonl") if "loss" in line]
    assert [line["step"] for line in ours] == list(range(ours[0]["step"], 9))
    for line in ours:
        assert line["loss"] == pytest.approx(straight[line["step"]]["loss"], abs=1e-5)
        assert line["grad_norm"] == pytest.approx(straight[line["step"]]["grad_norm"], rel=1e-4)
        assert line["distinct_samples"] == straight[line["step"]]["distinct_samples"]
    scores = {
        line["step"]: line
        for line in read_lines(folder / "straight/metrics.jsonl")
        if "validation_nll" in line
    }
    for line in (
        line for line in read_lines(folder / name / "metrics.jsonl") if "validation_nll" in line
    ):
        assert line["validation_nll"] == pytest.approx(
            scores[line["step"]]["validation_nll"], abs=1e-5
        )
        assert line["validation_samples"] == 3
    results = [
        json.loads((folder / each / "result.json").read_text()) for each in ("straight", name)
    ]
    assert results[1]["test_nll"] == pytest.approx(results[0]["test_nll"], abs=1e-5)
    assert results[1]["ledger"] == results[0]["ledger"]


@pytest.mark.parametrize("name", NAMES)
def test_its_checkpoint_and_its_export_hold_the_whole_model(folder: Path, name: str) -> None:
    straight = folder / "straight/checkpoints/step-000008"
    for part in ("model", "optimizer"):
        ours, theirs = (
            load_file(path / f"{part}.safetensors")
            for path in (folder / name / "checkpoints/step-000008", straight)
        )
        assert {key: (value.shape, value.dtype) for key, value in ours.items()} == {
            key: (value.shape, value.dtype) for key, value in theirs.items()
        }
        assert max(float((ours[key] - theirs[key]).abs().max()) for key in ours) <= 1e-4
    checkpoint, exported = (
        load_file(folder / name / "checkpoints/step-000008/model.safetensors"),
        load_file(folder / name / "export/model.safetensors"),
    )
    assert sorted(value.shape for value in exported.values()) == sorted(
        value.shape for value in checkpoint.values()
    )
    config = json.loads((folder / name / "export/config.json").read_text())
    assert config == json.loads((folder / "straight/export/config.json").read_text())
    from transformers import Qwen2_5_VLForConditionalGeneration

    opened, report = Qwen2_5_VLForConditionalGeneration.from_pretrained(
        folder / name / "export", output_loading_info=True
    )
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    for key, parameter in opened.named_parameters():
        assert torch.equal(parameter.detach(), checkpoint[key]), key
