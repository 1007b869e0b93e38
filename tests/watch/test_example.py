"""The example of README: a stock TRL script on a small LLaVA, and what the watch says of it."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.watch.forks import ROOT, Forks, outside


@pytest.mark.full
def test_a_stock_trl_script_is_found_to_teach_the_image(
    tmp_path: Path, trainer_forks: Forks
) -> None:
    if not all(importlib.util.find_spec(name) for name in ("trl", "datasets")):
        pytest.skip("TRL is not installed (make .venv/installed-bench)")
    made = trainer_forks.run(ROOT / "tests/watch/tiny_llava.py", str(tmp_path / "llava"))
    assert made.returncode == 0, made.stderr
    script = [sys.executable, str(ROOT / "examples/trl_vision.py"), "llava"]
    watch = [sys.executable, "-m", "vtool", "watch", "--to", "facts", "--html", "page.html", "--"]
    own = outside(HF_HUB_OFFLINE="1")
    done = subprocess.run(
        [*watch, *script], cwd=tmp_path, env=own, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "error[placeholder-learnt VT902]" in done.stderr
    assert "384 x image" in done.stderr  # 24 rows of 16: one for each patch
    assert "note[prompt-learnt" in done.stderr
    assert "1 error" in done.stderr.splitlines()[-2]
    assert "placeholder-learnt" in (tmp_path / "page.html").read_text()
