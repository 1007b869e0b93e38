"""A run with `model.gradient_checkpointing=auto` has as many blocks that recompute as it must."""

from pathlib import Path

import pytest

from tests.rows import mixed_rows, write_rows
from tests.runs import messages, request, session
from vtool.config.expected import AGAIN, CHECKPOINTING, expected_settings
from vtool.config.readback import compare_readback
from vtool.diagnostics import Findings
from vtool.planning.plan import PlanQuestion, make_plan
from vtool.training import recompute
from vtool.training.observe_run import observe_run
from vtool.training.session import RunRequest

pytestmark = pytest.mark.usefixtures("no_process_group")


def made(folder: Path, asked: str) -> RunRequest:
    if not (folder / "rows.jsonl").exists():
        write_rows(folder / "rows.jsonl", mixed_rows(folder, 12, text_only=(1,)))
    common = ("data.image={min_pixels:784,max_pixels:12544}", "device.kind=cpu", "train.steps=2")
    rows = messages(folder / "rows.jsonl")
    sizes = ("data.global_batch_size=2", "data.micro_batch_size=2", f"run.dir={folder / 'run'}")
    return request("rows", rows, *common, *sizes, f"model.gradient_checkpointing={asked}")


@pytest.mark.full
def test_a_run_recomputes_what_the_free_memory_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def free(size: float) -> None:
        monkeypatch.setattr(recompute, "free_memory", lambda ranks: size)

    opened, _ = session(made(tmp_path, "none"))
    longest = max(opened.ledgers["train"].lengths)
    of_its_own = {"path": str(opened.folder.processor), "size": None}
    run = made(tmp_path, "full").run
    run = run.model_copy(update={"model": run.model.model_copy(update=of_its_own)})
    full = make_plan(run, PlanQuestion(1, tokens=longest)).device
    free(full)
    opened, _ = session(made(tmp_path, "auto"))
    assert opened.run.model.gradient_checkpointing == "full"
    assert "model.gradient_checkpointing: full (auto): 6 of 6 blocks" in capsys.readouterr().out
    observed = observe_run(opened)
    assert not compare_readback(expected_settings(opened.run), observed)
    blocks = [one.value for one in observed if one.name == CHECKPOINTING]
    assert blocks == [AGAIN] * 6
    # what cannot be on a CPU, and what would take more, is not proposed
    for room, proposed in (
        (full - 1, "optim.states=8bit: then "),
        (full / 8, "no change that the plan knows of makes it fit: with optim.states=8bit, "),
    ):
        free(room)
        with pytest.raises(Findings) as raised:
            session(made(tmp_path, "auto"))
        (finding,) = raised.value.diagnostics
        assert (finding.rule, finding.parameter) == ("does-not-fit", CHECKPOINTING)
        assert str(finding.help).startswith(proposed)


def test_what_is_free_and_cannot_be_read_is_taken_for_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(recompute, "free_memory", lambda ranks: 0.0)
    opened, _ = session(made(tmp_path, "auto"))
    assert opened.run.model.gradient_checkpointing == "full"
    assert "cannot be read here" in capsys.readouterr().out
