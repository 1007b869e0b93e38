"""`vtool load-check`, as a user runs it."""

import html
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import tests.loading.models
from tests.cli.load_check_commands import ROOT, load_check, results
from tests.loading.checkpoint.folders import f32, folder
from vtool.diagnostics.rules_loading import CLASS_RULES

MODELS = tests.loading.models.__file__


@pytest.mark.full
def test_a_function_of_a_file_is_judged_in_a_process_of_its_own() -> None:
    subjects = [
        f"python:{MODELS}:{name}"
        for name in ("Good", "KeepsAll", "raises", "not_a_model", "absent")
    ]
    found = results(*subjects, status=1)
    assert {name: result["verdict"] for name, result in found.items()} == {
        "Good": "clean",
        "KeepsAll": "unsafe",
        "raises": "failed",
        "not_a_model": "failed",
        "absent": "failed",
    }
    assert "no such luck" in found["raises"]["findings"][0]["message"]
    assert "no load_weights()" in found["not_a_model"]["findings"][0]["message"]
    stale = found["KeepsAll"]["findings"][0]
    assert stale["rule"] == "stale-reference"
    assert stale["origin"]["file"] == MODELS
    assert found["KeepsAll"]["details"]["stale-reference"]["smallest_safe_slots"] == 7


@pytest.mark.full
def test_what_fails_after_the_first_load_is_a_finding() -> None:
    found = results(
        *(f"python:{MODELS}:{name}" for name in ("LacksAPackage", "only_twice")), status=1
    )
    assert "no more of them" in found["only_twice"]["findings"][0]["message"]
    assert found["only_twice"]["verdict"] == "failed"
    (raised,) = found["LacksAPackage"]["findings"]
    assert (raised["rule"], raised["severity"]) == ("chunk-dependent", "warning")
    assert "no package joins the parts" in raised["message"]


@pytest.mark.full
@pytest.mark.parametrize("index", ["{nope", "[]", '{"weight_map": {"a": 1}}'])
def test_a_checkpoint_with_a_broken_index_is_a_finding(tmp_path: Path, index: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(index)
    found = results(f"python:{MODELS}:Good", "--checkpoint", str(tmp_path), status=1)["Good"]
    assert f"{tmp_path} cannot be read" in found["findings"][0]["message"]


@pytest.mark.full
def test_a_factory_that_ends_its_process_is_reported_with_its_status_and_last_words() -> None:
    found = results(f"python:{MODELS}:exits", f"python:{MODELS}:leaves", status=1)
    message = {name: result["findings"][0]["message"] for name, result in found.items()}
    assert (
        "it exited with status 3, its last words: no licence was found (at: exits())"
        in message["exits"]
    )
    assert (
        "it exited with status 4, its last words: SystemExit: 4 (at: leaves())" in message["leaves"]
    )


@pytest.mark.full
@pytest.mark.parametrize("factory", ["hangs", "computes_for_ever"])
def test_a_factory_that_does_not_end_is_stopped(factory: str) -> None:
    found = results(f"python:{MODELS}:{factory}", "limits.seconds=1", status=1)
    assert "longer than 1 seconds" in found[factory]["findings"][0]["message"]


@pytest.mark.full
def test_a_checkpoint_of_a_folder_takes_the_place_of_the_files_own(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    tensors = tests.loading.models.checkpoint()
    del tensors["o.bias"]
    save_file(tensors, tmp_path / "model.safetensors")
    found = results(f"python:{MODELS}:Good", "--checkpoint", str(tmp_path), status=1)["Good"]
    assert [finding["parameter"] for finding in found["findings"]] == ["o.bias"]


@pytest.mark.full
def test_the_shard_of_a_tensor_is_named(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    tensors = tests.loading.models.checkpoint()
    last = {name: tensors.pop(name) for name in ("v.weight", "mean")}
    save_file(tensors, tmp_path / "model-00001-of-00002.safetensors")
    save_file(last, tmp_path / "model-00002-of-00002.safetensors")
    found = results(f"python:{MODELS}:SkipsBuffer", "--checkpoint", str(tmp_path), status=1)[
        "SkipsBuffer"
    ]
    assert [finding["message"].rpartition(": ")[2] for finding in found["findings"]] == [
        "mean (in model-00002-of-00002.safetensors)"
    ]


@pytest.mark.full
def test_values_that_nobody_gave_are_not_called_the_users_own(tmp_path: Path) -> None:
    lines = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})",
        "from tests.loading.models import Good",
        "class Alone(Good):",
        "    def place(self, name):",
        "        return dict(self.state_dict())[name]",
    )
    (tmp_path / "alone.py").write_text("\n".join(lines))
    found = results(f"python:{tmp_path}/alone.py:Alone", f"python:{MODELS}:Good", status=0)
    checkpoints = {
        name: result["details"]["subject"]["checkpoint"] for name, result in found.items()
    }
    assert checkpoints == {
        "Alone": "random values under its own parameters' names",
        "Good": "the user's own",
    }


