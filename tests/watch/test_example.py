"""The example of README: a stock TRL script on a small LLaVA, and what the watch says of it."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.full
def test_a_stock_trl_script_is_found_to_teach_the_image(tmp_path: Path) -> None:
    if not all(importlib.util.find_spec(name) for name in ("trl", "datasets")):
        pytest.skip("TRL is not installed (make .venv/installed-bench)")
    own = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    made = [sys.executable, str(ROOT / "tests/watch/tiny_llava.py"), "llava"]
    subprocess.run(made, cwd=tmp_path, env=own, check=True, capture_output=True)
    script = [sys.executable, str(ROOT / "examples/trl_vision.py"), "llava"]
    watch = [sys.executable, "-m", "vtool", "watch", "--to", "facts", "--html", "page.html", "--"]
    done = subprocess.run(
        [*watch, *script], cwd=tmp_path, env=own, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "error[placeholder-learnt VT902]" in done.stderr
    assert "384 x image" in done.stderr  # 24 rows of 16: one for each patch
    assert "note[prompt-learnt" in done.stderr
    assert "1 error" in done.stderr.splitlines()[-2]
    assert "placeholder-learnt" in (tmp_path / "page.html").read_text()
