"""The Python interface, as docs/python.md shows it."""

import contextlib
import inspect
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from textwrap import indent
from typing import Any, assert_type

import pytest
import torch
from PIL import Image
from transformers import PreTrainedModel

import tests.loading.models
import vtool
from tests.commands import run_vtool
from tests.rows import chat, mixed_rows, picture, write_rows
from tests.runs import read_lines

PAGE = Path(__file__).parents[1] / "docs/python.md"
SMALL = ("data.image={min_pixels:784,max_pixels:784}", "optim.warmup_steps=0")


def rows_settings(folder: Path) -> tuple[str, ...]:
    rows = write_rows(folder / "my.jsonl", mixed_rows(folder, 6, text_only=(1,)))
    entries = f"[{{format:messages,path:'{rows}'}}]"
    return (
        f"data.train={entries}",
        f"data.test={entries}",
        "data.max_overlap_rows=6",
        f"run.dir={folder / 'run'}",
        *SMALL,
    )


def rows_run(folder: Path, *more: str) -> Any:
    return vtool.load("rows", *rows_settings(folder), *more)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> vtool.TrainingResult:
    run = rows_run(tmp_path_factory.mktemp("api"), "train={steps:2,epochs:null}")
    return vtool.train(run, preflight=False)


def test_importing_it_imports_nothing_heavy() -> None:
    script = "import sys, vtool; print({'torch', 'transformers', 'pydantic'} & sys.modules.keys())"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


def test_every_name_is_there_and_is_listed() -> None:
    assert dir(vtool) == sorted(vtool.__all__)
    assert all(hasattr(vtool, name) for name in vtool.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = vtool.Nothing  # type: ignore[attr-defined]


def test_what_a_function_returns_or_raises_has_a_type(result: vtool.TrainingResult) -> None:
    """mypy checks these, as it does for who writes them in a project of their own."""
    loaded = vtool.load("digits")
    assert_type(loaded, vtool.Loaded)
    assert_type(result.findings, tuple[vtool.Diagnostic, ...])
    assert_type(vtool.Findings(()).diagnostics, tuple[vtool.Diagnostic, ...])
    proved: Callable[..., vtool.ProofReport] = vtool.verify
    audited: Callable[..., vtool.Ledger] = vtool.audit
    checked: Callable[..., vtool.LoadCheckReport] = vtool.load_check
    annotated = inspect.signature(vtool.TrainingResult.model).return_annotation
    assert annotated == PreTrainedModel.__name__
    assert_type(vtool.LoadCheckReport(()).results, tuple[vtool.Result, ...])
    assert isinstance(loaded, vtool.Loaded)
    assert all(map(callable, (proved, audited, checked)))


SWITCHES = """
import os, sys
from pathlib import Path
import vtool
{before}
def state():
    from huggingface_hub import constants
    from huggingface_hub.utils import are_progress_bars_disabled
    from transformers.utils.logging import is_progress_bar_enabled
    switches = constants.HF_HUB_OFFLINE, are_progress_bars_disabled(), is_progress_bar_enabled()
    return dict(os.environ), switches
environment = dict(os.environ)
from vtool.libraries import libraries_prepared
with libraries_prepared():
    inside, switches = state()
    print({{*inside}} - {{*environment}}, switches)
after, switches = state()
print(after == environment, switches)
"""


@pytest.mark.parametrize("before", ["", "import transformers"])
def test_libraries_are_set_up_for_the_call_and_then_as_they_were(
    tmp_path: Path, before: str
) -> None:
    names = ("HF_HUB_OFFLINE", "HF_HUB_DISABLE_PROGRESS_BARS", "OMP_WAIT_POLICY")
    done = subprocess.run(
        [sys.executable, "-c", SWITCHES.format(before=before)],
        capture_output=True,
        text=True,
        check=True,
        env={name: value for name, value in os.environ.items() if name not in names},
    )
    inside, after = done.stdout.splitlines()
    assert all(name in inside for name in (*names, "VTOOL_SET_OFFLINE"))
    assert inside.endswith("(True, True, False)")
    assert after == "True (False, False, True)"


def test_what_the_user_has_set_for_libraries_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    from vtool.libraries import libraries_prepared

    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    with libraries_prepared():
        assert os.environ["HF_HUB_OFFLINE"] == "0"
        assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"
    assert "OMP_WAIT_POLICY" not in os.environ


def test_a_recipe_is_named_or_loaded_and_nothing_else_is_taken(tmp_path: Path) -> None:
    run = vtool.verify("digits", only=["rows-lost"])
    assert [proof.rule for proof in run.proofs if proof.state != "not-run"] == ["rows-lost"]
    for call in (vtool.train, vtool.verify):
        with pytest.raises(vtool.Findings) as raised:
            call(tmp_path / "nope.yaml")
        assert [one.rule for one in raised.value.diagnostics] == ["unknown-recipe"]
        with pytest.raises(TypeError, match="not dict"):
            call({})  # type: ignore[arg-type]


def test_a_function_stays_one_after_the_package_it_imports_from(
    result: vtool.TrainingResult,
) -> None:
    assert all(callable(getattr(vtool, name)) for name in ("train", "verify", "audit", "load"))


def test_a_recipe_is_loaded_or_refused_with_every_finding() -> None:
    assert vtool.load("digits", "train.steps=30", "optim.warmup_steps=5").run.train.steps == 30
    with pytest.raises(vtool.Findings) as raised:
        vtool.load("digits", "optim.lrr=1", "model.attention=flash")
    assert [one.rule for one in raised.value.diagnostics] == ["unknown-choice", "unknown-key"]


def test_a_result_has_what_the_folder_has(result: vtool.TrainingResult) -> None:
    assert (result.status, result.steps) == ("finished", 2)
    assert result.metrics == read_lines(result.folder / "metrics.jsonl")
    assert [line["step"] for line in result.metrics if "loss" in line] == [1, 2]
    assert result.test["samples"] == 6
    assert result.test.keys() == {"exact_match", "nll", "samples", "token_accuracy"}
    assert (result.folder / "report.html").exists()


@pytest.mark.full
def test_threads_are_what_they_were_before(tmp_path: Path) -> None:
    torch.set_num_threads(2)
    run = rows_run(tmp_path, "train={steps:1,epochs:null}", "device.threads=1")
    vtool.train(run, preflight=False)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)


