"""`vtool doctor` on environments with known silent bugs, and on those that cannot be judged."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.commands import run_vtool, vtool

BUG, UNKNOWN = "known-silent-bug", "release-unknown"


def install(site: Path, name: str, version: str, module: str | None = None, **files: str) -> Path:
    """Write a package's metadata, and a module that fails where it is imported."""
    about = site / f"{name.replace('-', '_')}-{version}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    for file, text in files.items():
        (about / f"{file}.json").write_text(text)
    code(site, module or name)
    return about


def code(site: Path, module: str) -> None:
    folder = site.joinpath(*module.split("."))
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('imported')\n")


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """An interpreter without any package, whose packages are in `site`."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path / "site"} exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    (tmp_path / "site").mkdir()
    return python


def judge(python: Path, *arguments: str | Path, status: int = 0) -> dict[str, Any]:
    done = run_vtool(python.parent, "doctor", *arguments, "--python", python, "--format", "json")
    assert done.status == status, done.output
    (result,) = json.loads(done.stdout)["results"]
    found: dict[str, Any] = result
    return found


def names(result: dict[str, Any], rule: str = BUG) -> set[str]:
    return {one["parameter"] for one in result["findings"] if one["rule"] == rule}


def test_a_release_with_a_bug_is_reported_and_nothing_of_it_is_imported(python: Path) -> None:
    install(python.parent / "site", "trl", "0.23.1")
    result = judge(python)
    assert "trl-4201" in names(result)
    assert {one["severity"] for one in result["findings"]} == {"warning"}
    (listed,) = [one for one in result["details"][BUG]["advisories"] if one["name"] == "trl-4201"]
    assert listed["installed"] == "0.23.1"
    assert listed["state"] == "fixed in 0.24.0"
    assert listed["upstream"] == ["https://github.com/huggingface/trl/pull/4201"]


def test_the_release_of_the_fix_is_clean_of_it(python: Path) -> None:
    install(python.parent / "site", "trl", "0.24.0")
    result = judge(python)
    assert "trl-4201" not in names(result)
    assert result["verdict"] == "clean"


def test_a_bug_that_needs_another_package_is_not_reported_without_it(python: Path) -> None:
    site = python.parent / "site"
    install(site, "transformers", "4.47.1")
    assert "transformers-35438" not in names(judge(python))
    install(site, "accelerate", "1.1.1")
    assert "transformers-35438" in names(judge(python))


def test_a_bug_that_needs_a_newer_release_of_another_package_is_not_reported_below_it(
    python: Path,
) -> None:
    site = python.parent / "site"
    install(site, "trl", "0.29.0")
    install(site, "transformers", "5.2.0")
    assert "trl-5279" not in names(judge(python))
    (site / "transformers-5.2.0.dist-info").rename(site / "transformers-5.3.0.dist-info")
    about = site / "transformers-5.3.0.dist-info/METADATA"
    about.write_text(about.read_text().replace("5.2.0", "5.3.0"))
    assert "trl-5279" in names(judge(python))


LLAMAFACTORY = """model_name_or_path: llava-hf/llava-1.5-7b-hf
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
"""


def test_an_error_where_the_script_shows_the_condition_with_its_line(python: Path) -> None:
    site = python.parent / "site"
    for name, version in (("llamafactory", "0.9.2"), ("transformers", "4.49.0")):
        install(site, name, version)
    install(site, "accelerate", "1.15.0")
    script = python.parent / "my.yaml"
    script.write_text(LLAMAFACTORY)
    result = judge(python, script, "--from", "llamafactory", status=1)
    assert result["verdict"] == "unsafe"
    (found,) = [one for one in result["findings"] if one["parameter"] == "llamafactory-7443"]
    assert found["severity"] == "error"
    assert found["origin"]["line"] == 3
    # fixed by a newer release
    assert (found["expected"], found["seen"]) == (">=0.9.3", "0.9.2")

    script.write_text(LLAMAFACTORY.replace("steps: 8", "steps: 1"))
    assert "llamafactory-7443" not in names(judge(python, script, "--from", "llamafactory"))

    script.write_text(LLAMAFACTORY.replace("llava-hf/llava-1.5-7b-hf", "/models/mine"))
    result = judge(python, script, "--from", "llamafactory")
    (found,) = [one for one in result["findings"] if one["parameter"] == "llamafactory-7443"]
    assert found["severity"] == "warning", "a path may lead to such a model"


def test_the_script_that_starts_a_trainer_shows_a_condition_too(python: Path) -> None:
    site = python.parent / "site"
    for name, version in (("trl", "1.16.0"), ("transformers", "5.23.0"), ("accelerate", "1.15.0")):
        install(site, name, version)
    script = python.parent / "run.sh"
    script.write_text(
        "trl sft --model_name_or_path Qwen/Qwen2.5-VL-3B-Instruct \\\n"
        "  --gradient_accumulation_steps 8\n"
    )
    # it is by design, and a warning here as it is for validate-config
    result = judge(python, script, "--from", "trl")
    (shown,) = [one for one in result["findings"] if "origin" in one]
    assert (shown["parameter"], shown["severity"]) == ("transformers-37766", "warning")
    assert shown["origin"]["line"] == 2


def test_code_that_a_trainer_does_not_run_is_no_concern_of_its_script(python: Path) -> None:
    install(python.parent / "site", "trl", "0.23.1")
    script = python.parent / "sft.yaml"
    script.write_text("model: {path: /models/mine}\ntrainer: {total_epochs: 1}\n")
    assert not names(judge(python, script, "--from", "verl"))


VERL = "engine: {use_distributed_optimizer: false}\n"


def test_verls_file_shows_a_condition(python: Path) -> None:
    site = python.parent / "site"
    install(site, "verl", "0.7.1")
    install(site, "mbridge", "0.15.1")
    script = python.parent / "sft.yaml"
    script.write_text(VERL)
    result = judge(python, script, "--from", "verl", status=1)
    severities = {one["parameter"]: one["severity"] for one in result["findings"]}
    assert severities["verl-5775"] == "error"
    script.write_text(
        VERL + "actor_rollout_ref: {model: {path: x}}\n"
    )  # another program: its settings have other names
    result = judge(python, script, "--from", "verl")
    assert {one["severity"] for one in result["findings"] if one["rule"] == BUG} == {"warning"}


@pytest.mark.parametrize(
    ("version", "files", "message"),
    [
        ("0.23.1+ours", {}, "its version is somebody's own"),
        ("0.24.0.dev0", {}, "it is no release"),
        (
            "0.23.1",
            {"direct_url": '{"url": "file:///home/me/trl", "dir_info": {"editable": true}}'},
            "an editable install of file:///home/me/trl",
        ),
        (
            "0.23.1",
            {"direct_url": '{"url": "https://git.example/trl", "vcs_info": {"commit_id": "a"}}'},
            "installed from https://git.example/trl",
        ),
        ("0.23.1", {"direct_url": "{bro"}, "direct_url.json cannot be read"),
        ("0.23.1", {"direct_url": '{"dir_info": 3}'}, "direct_url.json cannot be read"),
    ],
)
def test_of_somebodys_own_code_there_is_no_verdict(
    python: Path, version: str, files: dict[str, str], message: str
) -> None:
    install(python.parent / "site", "trl", version, **files)
    result = judge(python, status=2)
    (found,) = result["findings"]
    assert found["rule"] == UNKNOWN
    assert message in found["message"]
    assert result["verdict"] == "not-run"
    assert result["checks"][BUG] == "not-run"


@pytest.mark.parametrize(
    "damage",
    [b"", b"Metadata-Version: 2.1\nName: trl\n", b"\xff\xfe\x00", b"Version: eleven\nName: trl\n"],
)
def test_damaged_metadata_is_a_line_and_no_verdict(python: Path, damage: bytes) -> None:
    about = install(python.parent / "site", "trl", "0.23.1")
    (about / "METADATA").write_bytes(damage)
    (found,) = judge(python, status=2)["findings"]
    assert (found["rule"], found["severity"]) == (UNKNOWN, "warning")
    assert "is damaged or lacks a version" in found["message"]


def test_code_without_metadata_and_code_elsewhere_have_no_verdict(python: Path) -> None:
    site = python.parent / "site"
    code(site, "verl")
    assert "without pip's metadata" in judge(python, status=2)["findings"][0]["message"]
    install(site, "trl", "0.23.1")
    (site / "trl/__init__.py").unlink()
    code(python.parent / "checkout", "trl")
    wrapper = python.read_text().replace(str(site), f"{python.parent / 'checkout'}:{site}")
    python.write_text(wrapper)
    message = " ".join(one["message"] for one in judge(python, status=2)["findings"])
    assert "what is imported is in" in message


def test_a_package_that_is_there_twice_has_no_verdict(python: Path) -> None:
    site = python.parent / "site"
    install(site, "trl", "0.23.1")
    (site / "trl-0.24.0.dist-info").mkdir()
    (site / "trl-0.24.0.dist-info/METADATA").write_text("Name: trl\nVersion: 0.24.0\n")
    (found,) = judge(python, status=2)["findings"]
    assert "installed twice" in found["message"]


def test_an_install_from_git_at_a_commit_with_the_bug(python: Path) -> None:
    origin = {"url": "https://github.com/verl-project/verl", "vcs_info": {"commit_id": ""}}
    commit = "e9972368a0000000000000000000000000000000"
    origin["vcs_info"] = {"vcs": "git", "commit_id": commit}
    install(python.parent / "site", "verl", "0.8.0.dev0", direct_url=json.dumps(origin))
    result = judge(python, status=2)
    assert names(result) == {"verl-5942"}
    assert names(result, UNKNOWN) == {"verl"}


def test_an_official_build_of_a_release_is_that_release(python: Path) -> None:
    install(python.parent / "site", "vllm", "0.20.2+cu129")
    assert "vllm-42244" in names(judge(python))
    assert not names(judge(python), UNKNOWN)


def test_a_release_that_is_newer_than_an_open_bug_is_not_judged_and_said_so(python: Path) -> None:
    install(python.parent / "site", "verl", "7.0")
    result = judge(python)
    assert not names(result)
    (found,) = [one for one in result["findings"] if "newer than" in one["message"]]
    assert found["severity"] == "note"
    assert result["checks"][BUG] == "not-run"


def test_releases_older_than_all_that_was_looked_at_are_one_line(python: Path) -> None:
    install(python.parent / "site", "transformers", "4.40.0")
    install(python.parent / "site", "accelerate", "0.21.0")
    text = vtool(python.parent, "doctor", "--python", python)
    assert text.count("transformers 4.40.0: older than the releases that were looked at") == 1
    assert "none known" not in text


def test_an_interpreter_without_metadata_is_not_clean(python: Path) -> None:
    result = judge(python, status=2)
    assert result["verdict"] == "not-run"
    assert result["details"][BUG]["reason"] == "there is no metadata of any package"


@pytest.mark.parametrize(
    ("python", "message"),
    [
        ("/nowhere/python", "/nowhere/python cannot be started: No such file or directory"),
        ("/bin/false", "/bin/false ended with status 1: it said nothing"),
        ("/bin/echo", "/bin/echo does not answer as a Python does"),
        (".", ". is a folder"),
    ],
)
def test_an_interpreter_that_is_none_is_one_line(tmp_path: Path, python: str, message: str) -> None:
    done = run_vtool(tmp_path, "doctor", "--python", python)
    assert done.status == 2
    assert message in done.stderr
    assert "Traceback" not in done.output


def test_a_reader_gets_lines_by_package_and_the_counts_of_all(python: Path) -> None:
    site = python.parent / "site"
    install(site, "trl", "0.23.1")
    install(site, "deepspeed", "0.17.0")
    text = vtool(python.parent, "doctor", "--python", python)
    assert "\n  trl 0.23.1\n    warning: trl-4201 (fixed in 0.24.0): rows of prompt" in text
    assert "none known: deepspeed 0.17.0" in text
    assert "pip install 'trl>=" in text
    count = len(names(judge(python)))
    assert f"{count} warning" in text.splitlines()[-1]
    assert "warning[" not in text, "they are listed, and not reported a second time"
    assert all(len(line) <= 80 for line in text.split("\n\n")[0].splitlines())


@pytest.mark.parametrize("form", ["concise", "github", "sarif"])
def test_every_format_has_every_advisory(python: Path, form: str) -> None:
    install(python.parent / "site", "trl", "0.23.1")
    expected = names(judge(python))
    text = vtool(python.parent, "doctor", "--python", python, "--format", form)
    assert all(name in text for name in expected)


def test_a_recipe_of_ours_has_no_concern_with_other_trainers_bugs(python: Path) -> None:
    site = python.parent / "site"
    for name, version in (("trl", "0.23.1"), ("transformers", "5.23.0"), ("accelerate", "1.15.0")):
        install(site, name, version)
    assert {"trl-4201", "transformers-47688"} <= names(judge(python))
    assert not judge(python, "digits")["findings"]


@pytest.mark.parametrize("topic", ["trl-4201", "trl#4201"])
def test_explain_prints_an_advisory_in_full(tmp_path: Path, topic: str) -> None:
    text = vtool(tmp_path, "explain", topic)
    assert "trl 0.17.0 (read) to 0.23.1" in text
    assert "https://github.com/huggingface/trl/pull/4201" in text


def test_explain_names_the_nearest_to_one_that_is_not_there(tmp_path: Path) -> None:
    done = run_vtool(tmp_path, "explain", "trl-4202")
    assert done.status == 2
    assert "there is no advisory `trl-4202`" in done.stderr
    assert "trl-4201" in done.stderr


@pytest.mark.parametrize("content", [None, "", "- 1\n", "a: [\n"])
def test_a_file_of_another_trainer_that_is_none_is_a_finding(
    python: Path, content: str | None
) -> None:
    script = python.parent / "my.yaml"
    if content is not None:
        script.write_text(content)
    done = run_vtool(python.parent, "doctor", script, "--from", "trl", "--python", python)
    assert done.status == 2
    assert "Traceback" not in done.output
