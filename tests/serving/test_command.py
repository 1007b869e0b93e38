"""The command of vLLM's server, as `vtool serve --print` shows it."""

import json
import shlex
import shutil
import socket
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import peft
import pytest
import torch

from tests.commands import run_vtool, vtool
from vtool.diagnostics import Findings
from vtool.models.build import load_model
from vtool.serving.command import Address, ServedModel, ServerCommand, curl_example, serve_command
from vtool.serving.server import check_address, check_key
from vtool.serving.vllm import VLLM

ROOT = Path(__file__).parents[2]
CPU, GPU = (VLLM("python", "0.32.0", on_cpu) for on_cpu in (True, False))
TEXT = {
    "hidden_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "max_position_embeddings": 2048,
}


@pytest.fixture(autouse=True)
def _vllm(monkeypatch: pytest.MonkeyPatch, stand_in: Path) -> None:
    """An interpreter in whose path a package `vllm` is found; the real one is in the soak test."""
    monkeypatch.setenv("VTOOL_VLLM_PYTHON", str(stand_in))


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    """A stand-in for the Python of vLLM's environment: `api_server` is what a test writes there."""
    package = tmp_path / "packages/vllm/entrypoints/openai"
    package.mkdir(parents=True)
    (package / "api_server.py").write_text(SERVER)
    python = tmp_path / "python"
    path = f"PYTHONPATH={shlex.quote(str(tmp_path / 'packages'))}"
    python.write_text(f'#!/bin/sh\n{path} exec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    return python


SERVER = """
import http.server, json, sys
name = sys.argv[sys.argv.index("--served-model-name") + 1]
port = int(sys.argv[sys.argv.index("--port") + 1])
if "--fail" in sys.argv:
    print("INFO: loading")
    print("(EngineCore pid=1) ValueError: there is no such weight")
    print("RuntimeError: Engine core initialization failed. See root cause above.")
    sys.exit(3)
class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"data": [{"id": name}]}).encode())
        if "--end" in sys.argv and self.path == "/v1/models":
            import os
            self.wfile.flush()
            os._exit(5)
http.server.HTTPServer(("127.0.0.1", port), Answers).serve_forever()
"""
"""Not vLLM: it answers where vLLM says that it is ready. `tests/soak/test_serve.py` has vLLM."""


def model(**text: Any) -> ServedModel:
    config = {"model_type": "qwen2_5_vl", "dtype": "float32", "text_config": TEXT | text}
    return ServedModel("digits", Path("runs/digits/export"), config)


def options(command: ServerCommand) -> dict[str, str]:
    """Every option with its value, empty for one without."""
    words = [*command.words, "--"]
    pairs = pairwise(words)
    return {one: "" if two.startswith("--") else two for one, two in pairs if one[:2] == "--"}


def made(model: ServedModel, vllm: VLLM = CPU, **more: Any) -> ServerCommand:
    return serve_command(model, vllm, Address("127.0.0.1", 8000), {}, **more)


def test_the_command_has_what_makes_vllm_answer_as_vtool_does() -> None:
    """Each option is explained in docs/serving.md."""
    found = options(made(model()))
    assert found == {
        "--model": "runs/digits/export",
        "--served-model-name": "digits",
        "--host": "127.0.0.1",
        "--port": "8000",
        "--dtype": "float32",
        "--generation-config": "vllm",
        "--chat-template-content-format": "openai",
        "--enforce-eager": "",
    }
    page = (ROOT / "docs/serving.md").read_text()
    unexplained = {"--host", "--port"}  # what they are is plain
    assert {name for name in found if name not in page} <= unexplained


@pytest.mark.parametrize("trained", ["pil", "torchvision"])
def test_vllm_resizes_as_the_training_did(tmp_path: Path, trained: str) -> None:
    """An adapter's folder says it, where there is one: its base may have been trained otherwise."""
    for name, backend in (("base", "pil"), ("export", trained)):
        (tmp_path / name).mkdir()
        settings = json.dumps({"vtool_backend": backend})
        (tmp_path / name / "preprocessor_config.json").write_text(settings)
    config, wanted = model().config, json.dumps({"use_fast": trained == "torchvision"})
    whole = ServedModel("digits", tmp_path / "export", config)
    adapted = ServedModel("digits", tmp_path / "base", config, tmp_path / "export", rank=9)
    for each in (whole, adapted):
        assert options(made(each))["--mm-processor-kwargs"] == wanted
    assert "--mm-processor-kwargs" in (ROOT / "docs/serving.md").read_text()


def test_an_adapter_is_applied_to_the_tower_too() -> None:
    adapted = ServedModel("digits", Path("base"), model().config, Path("export"), rank=9)
    found = options(made(adapted))
    assert found["--served-model-name"] == "digits-base"
    assert found["--lora-modules"] == "digits=export"
    assert found["--max-lora-rank"] == "16"
    assert "--enable-tower-connector-lora" in found


def test_what_the_user_says_is_passed_on() -> None:
    found = options(made(model(), compile=True, dtype="bfloat16", more=("--seed", "3")))
    assert found["--dtype"] == "bfloat16"
    assert found["--seed"] == "3"
    assert "--enforce-eager" not in found


def test_the_cache_of_a_cpu_has_room_for_the_longest_chat() -> None:
    cache = "VLLM_CPU_KVCACHE_SPACE"
    assert made(model()).variables[cache] == "1"
    # 2 (keys, values) × 36 layers × 4 heads × 128 × 32768 tokens × 4 bytes = 4.5 GiB
    long = {"hidden_size": 512, "num_key_value_heads": 4, "num_hidden_layers": 36}
    assert made(model(**long, max_position_embeddings=32768)).variables[cache] == "5"
    assert cache not in made(model(**long, max_position_embeddings=2**20)).variables
    assert cache not in made(model(), GPU).variables
    own = serve_command(model(), CPU, Address("127.0.0.1", 8000), {cache: "3"})
    assert cache not in own.variables


@pytest.mark.parametrize(
    ("config", "dtype"),
    [
        ({"text_config": TEXT | {"hidden_size": 64}}, None),
        ({"text_config": TEXT, "model_type": "qwen3_5"}, "bfloat16"),
        ({"text_config": TEXT | {"head_dim": 64}, "model_type": "qwen3_5"}, "float32"),
    ],
)
def test_what_vllm_does_not_run_on_a_cpu_is_refused_there(
    config: dict[str, Any], dtype: str | None
) -> None:
    one = ServedModel("digits", Path("folder"), config)
    with pytest.raises(Findings, match="not-servable"):
        made(one, dtype=dtype)
    assert made(one, GPU, dtype=dtype).words


def test_print_names_the_runs_folders_and_starts_nothing(trained: tuple[Path, str]) -> None:
    done = run_vtool(trained[0], "serve", "digits", "--print", "--port", "1")
    words = shlex.split(done.stdout)
    assert done.status == 0
    assert words[words.index("--model") + 1] == "runs/digits/export"
    assert words[words.index("--served-model-name") + 1] == "digits"


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("--fail", "vLLM ended with status 3 before it answered: ValueError: there is no such"),
        ("--end", "vLLM ended with status 5 while it served"),
    ],
)
def test_a_server_that_ends_by_itself_is_one_finding(
    trained: tuple[Path, str], how: str, message: str
) -> None:
    port = free_port()
    done = run_vtool(trained[0], "serve", "digits", "--port", str(port), "--", how)
    assert done.status == 2
    assert message in done.stderr
    assert done.stderr.count("error[") == 1
    assert ("is served as digits" in done.stdout) == (how == "--end")


