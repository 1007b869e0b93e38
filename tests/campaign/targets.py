"""The readers that are fuzzed: how an input is made, who judges it, and what is wrong.

Code under test raises nothing but `Findings`; whatever else leaves it is a crash. Oracles are the
reader of safetensors, and plain loaders of a few lines that are written here.
"""

import copy
import json
import math
import random
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from tests.campaign import mutate
from tests.engines.state import held
from tests.rows import picture
from vtool.config.load import effective_yaml, examine
from vtool.data.formats.llava import Llava
from vtool.data.formats.messages import Messages
from vtool.diagnostics import Diagnostic, Findings
from vtool.loading.checkpoint import audit_folder, headers
from vtool.report.page import render_run_page
from vtool.report.run_files import read_run
from vtool.training import checkpoint, start
from vtool.training.run_folder import RunFolder

SHOWN = 300
Make = Callable[[random.Random, Any], bytes]
Answer = tuple[bool, str | None]
"""True for a refused input; and the problem of that, known without an oracle."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer about an input, and the problem of that answer."""

    answer: str
    problem: str | None = None
    shown: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """A reader under test. Of all inputs it gets the share of its weight."""

    weight: int
    file: str
    """The path of an input, below the folder of all."""
    ask: Callable[[Path], Answer]
    refusal: Callable[[Path], str | None]
    """Return why an oracle refuses the file; None where it takes it."""
    trees: Sequence[Any]
    make: Make = mutate.as_json
    both: bool = False
    """True where no input that the oracle takes may be refused."""
    seconds: float = 2.0
    """Processor time that one input may take."""

    def input(self, draw: random.Random) -> bytes:
        """Return a file's content that follows from random numbers."""
        tree = copy.deepcopy(draw.choice(self.trees))
        return self.make(draw, mutate.change(draw, tree) if draw.random() < 0.9 else tree)

    def judge(self, draw: random.Random, place: Path) -> Verdict:
        content = self.input(draw)
        file = place / self.file
        kept = file.read_bytes() if file.exists() else b""
        file.write_bytes(content)
        try:
            refused, problem = self.ask(file)
            reason = self.refusal(file)
        finally:
            if kept:
                file.write_bytes(kept)
        if reason is not None and not refused:
            # where in the input it is makes no other kind of problem
            kind = re.sub(r"at line.*|['`\"\d].*", "", reason.partition("\n")[0]).strip()
            problem = f"clean, and its reader says {kind}"
        elif self.both and reason is None and refused:
            problem = "refused, and its reader takes it"
        return Verdict("refused" if refused else "clean", problem, repr(content[:SHOWN]))


def _errors(findings: Iterable[Diagnostic]) -> list[Diagnostic]:
    return [finding for finding in findings if finding.severity == "error"]


def _reason(read: Callable[[], object]) -> str | None:
    """Return why a reader raises; None where it does not."""
    try:
        read()
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{type(error).__name__} {error}"[:SHOWN]
    except (RecursionError, yaml.YAMLError) as error:
        return type(error).__name__
    return None


def _as_safetensors(draw: random.Random, header: Any) -> bytes:
    """Write a file of a header, and of as many bytes as its tensors have, at times not quite."""
    text = mutate.as_json(draw, header)
    length = len(text) if draw.random() < 0.95 else draw.choice(mutate.NUMBERS[:14]) % 2**64
    return struct.pack("<Q", length) + text + bytes(draw.choice([_BYTES] * 19 + [_BYTES + 1]))


def _ask_header(file: Path) -> Answer:
    _, findings = headers.read_header(file)
    # a key that is there twice is read by everybody, each in its own way
    return bool(_errors(findings)), None


def _refusal_of_header(file: Path) -> str | None:
    def read() -> None:
        with safe_open(file, "np") as opened:
            for name in opened.keys():  # noqa: SIM118  (it is no mapping)
                part = opened.get_slice(name)
                sizes = [size for size in part.get_shape() if size]
                bits = re.search(r"\d+", part.get_dtype())  # F32, BF16, F8_E4M3; BOOL has none
                if math.prod(sizes) * int(bits[0] if bits else 8) >= 8 * 2**63:  # together with a 0
                    raise ValueError("a shape larger than any file")

    twice = any("twice" in finding.message for finding in headers.read_header(file)[1])
    return "a key twice" if twice else _reason(read)


_BYTES = 24
_HEADERS = (
    {},
    {"t": {"dtype": "F32", "shape": [3, 2], "data_offsets": [0, 24]}},
    {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]},
        "b": {"dtype": "U8", "shape": [0, 7], "data_offsets": [12, 12]},
        "c": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [12, 16]},
        "d": {"dtype": "I64", "shape": [], "data_offsets": [16, 24]},
    },
)


def _ask_folder(file: Path) -> Answer:
    result = audit_folder(file.parent, threads=1)
    refused = bool(_errors(result.findings))
    return refused, "clean beside an error" if refused == (result.verdict == "clean") else None


