"""A run with a profiler on one rank:

what it writes, that it changes nothing, and that it never writes nothing.
"""

import csv
import json
import resource
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.profiling.runs import TORCH, annotations, break_rules, inside, made_run, opened, write
from tests.runs import read_lines, without_times
from vtool.diagnostics import Findings
from vtool.engines.ranks import Ranks
from vtool.profiling.profiler import RankProfiler, open_profiler
from vtool.profiling.tools import TorchTool
from vtool.training import loop as training_loop
from vtool.training import sft
from vtool.training.session import RunRequest
from vtool.training.sft import RunOutcome, train

STEM = "profile/rank-0-steps-3-4"


def rules(outcome: RunOutcome) -> list[str]:
    return [finding.rule for finding in outcome.findings]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a profile, and the same run without."""
    made = tmp_path_factory.mktemp("profiler")
    write(made)
    assert train(made_run(made, "plain"), Ranks()).findings == ()
    assert (
        train(made_run(made, "profiled", *TORCH, "profiler.record.shapes=true"), Ranks()).findings
        == ()
    )
    return made


@pytest.fixture(scope="module")
def trace(folder: Path) -> dict[str, Any]:
    return opened(folder / f"profiled/{STEM}.trace.json.gz")


@pytest.fixture(scope="module")
def summary(folder: Path) -> dict[str, Any]:
    (interval,) = json.loads((folder / "profiled/profile/summary.json").read_text())["intervals"]
    return interval["ranks"]["0"]  # type: ignore[no-any-return]


def test_its_weights_and_numbers_are_those_of_a_run_without_one(folder: Path) -> None:
    for name in ("model", "optimizer", "progress"):
        one, other = (
            load_file(folder / run / f"checkpoints/step-000006/{name}.safetensors")
            for run in ("profiled", "plain")
        )
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one)
    lines = [
        without_times(read_lines(folder / run / "metrics.jsonl")) for run in ("profiled", "plain")
    ]
    assert lines[0] == lines[1]
    assert not (folder / "plain/profile").exists()


def test_the_trace_keeps_the_formats_rules_and_names_the_runs_steps(trace: dict[str, Any]) -> None:
    assert break_rules(trace) == []
    assert [one["name"] for one in annotations(trace, "ProfilerStep#")] == [
        "ProfilerStep#3",
        "ProfilerStep#4",
    ]
    for whole in annotations(trace, "train_batch"):
        parts = [
            one
            for one in annotations(trace, "data", "forward", "backward", "optimizer")
            if inside(one, whole)
        ]
        order = [one["name"] for one in parts]
        assert order == ["data", *["forward", "backward"] * 2, "optimizer", "optimizer"]
    assert {one["cname"] for one in annotations(trace, "forward")} != {
        one["cname"] for one in annotations(trace, "backward")
    }
    operations = {one["name"] for one in trace["traceEvents"] if one.get("cat") == "cpu_op"}
    assert {"aten::mm", "aten::addmm"} & operations


def test_the_split_is_what_the_trace_says_and_adds_up_to_the_step(
    trace: dict[str, Any], summary: dict[str, Any]
) -> None:
    """Each of them in one step at least.

    Between a clock of ours and the profiler's the process may have to wait for a core, in any step;
    what is measured or added up wrongly is wrong in all of them.
    """
    wholes = annotations(trace, "train_batch")
    differences: dict[str, list[float]] = {}
    for step, whole in zip(summary["steps"], wholes, strict=True):
        seconds = whole["dur"] / 1e6
        pairs = {
            "sum": (sum(step["split"].values()), seconds),
            "step": (step["seconds"], seconds),
        }
        for part in ("data", "forward", "backward", "optimizer"):
            inner = [one["dur"] for one in annotations(trace, part) if inside(one, whole)]
            pairs[part] = (step["split"][part], sum(inner) / 1e6)
        for name, (ours, theirs) in pairs.items():
            differences.setdefault(name, []).append(abs(ours - theirs) / seconds)
    assert {name: min(all_of) for name, all_of in differences.items() if min(all_of) > 0.03} == {}


def test_the_tables_have_the_operations_that_took_longest(
    folder: Path, trace: dict[str, Any]
) -> None:
    with (folder / f"profiled/{STEM}.kernels.csv").open() as file:
        rows = list(csv.DictReader(file))
    times = [float(row["self_us"]) for row in rows]
    assert times == sorted(times, reverse=True)
    # of a list of tensors torch notes no shapes to group by
    top = next(row for row in rows if row["shapes"] and row["name"] == "aten::mm")
    of_its_name = [one for one in trace["traceEvents"] if one["name"] == top["name"]]
    shaped = [one for one in of_its_name if str(one["args"].get("Input Dims")) == top["shapes"]]
    assert len(shaped) == int(top["calls"])
    assert sum(one["dur"] for one in shaped) == pytest.approx(float(top["total_us"]), rel=0.01)
    assert top["name"] in (folder / f"profiled/{STEM}.kernels.txt").read_text()


def test_speeds_are_of_steps_that_nothing_slows_down(folder: Path, summary: dict[str, Any]) -> None:
    assert summary["speeds_are_of"].startswith("the recorded steps"), (
        "step 1 is a process's first, and step 2 is the warm-up"
    )
    tokens = {
        line["step"]: line["tokens"]
        for line in read_lines(folder / "profiled/metrics.jsonl")
        if "loss" in line
    }
    speeds = sorted(tokens[one["step"]] / one["seconds"] for one in summary["steps"])
    assert summary["tokens_per_second"] == pytest.approx(sum(speeds) / 2)
    assert 0 < summary["mfu"] < 1.5, "against a peak that other processes may have slowed down"
    assert summary["mfu"] == pytest.approx(
        summary["flops_per_second"] / summary["peak_flops_per_second"]
    )


def test_flops_are_those_that_torch_counts_at_another_place(
    folder: Path, summary: dict[str, Any]
) -> None:
    """`FlopCounterMode` counts what is dispatched; the profiler, what is recorded."""
    from torch.utils.flop_counter import FlopCounterMode

    from tests.runs import session
    from vtool.data.loader import load_steps, micro_batches
    from vtool.training.step import train_step
    from vtool.training.stop import StopRequest

    made = made_run(folder, "counted")
    opened_session, progress = session(made)
    kept = opened_session.ledgers["train"].kept
    plan = lambda step: micro_batches(opened_session.plan, kept, step, 0, 1, 1)  # noqa: E731
    counts = []
    for step, batches in zip(
        (3, 4), load_steps(opened_session.rows["train"], range(3, 5), plan, 0), strict=True
    ):
        with FlopCounterMode(display=False) as counter:
            train_step(opened_session, progress, step, batches, StopRequest())
        counts.append(counter.get_total_flops())
    assert summary["flops_a_step"] == pytest.approx(sum(counts) / 2, rel=0.02)


def test_the_memory_curve_rises_above_where_it_began(summary: dict[str, Any]) -> None:
    seconds, level = zip(*summary["memory"], strict=True)
    assert 0 <= seconds[0] < 1
    assert list(seconds) == sorted(seconds)
    assert 1e6 < max(level) < summary["peak_memory_bytes"]


def test_on_resume_steps_continue_and_an_interval_that_is_over_is_refused(folder: Path) -> None:
    base = f"checkpoint.resume={folder / 'plain/checkpoints/step-000006'}"
    changed = "run.name=other"
    with pytest.raises(Findings, match=r"profile-behind.*resumes after step 6") as raised:
        train(made_run(folder, "behind", base, changed, "train.steps=6", *TORCH), Ranks())
    assert "profile_interval=[8,9]" in str(raised.value.diagnostics[0].help)


def test_a_profile_that_is_there_already_stands_in_no_restarts_way(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = made_run(folder, "profiled", *TORCH)
    lines: list[str] = []
    profiler = open_profiler(made.run, Ranks(), folder / "profiled", 5, 6, lines.append)
    assert "is there already" in lines[0]
    with profiler:
        profiler.begin(6)
        profiler.end({})
    assert profiler.verify() == []


class Stops(sft.StopRequest):
    """A Ctrl-C in the third step."""

    steps = 0

    @property
    def signal(self) -> int | None:
        Stops.steps += 1
        return 2 if Stops.steps >= 3 else None

    @signal.setter
    def signal(self, _: int | None) -> None:
        pass


@pytest.mark.full
def test_ctrl_c_inside_the_interval_writes_what_was_recorded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sft, "StopRequest", Stops)
    outcome = train(made_run(folder, "stopped", *TORCH), Ranks())
    assert (outcome.status, outcome.step, rules(outcome)) == ("stopped", 3, ["profile-cut-short"])
    trace = opened(folder / "stopped/profile/rank-0-steps-3-3.trace.json.gz")
    assert [one["name"] for one in annotations(trace, "ProfilerStep#")] == ["ProfilerStep#3"]
    monkeypatch.undo()
    assert train(made_run(folder, "stopped", *TORCH), Ranks()).findings == (), (
        "the same command resumes"
    )


def test_an_error_of_the_profiler_is_a_finding_and_the_training_continues(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no counters left")

    monkeypatch.setattr(TorchTool, "step", fail)
    outcome = train(made_run(folder, "failed", *TORCH), Ranks())
    assert (outcome.status, rules(outcome)) == ("finished", ["profiler-failed"])
    assert "no counters left" in outcome.findings[0].message
    assert (
        json.loads((folder / "failed/result.json").read_text())["checks"]["profiler-failed"]
        == "failed"
    )
    same = [
        load_file(folder / run / "checkpoints/step-000006/model.safetensors")
        for run in ("failed", "plain")
    ]
    assert all(torch.equal(same[0][key], same[1][key]) for key in same[0])


@pytest.mark.full
def test_a_training_that_ends_inside_the_interval_leaves_its_trace(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, steps = training_loop.train_step, []

    def diverge(*arguments: Any) -> Any:
        steps.append(arguments[2])
        if arguments[2] == 4:
            raise Findings(())
        return real(*arguments)

    monkeypatch.setattr(training_loop, "train_step", diverge)
    with pytest.raises(Findings):
        train(made_run(folder, "diverged", *TORCH), Ranks())
    trace = opened(folder / "diverged/profile/rank-0-steps-3-3.trace.json.gz")
    assert annotations(trace, "ProfilerStep#3")


def loop(
    folder: Path, made: RunRequest, work: Callable[[RankProfiler, int], None] | None = None
) -> list[str]:
    """The loop's calls around a product of matrices: the rules that were found."""
    with open_profiler(made.run, Ranks(), folder, 0, 6, print) as profiler:
        for step in range(1, 7):
            span = profiler.begin(step)
            with span("train_batch"), span("forward"):
                torch.mm(torch.ones(64, 64), torch.ones(64, 64))
            profiler.end({"tokens": 10, "samples": 1})
            if work:
                work(profiler, step)
    return [finding.rule for finding in profiler.verify()]