def test_a_taken_port_is_reported_before_anything_is_started(trained: tuple[Path, str]) -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(1)
        port = listening.getsockname()[1]
        output = vtool(trained[0], "serve", "digits", "--port", str(port), status=2)
    assert f"port-taken VT841]: 127.0.0.1:{port}: Address already in use" in output
    check_address(Address("127.0.0.1", port))


def test_without_vllm_the_finding_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for python, message in (
        (str(tmp_path / "none"), "cannot be started: No such file or directory"),
        (shutil.which("true") or "true", "is no Python that runs"),
        (sys.executable, "has no vLLM"),
    ):
        output = vtool(tmp_path, "serve", "digits", "--python", python, status=2)
        assert f"vllm-not-found VT840]: {python} {message}" in output
    monkeypatch.delenv("VTOOL_VLLM_PYTHON")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    assert "there is no .vllm-venv/bin/python" in vtool(tmp_path, "serve", "digits", status=2)


def test_a_model_of_another_family_is_refused_before_vllm_is_looked_for(tmp_path: Path) -> None:
    (tmp_path / "idefics").mkdir()
    (tmp_path / "idefics/config.json").write_text('{"model_type": "internlm_x"}')
    for command in (("serve", "--python", str(tmp_path / "none")), ("predict",)):
        output = vtool(tmp_path, *command, "idefics", status=2)
        assert "idefics is a model of type internlm_x, for which transformers " in output
        assert "vllm" not in output.lower()


def test_an_adapter_that_vllm_cannot_apply_is_merged_first(
    trained: tuple[Path, str], tmp_path: Path
) -> None:
    adapter, base = tmp_path / "adapter", trained[0] / "runs/digits/export"
    model = load_model(base, "qwen2_5_vl", torch.float32, "sdpa")
    config = peft.LoraConfig(r=4, target_modules=["q_proj"], use_dora=True)
    made = peft.get_peft_model(model, config)
    made.peft_config["default"].base_model_name_or_path = str(base)
    for name, weight in made.named_parameters():
        if "lora_B" in name:
            torch.nn.init.ones_(weight)
    made.save_pretrained(adapter)
    output = vtool(tmp_path, "serve", "adapter", "--print", status=2)
    assert "not-servable" in output
    assert "merge it: vtool export adapter --merge" in output


