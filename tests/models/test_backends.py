"""Images by torchvision and by PIL: transformers' own pixels, and a folder that says which."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.beside_torchvision import run_beside_torchvision
from vtool.diagnostics import Findings
from vtool.models import backends
from vtool.models.backends import RECORD, choose_backend, recorded_backend

ROOT = Path(__file__).parents[2]


def folder_of(path: Path, **settings: object) -> Path:
    (path / "preprocessor_config.json").write_text(json.dumps(settings))
    return path


@pytest.mark.parametrize("recorded", ["pil", "torchvision", None])
def test_auto_is_what_the_folder_was_trained_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorded: str | None
) -> None:
    monkeypatch.setattr(backends, "why_no_torchvision", lambda: None)
    folder = folder_of(tmp_path, **({RECORD: recorded} if recorded else {}))
    assert choose_backend("auto", folder) == (recorded or "torchvision")
    assert choose_backend("pil", folder) == "pil"
    assert choose_backend("auto") == "torchvision"


def test_a_folder_of_torchvision_is_refused_where_it_is_not_installed(tmp_path: Path) -> None:
    if backends.why_no_torchvision() is None:
        pytest.skip("not run: torchvision is installed")
    assert choose_backend("auto", folder_of(tmp_path)) == "pil"
    folder = folder_of(tmp_path, **{RECORD: "torchvision"})
    with pytest.raises(Findings, match="processor-backend-missing") as raised:
        choose_backend("auto", folder)
    assert "in training" in raised.value.diagnostics[0].message
    with pytest.raises(Findings, match=r"data\.image\.backend is torchvision"):
        choose_backend("torchvision")
    assert choose_backend("pil", folder) == "pil"  # on the user's word


@pytest.mark.parametrize(
    ("file", "settings"),
    [
        ("preprocessor_config.json", {RECORD: "pil"}),
        ("processor_config.json", {"image_processor": {RECORD: "pil"}}),
    ],
)
def test_the_record_is_read_where_transformers_reads(
    tmp_path: Path, file: str, settings: dict[str, object]
) -> None:
    (tmp_path / file).write_text(json.dumps(settings))
    assert recorded_backend(tmp_path) == "pil"
    (tmp_path / file).write_text('{"vtool_backend": ["x"]}')
    assert recorded_backend(tmp_path) is None


@pytest.mark.full
def test_pixels_of_all_families_are_those_of_transformers_torchvision_classes(
    tmp_path: Path,
) -> None:
    done = run_beside_torchvision(tmp_path, str(Path(__file__).with_name("torchvision_pixels.py")))
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    assert lines[-1] == "6 families: equal to the bit"


@pytest.mark.full
def test_a_run_keeps_the_backend_that_it_began_with(tmp_path: Path) -> None:
    """Verified, trained, evaluated and resumed with torchvision, and refused without it."""

    def vtool(*words: str) -> subprocess.CompletedProcess[str]:
        return run_beside_torchvision(tmp_path, "-m", "vtool", *words)

    run = ("train.steps=2", "run.name=seen", "device.kind=cpu")
    done = vtool("train", "sft", "digits", *run)
    assert done.returncode == 0, done.stdout + done.stderr
    export = tmp_path / "runs/seen/export"
    assert recorded_backend(export) == recorded_backend(tmp_path / "runs/seen/processor")
    assert recorded_backend(export) == "torchvision"
    again = vtool("train", "sft", "digits", *run, "train.steps=3", "checkpoint.resume=extend")
    assert again.returncode == 0, again.stdout + again.stderr
    assert recorded_backend(export) == "torchvision"
    asked = ("verify", "digits", f"model.path={export}")
    assert "processor-backend-differs" not in vtool(*asked).stdout
    by_pil = vtool(
        *asked,
        "data.image.backend=pil",
        "data.image.min_pixels=3136",
        "data.image.max_pixels=12544",
    )
    assert by_pil.returncode == 0, by_pil.stdout
    assert "warning[processor-backend-differs VT672]: data.train: its images" in by_pil.stdout
    assert "largest difference of a pixel is 0" not in by_pil.stdout
    # an interpreter without torchvision
    plain = subprocess.run(
        [sys.executable, "-m", "vtool", *asked],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert plain.returncode == 1
    assert "error[processor-backend-missing VT671]" in plain.stdout + plain.stderr
    assert "pip install torchvision" in plain.stdout + plain.stderr


def test_a_torchvision_that_does_not_import_is_named(tmp_path: Path) -> None:
    """A build for CUDA beside a torch for the CPU: transformers then imports no processor."""
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision/__init__.py").write_text(
        "raise RuntimeError('operator torchvision::nms does not exist')"
    )
    (tmp_path / "torchvision-0.28.0.dist-info").mkdir()
    (tmp_path / "torchvision-0.28.0.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: torchvision\nVersion: 0.28.0\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "vtool", "doctor"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (
        "error[processor-backend-missing VT671]: torchvision is installed and does not"
        in done.stdout
    )
    assert "operator torchvision::nms does not exist" in done.stdout
    assert done.returncode == 1
