"""The watched command is the user's: its output, its signals and its exit status stay its own."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.commands import run_vtool
from tests.watch.made import changed, healthy, write
from tests.watch.test_conclusions import PLANTED, on
from vtool.watch.command import find_interpreter, isolated

MEAN_OF_MEANS = PLANTED["mean of means"][1]


def started(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "vtool", "watch", *arguments],
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )


@pytest.mark.parametrize(
    ("script", "status"),
    [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 143), ("kill -KILL $$", 137)],
)
def test_the_exit_status_is_the_commands_own(tmp_path: Path, script: str, status: int) -> None:
    done = run_vtool(tmp_path, "watch", "--", "sh", "-c", script)
    assert done.status == status
    assert "nothing-read" in done.stderr


@pytest.mark.parametrize("status", [0, 5])
def test_the_exit_status_stays_the_commands_where_its_facts_are_gone(
    tmp_path: Path, status: int
) -> None:
    script = f"rm -rf facts; exit {status}"
    done = run_vtool(tmp_path, "watch", "--to", "facts", "--", "sh", "-c", script)
    assert done.status == status
    assert "there is no folder facts" in done.stderr


def test_the_commands_output_is_untouched(tmp_path: Path) -> None:
    process = started(tmp_path, "--", "sh", "-c", "echo out; echo err >&2; cat")
    out, err = process.communicate()
    assert out == "out\n"
    assert "err\n" in err
    assert process.returncode == 0


def test_open_files_are_passed_on(tmp_path: Path) -> None:
    script = f"{sys.executable} -m vtool watch -- cat <(echo made by a command)"
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        text=True,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "made by a command\n")


def test_the_environment_is_the_users_and_the_watchs(tmp_path: Path) -> None:
    process = started(tmp_path, "--to", "facts", "--steps", "5", "--no-text", "--", "env")
    out, _ = process.communicate()
    added = {line for line in out.splitlines() if line.startswith("VTOOL_WATCH")}
    assert {
        f"VTOOL_WATCH_TO={tmp_path / 'facts'}",
        "VTOOL_WATCH_STEPS=5",
        "VTOOL_WATCH_TEXT=0",
    } <= added
    (path,) = (line for line in out.splitlines() if line.startswith("PYTHONPATH="))
    assert path.removeprefix("PYTHONPATH=").startswith(str(Path("vtool/watch/inject").absolute()))
    for name in ("HF_HUB_OFFLINE", "OMP_WAIT_POLICY"):
        assert (f"{name}=" in out) == (name in os.environ)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_reaches_the_command(tmp_path: Path, number: signal.Signals) -> None:
    name = number.name.removeprefix("SIG")
    script = f"sleep 30 >up 2>&1 & trap 'kill $!; echo got; exit 9' {name}; touch ready; wait"
    process = started(tmp_path, "--", "sh", "-c", script)
    while not (tmp_path / "ready").exists():
        time.sleep(0.05)
    process.send_signal(number)
    out, _ = process.communicate()
    assert out == "got\n"
    assert process.returncode == 9


@pytest.mark.full
@pytest.mark.parametrize(
    ("to", "number"),
    [
        ("group", signal.SIGINT),
        ("watch, then watch", signal.SIGTERM),
        ("group, then watch", signal.SIGUSR1),
        ("watch and group, as timeout does", signal.SIGTERM),
        ("group once continued", signal.SIGTERM),
    ],
)
def test_a_signal_reaches_the_command_as_often_as_it_is_sent(
    tmp_path: Path, to: str, number: signal.Signals
) -> None:
    (tmp_path / "count.py").write_text(
        "import pathlib, signal, time\n"
        f"came = []\nsignal.signal({number:d}, lambda *_: came.append(1))\n"
        "pathlib.Path('ready').touch()\n"
        "while not pathlib.Path('end').exists():\n    time.sleep(0.02)\n"
        "time.sleep(0.6)\nprint(len(came))\n"
    )
    process = started(tmp_path, "--", sys.executable, "count.py")
    while not (tmp_path / "ready").exists():
        time.sleep(0.05)
    for whom in to.split(", then "):
        if "continued" in whom:  # after a Ctrl-Z
            os.killpg(process.pid, signal.SIGSTOP)
            time.sleep(2.5)
            os.killpg(process.pid, signal.SIGCONT)
            time.sleep(0.5)
        if "watch" in whom:
            os.kill(process.pid, number)
        if "group" in whom:
            os.killpg(process.pid, number)
        time.sleep(0.5)
    (tmp_path / "end").touch()
    out, _ = process.communicate()
    assert (out.strip(), process.returncode) == (str(1 + to.count(", then")), 0)


@pytest.mark.full
def test_a_signal_to_the_group_while_the_command_is_started_ends_it_alone(tmp_path: Path) -> None:
    script = """