@pytest.mark.full
def test_the_model_is_the_exports_and_answers_as_the_command_does(
    result: vtool.TrainingResult, tmp_path: Path
) -> None:
    from transformers import AutoModelForImageTextToText

    kind: Any = AutoModelForImageTextToText
    exported = dict(kind.from_pretrained(result.folder / "export").named_parameters())
    model = result.model()
    assert not model.training
    assert all(torch.equal(exported[name], one) for name, one in model.named_parameters())
    file = picture(tmp_path / "one.png", 56, 56)
    asked = ("predict", result.folder, "--image", file, "--question", "Well?")
    answer = run_vtool(tmp_path, *asked).stdout
    assert result.predict(file, "Well?") == answer.strip()
    with Image.open(file) as opened:
        assert result.predict(opened, "Well?") == answer.strip()
        assert result.predict([opened, str(file)], "Well?") == result.predict([file] * 2, "Well?")
    with pytest.raises(vtool.Findings, match=r"there is no image none\.png"):
        result.predict("none.png", "Well?")


@pytest.mark.full
def test_the_finding_of_a_rank_is_raised_by_the_process_that_started_it(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "my.jsonl", [chat("a", "b"), '{"messages":'])
    entries = f"data.train=[{{format:messages,path:'{rows}'}}]"
    run = vtool.load("rows", entries, f"run.dir={tmp_path / 'run'}", "launch.nproc=2", *SMALL)
    with pytest.raises(vtool.Findings) as raised:
        vtool.train(run, preflight=False)
    assert "broken-row" in {one.rule for one in raised.value.diagnostics}


