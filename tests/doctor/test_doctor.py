"""`vtool doctor`, as a user runs it, on machines that are as wrong as they come."""

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

VTOOL = [sys.executable, "-m", "vtool", "doctor"]


def doctor(*arguments: str, site: Path | None = None, **variables: str) -> tuple[int, str, str]:
    """Run it, with the packages of a folder before all others."""
    path = os.pathsep.join(
        [*([str(site)] if site else []), *(each for each in [os.environ.get("PYTHONPATH")] if each)]
    )
    environment = {**os.environ, "PYTHONPATH": path, **variables}
    done = subprocess.run(
        [*VTOOL, *arguments], capture_output=True, text=True, env=environment, check=False
    )
    return done.returncode, done.stdout, done.stderr


def document(
    *arguments: str, site: Path | None = None, **variables: str
) -> tuple[int, dict[str, Any]]:
    code, out, err = doctor(*arguments, "--format", "json", site=site, **variables)
    assert "Traceback" not in err
    (result,) = json.loads(out)["results"]
    # those of this machine's releases have tests of their own
    aside = {"known-silent-bug", "release-unknown"}
    if site is not None:  # the package that hides the real one is there twice, as it says
        aside |= {"package-twice"}
    result["findings"] = [one for one in result["findings"] if one["rule"] not in aside]
    return code, result


def package(
    site: Path,
    name: str,
    version: str,
    body: str | None = None,
    requires: str = "",
    entry: str = "",
) -> None:
    """Write the files that pip leaves of a package."""
    about = site / f"{name}-{version}.dist-info"
    about.mkdir(parents=True)
    needs = f"Requires-Dist: {requires}\n" if requires else ""
    (about / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}"
    )
    if entry:
        (about / "entry_points.txt").write_text(entry)
    if body is not None:
        (site / name).mkdir()
        (site / name / "__init__.py").write_text(body)
        (site / name / "version.py").write_text(f"__version__ = {version!r}\ncuda = None\n")


@pytest.fixture(scope="module")
def here() -> tuple[int, str, str]:
    return doctor()


def test_this_machine_runs_what_the_tests_run(here: tuple[int, str, str]) -> None:
    code, out, _ = here
    assert code == 0
    lines = [line.split(maxsplit=2) for line in out.splitlines() if line.startswith("  ")]
    # the first is this interpreter's own
    states = {words[0]: words[1] for words in reversed(lines) if len(words) > 1}
    assert states["torch"] == metadata.version("torch")
    assert states["transformers"] == metadata.version("transformers")
    assert states["cpu"] == "usable"
    assert " error" not in out.splitlines()[-1]


@pytest.mark.full
def test_no_line_of_the_table_is_wider_than_a_terminal(here: tuple[int, str, str]) -> None:
    table = here[1].partition("\n\n")[0]
    paths = (sys.executable, str(Path(sys.executable).resolve()))
    assert all(
        len(line) <= 80 for line in table.splitlines() if not any(path in line for path in paths)
    )


def test_nothing_of_torch_is_imported_where_it_runs() -> None:
    command = [
        "import sys; from vtool.cli.app import app",
        "try: app(['doctor', 'load_check'])",
        "except SystemExit: pass",
        "print('torch' in sys.modules)",
    ]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(command)], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "False"


@pytest.mark.full
def test_a_torch_that_raises_is_reported_with_its_message(tmp_path: Path) -> None:
    package(
        tmp_path,
        "torch",
        "2.13.0",
        "raise ImportError('libcudnn.so.9: cannot open shared object file')",
    )
    code, result = document(site=tmp_path)
    (finding,) = result["findings"]
    assert (code, finding["rule"]) == (1, "torch-does-not-import")
    assert "ImportError: libcudnn.so.9: cannot open shared object file" in finding["message"]
    assert result["details"]["machine"]["engines"]["ddp, fsdp2"]["state"] == "not usable"