import os, random, signal, sys, threading, time
from vtool.watch.command import run_command

main = f"/proc/self/task/{threading.main_thread().native_id}"

def blocked():  # as long as it does not wait for them
    return "SigBlk:\\t0000000000000000" not in open(f"{main}/status").read()

def send():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    while not blocked() and not open(f"{main}/children").read():
        pass
    time.sleep(random.uniform(0, 0.012))
    os.killpg(0, signal.SIGTERM)

signal.signal(signal.SIGTERM, lambda *_: print("handled here"))
for _ in range(60):
    sender = threading.Thread(target=send)
    sender.start()
    print(run_command("/bin/sleep", ["sleep", "10"], os.environ))
    sender.join()
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        start_new_session=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["143"] * 60


def test_the_end_of_a_terminal_reaches_the_command(tmp_path: Path) -> None:
    """Also where the watch leads the session, as in `ssh -t HOST vtool watch -- …`."""
    command = "trap 'touch got; exit' HUP; touch ready; while true; do sleep 0.1; done"
    script = """
import os, pty, sys, time
pid, terminal = pty.fork()
if not pid:
    command = ["sh", "-c", sys.argv[1]]
    os.execv(sys.executable, [sys.executable, "-m", "vtool", "watch", "--", *command])
while not os.path.exists("ready"):
    time.sleep(0.02)
os.close(terminal)
os.waitpid(pid, 0)
"""
    subprocess.run(
        [sys.executable, "-c", script, command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        check=True,
        timeout=120,
    )
    assert (tmp_path / "got").exists()


def test_where_the_watch_is_killed_nothing_keeps_its_output_open(tmp_path: Path) -> None:
    process = started(tmp_path, "--", "sh", "-c", "exec >&- 2>&-; echo $$ >pid; exec sleep 60")
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        time.sleep(0.05)
    process.kill()
    process.communicate(timeout=10)  # ends where nobody can write any more
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def test_the_folder_is_its_owners_alone(tmp_path: Path) -> None:
    run_vtool(tmp_path, "watch", "--to", "facts", "--", "true")
    assert (tmp_path / "facts").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["true"], 2, "put -- before the command: vtool watch -- true"),
        (["--steps", "2", "python", "x.py"], 2, "vtool watch --steps 2 -- python x.py"),
        ([], 2, "there is no command to watch"),
        (["--"], 2, "there is no command to watch"),
        (["--", "no-such-thing"], 127, "there is no command no-such-thing on the PATH"),
        (["--", "./absent.sh"], 127, "the command ./absent.sh is not there"),
        (["--", "./plain.txt"], 126, "cannot be run (chmod +x)"),
        (["--", "train.py"], 126, "cannot be run (python train.py)"),
        (["--", "./train.py"], 126, "cannot be run (python ./train.py)"),
        (["--", "./"], 126, "is a folder, and no command"),
        (["--to", "plain.txt", "--", "true"], 2, "plain.txt cannot be written into"),
        (["--to", "earlier", "--", "true"], 2, "earlier has the facts of an earlier run"),
        (["--to", "full", "--", "true"], 2, "full is not empty (a.txt)"),
        (["--tokenizer", "full", "--", "true"], 2, "there is no full/tokenizer.json"),
        (["--read", "earlier", "--", "true"], 2, "--read and a command do not go together"),
        (["--read", "absent"], 2, "there is no folder absent"),
        (["--read", "plain.txt"], 2, "plain.txt is a file; facts are in a folder"),
        (["--steps", "0", "--", "true"], 2, "--steps"),
        (["--html", "absent/page.html", "--", "true"], 2, "there is no folder absent"),
        (["--json", "absent/a.json", "--", "true"], 2, "there is no folder absent"),
        (["--json", "full", "--", "true"], 2, "full is a folder; name a file"),
        (["--json", "plain.txt", "--", "true"], 2, "it is no JSON document of vtool's"),
        (["--json", "a", "--html", "a", "--", "true"], 2, "a is the file of --html too"),
    ],
)
def test_bad_input_is_one_clear_line(
    tmp_path: Path, arguments: list[str], status: int, message: str
) -> None:
    (tmp_path / "plain.txt").write_text("text")
    (tmp_path / "train.py").write_text("pass")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/a.txt").touch()
    write(tmp_path / "earlier", healthy())
    done = run_vtool(tmp_path, "watch", *arguments)
    assert done.status == status, done.output
    assert message in re.sub(r"[\s│]+", " ", done.stderr)
    assert "Traceback" not in done.output


