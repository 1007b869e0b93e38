"""The tests that SECURITY.md names, run as pytest runs them."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.campaign.state import Tally

ROOT = Path(__file__).parents[2]
_NAMED = re.compile(r"tests/[\w/]+\.py(?:::\w+)*")


def named_tests() -> list[str]:
    """Return the tests that SECURITY.md names."""
    page = ROOT / "SECURITY.md"
    return sorted(set(_NAMED.findall(page.read_text("utf-8")))) if page.exists() else []


def run_security_tests(tally: Tally, folder: Path, until: float) -> None:
    """Run them once; `until` does not cut them short."""
    tests = named_tests()
    if not tests:
        tally.measured["security"] = "SECURITY.md names no tests yet"
        return
    words = [sys.executable, "-m", "pytest", "-q", "-m", "not soak", "-p", "no:cacheprovider"]
    clean = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    done = subprocess.run(
        [*words, *tests], cwd=ROOT, env=clean, capture_output=True, text=True, check=False
    )
    end = done.stdout.strip().splitlines()[-1:] or ["nothing printed"]
    tally.counts["tests named"] = len(tests)
    tally.measured["security"] = end[0].strip("= ")
    if done.returncode:
        tally.problem("a test of SECURITY.md fails", end[0])
