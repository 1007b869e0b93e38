"""Answers through vLLM: what it is given, what is reported where it fails, without vLLM itself.

(tests/soak/test_evaluate_with_vllm.py has it answer.)
"""

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import vtool.evaluation.vllm as asking_vllm
from tests.runs import read_lines
from vtool.diagnostics import Findings
from vtool.evaluation.run import EvaluationRequest, evaluate_model
from vtool.evaluation.subject import open_model

Evaluate = Callable[..., Any]

WORKER = """
import json, os, sys
settings = json.loads(sys.stdin.readline())
answers = os.fdopen(int(sys.argv[1]), "w")
def say(value):
    print(json.dumps(value), file=answers, flush=True)
say({"vllm": "none"})
"""
"""The beginning of a process that uses the real worker's protocol."""


@pytest.fixture
def request_to(made: tuple[Path, Path], tmp_path: Path) -> EvaluationRequest:
    return EvaluationRequest(
        str(made[0]),
        str(made[1]),
        max_new_tokens=6,
        folder=tmp_path / "to",
        batch_size=4,
        engine="vllm",
    )


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a script in the place of the one that runs vLLM."""

    def put(script: str) -> None:
        file = tmp_path / "worker.py"
        file.write_text(script)
        monkeypatch.setattr(asking_vllm, "_WORKER", file)
        monkeypatch.setenv("VTOOL_VLLM_PYTHON", sys.executable)

    return put


def test_without_vllm_it_is_said_what_to_install(
    request_to: EvaluationRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VTOOL_VLLM_PYTHON", raising=False)
    monkeypatch.setattr(asking_vllm, "vllm_python", lambda: os.environ.get("VTOOL_VLLM_PYTHON"))
    for named in (None, str(tmp_path / "no-python")):
        if named:
            monkeypatch.setenv("VTOOL_VLLM_PYTHON", named)
        with pytest.raises(Findings) as caught:
            evaluate_model(request_to, print)
        (one,) = caught.value.diagnostics
        assert one.rule == "extra-not-installed"
        assert "VTOOL_VLLM_PYTHON=" in (one.help or "")
        assert caught.value.fatal


def test_it_is_given_the_prompt_with_a_token_for_each_image_and_the_reference_behind_it(
    request_to: EvaluationRequest, worker: Callable[[str], None], tmp_path: Path
) -> None:
    """A stand-in keeps what it is sent, and ends."""
    kept = tmp_path / "sent.json"
    worker(WORKER + f"open({str(kept)!r}, 'w').write(json.dumps([settings, sys.stdin.readline()]))")
    with pytest.raises(Findings, match="vLLM's process ended with exit status 0"):
        evaluate_model(request_to, print)
    settings, line = json.loads(kept.read_text())
    sent: list[Mapping[str, Any]] = json.loads(line)
    assert settings["temperature"] == 0
    assert settings["engine"]["limit_mm_per_prompt"] == {"image": 2, "video": 0}
    assert settings["engine"]["mm_processor_kwargs"]["use_fast"] is False
    subject = open_model(request_to.model)
    assert subject.run is not None
    image = subject.processor(subject.run.data).ids.image
    assert len(sent) == 6
    assert {one["prompt"].count(image) for one in sent} == {1, 2}
    for one in sent:
        assert one["prompt"].count(image) == len(one["images"])
        assert one["whole"][: len(one["prompt"])] == one["prompt"]
        assert one["whole"][len(one["prompt"]) :][: len(one["wanted"])] == one["wanted"]
        assert len(one["supervised"]) == len(one["wanted"])


def test_a_process_that_fails_is_quoted_and_what_was_answered_is_kept(
    request_to: EvaluationRequest, worker: Callable[[str], None]
) -> None:
    worker(WORKER + "raise ValueError('no kernel for heads of 16')")
    with pytest.raises(Findings) as caught:
        evaluate_model(request_to, print)
    (one,) = caught.value.diagnostics
    assert one.rule == "vllm-failed"
    assert "exit status 1: ValueError: no kernel for heads of 16" in one.message
    assert caught.value.fatal


def test_tokens_that_are_not_ours_are_refused(
    request_to: EvaluationRequest, worker: Callable[[str], None]
) -> None:
    worker(
        WORKER
        + """
for line in sys.stdin:
    say([{"prompt": one["prompt"], "ids": [1], "logprob": 0.0} for one in json.loads(line)])
"""
    )
    with pytest.raises(Findings, match=r"vLLM read .* tokens, and vtool reads"):
        evaluate_model(request_to, print)


def test_answers_of_vllm_have_a_folder_of_their_own_and_are_not_mixed(
    request_to: EvaluationRequest, worker: Callable[[str], None]
) -> None:
    assert str(replace(request_to, folder=None).to()).endswith("-vllm")
    own = evaluate_model(replace(request_to, engine=None), lambda _: None)
    assert own is not None
    before = read_lines(own.store.predictions)
    worker(WORKER)
    with pytest.raises(Findings, match='engine: null then, "vllm" now'):
        evaluate_model(request_to, print)
    assert read_lines(own.store.predictions) == before


def test_ranks_are_refused(
    request_to: EvaluationRequest, worker: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker(WORKER)
    subject = open_model(request_to.model)
    with pytest.raises(Findings, match="there are 2 ranks"):
        asking_vllm.check_served(subject, 2)
