"""Environments that are not what their metadata says, as `vtool doctor` finds them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from vtool.diagnostics import Diagnostic
from vtool.doctor.installations import installation_problems, release_problems
from vtool.doctor.recipe import needs_of


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages, the only one in which those that are tested are looked for."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.setattr("vtool.releases.sys.path", [str(folder)])
    monkeypatch.setattr("vtool.doctor.installations.find_spec", lambda name: None)
    return folder


def package(site: Path, name: str, version: str, *requires: str) -> Path:
    about = site / f"{name}-{version}.dist-info"
    about.mkdir(parents=True)
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {one}" for one in requires]
    (about / "METADATA").write_text("\n".join(lines) + "\n")
    return about


def found() -> list[tuple[str, str]]:
    return [(one.rule, one.severity) for one in installation_problems()]


def only() -> Diagnostic:
    (finding,) = installation_problems()
    return finding


def test_the_environment_of_these_tests_is_whole() -> None:
    assert list(installation_problems()) == []
    assert list(release_problems(None)) == []


def test_two_builds_of_torch_in_one_folder_are_an_error(site: Path) -> None:
    package(site, "torch", "2.12.0")
    package(site, "torch", "2.13.0+cpu")
    finding = only()
    assert (finding.rule, finding.severity) == ("package-twice", "error")
    assert "2.13.0+cpu" in finding.message
    assert "2.12.0" in finding.message


def test_one_that_another_folder_hides_is_a_warning(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(site, "torch", "2.13.0+cpu")
    package(tmp_path / "user", "torch", "2.12.0")
    monkeypatch.setattr("vtool.releases.sys.path", [str(site), str(tmp_path / "user")])
    assert found() == [("package-twice", "warning")]
    (tmp_path / "lib64").symlink_to(site)  # the same folder by another name is no second one
    monkeypatch.setattr("vtool.releases.sys.path", [str(site), str(tmp_path / "lib64")])
    assert found() == []


def test_what_pip_leaves_where_it_is_stopped(site: Path) -> None:
    package(site, "transformers", "5.19.0")
    (site / "~ransformers").mkdir()
    assert "~ransformers is left behind" in only().message


def test_code_of_another_release_than_the_metadata(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(site, "peft", "0.21.2")
    code = tmp_path / "checkout/peft"
    code.mkdir(parents=True)
    (code / "__init__.py").write_text('__version__ = "0.22.0.dev0"\n')
    spec = type("Spec", (), {"submodule_search_locations": [str(code)]})()
    monkeypatch.setattr("vtool.doctor.installations.find_spec", lambda name: spec)
    finding = only()
    assert (finding.rule, finding.seen) == ("package-twice", "0.22.0.dev0")
    (code / "__init__.py").write_text('__version__ = "0.21.2"\n')
    assert found() == []


def test_a_half_upgraded_environment_is_reported_with_what_to_install(site: Path) -> None:
    package(site, "packaging", "26.3")
    package(site, "numpy", "2.4.6")
    package(
        site,
        "transformers",
        "5.19.0",
        "packaging<1",
        "numpy",
        'no-such-thing>=1; extra == "dev"',
        'packaging<2; python_version < "3"',
    )
    finding = only()
    assert (finding.rule, finding.severity) == ("version-mismatch", "error")
    assert finding.message.startswith("transformers 5.19.0 asks for packaging<1, and packaging")
    assert finding.help == "pip install 'packaging<1'"


def test_an_editable_install_is_a_note(site: Path) -> None:
    about = package(site, "transformers", "5.19.0")
    origin = {"url": "file:///home/me/transformers", "dir_info": {"editable": True}}
    (about / "direct_url.json").write_text(json.dumps(origin))
    finding = only()
    assert (finding.rule, finding.severity) == ("release-untested", "note")
    assert "file:///home/me/transformers" in finding.message


def test_families_that_a_release_computes_wrong_are_named(site: Path) -> None:
    package(site, "transformers", "5.5.3")
    package(site, "torch", "2.13.0+cpu")
    findings = list(release_problems(None))
    by_rule = {one.rule: one for one in findings}
    assert by_rule["release-broken"].severity == "warning"
    assert "qwen2_5_vl" in by_rule["release-broken"].message
    assert "5.5.4 to" in by_rule["release-untested"].message
    (refused,) = [one for one in release_problems(needs_of("digits")) if one.severity == "error"]
    assert (refused.rule, refused.parameter) == ("release-broken", "model.family")


@pytest.mark.full
def test_the_command_finds_the_interpreter_that_it_runs_in(tmp_path: Path) -> None:
    """A folder on PYTHONPATH hides the installed release, as a checkout does."""
    package(tmp_path, "peft", "0.30.0")
    done = subprocess.run(
        [sys.executable, "-m", "vtool", "doctor", "--format", "json"],
        env={"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    (result,) = json.loads(done.stdout)["results"]
    messages = {one["rule"]: one["message"] for one in result["findings"]}
    assert "peft 0.30.0 is newer than all" in messages["release-untested"]
    assert "package-twice" in messages