class TestPromises:
    """Every promised file is there, or a finding says that it is not."""

    def test_a_disk_that_is_full_is_reported_with_the_file(
        self, folder: Path, tmp_path: Path
    ) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        try:
            found = loop(tmp_path, made_run(folder, "any", *TORCH))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert set(found) == {"profile-missing"}
        assert not list(tmp_path.glob("profile/.writing-*")), "nothing half written stays"
        assert not list(tmp_path.glob("profile/*.trace.json.gz"))

    @pytest.mark.full
    def test_a_file_that_goes_before_the_run_ends_is_missed(
        self, folder: Path, tmp_path: Path
    ) -> None:
        def remove(_: RankProfiler, step: int) -> None:
            if step == 5:
                (tmp_path / f"{STEM}.kernels.csv").unlink()
                (tmp_path / f"{STEM}.trace.json.gz").write_text("")

        assert loop(tmp_path, made_run(folder, "any", *TORCH), remove) == ["profile-missing"] * 2

    def test_a_folder_that_goes_inside_the_interval_is_missed(
        self, folder: Path, tmp_path: Path
    ) -> None:
        """torch's `export_chrome_trace` says nothing where the folder is not there."""

        def remove(_: RankProfiler, step: int) -> None:
            if step == 3:
                (tmp_path / "profile").rmdir()

        assert set(loop(tmp_path, made_run(folder, "any", *TORCH), remove)) == {"profile-missing"}

    def test_a_peak_that_cannot_be_measured_makes_the_utilisation_unknown_and_not_0(
        self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> float:
            raise RuntimeError("out of memory")

        monkeypatch.setattr("vtool.profiling.profiler.matmul_peak", fail)
        assert loop(tmp_path, made_run(folder, "any", *TORCH)) == []
        (interval,) = json.loads((tmp_path / "profile/summary.json").read_text())["intervals"]
        found = interval["ranks"]["0"]
        assert (found["mfu"], found["hfu"], found["peak_flops_per_second"]) == (None, None, None)
        assert found["mfu_why"] == "the device's peak could not be measured: out of memory"
        assert found["flops_per_second"] > 0

    def test_what_a_killed_process_has_left_half_written_is_removed_at_the_next_start(
        self, folder: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "profile").mkdir()
        mine, others = (
            tmp_path / f"profile/.writing-rank-{rank}-steps-3-4.trace.json" for rank in (0, 1)
        )
        mine.write_text("half")
        others.write_text("being written")
        assert loop(tmp_path, made_run(folder, "any", *TORCH)) == []
        assert (mine.exists(), others.exists()) == (False, True)

    def test_a_folder_that_cannot_be_written_is_refused_before_the_start(
        self, folder: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "profile").write_text("a file")
        with pytest.raises(Findings, match="run-folder-unwritable"):
            loop(tmp_path, made_run(folder, "any", *TORCH))

    @pytest.mark.full
    def test_a_trace_above_its_limit_is_capped_and_said(self, folder: Path, tmp_path: Path) -> None:
        from vtool.profiling.trace import write_trace

        source = tmp_path / "raw.json"
        full = opened(folder / f"profiled/{STEM}.trace.json.gz")
        many = full["traceEvents"]
        source.write_text('{"traceEvents": ' + json.dumps(many) + "}")
        packed = write_trace(source, tmp_path / "capped.json.gz", "cpu", [3, 4], 0.2)
        capped = opened(tmp_path / "capped.json.gz")
        assert (tmp_path / "capped.json.gz").stat().st_size <= 0.2 * 10**6
        assert break_rules(capped) == []
        assert packed.left_out == len(many) - len(capped["traceEvents"]) > 0
        assert len(annotations(capped, "")) == len(
            [one for one in many if one.get("cat") == "user_annotation"]
        )
        kept = [one["dur"] for one in capped["traceEvents"] if one.get("cat") == "cpu_op"]
        left = sorted((one["dur"] for one in many if one.get("cat") == "cpu_op"), reverse=True)
        assert sorted(kept, reverse=True) == left[: len(kept)]

    def test_operations_that_are_left_out_are_a_finding(self, folder: Path, tmp_path: Path) -> None:
        made = made_run(folder, "any", *TORCH)
        settings = made.run.profiler.model_copy(update={"max_trace_mb": 0.001})
        run = made.run.model_copy(update={"profiler": settings})
        assert loop(tmp_path / "run", replace(made, run=run)) == ["trace-capped"]

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "{}",
            '{"traceEvents": [',
            '{"traceEvents": [{"ph": "X"}',
            '{"traceEvents": [1]}',
            '{"traceEvents": [{}]}',
        ],
    )
    def test_what_is_no_trace_is_seen(self, tmp_path: Path, text: str) -> None:
        import gzip

        from vtool.profiling.trace import check_trace

        (tmp_path / "trace.json.gz").write_bytes(gzip.compress(text.encode()))
        assert "does not parse" in str(check_trace(tmp_path / "trace.json.gz", [], "cpu"))

    @pytest.mark.full
    def test_a_step_that_is_not_in_it_is_seen(self, folder: Path) -> None:
        from vtool.profiling.trace import check_trace

        path = folder / f"profiled/{STEM}.trace.json.gz"
        assert check_trace(path, [3, 4], "cpu") is None
        assert check_trace(path, [3, 4, 5], "cpu") == "it has no step 5"
        assert "CUPTI" in str(check_trace(path, [3, 4], "cuda"))


