"""Measure which releases work, and keep it in `measured.json`; docs/install.md shows it.

python -m tests.installed.measure releases 5.10.4 5.19.0    # of transformers, over this
python -m tests.installed.measure end oldest                # after `make test-oldest`
python -m tests.installed.measure resolved                  # needs uv, which fetches no wheel
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from importlib import metadata
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from packaging.requirements import Requirement

from tests.installed.environments import ROOT, checked, site
from vtool.families import FAMILIES

RECORD = Path(__file__).parent / "measured.json"
PACKAGES = ("torch", "transformers", "peft", "tokenizers", "safetensors", "numpy", "pydantic")
PACKAGES += ("typer", "rich", "pillow", "hydra-core", "omegaconf", "jinja2", "matplotlib")
PACKAGES += ("packaging", "pyyaml", "xxhash")
TORCHES = ("2.11.0", "2.12.1", "2.13.0")
VIDEOS = "tests/training/test_video.py"


def measure_release(version: str) -> dict[str, Any]:
    """Lay a release of transformers over this environment; prove each family, and test videos."""
    with tempfile.TemporaryDirectory() as folder:
        install_over(Path(folder), f"transformers=={version}")
        (about,) = Path(folder).glob("transformers-*.dist-info")
        for line in metadata.PathDistribution(about).requires or ():
            asked = Requirement(line)
            if asked.marker is not None and not asked.marker.evaluate({"extra": ""}):
                continue
            if not asked.specifier.contains(here(asked.name) or "0", prereleases=True):
                install_over(Path(folder), f"{asked.name}{asked.specifier}")
        found: dict[str, Any] = {family: prove(family, folder) for family in FAMILIES}
        done = beside(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", VIDEOS)
        return {**found, "videos": "passed" if done.returncode == 0 else "failed"}


def install_over(folder: Path, what: str) -> None:
    checked(
        sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), what
    )


def here(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def prove(family: str, folder: str) -> str:
    """Return `passed`, the rules that failed, or the last line of what kept them from running."""
    command = ["verify", "digits", "--fast", f"model.family={family}", "--format", "json"]
    done = beside(folder, "-m", "vtool", *command)
    try:
        (result,) = json.loads(done.stdout)["results"]
    except ValueError:
        return f"not run: {(done.stderr.strip().splitlines() or ['it said nothing'])[-1]}"
    failed = [rule for rule, state in result["checks"].items() if state == "failed"]
    return ", ".join(failed) or "passed"


def beside(folder: str, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{folder}", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def measure_end(end: str) -> dict[str, Any]:
    """Read the outcome of the tests in the environment of an end, and its versions."""
    environment = ROOT / f".{end}-venv"
    python = environment / "bin/python"
    states: dict[str, str] = {}
    files = sorted(environment.glob("tests*.xml"), key=lambda file: file.stat().st_mtime)
    for file in files:  # of a test that ran again, the last one counts
        for case in ElementTree.parse(file).iter("testcase"):
            outcomes = {each.tag for each in case} & {"failure", "error", "skipped"}
            name = f"{case.attrib['classname']}.{case.attrib['name']}"
            states[name] = next(iter(sorted(outcomes)), "passed")
    counts = Counter(states.values())
    installed = {
        one.name.lower().replace("_", "-"): one.version
        for one in metadata.distributions(path=[str(site(python))])
    }
    return {
        "passed": counts["passed"],
        "failed": counts["failure"] + counts["error"],
        "not run": counts["skipped"],
        "versions": {name: installed[name] for name in PACKAGES},
    }


def measure_resolved() -> dict[str, dict[str, str]]:
    """Ask uv for a set of versions, for each Python and torch; nothing is run."""
    uv = shutil.which("uv")
    assert uv is not None, "not run: pip install uv"
    found: dict[str, dict[str, str]] = {}
    for python in ("3.11", "3.12", "3.13"):
        for torch in TORCHES:
            with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraint:
                constraint.write(f"torch=={torch}\n")
                constraint.flush()
                options = ["--python-version", python, "--constraint", constraint.name]
                options += ["--python-platform", "x86_64-manylinux_2_28", "--extra", "train"]
                done = subprocess.run(
                    [uv, "pip", "compile", "-q", *options, "pyproject.toml"],
                    cwd=ROOT,
                    capture_output=True,
                    check=False,
                )
            found.setdefault(torch, {})[python] = "no" if done.returncode else "resolved"
    return found


def main(kind: str, *names: str) -> None:
    """Measure, and keep it."""
    record = json.loads(RECORD.read_text())
    if kind == "releases":
        for version in names:
            record["releases"][version] = measure_release(version)
    elif kind == "end":
        record["ends"] |= {end: measure_end(end) for end in names}
    else:
        record["resolved"] = measure_resolved()
    RECORD.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
