"""The wheel, installed by pip into environments that know nothing of the checkout."""

import json
import os
import re
import shutil
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.installed.environments import (
    CONSTRAINTS,
    ROOT,
    build,
    checked,
    make_environment,
    pip_install,
    run,
)

pytestmark = pytest.mark.soak

VLLM = os.environ.get("VTOOL_VLLM_PYTHON") or str(ROOT / ".vllm-venv/bin/python")
SERVER = ROOT / "tests/soak/serve_with_vllm.py"
DEMO = ("train", "sft", "digits", "train.steps=20", "optim.warmup_steps=5")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("dist"))[1]


def test_alone_in_a_fresh_environment_it_trains_and_checks_what_it_has_exported(
    wheel: Path, tmp_path: Path
) -> None:
    python = make_environment(tmp_path / "environment")
    # first, and by its whole name: of another release there is no build for a CPU
    torch = metadata.version("torch").partition("+")[0]
    pip_install(python, f"torch=={torch}")
    pip_install(python, "--constraint", str(CONSTRAINTS), f"vtool[train] @ {wheel.as_uri()}")
    vtool = str(python.parent / "vtool")
    checked(vtool, *DEMO, cwd=tmp_path)
    result = json.loads((tmp_path / "runs/digits/result.json").read_text())
    assert (result["status"], result["steps"]) == ("finished", 20)
    assert checked(vtool, "load-check", "runs/digits/export", cwd=tmp_path).count("no findings")
    shown = checked(vtool, "explain", cwd=tmp_path)
    assert all(path.stem in shown for path in (ROOT / "recipes").glob("*.yaml"))
    # bugs that the newest releases still have are warnings
    assert re.search(
        r"this machine: (no findings|\d+ warnings?);", checked(vtool, "doctor", cwd=tmp_path)
    )


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_without_the_extra_it_checks_recipes_and_files_and_says_what_training_needs(
    version: str, wheel: Path, tmp_path: Path
) -> None:
    own = shutil.which(f"python{version}")
    if own is None or run(own, "--version").returncode:
        pytest.skip(f"not run: there is no python{version}")
    python = make_environment(tmp_path / "environment", like=own)
    pip_install(python, str(wheel))
    vtool = str(python.parent / "vtool")
    assert run(str(python), "-c", "import torch").returncode == 1
    for recipe in (ROOT / "recipes").glob("digits*.yaml"):
        assert "no findings" in checked(vtool, "validate-config", recipe.stem, cwd=tmp_path)
    assert "why:" in checked(vtool, "explain", "loss-differs", cwd=tmp_path)
    assert "this machine: no findings" in checked(vtool, "doctor", cwd=tmp_path)
    save_file({"lm_head.weight": np.ones((4, 2), np.float32)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    done = run(vtool, "load-check", ".", "--format", "json", cwd=tmp_path)
    (result,) = json.loads(done.stdout)["results"]
    assert list(result["checks"].values()).count("passed") > 5
    for command in (DEMO, ("verify", "digits"), ("predict", "."), ("export", ".")):
        refused = run(vtool, *command, cwd=tmp_path)
        assert refused.returncode == 2
        assert "Traceback" not in refused.stderr
        assert "pip install 'vtool[train]'" in refused.stderr


@pytest.mark.skipif(not Path(VLLM).exists(), reason="not run: there is no `make vllm-env`")
def test_one_environment_with_vllm_trains_exports_checks_and_serves(
    wheel: Path, tmp_path: Path
) -> None:
    """pip finds a set of versions that vLLM's own ranges and the wheel's allow."""
    python = make_environment(tmp_path / "environment", over=Path(VLLM))
    pip_install(python, f"vtool[train] @ {wheel.as_uri()}")
    vtool = str(python.parent / "vtool")
    checked(vtool, *DEMO, cwd=tmp_path)
    checked(vtool, "export", "runs/digits", "--output", "exported", cwd=tmp_path)

    output = checked(vtool, "load-check", "exported", "--format", "json", cwd=tmp_path)
    (result,) = json.loads(output)["results"]
    assert result["verdict"] == "clean"
    not_run = {rule for rule, state in result["checks"].items() if state == "not-run"}
    assert not_run == {"expert-mismatch"}  # the model has no experts
    assert result["details"]["subject"]["class"].startswith("vllm.model_executor.models")

    scan = sorted((tmp_path / "runs/digits/samples").glob("*.png"))[0]
    asked = [{"type": "image"}, {"type": "text", "text": "Which digit is shown?"}]
    requests = [{"messages": [{"role": "user", "content": asked}], "images": [str(scan)]}]
    (tmp_path / "requests.json").write_text(json.dumps({"max_tokens": 4, "requests": requests}))
    serve = [str(python), str(SERVER), "exported", "requests.json", "answers.json", "--pil"]
    checked(*serve, cwd=tmp_path)
    (answer,) = json.loads((tmp_path / "answers.json").read_text())
    question = ["--image", str(scan), "--question", "Which digit is shown?"]
    own = checked(vtool, "predict", "exported", *question, "--max-new-tokens", "4", cwd=tmp_path)
    assert answer["text"].strip() == own.strip() != ""