def _refusal_of_index(file: Path) -> str | None:
    """Follow the index, as loaders do, and look for three tensors."""

    def read() -> None:
        places = json.loads(file.read_bytes().decode())["weight_map"]
        for tensor, name in places.items():
            if Path(name).is_absolute() or ".." in Path(name).parts:
                raise ValueError("out of the folder")
            with safe_open(file.parent / name, "np") as opened:
                opened.get_tensor(tensor)
        if {"a", "b", "c"} - places.keys():
            raise KeyError("tensors that are not in the index")

    return _reason(read)


def _refusal_of_config(file: Path) -> str | None:
    content = file.read_bytes()
    if reason := _reason(lambda: json.loads(content.decode())):
        return reason
    return None if isinstance(json.loads(content), dict) else "no object"


_SHARDS = {
    "model-00001-of-00002.safetensors": ("a", "b"),
    "model-00002-of-00002.safetensors": ("c",),
}
_PLACES = {tensor: name for name, tensors in _SHARDS.items() for tensor in tensors}
_INDEX = {"metadata": {"total_size": 24}, "weight_map": _PLACES}
_CONFIG = {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "model_type": "qwen2_5_vl",
    "text_config": {"hidden_size": 64, "rope_parameters": {"mrope_section": [2, 3, 3]}},
    "vision_config": {"depth": 2, "patch_size": 14},
    "tie_word_embeddings": True,
}


def _ask_rows(file: Path) -> Answer:
    try:
        rows = (Llava if file.stem == "llava" else Messages)(str(file))
        for index in range(len(rows)):
            row = rows.row(index)
            # what is trained on is text that a tokenizer takes, and files that are there
            json.dumps([row.messages, row.tools], ensure_ascii=False).encode()
            if not all(name.startswith("data:") or Path(name).is_file() for name in row.images):
                return False, "an image that is no file"
    except Findings:
        return True, None
    return False, None


def _refusal_of_lines(file: Path) -> str | None:
    """Read each line as JSON; LLaVA's layout may also be one array."""
    if file.stem == "llava":
        return None
    lines = [line for line in file.read_bytes().split(b"\n") if line.strip()]
    return _reason(lambda: [json.loads(line.decode("utf-8-sig")) for line in lines])


_IMAGE = {"type": "image", "image": "a.png"}
_ANSWER = {"role": "assistant", "content": "yes", "weight": 1}
_ROWS = (
    {
        "messages": [
            {"role": "user", "content": [_IMAGE, {"type": "text", "text": "?"}]},
            _ANSWER,
        ]
    },
    {"messages": [{"role": "user", "content": "<image>?"}, _ANSWER], "images": ["a.png"]},
)
_TURNS = [{"from": "human", "value": "<image>?"}, {"from": "gpt", "value": "no"}]


def _ask_recipe(file: Path) -> Answer:
    """Check a recipe, or overrides of `digits`, one a line."""
    try:
        if file.suffix == ".txt":
            words = file.read_text(errors="replace").replace("\0", "").splitlines()
            examined = examine("digits", words)
        else:
            examined = examine(str(file))
    except Findings:
        return True, None
    if examined.loaded is None:
        return True, None if _errors(examined.findings) else "not loaded, without an error"
    yaml.safe_load(effective_yaml(examined.loaded))
    return False, "loaded beside an error" if _errors(examined.findings) else None


def _refusal_of_yaml(file: Path) -> str | None:
    return _reason(lambda: yaml.safe_load(file.read_bytes().decode()))


def _as_yaml(draw: random.Random, tree: Any) -> bytes:
    try:
        text = yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)
    except RecursionError:  # deeper than PyYAML writes; JSON is YAML, too
        return mutate.as_json(draw, tree)
    content = text.encode("utf-8", "replace")
    return mutate.damage(draw, content) if draw.random() < 0.4 else content


def _as_words(draw: random.Random, tree: Any) -> bytes:
    words = draw.sample(_OVERRIDES, draw.randrange(1, 4))
    return mutate.damage(draw, "\n".join(words).encode())


_RECIPE = {
    "kind": "sft",
    "defaults": [{"/model": "qwen2_5_vl_tiny"}, {"/optim": "adamw"}, {"/engine": "ddp"}, "_self_"],
    "data": {"train": [{"format": "digits", "split": "train"}], "global_batch_size": 8},
    "optim": {"lr": 0.001, "warmup_steps": 10},
    "train": {"epochs": 3},
    "checkpoint": {"every_steps": 100},
    "run": {"name": "fuzz"},
}
_OVERRIDES = (
    *("optim.lr=0.001", "train={steps:4,epochs:null}", "data.image={min_pixels:784}"),
    *("engine=fsdp2", "+lora={rank: 4}", "launch.nproc=2", "~optim.lr", "run.name=a b"),
    *("data.train=[{format:messages,path:'a.jsonl'}]", "model.dtype=float32", "++x.y=1"),
)
_CHECKPOINT = "run/checkpoints/step-000004"
_MANIFESTS: list[Any] = []
_WEIGHTS: list[bytes] = []
"""The manifest and the weights of the one checkpoint that is damaged."""