@pytest.mark.full
def test_a_torch_that_crashes_is_reported(tmp_path: Path) -> None:
    package(tmp_path, "torch", "2.13.0", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    _, result = document(site=tmp_path)
    assert "it was ended by signal 11" in result["findings"][0]["message"]


@pytest.mark.full
def test_a_torch_that_hangs_is_reported_in_time(tmp_path: Path) -> None:
    from vtool.doctor.torch_answer import ask_torch

    package(tmp_path, "torch", "2.13.0", "import time; time.sleep(600)")
    found = ask_torch(
        {**os.environ, "PYTHONPATH": str(tmp_path), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}, seconds=2
    )
    assert found.error == "it has not come back within 2 seconds"


def test_torch_npu_without_cann_is_why_torch_does_not_import(tmp_path: Path) -> None:
    """Torch 2.13.0 loads torch_npu by its entry point, unless a variable turns that off."""
    loading = (
        "import os\nif os.environ.get('TORCH_DEVICE_BACKEND_AUTOLOAD') != '0': import torch_npu\n"
    )
    answers = (
        "__version__ = '2.13.0'\nclass cuda:\n    is_available = staticmethod(lambda: False)\n"
    )
    package(tmp_path, "torch", "2.13.0", loading + answers)
    package(
        tmp_path,
        "torch_npu",
        "2.13.0",
        "raise ImportError('libhccl.so: cannot open')",
        requires="torch==2.13.0.*",
    )
    code, result = document(site=tmp_path, ASCEND_HOME_PATH="/nowhere")
    by_rule = {finding["rule"]: finding for finding in result["findings"]}
    assert (code, set(by_rule)) == (1, {"torch-does-not-import", "cann-not-found"})
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in by_rule["torch-does-not-import"]["message"]
    assert by_rule["torch-does-not-import"]["help"].startswith(
        "torch loads torch_npu 2.13.0 by itself, which needs CANN"
    )
    assert "/nowhere, which is not there" in by_rule["cann-not-found"]["message"]


@pytest.mark.full
def test_a_version_outside_the_bounds_is_reported_with_the_command(tmp_path: Path) -> None:
    package(tmp_path, "transformers", "4.57.0")
    code, result = document("digits", site=tmp_path)
    (finding,) = [one for one in result["findings"] if one["rule"] == "version-mismatch"]
    assert (code, finding["seen"]) == (1, "4.57.0")
    assert finding["help"].startswith("pip install '")


@pytest.mark.full
def test_variables_of_an_npu_are_looked_at_where_they_are_set() -> None:
    code, result = document("load_check", ASCEND_RT_VISIBLE_DEVICES="1, 2")
    assert (code, [finding["rule"] for finding in result["findings"]]) == (
        1,
        ["device-list-cut-off"],
    )


@pytest.fixture
def quick(tmp_path: Path) -> Path:
    """A torch that is imported at once, and sees two CUDA devices. The real one is asked above."""
    devices = (
        "    is_available = staticmethod(lambda: True)\n    device_count = staticmethod(lambda:"
        " 2)\n"
    )
    names = "    get_device_name = staticmethod(lambda number: 'H100')\n"
    package(
        tmp_path / "quick",
        "torch",
        "2.13.0",
        f"__version__ = '2.13.0'\nclass cuda:\n{devices}{names}",
    )
    return tmp_path / "quick"


class TestOfARecipe:
    """Only what it needs."""

    def test_that_needs_nothing_special(self, quick: Path) -> None:
        code, result = document("digits", site=quick)
        assert (code, result["verdict"], result["subject"]) == (0, "clean", "digits")
        assert "load-check" not in result["details"]["machine"]
        assert list(result["details"]["machine"]["engines"]) == ["ddp"]

    @pytest.mark.full
    def test_for_more_devices_than_there_are(self, quick: Path) -> None:
        code, result = document("digits", "device.kind=cuda", "launch.nproc=2", site=quick)
        assert (code, result["details"]["machine"]["torch"]["cuda"]) == (
            0,
            {"state": "2 devices", "note": "H100"},
        )
        code, result = document("digits", "device.kind=cuda", "launch.nproc=4", site=quick)
        (finding,) = result["findings"]
        assert (code, finding["rule"], finding["expected"], finding["seen"]) == (
            1,
            "device-missing",
            "4",
            "2",
        )

    @pytest.mark.full
    def test_for_an_npu_on_a_machine_without(self, quick: Path) -> None:
        code, result = document("qwen2_5_vl_7b_npu", site=quick)
        assert code == 1
        rules = {finding["rule"]: finding for finding in result["findings"]}
        assert rules["extra-not-installed"]["help"] == "pip install 'vtool[npu]'"
        assert result["checks"]["device-missing"] == "not-run"

    @pytest.mark.full
    def test_for_a_base_in_nf4_without_bitsandbytes(self, quick: Path) -> None:
        package(quick, "bitsandbytes", "0.1.0")
        code, result = document("digits_lora", "lora.base_dtype=nf4", site=quick)
        (finding,) = result["findings"]
        assert (code, finding["help"]) == (1, "pip install 'vtool[qlora]'")
        assert finding["parameter"] == "bitsandbytes"

    @pytest.mark.full
    def test_of_rows_in_columns(self, quick: Path, tmp_path: Path) -> None:
        package(quick, "pyarrow", "1.0.0")
        (tmp_path / "saved").mkdir()
        (tmp_path / "saved" / "state.json").write_text("{}")
        (tmp_path / "named.txt").write_bytes(b"PAR1")
        (tmp_path / "rows.jsonl").write_text("{}\n")
        for path in ("not-there.parquet", tmp_path / "saved", tmp_path / "named.txt"):
            code, result = document(
                "rows", f"data.train=[{{format: auto, path: {path}}}]", site=quick
            )
            (finding,) = result["findings"]
            assert (code, finding["help"]) == (1, "pip install 'vtool[data]'")
            assert finding["parameter"] == "pyarrow"
        for path in ("not-there.jsonl", tmp_path / "rows.jsonl"):
            code, result = document(
                "rows", f"data.train=[{{format: auto, path: {path}}}]", site=quick
            )
            assert (code, result["findings"]) == (0, [])

    @pytest.mark.full
    def test_no_package_is_reported_twice(self, quick: Path) -> None:
        entry = "data.train=[{format: auto, path: rows.parquet}]"
        _, out, _ = doctor("rows", entry, site=quick)
        assert out.count("  transformers  ") == 1

    @pytest.mark.full
    def test_of_megatron_in_another_release(self, quick: Path) -> None:
        package(quick, "megatron_core", "0.15.0")
        code, result = document("digits_megatron", site=quick)
        assert list(result["details"]["machine"]["engines"]) == ["megatron"]
        assert (code, result["findings"][0]["help"]) == (1, "pip install 'vtool[megatron]'")

    @pytest.mark.full
    def test_of_frameworks(self, tmp_path: Path) -> None:
        fake = tmp_path / "python"
        fake.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        fake.chmod(0o755)
        code, result = document("runai", f"python='{fake}'", "subjects.all=transformers")
        assert code == 0
        assert [(finding["rule"], finding["severity"]) for finding in result["findings"]] == [
            ("extra-not-installed", "warning")
        ]
        code, result = document("vllm_all", f"python='{tmp_path / 'nothing'}'")
        assert (code, result["findings"][0]["rule"]) == (1, "unusable-interpreter")

    @pytest.mark.full
    def test_that_is_none(self) -> None:
        code, _, err = doctor("digts")
        assert code == 2
        assert "did you mean `digits`?" in err

    @pytest.mark.full
    def test_whose_engine_is_no_engine(self, quick: Path) -> None:
        code, result = document("digits", "engine.kind=fsdp", site=quick)
        assert (code, result["findings"][0]["rule"]) == (1, "unknown-choice")


@pytest.mark.full
@pytest.mark.parametrize(
    "format",
    [
        "full",
        "json",
        *(pytest.param(each, marks=pytest.mark.full) for each in ("concise", "github", "sarif")),
    ],
)
def test_every_format_has_the_finding(format: str) -> None:
    code, out, _ = doctor("load_check", "--format", format, TASK_QUEUE_ENABLE="9")
    assert code == 1
    assert "VT511" in out
