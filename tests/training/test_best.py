"""The best checkpoint, and a run that ends early: by the validation rows, on every rank alike."""

import json
import math
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.multiprocessing import ProcessExitedException

from tests.engines.ranks import run_ranks
from tests.rows import mixed_rows, write_rows
from tests.runs import messages, read_lines, request, without_times
from vtool.config.schema import Run
from vtool.diagnostics import Findings
from vtool.engines.ranks import Ranks
from vtool.training import checkpoint
from vtool.training.best import Best, BestSoFar, update_best
from vtool.training.export_run import export_run
from vtool.training.session import RunRequest
from vtool.training.sft import RunOutcome, train

KEEP = "checkpoint.keep_best.metric=validation_nll"
EARLY = "evaluation.early_stopping={patience:2}"


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("best")
    write_rows(folder / "rows.jsonl", mixed_rows(folder, 12, text_only=(1,)))
    write_rows(folder / "validation.jsonl", mixed_rows(folder, 4))
    return folder


def made(rows: Path, name: str, *more: str) -> RunRequest:
    """A rate so high that scores soon get worse."""
    validation = f"[{{format:messages,path:'{rows / 'validation.jsonl'}'}}]"
    return request(
        "rows",
        messages(rows / "rows.jsonl"),
        *(f"data.validation={validation}", f"data.test={validation}", "data.max_overlap_rows=9"),
        *("data.global_batch_size=4", "data.image={min_pixels:784,max_pixels:784}"),
        *("train.steps=12", "optim.lr=5e-2", "optim.schedule=constant", "optim.warmup_steps=0"),
        *("evaluation={every_steps:1,generate:{max_new_tokens:1}}", "device.threads=1"),
        *(f"run.dir={rows / name}", "checkpoint={every_steps:1,keep_last:1}", *more),
    )


def scores(folder: Path) -> dict[int, float]:
    lines = read_lines(folder / "metrics.jsonl")
    return {line["step"]: line["validation_nll"] for line in lines if "validation_nll" in line}