def _refusal_of_manifest(file: Path) -> str | None:
    """Look for the sizes and digests of all files; what else is written there is nobody's."""

    def read() -> None:
        written = json.loads(file.read_bytes())
        for name, entry in _MANIFESTS[0].items():
            if any(written[name][key] != entry[key] for key in entry):
                raise ValueError("another size or digest")

    return _reason(read)


def _damaged(draw: random.Random, tree: Any) -> bytes:
    return mutate.damage(draw, _WEIGHTS[0])


def _refusal_of_weights(file: Path) -> str | None:
    return None if file.read_bytes() == _WEIGHTS[0] else "other bytes"


def _ask_result(file: Path) -> Answer:
    """Read a damaged result; a page of the run is made of one in 200."""
    try:
        start._check_result(RunFolder(file.parent))
        refused = False
    except Findings:
        refused = True
    run = read_run(file.parent)
    content = file.read_bytes()
    if (
        zlib.crc32(content) % 200 == 0
        and "<script>" in render_run_page([run])
        and b"<script>" in content
    ):
        return refused, "a page with a script of its input"
    return refused, None


def _ask_metrics(file: Path) -> Answer:
    """Read damaged metrics; a page of the run is made of one in 200."""
    run = read_run(file.parent)
    if zlib.crc32(file.read_bytes()) % 200 == 0:
        render_run_page([run])
    return False, None


_METRICS = tuple(
    {"step": step, "loss": 1.0 / step, "lr": 0.1, "grad_norm": 1.0, "tokens": 9, "seconds": 0.1}
    for step in (1, 2)
)


def _refusal_of_result(file: Path) -> str | None:
    return _reason(lambda: range(json.loads(file.read_bytes())["steps"]))


_RESULT = {
    **{"status": "finished", "steps": 4, "epochs": 1.0, "train_seconds": 1.0},
    **{"test_exact_match": 0.5, "test_nll": 1.0, "test_samples": 2, "parameters": 100},
    "ledger": {
        **{"rows": 4, "seen": 4, "trained": 4, "dropped": 0},
        **{"samples": 4, "distinct": 4, "epochs": 1.0},
    },
    "checks": {"broken-row": "passed", "ledger-mismatch": "passed"},
    "versions": {"vtool": "1", "torch": "2"},
}


def prepare(place: Path) -> None:
    """Write what is in the folder of the inputs: shards, an image, a checkpoint, a run."""
    run = place / "run"
    run.mkdir(parents=True)
    (place / "one").mkdir()
    for name, tensors in _SHARDS.items():
        save_file({tensor: np.zeros(2, np.float32) for tensor in tensors}, place / name)
    (place / "model.safetensors.index.json").write_text(json.dumps(_INDEX))
    (place / "config.json").write_text("{}")
    picture(place / "a.png")
    one = {"weight": torch.arange(4.0)}
    of = held(one.items())
    shot = checkpoint.Snapshot(4, of, of, torch.ones(3), {"seconds": 1.0})
    checkpoint.save(run / "checkpoints", shot, 1)
    _WEIGHTS[:] = [(place / _CHECKPOINT / "model.safetensors").read_bytes()]
    _MANIFESTS[:] = [json.loads((place / _CHECKPOINT / "manifest.json").read_bytes())]
    (run / "config.yaml").write_text(yaml.safe_dump(_RECIPE))
    (run / "metrics.jsonl").write_text('{"step": 1, "loss": 1.0}\n{"step": 2, "loss": NaN}\n')


def _whole(file: Path) -> Answer:
    return checkpoint.find_damage(file.parent) is not None, None


TARGETS = {
    "header": Target(
        640, "one/m.safetensors", _ask_header, _refusal_of_header, _HEADERS, _as_safetensors, True
    ),
    "index": Target(90, "model.safetensors.index.json", _ask_folder, _refusal_of_index, (_INDEX,)),
    "config.json": Target(90, "config.json", _ask_folder, _refusal_of_config, (_CONFIG,)),
    "rows": Target(80, "rows.jsonl", _ask_rows, _refusal_of_lines, _ROWS),
    "rows of LLaVA": Target(
        20,
        "llava.jsonl",
        _ask_rows,
        _refusal_of_lines,
        ({"image": "a.png", "conversations": _TURNS},),
    ),
    "manifest": Target(
        40, f"{_CHECKPOINT}/manifest.json", _whole, _refusal_of_manifest, _MANIFESTS
    ),
    "weights": Target(
        10, f"{_CHECKPOINT}/model.safetensors", _whole, _refusal_of_weights, ("",), _damaged
    ),
    "result.json": Target(20, "run/result.json", _ask_result, _refusal_of_result, (_RESULT,)),
    "metrics": Target(10, "run/metrics.jsonl", _ask_metrics, lambda file: None, _METRICS),
    "recipe": Target(1, "fuzz.yaml", _ask_recipe, _refusal_of_yaml, (_RECIPE,), _as_yaml),
    "overrides": Target(1, "words.txt", _ask_recipe, lambda file: None, ("",), _as_words),
}
"""By name; an input of a recipe takes a hundred times as long as a header."""