def test_proofs_are_values(tmp_path: Path) -> None:
    run = rows_run(tmp_path)
    report = vtool.verify(run, only=["label-masks-disagree", "VT711"], fast=True)
    assert set(report.checks().values()) == {"passed"}
    assert len(report.proofs) == 2
    with pytest.raises(vtool.Findings, match="there is no such proof"):
        vtool.verify(run, only=["nothing"])
    broken = write_rows(tmp_path / "none.jsonl", [chat("a", " ")])
    empty = vtool.load("rows", f"data.train=[{{format:messages,path:'{broken}'}}]")
    with pytest.raises(vtool.Findings, match="can be used"):
        vtool.verify(empty)


def test_settings_are_compared_with_live_objects() -> None:
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(2, 2))], betas=(0.9, 0.999))
    (found,) = vtool.compare({"optim.betas": (0.9, 0.95)}, {"optimizer": optimizer})
    assert found.rule == "setting-not-arrived"
    assert vtool.compare({"optim.betas": (0.9, 0.999)}, {"optimizer": optimizer}) == []


@pytest.mark.parametrize(
    ("call", "rule", "says", "remedy"),
    [
        (
            lambda: vtool.compare({"optim.beta": 1, "nothing": 1}, {}),
            "unknown-key",
            "there is no setting `optim.beta`",
            "did you mean `optim.betas`",
        ),
        (
            lambda: vtool.compare({"model.gradient_checkpointing": "always"}, {}),
            "wrong-type",
            "`model.gradient_checkpointing` does not take 'always'",
            "Give a value of the type",
        ),
        (
            lambda: vtool.compare({"lora.targets": 5}, {}),
            "wrong-type",
            "`lora` does not take {'targets': 5}",
            "Give a value of the type",
        ),
        (
            lambda: vtool.compare({"optim.lr": 1.0}, {"it": "adamw"}),
            "setting-not-shown",
            "it is neither a model nor an optimizer, but str",
            "give a model",
        ),
        (
            lambda: vtool.compare_models(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)),
            "export-differs",
            "could not be compared: there is no batch",
            "input_ids",
        ),
        (
            lambda: vtool.compare_models(
                torch.nn.Linear(1, 1).half(), torch.nn.Linear(1, 1), {"input": torch.ones(1)}
            ),
            "export-differs",
            "the trained model has weights in torch.float16",
            "model.float()",
        ),
    ],
)
def test_what_stops_a_comparison_is_raised_as_findings(
    call: Callable[[], object], rule: str, says: str, remedy: str
) -> None:
    with pytest.raises(ValueError, match=rule) as raised:
        call()
    assert isinstance(raised.value, vtool.Findings)
    finding = raised.value.diagnostics[0]
    assert finding.rule == rule
    assert says in finding.message
    assert remedy in finding.remedy


def test_all_names_that_are_no_settings_are_raised_at_once() -> None:
    with pytest.raises(vtool.Findings) as raised:
        vtool.compare({"optim.beta": 1, "optim.betas": (0.9, 0.95), "nothing": 1}, {})
    assert [one.parameter for one in raised.value.diagnostics] == ["optim.beta", "nothing"]


def test_that_nothing_can_be_proved_is_raised_as_findings(
    result: vtool.TrainingResult, tmp_path: Path
) -> None:
    run = rows_run(tmp_path, f"train.from={result.folder}")
    with pytest.raises(vtool.Findings, match="is a checkpoint") as raised:
        vtool.verify(run, full_size=True)
    (finding,) = raised.value.diagnostics
    assert (finding.rule, finding.parameter) == ("unfit-weights", "train.from")
    assert "name the folder of an export" in finding.remedy