class TestBeforeTheStart:
    """Checks that need values which only the run knows."""

    def opened(
        self,
        folder: Path,
        *overrides: str,
        step: int = 0,
        total: int = 6,
        ranks: Ranks | None = None,
    ) -> list[str]:
        with pytest.raises(Findings) as raised:
            open_profiler(
                made_run(folder, "any", *overrides).run,
                ranks or Ranks(),
                folder / "any",
                step,
                total,
                print,
            )
        return [finding.rule for finding in raised.value.diagnostics]

    def test_an_interval_past_the_end_of_the_epochs(self, folder: Path) -> None:
        assert self.opened(folder, "train={steps:null,epochs:1}", *TORCH, total=2) == [
            "profile-interval"
        ]

    def test_ranks_that_the_run_does_not_have(self, folder: Path) -> None:
        assert self.opened(folder, *TORCH, "profiler.ranks=[1]") == ["profiler-ranks"]

    @pytest.mark.full
    @pytest.mark.parametrize("tool", ["npu", "nsys", "memory"])
    def test_a_tool_for_another_device_than_the_one_that_was_found(
        self, folder: Path, tool: str
    ) -> None:
        assert "profiler-device" in self.opened(
            folder, f"profiler={tool}", "profiler.profile_interval=[3,4]"
        )

    def test_nsys_that_does_not_run(self, folder: Path) -> None:
        from vtool.profiling.start import profile_problems

        run = made_run(folder, "any", "profiler=nsys", "profiler.profile_interval=[3,4]").run
        ranks = Ranks(device=torch.device("cuda"))
        (found,) = profile_problems(run.profiler, ranks, 6, {})
        assert "nsys profile" in str(found.help)
        under_nsys = {"NSYS_PROFILING_SESSION_ID": "1"}
        assert list(profile_problems(run.profiler, ranks, 6, under_nsys)) == []

    def test_a_warm_up_that_a_resume_has_passed_is_shortened(
        self, folder: Path, tmp_path: Path
    ) -> None:
        shutil.rmtree(tmp_path, ignore_errors=True)
        run = made_run(folder, "any", *TORCH).run
        with open_profiler(run, Ranks(), tmp_path, 2, 6, print) as profiler:
            for step in range(3, 7):
                span = profiler.begin(step)
                with span("train_batch"):
                    torch.mm(torch.ones(9, 9), torch.ones(9, 9))
                profiler.end({"tokens": 10, "samples": 1})
        assert profiler.verify() == []
        assert annotations(opened(tmp_path / f"{STEM}.trace.json.gz"), "ProfilerStep#3")
