"""The watch in a process that is running already: a notebook, a loop of one's own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.watch.forks import ROOT, Forks
from vtool.watch import paused, start
from vtool.watch.conclude import conclude_folder

LIGHT = {"torch", "transformers", "pydantic", "jinja2", "typer", "yaml"}
NOTEBOOK = """
import sys
from pathlib import Path
import torch.optim  # as a notebook has, long before
import vtool.watch
vtool.watch.start(sys.argv[1] + "/facts", steps=2)
from tests.watch.runs.loop import Recipe, train
train(Recipe(), Path(sys.argv[1]) / "run")
"""
TRAINER = """
import sys
from pathlib import Path
import torch.optim
from transformers import Trainer
from vtool.watch.callback import WatchCallback
from tests.watch.runs import changes, loop
init = Trainer.__init__
def with_callback(self, **given):
    init(self, **given, callbacks=[WatchCallback(sys.argv[1] + "/facts")])
Trainer.__init__ = with_callback
recipe = loop.Recipe(trainer="hf", own_loss=changes.hf_mean_of_means)
loop.train_hf(recipe, Path(sys.argv[1]) / "run")
"""


TRIAL = """
import sys
from pathlib import Path
import vtool.watch
vtool.watch.start(sys.argv[1] + "/facts", steps=2)
from tests.watch.runs.loop import Recipe, train
with vtool.watch.paused():
    train(Recipe(), Path(sys.argv[1]) / "trial")
print("trained")
"""


def test_importing_it_is_light() -> None:
    program = "import vtool.watch, sys, json; print(json.dumps(list(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert LIGHT.isdisjoint(json.loads(done.stdout))


def test_conclusions_need_no_torch() -> None:
    program = "import vtool.watch.conclude, sys, json; print(json.dumps(list(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert {"torch", "transformers", "numpy"}.isdisjoint(json.loads(done.stdout))


def test_a_process_is_watched_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VTOOL_WATCH_TO", "/elsewhere")
    with pytest.raises(RuntimeError, match="already, to /elsewhere"):
        start(tmp_path / "facts")


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    with pytest.raises(ValueError, match="is not empty"):
        start(tmp_path)
    assert "VTOOL_WATCH_TO" not in os.environ


@pytest.mark.full
def test_a_loop_in_a_notebook_is_read(tmp_path: Path, trainer_forks: Forks) -> None:
    done = trainer_forks.run_text(NOTEBOOK, str(tmp_path))
    assert done.returncode == 0, done.stderr
    (result,) = conclude_folder(tmp_path / "facts", "notebook", None)
    assert (result.verdict, result.findings) == ("clean", ())
    assert result.details["watch"]["steps"] == 2


@pytest.mark.full
def test_a_trial_is_left_out(tmp_path: Path, trainer_forks: Forks) -> None:
    done = trainer_forks.run_text(TRIAL, str(tmp_path))
    assert "trained" in done.stdout, done.stderr
    (result,) = conclude_folder(tmp_path / "facts", "trial", None, status=0)
    assert result.verdict == "not-run"


def test_a_pause_within_a_pause_ends_with_the_outer_one() -> None:
    with paused():
        with paused():
            pass
        assert os.environ["VTOOL_WATCH_PAUSED"]
    assert "VTOOL_WATCH_PAUSED" not in os.environ


@pytest.mark.full
def test_a_callback_of_transformers_trainer_prints_what_is_found(
    tmp_path: Path, trainer_forks: Forks
) -> None:
    done = trainer_forks.run_text(TRAINER, str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "watched: Qwen2ForCausalLM" in done.stderr
    assert "error[token-weights-differ VT906]" in done.stderr


@pytest.mark.full
@pytest.mark.parametrize(
    ("gone", "message"), [("facts", "there is no folder"), ("facts/*", "nothing-read")]
)
def test_a_callback_whose_facts_are_gone_ends_no_training(
    tmp_path: Path, trainer_forks: Forks, gone: str, message: str
) -> None:
    loses = f"""
import os
def loses(*given, **named):
    os.system("rm -rf " + sys.argv[1] + "/{gone}")
    return changes.hf_mean_of_means(*given, **named)
recipe.own_loss = loses
"""
    program = TRAINER.replace("loop.train_hf", loses + "loop.train_hf")
    done = trainer_forks.run_text(program + "print('trained')", str(tmp_path))
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "trained"), done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