def test_a_run_that_was_stopped_says_so_and_finishes_when_it_is_trained_again(
    tmp_path: Path,
) -> None:
    run = rows_run(tmp_path, "train={steps:30,epochs:null}")

    def stop_after_a_step() -> None:
        lines = tmp_path / "run" / "metrics.jsonl"
        while not (lines.exists() and lines.read_text()):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=stop_after_a_step, daemon=True)
    thread.start()
    stopped = vtool.train(run, preflight=False)
    thread.join()
    assert stopped.status == "stopped"
    assert 0 < stopped.steps < 30
    asked: dict[str, Callable[[], object]] = {
        "has no result.json: its run has not finished": lambda: stopped.test,
        "has no exported model": stopped.model,
    }
    for message, ask in asked.items():
        with pytest.raises(vtool.Findings, match=message) as raised:
            ask()
        assert [one.rule for one in raised.value.diagnostics] == ["not-a-run"]
    finished = vtool.train(run, preflight=False)
    assert (finished.status, finished.steps) == ("finished", 30)
    assert finished.test["samples"] == 6


STOPPED_EARLY = """
import multiprocessing, os, signal, sys, threading, time
import vtool

def stop_when_ranks_begin():
    while not multiprocessing.active_children():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)

if __name__ == "__main__":
    run = vtool.load("digits", "launch.nproc=2", f"run.dir={sys.argv[1]}")
    threading.Thread(target=stop_when_ranks_begin, daemon=True).start()
    try:
        vtool.train(run, preflight=False)
    except vtool.Findings as findings:
        print(*((one.rule, one.message, one.remedy) for one in findings.diagnostics))
    print("the script goes on")
"""


