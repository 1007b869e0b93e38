"""The verdict follows the worst of what was found, and of what was not looked at."""

from pathlib import Path

import pytest

from tests.commands import vtool
from tests.watch.made import Change, changed, healthy, on, write
from tests.watch.test_conclusions import conclude
from vtool.diagnostics.render import as_json, summary
from vtool.report.watch.page import render_watch_page
from vtool.watch.conclude import conclude_folder
from vtool.watch.text import describe_results

CERTAIN: Change = on("micro", measured=0, measured_weight=None, tolerance=None, by_target={})
"""The model is certain of every token."""


@pytest.mark.parametrize(
    ("change", "verdict", "title", "status"),
    [
        (on("micro"), "clean", "clean", 0),
        (on("micro", left_out=18), "unsafe", "errors", 1),
        (on("stepped", adapters=None), "clean", "clean", 0),
        (CERTAIN, "incomplete", "not everything was looked at", 2),
        (on("micro", u=0.4, tolerance=[0.9] * 4), "incomplete", "not everything was looked at", 2),
    ],
)
def test_verdict_title_and_exit_status_say_one_thing(
    tmp_path: Path, change: Change, verdict: str, title: str, status: int
) -> None:
    facts = changed(healthy(), change)
    result = conclude(tmp_path / "a", facts)
    assert result.verdict == verdict, result.findings
    page = render_watch_page(as_json([result], "watch"))
    assert f"<title>TinyForCausalLM: {title} · vtool watch</title>" in page
    folder = write(tmp_path / "b", facts)
    said = vtool(folder, "watch", "--read", ".", "--fail-on", "error", status=status)
    assert ("not everything was looked at" in said) == (verdict == "incomplete")


@pytest.mark.parametrize(
    ("status", "verdict"), [(0, "clean"), (1, "incomplete"), (137, "incomplete"), (130, "clean")]
)
def test_a_command_that_failed_is_not_clean(tmp_path: Path, status: int, verdict: str) -> None:
    write(tmp_path / "facts", healthy())
    (result,) = conclude_folder(tmp_path / "facts", "python train.py", None, status)
    assert result.verdict == verdict
    said = summary([result], "watch")
    begin = f"python train.py: the command ended with status {status}; no findings"
    assert said.startswith(begin if status else "python train.py: no findings")


def test_what_was_not_looked_at_is_named_with_its_reason(tmp_path: Path) -> None:
    result = conclude(tmp_path, changed(healthy(), CERTAIN))
    lines = "\n".join(describe_results([result]))
    assert "token-weights-differ" in lines
    assert "the model is certain of every token" in lines
    page = render_watch_page(as_json([result], "watch"))
    assert "Nothing was found, and not everything was looked at" in page


def test_a_warning_is_not_clean(tmp_path: Path) -> None:
    change = on("micro", ends={"in_inputs": 2, "learnt": 0, "behind": 2})
    assert conclude(tmp_path, changed(healthy(), change)).verdict == "warnings"
