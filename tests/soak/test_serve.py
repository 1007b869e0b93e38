"""`vtool serve` with vLLM itself: what it prints works, and answers as `vtool predict` does."""

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.commands import vtool

pytestmark = pytest.mark.soak

IMAGES = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, and one of an adapter."""
    if not os.environ.get("VTOOL_VLLM_PYTHON"):
        pytest.skip(
            "not run: VTOOL_VLLM_PYTHON is not set to the interpreter of an environment with vLLM"
            " (`make vllm-env` makes one)"
        )
    folder = tmp_path_factory.mktemp("serve")
    for recipe in ("digits", "digits_lora"):
        settings = ["train.steps=200", "optim.warmup_steps=20", f"run.dir=runs/{recipe}"]
        command = [sys.executable, "-m", "vtool", "train", "sft", recipe, *settings]
        subprocess.run(command, check=True, cwd=folder)
    return folder


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


@contextmanager
def serving(folder: Path, run: str, port: int, end: int = signal.SIGINT) -> Iterator[str]:
    """The curl command that a server prints; it is ended by a signal, and must leave nothing."""
    command = [sys.executable, "-m", "vtool", "serve", run, "--port", str(port)]
    process = subprocess.Popen(command, cwd=folder, text=True, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        first, curl = process.stdout.readline(), process.stdout.readline()
        assert f"is served as {run}: http://127.0.0.1:{port}/v1" in first
        servers = [pid for pid, words in _processes() if "api_server\0--model" in words]
        servers = [pid for pid in servers if str(port) in _words(pid)]
        yield curl.strip()
        process.send_signal(end)
        assert process.wait(60) == (-end if end == signal.SIGKILL else 128 + end)
        assert len(servers) == 1
        _wait_until_gone(servers[0])
    finally:
        process.kill()
        process.wait()
    with socket.socket() as listening:  # nobody listens there any more
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", port))


@pytest.mark.parametrize("run", ["digits", "digits_lora"])
def test_the_printed_request_gets_the_answers_of_predict(folder: Path, run: str) -> None:
    images = sorted((folder / "runs" / run / "samples").glob("*.png"))[:IMAGES]
    rows = [
        {
            "messages": [{"role": "user", "content": "<image>Which digit is shown?"}],
            "images": [str(image)],
        }
        for image in images
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "answers.jsonl").unlink(missing_ok=True)
    vtool(folder, "predict", run, "rows.jsonl", "--out", "answers.jsonl")
    lines = (folder / "answers.jsonl").read_text().splitlines()
    predicted = [json.loads(line)["answer"] for line in lines]
    served = []
    with serving(folder, run, free_port()) as curl:
        for image in images:
            asked = re.sub(r"base64 -w0 \S+\.png", f"base64 -w0 {image}", curl)
            assert str(image) in asked
            done = subprocess.run(
                ["bash", "-c", asked], cwd=folder, check=True, text=True, capture_output=True
            )
            served.append(json.loads(done.stdout)["choices"][0]["message"]["content"])
    assert served == predicted
    assert len(set(served)) > 1, "the answers depend on the images"


def test_a_server_that_cannot_start_is_one_finding_with_its_cause(folder: Path) -> None:
    broken = folder / "broken"
    broken.mkdir()
    for file in (folder / "runs/digits/export").iterdir():
        whole = file.read_bytes()
        cut = file.suffix == ".safetensors"
        (broken / file.name).write_bytes(whole[: len(whole) // 2] if cut else whole)
    output = vtool(folder, "serve", "broken", "--port", str(free_port()), status=2)
    assert "server-failed" in output
    assert "safetensor" in output.lower()


def test_a_killed_command_leaves_no_server(folder: Path) -> None:
    with serving(folder, "digits", free_port(), signal.SIGKILL) as curl:
        assert "curl" in curl


def _processes() -> list[tuple[int, str]]:
    every = (int(each.name) for each in Path("/proc").glob("[0-9]*"))
    return [(process, _words(process)) for process in every]


def _words(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text()
    except OSError:
        return ""


def _wait_until_gone(process: int) -> None:
    """Wait for a process that is nobody's child here: its descriptor shows its end."""
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        return
    try:
        ready, _, _ = select.select([descriptor], [], [], 120)
        assert ready, "the server keeps running"
    finally:
        os.close(descriptor)