@pytest.mark.full
def test_a_signal_before_the_first_step_of_ranks_does_not_end_the_script(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(STOPPED_EARLY)
    command = [sys.executable, str(script), str(tmp_path / "run")]
    environment = {**os.environ, "PYTHONPATH": str(PAGE.parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    found, after = done.stdout.splitlines()[-2:]
    assert after == "the script goes on"
    assert "('rank-failed', 'stopped by SIGTERM before the first step', 'train again:" in found


UNGUARDED = """
import sys, vtool
run = vtool.load("digits", "launch.nproc=2", f"run.dir={sys.argv[1]}", "train.steps=2",
                 "optim.warmup_steps=1")
try:
    print(vtool.train(run, preflight=False).status)
except vtool.Findings as findings:
    print([(one.rule, one.remedy) for one in findings.diagnostics])
"""


@pytest.mark.full
@pytest.mark.parametrize("guarded", [False, True])
def test_a_script_that_ranks_import_trains_under_a_check_of_its_name(
    tmp_path: Path, guarded: bool
) -> None:
    """Ranks would start the run again: so Python itself asks of what starts processes."""
    check = 'if __name__ == "__main__":'
    text = f"{check}\n{indent(UNGUARDED, '    ')}" if guarded else UNGUARDED
    (tmp_path / "script.py").write_text(text)
    command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "run")]
    environment = {**os.environ, "PYTHONPATH": str(PAGE.parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    last = done.stdout.splitlines()[-1]
    assert last == "finished" if guarded else "rank-failed" in last and f"under `{check}`" in last


@pytest.mark.full
def test_a_loader_is_checked() -> None:
    file = tests.loading.models.__file__
    report = vtool.load_check(
        f"python:{file}:Good", f"python:{file}:KeepsAll", settings=["checks=[stale-reference]"]
    )
    assert [one.verdict for one in report.results] == ["clean", "unsafe"]
    assert not report.clean
    assert "stale-reference" in {finding.rule for finding in report.findings}
    with pytest.raises(vtool.Findings, match="nothing is named"):
        vtool.load_check()


def test_rows_that_are_held_back_are_none_of_the_ledger(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", [chat(f"{number}?", "yes") for number in range(40)])
    ledger = vtool.audit(rows, "data.split={validation: 0.3, test: 0.3}")
    assert 5 < len(ledger.kept) == ledger.rows < 35
    assert [each.rule for each in ledger.findings if each.severity == "error"] == []


def test_rows_are_audited(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "my.jsonl", [chat("a", "b"), chat("word " * 40, "b")])
    ledger = vtool.audit(rows, "data.max_length=30")
    assert (ledger.rows, len(ledger.kept)) == (2, 1)
    assert "overlong-row" in {finding.rule for finding in ledger.findings}
    dropped = vtool.audit(
        rows, "data.max_length=30", "data.on_overlong=drop", "data.max_dropped_rows=1"
    )
    assert [one.rule for one in dropped.dropped] == ["overlong-row"]
    assert vtool.audit(rows).findings == ()


def examples() -> list[tuple[str, str]]:
    """Return the examples of the page, each with the heading that it is under."""
    sections = re.split(r"^## ", PAGE.read_text("utf-8"), flags=re.M)[1:]
    return [
        (section.partition("\n")[0], example)
        for section in sections
        for example in re.findall(r"```python\n(.*?)```", section, re.S)
    ]


@pytest.mark.full
def test_the_examples_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Top to bottom, in one namespace, as a reader pastes them; with what the page says of each."""
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "my.jsonl", mixed_rows(tmp_path, 4, text_only=(1,)))
    picture(tmp_path / "scan.png", 28, 28)
    (tmp_path / "my_model.py").write_text(Path(tests.loading.models.__file__).read_text())
    names: dict[str, Any] = {}
    printed: dict[str, list[str]] = {}
    for heading, example in examples():
        with contextlib.redirect_stdout(io.StringIO()) as output:
            exec(compile(example, str(PAGE), "exec"), names)
        printed.setdefault(heading, []).extend(output.getvalue().splitlines())
        if heading == "Train":  # later examples have another `result` and `model`
            trained = dict(names)

    assert names["run"].run.train.steps == 30
    result: vtool.TrainingResult = trained["result"]
    assert (result.folder, result.status) == (Path("runs/short"), "finished")
    losses = [line["loss"] for line in read_lines(result.folder / "metrics.jsonl")[:30]]
    assert f"{result.folder} 30 {names['losses'][-1]}" in printed["Train"]
    assert names["losses"] == losses
    assert result.result["steps"] == 30
    test = result.test
    assert f"{test['exact_match']} {test['nll']} {test['samples']}" in printed["Train"]
    assert isinstance(trained["model"], PreTrainedModel)
    assert not trained["model"].training
    assert isinstance(names["answer"], str)

    states = {line.split()[1]: line.split()[0] for line in printed["Verify"]}
    assert "failed" not in states.values()
    assert states["loss-differs"] == "passed"
    assert states["gradient-depends-on-ranks"] == "not-run"

    assert printed["Audit rows"] == [names["ledger"].in_words()]
    assert list(names["ledger"].kept) == [0, 1, 2, 3]
    assert len(names["ledger"].lengths) == 4

    assert printed["Compare settings with live objects"] == [
        "setting-not-arrived optim.betas [0.9, 0.95] [0.9, 0.999]"
    ]
    assert printed["Compare a trained model with its export"] == []
    assert printed["Check weight loading"] == [
        "python:my_model.py:KeepsAll unsafe ['stale-reference']"
    ]
    (finding,) = printed["Findings"]
    assert finding.startswith("unknown-key VT101 there is no setting `optim.learning_rate`")
    assert "command line" in finding
    assert "optim.lr" in finding


@pytest.mark.full
def test_under_a_torchrun_every_rank_has_the_result(tmp_path: Path) -> None:
    settings = ("rows", *rows_settings(tmp_path), "train={steps:2,epochs:null}")
    (tmp_path / "train.py").write_text(
        "import json, os, sys, vtool\n"
        f"result = vtool.train(vtool.load(*{settings}), preflight=False)\n"
        "seen = [result.status, result.steps, result.test['samples'], str(result.folder)]\n"
        "with open(f\"rank-{os.environ['RANK']}.json\", 'w') as file:\n"
        "    json.dump(seen, file)\n"
    )
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*torchrun, "--nproc-per-node", "2", "train.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(PAGE.parents[1]), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, second = (json.loads((tmp_path / f"rank-{n}.json").read_text()) for n in range(2))
    assert first == second
    assert first[:2] == ["finished", 2]
    assert (tmp_path / "run/report.html").exists()