def test_a_baseline_that_is_none_is_said_before_the_start(tmp_path: Path) -> None:
    (tmp_path / "plain.txt").write_text("text")
    done = run_vtool(tmp_path, "watch", "--baseline", "plain.txt", "--", "touch", "started")
    assert done.status == 2
    assert "unusable-baseline" in done.output
    assert "Traceback" not in done.output
    assert not (tmp_path / "started").exists()


def test_an_interpreter_that_ignores_the_path_is_named(tmp_path: Path) -> None:
    done = run_vtool(tmp_path, "watch", "--", sys.executable, "-I", "-c", "pass")
    assert "-I makes this Python ignore PYTHONPATH" in done.stderr
    assert done.status == 0
    assert isolated(["python3", "-u", "-E", "x.py"]) == "-E"
    assert isolated(["python3", "x.py", "-I"]) is None
    assert isolated(["python", "-c", "-I"]) is None


def test_a_script_says_which_python_runs_it(tmp_path: Path) -> None:
    python = tmp_path / "venv/bin/python"
    site = tmp_path / "venv/lib/python3.10/site-packages"
    (site / "torch-2.5.1.dist-info").mkdir(parents=True)
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    script = tmp_path / "venv/bin/trainer"
    for first in (f"#!{python}\n", f'#!/bin/sh\n\'\'\'exec\' "{python}" "$0" "$@"\n'):
        script.write_text(first)
        assert str(find_interpreter(str(script))) == f"Python 3.10 of {python}, torch 2.5.1"
    script.write_text("#!/bin/bash\n")
    assert find_interpreter(str(script)) is None
    shim = tmp_path / "shims/python"  # of pyenv: which Python it starts is not seen
    shim.parent.mkdir()
    shim.write_text("#!/usr/bin/env bash\n")
    assert find_interpreter(str(shim)) is None


def test_a_command_that_failed_is_named_as_the_reason_why_nothing_was_read(tmp_path: Path) -> None:
    done = run_vtool(tmp_path, "watch", "--", "sh", "-c", "exit 3")
    assert done.status == 3
    assert "the command ended with status 3: no Python of the command" in done.stderr
    assert "ended with status" not in run_vtool(tmp_path, "watch", "--", "true").stderr


