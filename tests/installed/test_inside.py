"""The wheel without an extra, in the environments of other trainers (`make trainers-env`)."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.installed.environments import ROOT, build, checked, make_environment, pip_install

pytestmark = pytest.mark.soak

TRAINERS = Path(os.environ.get("VTOOL_TRAINERS") or ROOT / ".trainers")
PYTHONS = {
    "trl": Path(sys.executable),
    **{name: TRAINERS / name / "bin/python" for name in ("llamafactory", "swift", "verl")},
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("dist"))[1]


@pytest.mark.parametrize("trainer", PYTHONS)
def test_compare_audit_and_load_check_work_with_its_own_versions(
    trainer: str, wheel: Path, tmp_path: Path
) -> None:
    if not PYTHONS[trainer].exists():
        pytest.skip("not run: there is no `make trainers-env`")
    python = make_environment(tmp_path / "environment", over=PYTHONS[trainer])
    before = versions(python)
    pip_install(python, str(wheel))
    script = shutil.copy(ROOT / "tests/installed/inside.py", tmp_path)
    output = checked(str(python), str(script), str(tmp_path), cwd=tmp_path)
    found = json.loads(output.splitlines()[-1])
    assert (found["right"], found["wrong"]) == ([], ["setting-not-arrived"])
    assert (found["rows"], found["audit"]) == (
        [2, 1],
        ["no-assistant-turn", "too-many-dropped-rows"],
    )
    assert (found["files"], found["passed"] > 5) == ([], True)
    assert any(found["installed"].get(each) for each in ("trl", "llamafactory", "ms-swift", "verl"))
    after = versions(python)
    heavy = ("torch", "transformers", "peft", "numpy", "accelerate", "datasets")
    assert {name: after.get(name) for name in heavy} == {name: before.get(name) for name in heavy}
    print(json.dumps(found["installed"]))


def versions(python: Path) -> dict[str, str]:
    ask = (
        "import json; from importlib import metadata as m;"
        "print(json.dumps({d.name.lower(): d.version for d in reversed(list(m.distributions()))}))"
    )
    found: dict[str, str] = json.loads(checked(str(python), "-c", ask))
    return found