def test_an_adapter_is_served_with_its_template_and_never_with_other_pixels(
    trained: tuple[Path, str], tmp_path: Path
) -> None:
    """vLLM takes the base's chat template, and its settings of images and videos."""
    adapter, base = tmp_path / "adapter", trained[0] / "runs/digits/export"
    settings = peft.LoraConfig(r=4, target_modules=["q_proj"])
    made = peft.get_peft_model(load_model(base, "qwen2_5_vl", torch.float32, "sdpa"), settings)
    made.peft_config["default"].base_model_name_or_path = str(base)
    for name, weight in made.named_parameters():
        if "lora_B" in name:
            torch.nn.init.ones_(weight)
    made.save_pretrained(adapter)
    names = ("preprocessor_config.json", "video_preprocessor_config.json", "chat_template.jinja")
    for name in (*names, "tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(base / name, adapter / name)

    def words() -> list[str]:
        return shlex.split(vtool(tmp_path, "serve", "adapter", "--print"))

    assert "--chat-template" not in words()
    template = (base / names[2]).read_text()
    (adapter / names[2]).write_text("{% set enable_thinking = False %}\n" + template)
    found = words()
    assert found[found.index("--chat-template") + 1] == f"adapter/{names[2]}"
    for name, change in ((names[0], {"size": {"shortest_edge": 1}}), (names[1], {"fps": 9})):
        own = json.loads((adapter / name).read_text())
        (adapter / name).write_text(json.dumps(own | change))
        output = vtool(tmp_path, "serve", "adapter", "--print", status=2)
        assert "vLLM would take the base's settings of images and videos: " in output
        assert "merge it: vtool export adapter --merge" in output
        (adapter / name).write_text(json.dumps(own))


def test_an_interrupted_run_is_exported_first(trained: tuple[Path, str], tmp_path: Path) -> None:
    shutil.copytree(trained[0] / "runs/digits", tmp_path / "run", symlinks=True)
    shutil.rmtree(tmp_path / "run/export")
    output = vtool(tmp_path, "serve", "run", "--print", status=2)
    assert "write one from its newest checkpoint: vtool export run" in output
    done = run_vtool(tmp_path, "serve", "run", "--port", str(free_port()), "--", "--fail")
    assert "run has no export yet: vtool export run" in done.stderr
    assert (tmp_path / "run/export/model.safetensors").exists()


def test_the_request_that_is_printed_survives_any_question() -> None:
    question = 'It\'s "3",\n$HOME `id` \\ <image>?'
    line = curl_example(model(), Address("0.0.0.0", 80), question, Path("a b's.png"))
    printed = line.partition(" | curl")[0].replace("base64 -w0", "printf %s")
    assert "http://127.0.0.1:80/v1/chat/completions" in line
    done = subprocess.run(["bash", "-c", printed], check=True, capture_output=True, text=True)
    (message,) = json.loads(done.stdout)["messages"]
    assert message["content"] == [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,a b's.png"}},
        {"type": "text", "text": question},
    ]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.7"])
def test_other_machines_are_asked_for_a_key(host: str) -> None:
    with pytest.raises(Findings) as caught:
        check_key(host, (), {})
    assert caught.value.diagnostics[0].rule == "served-without-key"
    check_key(host, ("--api-key", "secret"), {})
    check_key(host, ("--api-key=secret",), {})
    check_key(host, (), {"VLLM_API_KEY": "secret"})


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.0.0.2"])
def test_this_machine_alone_is_asked_for_none(host: str) -> None:
    check_key(host, (), {})


@pytest.mark.parametrize(
    ("host", "more"),
    [
        ("127.0.0.1", ("--host", "0.0.0.0")),
        ("127.0.0.1", ("--enforce-eager", "--host=192.0.2.7")),
        ("127.0.0.1", ("--hos=::",)),
        ("0.0.0.0", ("--api-key=",)),
        ("0.0.0.0", ("--api-key", "")),
        ("0.0.0.0", ("--api-key",)),
    ],
)
def test_neither_vllms_own_address_nor_an_empty_key_is_a_way_around(
    host: str, more: tuple[str, ...]
) -> None:
    with pytest.raises(Findings) as caught:
        check_key(host, more, {})
    assert caught.value.diagnostics[0].rule == "served-without-key"
    check_key(host, (*more, "--api-key=secret"), {})
    check_key(host, (*more, "--host", "127.0.0.1"), {})