def result(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return found


def test_the_best_is_kept_and_exported_and_scored_on_the_test_rows(rows: Path) -> None:
    assert train(made(rows, "kept", KEEP), Ranks()).step == 12
    folder, best = rows / "kept", result(rows / "kept")["best"]
    of = scores(folder)
    assert best["value"] == min(of.values()) < of[12]
    assert of[best["step"]] == best["value"]
    kept = sorted(path.name for path in (folder / "checkpoints").glob("step-*"))
    assert kept == [f"step-{best['step']:06d}", "step-000012"]
    # the rows of both splits are the same
    assert result(folder)["test_nll"] == pytest.approx(best["value"], rel=1e-6)
    saved = load_file(folder / "checkpoints" / kept[0] / "model.safetensors")
    again, step = export_run(folder, rows / "again")
    assert step == best["step"]
    for export in (folder / "export", again):
        own = load_file(export / "model.safetensors")
        assert sum(tensor.double().sum() for tensor in own.values()) == pytest.approx(
            float(sum(tensor.double().sum() for tensor in saved.values())), rel=1e-12
        )
    last = load_file(folder / "checkpoints/step-000012/model.safetensors")
    assert any(not torch.equal(last[name], saved[name]) for name in saved)


def test_a_run_ends_when_no_better_score_comes(rows: Path) -> None:
    done = train(made(rows, "early", KEEP, EARLY), Ranks())
    of, said = scores(rows / "early"), result(rows / "early")
    best = min(of, key=lambda step: of[step])
    assert (done.status, done.step) == ("finished", best + 2)
    assert said["stopped_early"]["after_step"] == best + 2 < 12
    assert said["best"]["step"] == best
    assert said["ledger"]["samples"] == 4 * done.step
    assert train(made(rows, "early", KEEP, EARLY), Ranks()).status == "already finished"


@pytest.mark.full
def test_a_run_that_was_killed_remembers_the_best_and_how_long_it_has_waited(rows: Path) -> None:
    train(made(rows, "straight", KEEP, EARLY, "checkpoint.keep_last=20"), Ranks())
    best, last = (result(rows / "straight")[key] for key in ("best", "stopped_early"))
    for step in (best["step"] + 1, last["after_step"]):
        folder = rows / f"killed-{step}"
        shutil.copytree(rows / "straight", folder)
        (folder / "result.json").unlink()
        for path in (folder / "checkpoints").glob("step-*"):
            if path.name > f"step-{step:06d}":
                shutil.rmtree(path)
        with (folder / "config.yaml").open("r+") as file:
            text = file.read().replace(str(rows / "straight"), str(folder))
            file.seek(0)
            file.write(text)
        assert train(made(rows, folder.name, KEEP, EARLY), Ranks()).status == "finished"
        assert result(folder)["best"] == best
        assert result(folder)["stopped_early"] == last
        assert without_times(read_lines(folder / "metrics.jsonl")) == without_times(
            read_lines(rows / "straight/metrics.jsonl")
        )


@pytest.mark.full
def test_a_run_resumes_from_anothers_checkpoint_with_its_best(rows: Path) -> None:
    train(made(rows, "first", KEEP, "checkpoint.keep_last=20"), Ranks())
    best = result(rows / "first")["best"]
    after = f"checkpoint.resume={rows}/first/checkpoints/step-{best['step'] + 1:06d}"
    assert train(made(rows, "second", KEEP, after), Ranks()).status == "finished"
    assert result(rows / "second")["best"] == best
    assert (rows / "second/checkpoints" / f"step-{best['step']:06d}").exists()


@pytest.mark.full
def test_a_best_checkpoint_that_is_damaged_is_reported_and_the_last_is_exported(rows: Path) -> None:
    train(made(rows, "damaged", KEEP), Ranks())
    folder, best = rows / "damaged", result(rows / "damaged")["best"]
    (folder / "result.json").unlink()
    file = folder / f"checkpoints/step-{best['step']:06d}/model.safetensors"
    file.write_bytes(b"")
    with pytest.raises(Findings, match="corrupt-checkpoint"):
        export_run(folder, rows / "none")
    done = train(made(rows, "damaged", KEEP), Ranks())
    assert [found.rule for found in done.findings] == ["corrupt-checkpoint"]
    assert result(folder)["best"] == {**best, "exported": False}


def end(ranks: Ranks, run: RunRequest) -> tuple[int, int]:
    done: RunOutcome = train(run, ranks)
    return ranks.rank, done.step


@pytest.mark.full
@pytest.mark.parametrize("engine", ["ddp", pytest.param("fsdp2", marks=pytest.mark.full)])
def test_both_ranks_stop_after_the_same_step(rows: Path, engine: str) -> None:
    run = made(rows, f"two-{engine}", KEEP, EARLY, f"engine={engine}", "launch.nproc=2")
    (first, one), (second, other) = run_ranks(end, 2, run)
    assert {first, second} == {0, 1}
    of = scores(rows / f"two-{engine}")
    assert one == other == min(of, key=lambda step: of[step]) + 2


def marked(run: Run, values: list[float]) -> BestSoFar:
    marks = BestSoFar()
    for step, value in enumerate(values, 1):
        if not marks.stopped:
            marks = BestSoFar.of(
                json.loads(
                    json.dumps(update_best(marks, run, step, {"validation_nll": value}).as_dict())
                )
            )
    return marks


def test_a_gain_that_is_too_small_is_none(rows: Path) -> None:
    run = made(rows, "none", KEEP, "evaluation.early_stopping={patience:2,min_delta:0.1}").run
    marks = marked(run, [1.0, 0.95, 0.9, 0.85])
    assert marks.stopped
    assert marks.reference == Best("validation_nll", "min", 1.0, 1)
    assert marks.best == Best("validation_nll", "min", 0.9, 3)
    slow = marked(run, [1.0, 0.95, 0.85, 0.8, 0.7])  # each two together are enough
    assert (slow.stopped, slow.waited) == (False, 0)


def test_a_score_that_is_no_number_is_never_the_best(rows: Path) -> None:
    run = made(rows, "none", KEEP, EARLY).run
    marks = marked(run, [math.nan, 2.0, math.nan, math.inf])
    assert marks.best == Best("validation_nll", "min", 2.0, 2)
    assert marks.stopped


def test_a_higher_accuracy_is_better_and_the_mode_can_be_set(rows: Path) -> None:
    run = made(rows, "none", "checkpoint.keep_best.metric=validation_exact_match").run
    keep = run.checkpoint.keep_best
    assert keep is not None
    assert keep.direction == "max"
    turned = made(rows, "none", "checkpoint.keep_best={metric:validation_nll,mode:max}").run
    assert marked(turned, [1.0, 3.0, 2.0]).best == Best("validation_nll", "max", 3.0, 2)


def test_a_source_that_the_validation_rows_do_not_have_is_refused(rows: Path) -> None:
    with pytest.raises(Findings, match="metric-not-computed"):
        train(made(rows, "source", "checkpoint.keep_best.metric=validation_nll/charts"), Ranks())


def killed_while_saving(ranks: Ranks, run: RunRequest, at: str, step: int) -> None:
    """Train until a checkpoint is there and older ones are not yet removed, or one is half so."""
    if ranks.rank == 0:
        flush, remove = checkpoint.flush, shutil.rmtree

        def after_saving(path: Path) -> None:
            if path.name == "checkpoints" and (path / f"step-{step:06d}").exists():
                os.kill(os.getpid(), signal.SIGKILL)
            flush(path)

        def while_removing(path: Any, *given: Any, **more: Any) -> None:
            if Path(path).name == f".removing-step-{step - 1:06d}":
                os.kill(os.getpid(), signal.SIGKILL)
            remove(path, *given, **more)

        if at == "saved":
            checkpoint.flush = after_saving
        else:
            checkpoint.shutil.rmtree = while_removing  # type: ignore[assignment]
    train(run, ranks)


@pytest.mark.full
@pytest.mark.parametrize("at", ["saved", "removing"])
@pytest.mark.parametrize("spread", ["{tensor:2}", "{pipeline:2}"])
def test_megatron_ranks_killed_between_saving_and_removing_remember_the_best(
    rows: Path, at: str, spread: str
) -> None:
    def asked(name: str) -> RunRequest:
        on = ("engine=megatron", f"engine.parallel={spread}", "launch.nproc=2")
        return made(rows, f"{name}-{at}-{spread[1]}", KEEP, EARLY, *on)

    straight, killed = asked("straight"), asked("killed")
    ends = run_ranks(end, 2, straight)
    folder, other = straight.run.folder, killed.run.folder
    best, last = (result(folder)[key] for key in ("best", "stopped_early"))
    assert ends[0][1] == ends[1][1] == last["after_step"] == best["step"] + 2
    # a step after the best one: of the two that are there, the older one is kept
    with pytest.raises(ProcessExitedException, match="SIGKILL"):
        run_ranks(killed_while_saving, 2, killed, at, best["step"] + (1 if at == "saved" else 2))
    assert (other / "checkpoints" / f"step-{best['step']:06d}").is_dir()
    assert run_ranks(end, 2, killed) == ends
    assert (result(other)["best"], result(other)["stopped_early"]) == (best, last)
    left = [
        sorted(path.name for path in (each / "checkpoints").iterdir()) for each in (folder, other)
    ]
    assert left[0] == left[1]
    assert without_times(read_lines(folder / "metrics.jsonl")) == without_times(
        read_lines(other / "metrics.jsonl")
    )
    for name in left[0]:
        one, two = (
            load_file(each / f"checkpoints/{name}/model.safetensors") for each in (folder, other)
        )
        assert all(torch.equal(one[key], two[key]) for key in one)