@pytest.mark.full
def test_settings_choose_the_checks() -> None:
    found = results(
        f"python:{MODELS}:KeepsAll",
        "checks=[stale-reference,order-dependent]",
        "sources=[owned,shuffled]",
        status=0,
    )["KeepsAll"]
    assert found["checks"] == {"stale-reference": "not-run", "order-dependent": "passed"}
    assert "reusable_buffer" in found["details"]["stale-reference"]["reason"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "nothing is named"),
        (["vlm:BertModel"], "did you mean `vllm:BertModel`?"),
        (["python:nothing.py:factory"], "there is no file nothing.py"),
        (["python:nothing.py"], "which function"),
        (["BertModel"], "is no subject"),
        (["vllm:BertModel", "--python", "/no/such/python"], "cannot be started"),
        (["vllm:BertModel", "slotz=2"], "did you mean `slots`?"),
        (["vllm:BertModel", "subjects.match=x"], "error[ignored-setting"),
        (["vllm:BertModel", "--checkpoint", "/tmp"], "error[ignored-setting"),
        (["--all", "vllm", "--checkpoint", "/tmp"], "none is named"),
        ([f"python:{MODELS}:Good", "--digest"], "error[ignored-setting"),
        (["vllm_all", "run.name=x"], "there is no setting `run`"),
        pytest.param(
            ["sglang:LlamaForCausalLM", "--python", sys.executable],
            "cannot import sglang",
            marks=pytest.mark.full,
        ),
    ],
)
def test_bad_input_is_reported_and_nothing_is_judged(arguments: list[str], words: str) -> None:
    done = load_check(*arguments)
    assert words in done.stdout + done.stderr
    assert done.status in (1, 2)
    assert "Traceback" not in done.stderr


@pytest.mark.full
def test_a_misspelt_class_of_transformers_has_near_names() -> None:
    done = load_check("transformers:LlamaForCausalML", "--python", sys.executable)
    assert "did you mean `transformers:LlamaForCausalLM`" in done.stdout
    assert done.status == 2


