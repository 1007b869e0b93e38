"""The Python interface, as docs/python.md shows it."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, assert_type

import pytest
import torch
from PIL import Image

import tests.loading.models
import vtool
from tests.commands import run_vtool
from tests.rows import chat, mixed_rows, picture, write_rows
from tests.runs import read_lines

PAGE = Path(__file__).parents[1] / "docs/python.md"
SMALL = ("data.image={min_pixels:784,max_pixels:784}", "optim.warmup_steps=0")


def rows_run(folder: Path, *more: str) -> Any:
    rows = write_rows(folder / "my.jsonl", mixed_rows(folder, 6, text_only=(1,)))
    entries = f"[{{format:messages,path:'{rows}'}}]"
    settings = (
        f"data.train={entries}",
        f"data.test={entries}",
        "data.max_overlap_rows=6",
        f"run.dir={folder / 'run'}",
    )
    return vtool.load("rows", *settings, *SMALL, *more)


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
    assert set(vtool.__all__) <= set(dir(vtool))
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


def examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.S)


@pytest.mark.full
def test_the_examples_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Top to bottom, in one namespace, as a reader pastes them."""
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "my.jsonl", mixed_rows(tmp_path, 4, text_only=(1,)))
    picture(tmp_path / "scan.png", 28, 28)
    (tmp_path / "my_model.py").write_text(Path(tests.loading.models.__file__).read_text())
    names: dict[str, Any] = {}
    for example in examples():
        exec(compile(example, str(PAGE), "exec"), names)
    assert len(examples()) >= 7
