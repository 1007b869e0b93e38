"""Python beside torchvision, whose operators that no processor calls are only declared."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TORCHVISION = ROOT / ".real-env/torchvision"


def run_beside_torchvision(
    folder: Path, *words: str, seconds: float = 280
) -> subprocess.CompletedProcess[str]:
    """Run Python with these words in a folder; skip the test where there is no torchvision."""
    if not TORCHVISION.is_dir():
        pytest.skip("not run: there is no torchvision (`make real-env`)")
    environment = {**os.environ, "PYTHONPATH": f"{TORCHVISION}:{ROOT}", "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