@pytest.mark.full
def test_a_twin_of_transformers_goes_through_from_pretrained() -> None:
    found = results("transformers:LlamaForCausalLM", "--python", sys.executable, status=0)[
        "LlamaForCausalLM"
    ]
    assert found["verdict"] == "clean"
    assert found["checks"]["unwritten-parameter"] == "passed"
    assert found["checks"]["stale-reference"] == "not-run"
    assert found["details"]["subject"]["class"].endswith("LlamaForCausalLM")


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what a command has printed of a class with findings, its page, and its
    baseline.
    """
    made = tmp_path_factory.mktemp("kept")
    done = load_check(
        f"python:{MODELS}:KeepsAll",
        "--baseline",
        str(made / "known.json"),
        "--html",
        str(made / "page.html"),
    )
    assert done.status == 0, done.stderr
    (made / "stdout").write_text(done.stdout)
    return made


def test_what_was_judged_is_said(kept: Path) -> None:
    assert (
        f"python:{MODELS}:KeepsAll: models.KeepsAll, checkpoint: the user's own\n"
        in (kept / "stdout").read_text()
    )


@pytest.mark.full
def test_a_baseline_leaves_what_is_known_uncounted(kept: Path) -> None:
    file = kept / "known.json"
    assert f"recorded in {file}" in (kept / "stdout").read_text()
    again = load_check(f"python:{MODELS}:KeepsAll", "--baseline", str(file), "--format", "json")
    assert again.status == 0
    assert json.loads(again.stdout)["summary"]["errors"] == 0
    assert "not counted" in again.stderr
    assert (
        load_check(
            f"python:{MODELS}:KeepsAll", f"python:{MODELS}:SkipsBias", "--baseline", str(file)
        ).status
        == 1
    )


@pytest.mark.full
def test_a_page_is_written_in_addition_to_what_is_printed(kept: Path) -> None:
    assert f"page: {kept / 'page.html'}" in (kept / "stdout").read_text()
    assert "stale-reference" in (kept / "page.html").read_text()


@pytest.mark.full
def test_a_page_gives_the_command_that_makes_its_findings_again(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    given = [
        "slots=2",
        "checks=[unwritten-parameter,stale-reference]",
        'allow=["mean*"]',
        "limits.seconds=50",
        f"--python={sys.executable}",
    ]
    assert load_check(f"python:{MODELS}:KeepsAll", *given, "--html", str(page)).status == 1
    again = re.search(
        "Check it again</dt><dd><code>vtool load-check (.*?)</code>", page.read_text()
    )
    assert again is not None
    words = shlex.split(html.unescape(again[1]))
    assert words[0] == f"python:{MODELS}:KeepsAll"
    assert set(words[1:]) == {*given[:3], "limits.seconds=50.0", given[4]}
    assert load_check(*words).status == 1


@pytest.mark.full
def test_findings_are_annotations_and_sarif() -> None:
    subject = f"python:{MODELS}:KeepsAll"
    assert (
        f"::error file={Path(MODELS).relative_to(ROOT)},"
        in load_check(subject, "--format", "github").stdout
    )
    found = json.loads(load_check(subject, "--format", "sarif").stdout)["runs"][0]["results"]
    assert {result["ruleId"] for result in found} >= {"VT401"}


@pytest.mark.parametrize(
    "arguments",
    [
        ("--html", "/no/such/page.html"),
        ("--html", "/proc/page.html"),
        ("--baseline", "/no/such/known.json"),
        ("--baseline", "/proc/known.json"),
        ("--baseline", __file__),
        ("--html", "/"),
        ("--html", __file__),
        ("--html", f"/tmp/{'y' * 300}"),
        ("--baseline", f"/tmp/{'y' * 300}"),
        ("--html", "/dev/null"),
    ],
)
def test_an_output_that_cannot_be_written_is_reported_before_the_work(
    arguments: tuple[str, str], tmp_path: Path
) -> None:
    (tmp_path / "f.py").write_text("open(__file__ + '.ran', 'w').close()\n")
    done = load_check(f"python:{tmp_path}/f.py:f", *arguments)
    assert done.status == 2
    assert f"{Path(arguments[1]).parent}" in done.stderr
    assert not (tmp_path / "f.py.ran").exists()


@pytest.mark.full
def test_an_output_that_turns_out_not_to_be_takes_no_results_away(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    lines = (
        f"import os, sys; sys.path.insert(0, {str(ROOT)!r})",
        "from tests.loading.models import Good, checkpoint",
        "def f():",
        f"    if os.path.exists({str(tmp_path / 'out')!r}): os.rmdir({str(tmp_path / 'out')!r})",
        "    return Good()",
    )
    (tmp_path / "f.py").write_text("\n".join(lines))
    done = load_check(f"python:{tmp_path}/f.py:f", "--html", str(tmp_path / "out" / "page.html"))
    assert done.status == 2
    assert f"no findings; checks: {len(CLASS_RULES)} passed" in done.stdout
    assert "page.html cannot be written" in done.stderr


@pytest.mark.full
def test_a_stopped_command_reports_what_it_has(tmp_path: Path) -> None:
    page, known = tmp_path / "page.html", tmp_path / "known.json"
    more = ["--python", sys.executable, "jobs=1", "--html", str(page), "--baseline", str(known)]
    command = [
        sys.executable,
        "-m",
        "vtool",
        "load-check",
        "--all",
        "transformers",
        "subjects.match=Qwen*",
        *more,
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    ) as running:
        assert running.stderr is not None
        while not running.stderr.readline().startswith("1/"):
            assert running.poll() is None
        running.send_signal(signal.SIGINT)
        out, progress = running.communicate()
    assert running.returncode == 130
    assert "transformers:Qwen" in out
    assert "transformers:Qwen" in page.read_text()
    assert re.search(r"^stopped after \d+ of \d\d+$", progress, re.MULTILINE)
    assert not known.exists()


@pytest.mark.full
def test_a_pattern_that_fits_nothing_is_reported() -> None:
    done = load_check(
        "--all", "transformers", "subjects.match=Nothing*", "--python", sys.executable
    )
    assert done.status == 2
    assert "fits subjects.match `Nothing*`" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("not run: ")


def test_an_interpreter_without_torch_is_reported(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys._base_executable} -I -S "$@"\n')  # without site-packages
    bare.chmod(0o755)
    done = load_check("vllm:BertModel", "--python", str(bare))
    assert done.status == 2
    assert "cannot import torch" in done.stdout


@pytest.mark.full
def test_a_recipe_that_trains_is_checked_by_what_will_serve_it(tmp_path: Path) -> None:
    subject = ["digits", f"run.dir={tmp_path}", "slots=2"]
    found = json.loads(
        load_check(*subject, "--python", "/no/such/python", "--format", "json").stdout
    )["results"]
    # there is no export yet, and no vLLM
    assert [result["subject"] for result in found] == ["digits"]
    (tmp_path / "export").mkdir()
    (tmp_path / "export" / "config.json").write_text("{}")
    (there,) = json.loads(load_check(*subject, "--format", "json").stdout)["results"]
    assert there["subject"] == "digits"
    assert there["findings"][0]["rule"] == "no-weights"
    assert "did you mean `slots`?" in load_check("digits", "slotz=2").stderr


@pytest.mark.full
def test_all_of_a_framework_ends_with_a_table_and_what_was_not_run() -> None:
    done = load_check(
        "--all",
        "transformers",
        "subjects.match=LlamaFor*Classification",
        "--python",
        sys.executable,
    )
    assert done.status == 0
    assert done.stderr.count("clean") == 2
    table = done.stdout.splitlines()
    assert next(line for line in table if line.startswith("unwritten-parameter")).split() == [
        "unwritten-parameter",
        "2",
        "0",
        "0",
    ]
    assert "not run" in table[-1]


def test_a_reason_is_reported_once_and_of_several_subjects_with_its_own(tmp_path: Path) -> None:
    for name in ("a", "b"):
        folder(tmp_path / name, model={"x": f32(2)})
    one = load_check(f"{tmp_path}/a", "--python", sys.executable, "limits.memory_mib=64")
    assert one.stdout.splitlines()[-1].startswith("not run: the weights take")
    assert one.stdout.splitlines()[-1].count("the weights take") == 1
    both = load_check(
        f"{tmp_path}/a", f"{tmp_path}/b", "--python", sys.executable, "limits.memory_mib=64"
    ).stdout.splitlines()
    for name in ("a", "b"):
        line_start = f"{tmp_path}/{name}: files clean, class not-run: the weights take"
        assert sum(line.startswith(line_start) for line in both) == 1


def test_on_a_terminal_the_progress_is_one_line() -> None:
    import pty

    from vtool.cli.load_check_text import Live
    from vtool.diagnostics.result import Result
    from vtool.loading.check import CheckProgress

    ours, theirs = pty.openpty()
    terminal = os.fdopen(theirs, "w")
    live = Live(terminal, enabled=True)
    for number in (1, 2):
        live.show(CheckProgress(number, 2, Result(f"vllm:{'Long' * 40}{number}", "clean"), 0.5))
    live.end()
    print("that is all", file=terminal, flush=True)
    seen = b""
    while b"that is all" not in seen:  # a terminal gives what it has, a piece at a time
        seen += os.read(ours, 10_000)
    terminal.close()
    os.close(ours)
    shown = seen.decode().partition("that is all")[0]
    assert "\n" not in shown
    assert shown.count("\r\x1b[K") == 3
    assert max(map(len, shown.split("\r\x1b[K"))) < 80


def test_a_link_that_leads_to_itself_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for subject in (tmp_path / "loop", tmp_path / "loop" / "model"):
        done = load_check(str(subject))
        assert done.status == 2
        assert "Traceback" not in done.stderr