def test_findings_change_the_exit_status_only_where_asked(tmp_path: Path) -> None:
    wrong = write(tmp_path / "wrong", changed(healthy(), MEAN_OF_MEANS))
    copy = ["sh", "-c", f"cp {wrong}/* $VTOOL_WATCH_TO"]
    assert run_vtool(tmp_path, "watch", "--", *copy).status == 0
    assert run_vtool(tmp_path, "watch", "--fail-on", "error", "--", *copy).status == 1
    copy[-1] += "; exit 5"
    assert run_vtool(tmp_path, "watch", "--fail-on", "error", "--", *copy).status == 5
    assert run_vtool(tmp_path, "watch", "--fail-on", "error", "--", "true").status == 2
    lost = write(tmp_path / "lost", changed(healthy(), PLANTED["bfloat16 weights"][1]))
    copy = ["sh", "-c", f"cp {lost}/* $VTOOL_WATCH_TO"]
    assert run_vtool(tmp_path, "watch", "--fail-on", "error", "--", *copy).status == 0
    assert run_vtool(tmp_path, "watch", "--fail-on", "warning", "--", *copy).status == 1


def test_facts_are_read_anywhere(tmp_path: Path) -> None:
    write(tmp_path / "good", healthy(2))
    write(tmp_path / "wrong", changed(healthy(), MEAN_OF_MEANS))
    done = run_vtool(tmp_path, "watch", "--read", "good", "--html", "page.html")
    assert done.status == 0
    assert "108 learnt tokens" not in done.stdout
    assert "216 learnt tokens read in 12 micro-batches of 3 steps" in done.stdout
    assert "TinyForCausalLM" in (tmp_path / "page.html").read_text()
    done = run_vtool(tmp_path, "watch", "--read", "wrong", "--baseline", "known.json")
    assert done.status == 1 or "recorded" in done.stderr
    done = run_vtool(tmp_path, "watch", "--read", "wrong", "--baseline", "known.json")
    assert done.status == 0
    assert "known from known.json" in done.stderr


@pytest.mark.parametrize("shown", ["full", "json"])
def test_the_document_is_also_written_to_a_file(tmp_path: Path, shown: str) -> None:
    facts = write(tmp_path / "facts", changed(healthy(), MEAN_OF_MEANS))
    script = f"cp {facts}/* $VTOOL_WATCH_TO; echo '{{' >&2"
    given = ["--format", shown, "--json", "out.json", "--", "sh", "-c", script]
    for _ in range(2):  # its own document is replaced
        done = run_vtool(tmp_path, "watch", *given)
        assert done.status == 0, done.output
        document = json.loads((tmp_path / "out.json").read_text())
    assert document["tool"]["command"] == "watch"
    (result,) = document["results"]
    assert "token-weights-differ" in [one["rule"] for one in result["findings"]]
    assert "JSON: out.json" in done.stderr
    done = run_vtool(tmp_path, "watch", "--read", "facts", "--json", "read.json")
    assert json.loads((tmp_path / "read.json").read_text())["results"][0]["verdict"] == "unsafe"


def test_an_error_ends_the_command_where_asked(tmp_path: Path) -> None:
    wrong = write(tmp_path / "wrong", changed(healthy(), MEAN_OF_MEANS))
    trap = "trap 'touch late.safetensors; exit 130' INT; "
    script = f"{trap}cp {wrong}/* $VTOOL_WATCH_TO; while true; do sleep 0.1; done"
    process = started(tmp_path, "--stop-on", "error", "--", "sh", "-c", script)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "ended after the watched steps by token-weights-differ" in err
    assert "it saved late.safetensors then" in err


def test_a_checkpoint_from_before_the_end_is_not_one_saved_then(tmp_path: Path) -> None:
    wrong = write(tmp_path / "wrong", changed(healthy(), MEAN_OF_MEANS))
    (tmp_path / "early.safetensors").touch()
    later = time.time() + 3600  # as a file server's clock has it
    os.utime(tmp_path / "early.safetensors", (later, later))
    script = f"cp {wrong}/* $VTOOL_WATCH_TO; while true; do sleep 0.1; done"
    _, err = started(tmp_path, "--stop-on", "error", "--", "sh", "-c", script).communicate(
        timeout=300
    )
    assert "no checkpoint was seen below this folder since" in err


