"""Plans: what is refused, what fits, and what is printed."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.commands import run_vtool, vtool
from tests.planning.test_micro_batch import run_of
from tests.rows import chat, picture, write_rows
from vtool.diagnostics import Findings
from vtool.planning.micro_batch import Shape
from vtool.planning.plan import (
    GIB,
    OVERHEAD,
    Change,
    MemoryPlan,
    PlanQuestion,
    _more_gpus,
    changes_to_fit,
    make_plan,
)
from vtool.planning.step import MEMORY_KINDS, StepNeeds
from vtool.planning.text import lines, remedy, verdict
from vtool.verification.rows import audit_rows

pytestmark = pytest.mark.usefixtures("no_process_group")


def plan_of(device: int, memory: int | None, *changes: Change) -> MemoryPlan:
    """A plan of a rank that needs so many bytes."""
    step = StepNeeds(dict.fromkeys(MEMORY_KINDS, 0) | {"activations": device}, 0, 10**12, 0)
    shape = Shape(1, 64, 0, 0, 0, packed=False)
    asked = PlanQuestion(2, memory, peak=1e12, price=3.0)
    sizes = {"chunks": 1, "logits": 0, "load": 0, "save": 0, "checkpoint": 0}
    return MemoryPlan(
        asked, shape, 1, 1, step, offloaded=False, micro_batches=4, rows=4, changes=changes, **sizes
    )


def test_time_and_price_are_of_the_run_and_say_of_what() -> None:
    made = plan_of(GIB, None)  # 4 micro-batches of 1 TFLOP, at 40% of 1 TFLOP/s: 10 s
    text = "\n".join(lines(replace(made, steps=3600)))
    assert "time: 10 s a step, 10.0 h for 3,600 steps, at 40% MFU\n" in text
    assert "price: 60.00 for 3,600 steps on 2 GPUs, at 3 a GPU-hour\n" in text
    assert "10 s a step, 2.8 h for 1,000 steps" in "\n".join(lines(made))
    cheap = replace(made, asked=replace(made.asked, price=1e-4))
    assert "price: less than 0.01 for 1,000 steps" in "\n".join(lines(cheap))


def test_what_fits_leaves_room_for_the_driver() -> None:
    room = 80 * GIB - OVERHEAD
    assert plan_of(room, 80 * GIB).fits
    assert plan_of(room + 1, 80 * GIB).fits is False
    assert plan_of(room, None).fits is None
    assert "the plan's own error" in verdict(plan_of(room, 80 * GIB))
    assert verdict(plan_of(GIB, 80 * GIB)).startswith("fits: 1.00 GiB of 80.00 GiB")
    assert verdict(plan_of(room + 1, 80 * GIB)).startswith("does not fit")


@pytest.mark.parametrize("engine", ["ddp", "fsdp2"])
def test_a_plan_has_the_rows_that_a_rank_gets(tmp_path: Path, engine: str) -> None:
    """32 rows of 3 ranks are 11, 11 and 10: not the 32 that a micro-batch may have."""
    given = ("data.max_length=64", "data.global_batch_size=32", f"engine={engine}")
    wide, narrow = (
        make_plan(
            run_of(tmp_path, *given, f"data.micro_batch_size={rows}"), PlanQuestion(3, images=1)
        )
        for rows in (32, 11)
    )
    assert wide.shape.rows == 11
    assert wide.feeding() == {"images": 11, "tokens": 11 * 64}
    assert wide.step == narrow.step
    four = make_plan(run_of(tmp_path, *given, "data.micro_batch_size=4"), PlanQuestion(3, images=1))
    # of three micro-batches the last has 3 rows
    assert (four.micro_batches, four.feeding()["tokens"]) == (3, 11 * 64)


def test_rows_of_text_alone_are_planned_on_fsdp2(tmp_path: Path) -> None:
    """No rank gathers the tower, and none has a gradient of it."""
    made = make_plan(
        run_of(tmp_path, "data.max_length=64", "engine=fsdp2"), PlanQuestion(2, images=0)
    )
    with_one = make_plan(
        run_of(tmp_path, "data.max_length=64", "engine=fsdp2"), PlanQuestion(2, images=1)
    )
    assert made.step.memory["gradients"] < with_one.step.memory["gradients"]
    assert made.step.sent < with_one.step.sent


def test_a_smaller_micro_batch_is_proposed_where_a_rank_has_several_rows(tmp_path: Path) -> None:
    run = run_of(tmp_path, "data.global_batch_size=8", "data.micro_batch_size=4")
    for gpus, proposed in ((4, True), (8, False)):
        found = [name for chosen, _ in changes_to_fit(run, gpus) for name in chosen]
        assert ("data.micro_batch_size=1" in found) == proposed


def test_time_and_feeding_follow_the_peak() -> None:
    plan = plan_of(GIB, None)
    assert plan.seconds == pytest.approx(4 * 1e12 / (1e12 * 0.4))
    assert plan.feeding() == {"images": 0, "tokens": pytest.approx(4 * 64 / 10)}


def test_one_is_said_in_the_singular() -> None:
    made = replace(plan_of(GIB, None), micro_batches=1, shape=Shape(1, 64, 1, 4, 4, packed=False))
    text = "\n".join(lines(made))
    assert "1 row of 64 tokens, 1 image of 4 tokens in each, 58 supervised" in text
    assert "a step: 1 micro-batch a rank" in text
    assert "logits: 1 chunk, " in text
    several = "\n".join(lines(plan_of(GIB, None)))
    assert "a step: 4 micro-batches a rank" in several
    assert "must give 0 images and 25.6 tokens a second" in several


def test_ranks_that_have_no_row_are_reported_and_not_proposed() -> None:
    text = "\n".join(lines(replace(plan_of(GIB, None), idle=960)))
    assert "960 of 2 ranks have none" in text
    assert "fewer rows than ranks" not in "\n".join(lines(plan_of(GIB, None)))
    step = StepNeeds(dict.fromkeys(MEMORY_KINDS, 0) | {"weights": 100, "activations": 10}, 0, 0, 0)
    assert _more_gpus(step, 8, 60, most=64) == (16, 60)
    assert _more_gpus(step, 8, 60, most=15) is None
    assert _more_gpus(step, 1, 12, most=10**6) is None


def test_a_change_that_is_not_enough_is_not_recommended() -> None:
    fitting = Change(("engine=fsdp2",), 4, 10 * GIB)
    assert remedy(plan_of(99 * GIB, 80 * GIB, fitting)) == (
        "engine=fsdp2 --gpus 4: then 10.00 GiB a rank"
    )
    short = Change(("engine=fsdp2",), 2, 90 * GIB)
    assert remedy(plan_of(99 * GIB, 80 * GIB, short)).startswith("no change that the plan knows of")


@pytest.mark.parametrize("engine", ["ddp", "fsdp2"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_change_can_be_typed_as_it_stands(tmp_path: Path, engine: str, device: str) -> None:
    given = ("data.max_length=64", "data.global_batch_size=64", "data.micro_batch_size=4")
    given += (f"engine={engine}", f"device.kind={device}")
    found = list(changes_to_fit(run_of(tmp_path, *given), 4))
    assert any(len(chosen) > 1 for chosen, _ in found)
    for chosen, changed in found:
        assert run_of(tmp_path, *given, *" ".join(chosen).split()) == changed, chosen
    offloading = any("engine.cpu_offload=true" in " ".join(chosen) for chosen, _ in found)
    assert offloading == (device == "cuda")


@pytest.mark.parametrize(
    ("saved", "settings", "proposed"),
    [
        ("bfloat16", (), True),
        ("float32", (), False),
        (None, (), False),
        ("bfloat16", ("lora.base_dtype=bfloat16",), False),
        ("bfloat16", ("lora.dora=true",), False),
        ("bfloat16", ("model.dtype=float32",), False),
    ],
)
def test_a_base_is_kept_in_bfloat16_where_its_files_are(
    tmp_path: Path, saved: str | None, settings: tuple[str, ...], proposed: bool
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"torch_dtype": saved} if saved else {}))
    run = run_of(tmp_path, "lora={rank: 2}", "model.dtype=bfloat16", *settings)
    of_folder = run.model.model_copy(update={"path": str(tmp_path)})
    first, changed = next(changes_to_fit(run.model_copy(update={"model": of_folder}), 1))
    assert (first == ("lora.base_dtype=bfloat16",)) == proposed
    if proposed:
        assert changed.lora is not None
        assert changed.lora.base_dtype == "bfloat16"


@pytest.mark.parametrize(
    ("settings", "proposed"),
    [
        ((), True),
        (("lora.base_dtype=nf4",), False),
        (("lora.dora=true",), False),
        (("engine=fsdp2",), False),
        (("model.dtype=float64",), False),
    ],
)
def test_a_base_in_nf4_is_proposed_on_ddp_alone(
    tmp_path: Path, settings: tuple[str, ...], proposed: bool
) -> None:
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    given = ("lora={rank: 2}", "device.kind=cuda", *settings)
    found = list(changes_to_fit(run_of(tmp_path, *given), 4))
    assert any("lora.base_dtype=nf4" in chosen for chosen, _ in found) == proposed
    for chosen, changed in found:
        assert run_of(tmp_path, *given, *" ".join(chosen).split()) == changed, chosen


@pytest.mark.parametrize(
    ("settings", "proposed"),
    [
        ((), True),
        (("engine=fsdp2",), True),
        (("optim.states=8bit",), False),
        (("model.dtype=float64",), False),
        (("engine=megatron",), False),
    ],
)
def test_states_of_eight_bits_are_proposed_where_they_are_built(
    tmp_path: Path, settings: tuple[str, ...], proposed: bool
) -> None:
    given = ("device.kind=cuda", *settings)
    found = list(changes_to_fit(run_of(tmp_path, *given), 4))
    assert any("optim.states=8bit" in chosen for chosen, _ in found) == proposed
    for chosen, changed in found:
        if "optim.states=8bit" in chosen:
            assert run_of(tmp_path, *given, *" ".join(chosen).split()) == changed, chosen


@pytest.mark.full
@pytest.mark.parametrize("engine", ["ddp", "fsdp2"])
def test_a_checkpoint_is_planned_with_the_states_that_it_has(tmp_path: Path, engine: str) -> None:
    given = ("data.max_length=64", "data.global_batch_size=2", f"engine={engine}")
    wide = make_plan(run_of(tmp_path, *given), PlanQuestion(2))
    assert wide.checkpoint == 12 * wide.parameters
    narrow = make_plan(run_of(tmp_path, *given, "optim.states=8bit"), PlanQuestion(2))
    assert narrow.checkpoint == 4 * narrow.parameters + narrow.step.state
    assert narrow.checkpoint < 0.6 * wide.checkpoint


@pytest.mark.parametrize("sizes", [(112,), (112, 56)])
def test_rows_without_a_bound_are_measured(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    """The longest row has no image, and the one with the most has these of several sizes."""
    run = run_of(tmp_path, "data.max_length=null")
    files = [picture(tmp_path / f"{size}.png", size, 56).name for size in sizes]
    shown = [{"type": "image", "image": file} for file in files]
    asked = chat([*shown, {"type": "text", "text": "What?"}], "Red.")
    write_rows(tmp_path / "rows.jsonl", [chat("What?", "That. " * 40), asked])
    longest, with_images = audit_rows(run)[0].ledger.lengths
    made = make_plan(run, PlanQuestion())
    assert made.measured_rows is not None
    assert (made.measured_rows.rows, made.shape.tokens) == (2, longest)
    assert with_images < longest
    assert made.shape.images == len(sizes)
    assert (made.shape.grid, made.shape.image_tokens) == ((4, 8), 8)  # as the largest is shown
    text = "\n".join(lines(made))
    assert f"measured from 2 rows: at most {longest} tokens, images: at most {len(sizes)} a" in text
    assert f"must give at most {made.rows * len(sizes)} image" in text


def test_rows_without_a_bound_are_not_planned_by_a_folder_without_tokenizer(tmp_path: Path) -> None:
    run = run_of(tmp_path, "data.max_length=null")
    (tmp_path / "config.json").write_text("{}")
    of_folder = run.model.model_copy(update={"path": str(tmp_path)})
    with pytest.raises(Findings) as raised:
        make_plan(run.model_copy(update={"model": of_folder}), PlanQuestion())
    assert raised.value.fatal
    (finding,) = raised.value.diagnostics
    assert finding.rule == "not-planned"
    assert "they cannot be measured: " in finding.message
    assert "--tokens" not in finding.message
    assert str(finding.help).startswith("add --tokens N")


def test_the_parameters_planned_are_the_run_s(tmp_path: Path) -> None:
    """Also where rows are not measured: the tokenizer that is trained on them decides."""
    rows = write_rows(tmp_path / "rows.jsonl", [chat("What?", "That.")] * 8)
    trained = vtool(
        tmp_path, "train", "sft", rows.name, "train.steps=1", "train.epochs=null", "--no-preflight"
    )
    assert "1 rank of 1 thread;" in trained
    (count,) = re.findall(r"([\d,]+) parameters, computed in", trained)
    for more in ((), ("--tokens", "64")):
        assert f"{count} parameters, {count} of them" in vtool(tmp_path, "plan", rows.name, *more)


@pytest.mark.parametrize("memory", ["0", "-8", "nan", "inf", "4096"])
def test_no_plan_is_made_for_a_gpu_that_does_not_exist(tmp_path: Path, memory: str) -> None:
    done = run_vtool(tmp_path, "plan", "digits", "--gpus", "8", f"--memory={memory}")
    assert done.status == 2
    assert "the GiB of one GPU, from 2 to 1,024, not" in " ".join(done.output.split()).replace(
        " │ │ ", " "
    )


def test_what_cannot_be_planned_gets_no_figure_and_is_not_run(tmp_path: Path) -> None:
    recipe = "digits_megatron"
    given = ("plan", recipe, "--gpus", "4", "--memory", "80")
    done = run_vtool(tmp_path, *given)
    assert done.status == 2
    assert "error[not-planned VT522]: " in done.output
    assert f"{recipe}: 1 error; checks: 1 not run" in done.output
    assert "GiB" not in done.stdout
    refused = run_vtool(tmp_path, *given, "--format", "json")
    assert refused.status == 2
    (result,) = json.loads(refused.stdout)["results"]
    assert result["verdict"] == "not-run"
    assert result["checks"] == {"does-not-fit": "not-run"}
    assert [one["rule"] for one in result["findings"]] == ["not-planned"]


@pytest.mark.full
def test_a_plan_says_what_makes_it_fit(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", [chat("What?", "That.")])
    given: tuple[str, ...] = ("plan", "rows", f"data.train=[{{format: messages, path: {rows}}}]")
    given += ("engine=ddp", "data.global_batch_size=256", "data.micro_batch_size=64")
    sized = ("data.max_length=1024", "--images", "0", "--gpus", "4", "--format", "json")
    small = run_vtool(tmp_path, *given, *sized, "--memory", "2")
    assert small.status == 1, small.output
    (result,) = json.loads(small.stdout)["results"]
    assert result["checks"] == {"does-not-fit": "failed"}
    measured = result["details"]["does-not-fit"]
    assert measured["changes"][0]["settings"] == ["data.micro_batch_size=1"]
    # what it names, done
    changed = (*given, "data.micro_batch_size=1", *sized)
    again = run_vtool(tmp_path, *changed, "--memory", "2")
    assert again.status == 0, again.output
    (result,) = json.loads(again.stdout)["results"]
    device = result["details"]["does-not-fit"]["bytes_of_a_rank"]["device"]
    assert device == measured["changes"][0]["device"]
