"""The folder on PYTHONPATH: what starts, what does not, and that a program runs as it would."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.watch.forks import INJECT, ROOT, Forks, outside
from tests.watch.inject import tiny
from vtool.watch.conclude import conclude_folder

TRAINS = """
import hashlib, torch
from tests.watch.inject import tiny
model = tiny.make()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(2):
    loss, n = tiny.loss_of(model, tiny.batch([9, 7], step))
    (loss / n).backward()
    optimizer.step()
    optimizer.zero_grad()
weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
print(hashlib.sha256(weights).hexdigest())
"""


def run(
    *options: str,
    code: str = TRAINS,
    facts: Path | None = None,
    path: tuple[Path, ...] = (),
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    if facts is not None:
        variables["VTOOL_WATCH_TO"] = str(facts)
    own = outside(INJECT, *path, **variables)
    command = [sys.executable, *options, "-c", code]
    return subprocess.run(command, env=own, capture_output=True, text=True, check=False, cwd=ROOT)


@pytest.fixture(scope="module")
def plain(forks: Forks) -> str:
    """Return the output of the program without a watch."""
    return forks.run_text(TRAINS).stdout


def test_a_program_is_watched_and_comes_out_the_same(tmp_path: Path, plain: str) -> None:
    watched = run(code=TRAINS + "\nraise SystemExit(7)", facts=tmp_path / "facts")
    assert (watched.returncode, watched.stderr) == (7, "")
    assert watched.stdout == plain
    kinds = [f["kind"] for f in tiny.facts(tmp_path / "facts")]
    assert kinds[0] == "process"
    assert kinds[-1] == "ended"
    assert kinds.count("micro") == 2


def test_an_old_torch_costs_one_line(tmp_path: Path) -> None:
    """A stand-in for an old torch, which does not import without CUDA's packages."""
    (tmp_path / "torch/optim").mkdir(parents=True)
    (tmp_path / "torch/__init__.py").write_text("import torch.version\nimport torch.optim\n")
    (tmp_path / "torch/version.py").write_text("__version__ = '2.3.1+cu121'\n")
    (tmp_path / "torch/optim/__init__.py").write_text("from . import optimizer\n")
    (tmp_path / "torch/optim/optimizer.py").write_text("class Optimizer: ...\n")
    done = run(code="import torch; print('goes on')", facts=tmp_path / "facts", path=(tmp_path,))
    assert (done.returncode, done.stdout) == (0, "goes on\n")
    assert done.stderr == "vtool watch: not installed: torch 2.3.1+cu121 is older than 2.4\n"
    (result,) = conclude_folder(tmp_path / "facts", "run", None)
    assert result.verdict == "not-run"
    assert result.findings[0].message == "torch 2.3.1+cu121 is older than 2.4"


def test_another_sitecustomize_on_the_path_still_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('the other one')\n")
    done = run(code="pass", facts=tmp_path / "facts", path=(tmp_path,))
    assert done.stdout == "the other one\n"
    assert run(code="pass", path=(tmp_path,)).stdout == "the other one\n"


def test_another_sitecustomize_knows_itself_by_its_name(tmp_path: Path) -> None:
    own = "import sys\nMARK = 3\nprint(sys.modules[__name__].MARK)\n"
    (tmp_path / "sitecustomize.py").write_text(own)
    code = "import sitecustomize; print(sitecustomize.MARK)"
    done = run(code=code, facts=tmp_path / "facts", path=(tmp_path,))
    assert (done.stdout, done.stderr) == ("3\n3\n", "")


@pytest.mark.full
def test_two_watches_on_the_path_do_not_call_each_other_for_ever(
    tmp_path: Path, plain: str
) -> None:
    shutil.copytree(INJECT, tmp_path / "twin")
    (tmp_path / "last").mkdir()
    (tmp_path / "last/sitecustomize.py").write_text("print('the last one')\n")
    folders = (tmp_path / "twin", tmp_path / "last")
    done = run(facts=tmp_path / "facts", path=folders)
    assert done.stdout == "the last one\n" + plain
    assert (done.returncode, done.stderr) == (0, "")
    kinds = [f["kind"] for f in tiny.facts(tmp_path / "facts")]
    assert kinds.count("micro") == 2


@pytest.mark.full
@pytest.mark.parametrize("code", ["import json", "import torch"])
def test_what_makes_no_optimizer_leaves_nothing(tmp_path: Path, code: str) -> None:
    done = run(code=code, facts=tmp_path / "facts")
    assert (done.returncode, done.stderr) == (0, "")
    assert not (tmp_path / "facts").exists()


@pytest.mark.full
def test_what_trains_no_language_model_leaves_little(tmp_path: Path, forks: Forks) -> None:
    code = """
import torch
w = torch.nn.Linear(2, 2)
o = torch.optim.SGD(w.parameters(), lr=0.1)
w(torch.ones(1, 2)).sum().backward()
o.step()
"""
    done = forks.run_text(code, facts=tmp_path / "facts")
    assert (done.returncode, done.stderr) == (0, "")
    kinds = [f["kind"] for f in tiny.facts(tmp_path / "facts")]
    assert kinds == ["process", "blind", "ended"]


@pytest.mark.full
def test_an_isolated_interpreter_is_left_alone(tmp_path: Path) -> None:
    code = "import sys, torch.optim; print(any('vtool' in name for name in sys.modules))"
    done = run("-I", code=code, facts=tmp_path / "facts")
    assert (done.returncode, done.stdout.strip()) == (0, "False")


def test_a_folder_that_cannot_be_written_into_costs_one_line(
    tmp_path: Path, forks: Forks, plain: str
) -> None:
    (tmp_path / "file").touch()
    done = forks.run_text(TRAINS, facts=tmp_path / "file" / "facts")
    assert done.returncode == 0
    assert done.stdout == plain
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("vtool watch: facts are no longer written")