def test_a_healthy_command_is_not_ended(tmp_path: Path) -> None:
    good = write(tmp_path / "good", healthy())
    script = f"cp {good}/* $VTOOL_WATCH_TO; sleep 1.5; exit 3"
    done = run_vtool(tmp_path, "watch", "--stop-on", "error", "--", "sh", "-c", script)
    assert done.status == 3


def test_variables_are_printed_for_other_launchers(tmp_path: Path) -> None:
    done = run_vtool(tmp_path, "watch", "--print-env", "--to", "facts here")
    assert done.status == 0
    shell = subprocess.run(
        ["sh", "-c", f"{done.stdout}\nPYTHONPATH=/x; {done.stdout}\nenv"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"VTOOL_WATCH_TO={tmp_path / 'facts here'}" in shell.stdout
    assert re.search(r"PYTHONPATH=\S+/vtool/watch/inject:/x", shell.stdout)


def test_a_rule_that_is_certain_is_an_error_in_every_format(tmp_path: Path) -> None:
    facts = changed(healthy(), on("micro", not_next=18, is_plus={"2": 18}))
    write(tmp_path / "wrong", facts)
    for form, word in (("json", '"targets-not-next"'), ("sarif", "VT901"), ("github", "::error")):
        done = run_vtool(tmp_path, "watch", "--read", "wrong", "--format", form)
        assert done.status == 1
        assert word in done.stdout


def test_a_model_that_is_not_read_is_named_with_what_is_asked_of_it(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(
        "import torch\n"
        "class MyModel(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.lm_head = torch.nn.Linear(4, 9)\n"
        "    def forward(self, x):\n"
        "        return self.lm_head(x)\n"
        "model = MyModel()\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "model(torch.ones(2, 4)).sum().backward()\n"
        "optimizer.step()\n"
    )
    done = run_vtool(tmp_path, "watch", "--", sys.executable, "loop.py")
    assert "SGD trains MyModel, which has no language head" in done.stderr
    assert "get_output_embeddings()" in done.stderr
    assert "Read which of these it was" not in done.stderr  # it is known


TRAINS = """\
import torch
from torch import nn
optimizer = torch.optim.AdamW(nn.Linear(4, 4).parameters())
"""


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("import not_installed", "ModuleNotFoundError: No module named 'not_installed' (run.py:1)"),
        (
            f"{TRAINS}def of_mine():\n    nn.Linear(4, 4).to('nowhere')\nof_mine()",
            "RuntimeError: Expected one of cpu, ",
        ),
        (
            f"{TRAINS}raise TypeError('no warmup_ratio\\nmore')",
            "TypeError: no warmup_ratio (run.py:4)",
        ),
        # its own steps are no crash before the first
        (f"{TRAINS}optimizer.step()\nraise ValueError('late')", None),
        (f"{TRAINS}import sys; sys.exit(3)", None),
    ],
)
def test_what_ended_a_command_before_its_first_step_is_said(
    script: str, said: str | None, tmp_path: Path
) -> None:
    (tmp_path / "run.py").write_text(script)
    _, err = started(tmp_path, "--", sys.executable, "run.py").communicate()
    assert "note[nothing-read VT992]" in err
    assert ("it came to no step of an optimizer" in err) == (said is not None)
    if said is not None:
        assert f"it came to no step of an optimizer: {said}" in err
        assert "help: mend that, and run it again" in err
    if "of_mine" in script:  # the place is the user's own, not torch's
        assert "(run.py:5)" in err


def test_no_text_of_an_exception_is_kept_where_none_is_to_be(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text("raise ValueError('a row of mine')")
    process = started(tmp_path, "--to", "facts", "--no-text", "--", sys.executable, "run.py")
    assert "no step of an optimizer: ValueError (run.py:1)" in process.communicate()[1]
    (file,) = (tmp_path / "facts").glob("rank0-*.jsonl")
    assert "a row of mine" not in file.read_text()
