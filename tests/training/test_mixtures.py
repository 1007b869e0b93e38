"""Runs from several sources, with rows held back: what each gave, how it scores, and resuming."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.rows import chat, mixed_rows, write_rows
from tests.runs import read_lines, request, session, without_times
from vtool.data.loader import MicroBatch
from vtool.diagnostics import Findings
from vtool.engines.ranks import Ranks
from vtool.evaluation.evaluate import evaluate_rows
from vtool.training.sft import RunOutcome, train

MIXED = (
    "data.train=[{format: messages, path: 'ROWS/a.jsonl', weight: 3, name: pictures},"
    " {format: messages, path: 'ROWS/b.jsonl', weight: 1, limit: 20}]"
)
SPLIT = "data.split={validation: 0.2, test: 0.1}"
STEPS = 9


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_rows(tmp_path / "a.jsonl", mixed_rows(tmp_path, 40))
    texts = [chat(f"What is {n} times two?", "so " * (n % 3) + str(2 * n)) for n in range(24)]
    write_rows(tmp_path / "b.jsonl", texts)
    return tmp_path


def start(folder: Path, *more: str, mixed: str = MIXED, split: str = SPLIT) -> RunOutcome:
    overrides = (
        *("data.global_batch_size=6", "data.micro_batch_size=3", "optim.warmup_steps=0"),
        f"train={{steps:{STEPS},epochs:null}}",
        "checkpoint={every_steps:1,keep_last:100}",
        "data.image={min_pixels:784,max_pixels:784}",
        "evaluation={every_steps:5,generate:{max_new_tokens:2}}",
        *(f"run.dir={folder / 'run'}", mixed.replace("ROWS", str(folder)), split),
    )
    return train(request("rows", *overrides, *more), Ranks())


def visits(folder: Path, step: int) -> np.ndarray:
    """Return how often each row of all sources was visited, as the checkpoint has it."""
    found = load_file(folder / f"run/checkpoints/step-{step:06d}/progress.safetensors")
    return found["visits"].numpy()


def test_what_each_source_gave_is_counted_exactly_and_no_row_that_is_held_back_is_trained_on(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert start(folder).status == "finished"
    printed = capsys.readouterr().out
    data = json.loads((folder / "run/data.json").read_text())
    result = json.loads((folder / "run/result.json").read_text())
    kept = [[each["kept"] for each in data[split]["sources"]] for split in data]
    assert list(data) == ["train", "validation", "test"]
    assert np.sum(kept, axis=0).tolist() == [40, 20]
    assert [each["limited"] for each in data["train"]["sources"]] == [0, 4]
    assert all(sum(own) == data[split]["kept"] > 0 for own, split in zip(kept, data, strict=True))

    # as many samples of pictures as there are rows, and a third as many of texts, an epoch
    pictures, texts = kept[0]
    epoch = pictures + pictures // 3
    each = f"{pictures} of pictures, {pictures // 3} of b.jsonl"
    assert f"an epoch has {epoch} samples: {each}" in printed
    steps_per_epoch = -(-epoch // 6)
    assert steps_per_epoch < STEPS
    times = visits(folder, STEPS)
    first = visits(folder, steps_per_epoch)
    assert first[:40].max() == 1
    assert (first[:40].sum(), first[40:].sum()) == (pictures, pictures // 3)
    assert (first[40:].max(), (first[40:] > 0).sum()) == (1, pictures // 3)

    ledger = result["ledger"]
    own = ledger["sources"]
    assert list(own) == ["pictures", "b.jsonl"]
    assert [each["samples"] for each in own.values()] == [times[:40].sum(), times[40:].sum()]
    assert [each["distinct"] for each in own.values()] == [
        (times[:40] > 0).sum(),
        (times[40:] > 0).sum(),
    ]
    assert (times[:40] > 0).sum() == pictures, "a row that is held back is trained on"
    assert (times[40:] > 0).sum() <= texts
    lines = [line for line in read_lines(folder / "run/metrics.jsonl") if "loss" in line]
    for key in ("tokens", "supervised_tokens", "samples"):
        assert sum(each[key] for each in own.values()) == sum(line[key] for line in lines)
    assert ledger["epochs"] == pytest.approx(ledger["samples"] / epoch)


def test_scores_of_each_source_are_those_of_its_rows_alone(folder: Path) -> None:
    """Against probabilities that are computed here, row by row."""
    made = request(
        "rows",
        MIXED.replace("ROWS", str(folder)),
        *(SPLIT, "data.image={min_pixels:784,max_pixels:784}", f"run.dir={folder / 'run'}"),
        *("optim.warmup_steps=0", "evaluation={batch_size:4,generate:{max_new_tokens:2}}"),
        "model.dtype=float64",
    )
    opened, _ = session(made)
    rows, kept = opened.rows["validation"], opened.ledgers["validation"].kept
    scores = evaluate_rows(opened.engine, rows, kept, made.run.evaluation)
    sums = np.zeros((2, 4))
    model = opened.engine.module.eval()
    for index in kept:
        batch = rows[MicroBatch((index,))]
        labels = rows.sample(index).labels[1:]
        with torch.no_grad():
            logits = model(**batch.inputs, use_cache=False).logits[0, :-1].double()
        wanted = labels != -100
        chosen = logits[wanted].log_softmax(-1)[torch.arange(int(wanted.sum())), labels[wanted]]
        right = (logits[wanted].max(-1).values == logits[wanted, labels[wanted]]).sum()
        sums[int(index >= 40)] += [-chosen.sum(), wanted.sum(), right, 1]
    assert list(scores.by_source) == ["pictures", "b.jsonl"]
    for own, (nll, tokens, right, count) in zip(scores.by_source.values(), sums, strict=True):
        assert own.samples == count > 0
        assert own.nll == pytest.approx(nll / tokens, rel=1e-6)
        assert own.token_accuracy == pytest.approx(right / tokens)
    assert scores.nll == pytest.approx(sums[:, 0].sum() / sums[:, 1].sum(), rel=1e-6)
    assert scores.token_accuracy == pytest.approx(sums[:, 2].sum() / sums[:, 1].sum())


@pytest.mark.full
def test_scores_of_sources_are_in_metrics_and_in_the_result(folder: Path) -> None:
    start(folder)
    lines = [line for line in read_lines(folder / "run/metrics.jsonl") if "validation_nll" in line]
    assert [line["step"] for line in lines] == [5, STEPS]
    for line in lines:
        names = ("pictures", "b.jsonl")
        counts = [line[f"validation_samples/{name}"] for name in names]
        assert sum(counts) == line["validation_samples"]
        assert 0 <= line["validation_token_accuracy"] <= 1
        matched = sum(
            count * line[f"validation_exact_match/{name}"]
            for count, name in zip(counts, names, strict=True)
        )
        assert matched == pytest.approx(line["validation_exact_match"] * sum(counts))
    result = json.loads((folder / "run/result.json").read_text())
    own = result["test_sources"]
    assert sum(each["samples"] for each in own.values()) == result["test_samples"]
    assert {"nll", "token_accuracy", "exact_match", "samples"} == set(next(iter(own.values())))


def refused(folder: Path, **changed: str) -> str:
    with pytest.raises(Findings) as caught:
        start(folder, **changed)
    (found,) = caught.value.diagnostics
    assert found.rule == "run-folder-taken"
    assert found.parameter
    return f"{found.parameter}; {found.message}"


@pytest.mark.full
def test_another_mixture_or_split_is_refused_with_the_settings_name(folder: Path) -> None:
    start(folder)
    (folder / "run/result.json").unlink()
    for old, new, name in (
        ("weight: 3", "weight: 2", "data.train.0.weight"),
        ("limit: 20", "limit: 21", "data.train.1.limit"),
        ("name: pictures", "name: others", "data.train.0.name"),
    ):
        said = refused(folder, mixed=MIXED.replace(old, new))
        assert said.startswith(f"{name}; ")
        assert name in said
    assert "data.train.0.weight: 3.0 → 2.0" in refused(
        folder, mixed=MIXED.replace("weight: 3", "weight: 2")
    )
    repeated = MIXED.replace("weight: 3", "repeat: 2").replace("weight: 1, ", "")
    said = refused(folder, mixed=repeated)
    assert "data.train.0.repeat: null → 2" in said
    assert "data.split.validation: 0.2 → 0.3" in refused(
        folder, split="data.split={validation: 0.3, test: 0.1}"
    )
    assert "data.split.test: 0.1 → null" in refused(folder, split="data.split={validation: 0.2}")
    assert start(folder).status == "finished"


@pytest.mark.full
def test_a_run_of_a_release_before_sources_had_weights_resumes(folder: Path) -> None:
    plain = "data.train=[{format: messages, path: 'ROWS/a.jsonl'}]"
    none = "data.split={}"
    more = "evaluation.every_steps=null"
    start(folder, more, mixed=plain, split=none)
    (folder / "run/result.json").unlink()
    config = folder / "run/config.yaml"
    text = re.sub(r" +(name|weight|repeat|limit): null .*\n", "", config.read_text())
    text = re.sub(r" +split:\n( +(validation|test|group): null .*\n)+", "", text)
    assert "repeat" not in text
    assert "group:" not in text
    config.write_text(text)
    assert start(folder, more, mixed=plain, split=none).status == "finished"


def plain_lines(folder: Path) -> list[dict[str, Any]]:
    return without_times(read_lines(folder / "run/metrics.jsonl"))


@pytest.mark.full
def test_a_run_that_resumes_from_any_step_ends_as_a_straight_one(folder: Path) -> None:
    start(folder)
    straight = plain_lines(folder)
    before = visits(folder, STEPS)
    (folder / "run/result.json").unlink()
    for step in range(5, STEPS + 1):
        for file in (folder / f"run/checkpoints/step-{step:06d}").iterdir():
            file.unlink()
        (folder / f"run/checkpoints/step-{step:06d}").rmdir()
    start(folder)
    assert plain_lines(folder) == straight
    assert (visits(folder, STEPS) == before).all()
