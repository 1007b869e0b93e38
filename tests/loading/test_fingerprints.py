"""Findings of a class have the same fingerprint in every process, threads or not."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tests.loading.models
import tests.loading.threaded
from tests.cli.load_check_commands import ROOT

MODELS = [f"python:{tests.loading.models.__file__}:{name}" for name in ("KeepsAll", "SkipsV")]
THREADED = [
    f"python:{tests.loading.threaded.__file__}:{name}"
    for name in ("ByPool", "ByThreads", "ByWorkers", "ByAsyncio")
]


def run(seed: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "vtool", "load-check", *arguments, "--python", sys.executable],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": str(ROOT)},
    )


def fingerprints(document: dict[str, Any]) -> set[tuple[str, str, str, str]]:
    """Return the subject, rule, severity and fingerprint of every finding."""
    found = set()
    for line in document["by_line"]:
        for one in line["findings"]:
            result = document["results"][one["result"]]
            finding = result["findings"][one["finding"]]
            key = (result["subject"].rpartition(":")[2], finding["rule"], finding["severity"])
            found.add((*key, one["fingerprint"]))
    return found


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "processes", [pytest.param(3, marks=pytest.mark.full), pytest.param(10, marks=pytest.mark.soak)]
)
def test_processes_with_other_hash_seeds_find_the_same_and_a_baseline_misses_nothing(
    tmp_path: Path, processes: int
) -> None:
    known = tmp_path / "known.json"
    seen = []
    for seed in range(processes):
        more = ("limits.seconds=300", "--format", "json", "--baseline", str(known))
        done = run(seed, *MODELS, *THREADED, *more)
        assert done.returncode == 0, done.stderr
        document = json.loads(done.stdout)
        assert "gone" not in done.stderr
        assert document["summary"]["errors"] == document["summary"]["warnings"] == 0
        by_name = {one["subject"].rpartition(":")[2]: one for one in document["results"]}
        assert {one["verdict"] for one in by_name.values()} == {"unsafe"}
        for name in ("ByPool", "ByThreads", "ByWorkers", "ByAsyncio"):
            assert by_name[name]["checks"]["stale-reference"] == "failed", name
        seen.append(fingerprints(document))
    assert seen[0]
    assert {frozenset(one) for one in seen} == {frozenset(seen[0])}
