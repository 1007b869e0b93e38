"""A model's folder is a stranger's: nothing of it is run, whatever it names."""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.tokenizers import qwen_like
from vtool.config.schema import Model
from vtool.data.chat import render_chat
from vtool.data.row import Row
from vtool.diagnostics import Findings
from vtool.models.build import build_model, load_model, model_config
from vtool.models.processor import load_processor

FILES = (
    "config.json",
    "tokenizer_config.json",
    "preprocessor_config.json",
    "processor_config.json",
)


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder whose every file asks for code of its own, which would leave a trace."""
    folder = qwen_like(tmp_path / "model")
    trace = tmp_path / "trace"
    (folder / "evil.py").write_text(f"open({str(trace)!r}, 'w').close()\nclass Evil: ...\n")
    names = ("AutoConfig", "AutoModel", "AutoModelForImageTextToText", "AutoModelForCausalLM")
    more = ("AutoImageProcessor", "AutoVideoProcessor", "AutoProcessor")
    auto_map: dict[str, str | list[str]] = dict.fromkeys((*names, *more), "evil.Evil")
    auto_map["AutoTokenizer"] = ["evil.Evil", "evil.Evil"]
    for name in FILES:
        if (folder / name).exists():
            values = json.loads((folder / name).read_text())
            (folder / name).write_text(json.dumps(values | {"auto_map": auto_map}))

    def asked(prompt: str = "") -> str:
        raise AssertionError(f"the user is asked: {prompt}")

    monkeypatch.setattr("builtins.input", asked)
    yield folder
    assert not trace.exists()


def test_code_that_a_folder_names_in_auto_map_is_not_run(hostile: Path) -> None:
    processor = load_processor(hostile, "qwen2_5_vl")
    assert type(processor.tokenizer).__module__.startswith("transformers.")
    config = model_config(Model(path=str(hostile), family="qwen2_5_vl"), processor)
    assert type(config).__module__.startswith("transformers.")


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_a_kind_that_only_its_own_code_knows_is_refused_without_a_question(
    hostile: Path, file: str
) -> None:
    values = json.loads((hostile / file).read_text())
    key = "model_type" if file == "config.json" else "tokenizer_class"
    (hostile / file).write_text(json.dumps(values | {key: "Evil"}))
    with suppress(Findings):  # or transformers has a class of its own that fits
        loaded = load_processor(hostile, "qwen2_5_vl")
        assert type(loaded.tokenizer).__module__.startswith("transformers.")


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.popen('true').read() }}",
        "{{ self.__init__.__globals__ }}",
        "{{ ('{0.__class__.__base__}').format(1) }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}{{ os }}",
        "{{ messages.append(messages[0]) }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__globals__ }}",
    ],
)
def test_a_chat_template_reaches_nothing_but_the_chat(template: str, tmp_path: Path) -> None:
    folder = qwen_like(tmp_path / "model")
    (folder / "chat_template.jinja").write_text(template)
    row = Row(
        "r",
        [{"role": "user", "content": "What?"}, {"role": "assistant", "content": "a cat"}],
        [],
    )
    with pytest.raises(Findings):
        render_chat(row, load_processor(folder, "qwen2_5_vl"))


@pytest.mark.parametrize("token", [10**12, 10**5, -1])
def test_a_token_id_that_the_tokenizer_has_not_is_refused(tmp_path: Path, token: int) -> None:
    folder = qwen_like(tmp_path / "model")
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | {"image_token_id": token}))
    with pytest.raises(Findings, match=f"model-does-not-load.*: image {token}"):
        load_processor(folder, "qwen2_5_vl")


def test_a_config_that_no_model_can_be_built_of_is_a_finding(tmp_path: Path) -> None:
    folder = qwen_like(tmp_path / "model")
    processor = load_processor(folder, "qwen2_5_vl")
    settings = Model(path=str(folder), family="qwen2_5_vl", init="random")
    config = model_config(Model(path=str(folder), family="qwen2_5_vl"), processor)
    config.text_config.hidden_act = "__import__('os')"
    config.save_pretrained(folder)
    with pytest.raises(Findings, match=r"model-does-not-load.*config\.json: KeyError"):
        build_model(settings, processor, folder, 0)


class Asking:
    """An object whose pickle asks for a command to be run."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch {self.trace}",)


def test_a_pickle_that_asks_for_code_is_refused_without_advice_to_run_it(tmp_path: Path) -> None:
    folder = qwen_like(tmp_path / "model")
    for file in folder.glob("*.safetensors*"):
        file.unlink()
    torch.save({"x": Asking(tmp_path / "trace")}, folder / "pytorch_model.bin")
    with pytest.raises(Findings) as caught:
        load_model(folder, "qwen2_5_vl", torch.float32, "sdpa")
    (finding,) = caught.value.diagnostics
    assert finding.rule == "model-does-not-load"
    assert "posix.system" in finding.message
    assert "weights_only" not in finding.message
    assert not (tmp_path / "trace").exists()
