"""What is fuzzed: how an input is made, who judges it, and what is wrong with the answer.

A judge of the code under test raises nothing but `Findings`; whatever else leaves it is a crash.
Oracles are the reader of safetensors, and plain loaders of a few lines that are written here.
"""

import json
import random
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from tests.campaign import mutate
from vtool.diagnostics import Diagnostic, Findings

SHOWN = 300


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was said of an input, and what is wrong with that."""

    told: str
    problem: str | None = None
    shown: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """A reader under test. Of all inputs it gets the share of its weight."""

    weight: int
    judge: Callable[[random.Random, Path], Verdict]
    prepare: Callable[[Path], object] = field(default=lambda place: None)


def _judged(findings: Sequence[Diagnostic], oracle: str | None, content: bytes) -> Verdict:
    """Compare findings with the oracle's reason against the input, None where it has none."""
    refused = any(finding.severity == "error" for finding in findings)
    if oracle is not None and not refused:
        # where in the input it is makes no other kind of problem
        kind = re.sub(r"at line.*|['`\"\d].*", "", oracle.partition("\n")[0]).strip()
        return Verdict("clean", f"clean, and its reader says {kind}", repr(content[:SHOWN]))
    return Verdict("refused" if refused else "clean")


# Headers: one .safetensors file, by the reader of safetensors


def _header(draw: random.Random) -> tuple[dict[str, Any], int]:
    """Return a right header, and the bytes of its tensors."""
    entries: dict[str, Any] = {}
    end = 0
    for number in range(draw.randrange(4)):
        shape = [draw.choice((0, 1, 2, 3)) for _ in range(draw.randrange(4))]
        dtype, size = draw.choice((("F32", 4), ("BF16", 2), ("U8", 1), ("F8_E4M3", 1), ("I64", 8)))
        begin, end = end, end + int(np.prod(shape, dtype=np.int64)) * size
        entries[f"t{number}"] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    if draw.random() < 0.3:
        entries["__metadata__"] = {"format": "pt"}
    return entries, end


def judge_header(draw: random.Random, place: Path) -> Verdict:
    from vtool.loading.checkpoint.headers import read_header

    entries, size = _header(draw)
    text = mutate.as_json(draw, mutate.change(draw, entries) if draw.random() < 0.8 else entries)
    length = len(text) if draw.random() < 0.95 else draw.choice(mutate.NUMBERS[:14]) % 2**64
    size = max(0, size + (draw.choice((-1, 1, 8)) if draw.random() < 0.05 else 0))
    content = struct.pack("<Q", length) + text + bytes(size)
    file = place / "model.safetensors"
    file.write_bytes(content)
    _, findings = read_header(file)
    oracle = _refusal(file)
    verdict = _judged(findings, oracle, content)
    wrong = [one for one in findings if one.severity == "error" and "twice" not in one.message]
    if oracle is None and wrong:
        reason = wrong[0].message.partition(":")[2]
        return Verdict(
            "refused", "refused, and its reader takes it", f"{reason}: {content[:SHOWN]!r}"
        )
    return verdict


def _refusal(file: Path) -> str | None:
    """Return why the reader of safetensors does not take a file."""
    try:
        with safe_open(file, "np") as opened:
            for name in opened.keys():  # noqa: SIM118  (it is no mapping)
                opened.get_slice(name).get_shape()
    except (SafetensorError, OSError, ValueError, UnicodeError) as error:
        return f"{type(error).__name__} {error}"
    return None


# Folders: an index over two shards, and config.json, by a plain loader


_SHARDS = {
    "model-00001-of-00002.safetensors": ("a", "b"),
    "model-00002-of-00002.safetensors": ("c",),
}
_INDEX = "model.safetensors.index.json"


def prepare_folder(place: Path) -> None:
    folder = place / "folder"
    folder.mkdir(parents=True, exist_ok=True)
    for name, tensors in _SHARDS.items():
        save_file({tensor: np.zeros(2, np.float32) for tensor in tensors}, folder / name)


def _index() -> dict[str, Any]:
    places = {tensor: name for name, tensors in _SHARDS.items() for tensor in tensors}
    return {"metadata": {"total_size": 24}, "weight_map": places}


def _load_by_index(folder: Path) -> str | None:
    """Return why a loader that follows the index does not find three tensors; None if it does."""
    try:
        places = json.loads((folder / _INDEX).read_bytes().decode())["weight_map"]
        for tensor, name in places.items():
            if Path(name).is_absolute() or ".." in Path(name).parts:
                return f"{name!r} leaves the folder"
            with safe_open(folder / name, "np") as opened:
                opened.get_tensor(tensor)
        absent = {"a", "b", "c"} - places.keys()
    except Exception as error:
        return f"{type(error).__name__} {error}"[:SHOWN]
    return f"the index does not have {absent}" if absent else None


def judge_index(draw: random.Random, place: Path) -> Verdict:
    from vtool.loading.checkpoint import audit_folder

    folder = place / "folder"
    (folder / "config.json").write_text("{}")
    content = mutate.as_json(draw, mutate.change(draw, _index()))
    (folder / _INDEX).write_bytes(content)
    result = audit_folder(folder, threads=1)
    assert (result.verdict == "clean") == (not any(f.severity == "error" for f in result.findings))
    return _judged(result.findings, _load_by_index(folder), content)


_CONFIG = {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "model_type": "qwen2_5_vl",
    "text_config": {"hidden_size": 64, "rope_parameters": {"mrope_section": [2, 3, 3]}},
    "vision_config": {"depth": 2, "patch_size": 14},
    "tie_word_embeddings": True,
}


def judge_config(draw: random.Random, place: Path) -> Verdict:
    from vtool.loading.checkpoint import audit_folder

    folder = place / "folder"
    (folder / _INDEX).write_text(json.dumps(_index()))
    content = mutate.as_json(draw, mutate.change(draw, json.loads(json.dumps(_CONFIG))))
    (folder / "config.json").write_bytes(content)
    try:
        read = json.loads(content.decode())
        oracle = None if isinstance(read, dict) else "it is no object"
    except (ValueError, RecursionError) as error:
        oracle = str(error)[:SHOWN]
    return _judged(audit_folder(folder, threads=1).findings, oracle, content)


# Rows, in both layouts


_ROW = {
    "messages": [
        {
            "role": "user",
            "content": [{"type": "image", "image": "a.png"}, {"type": "text", "text": "?"}],
        },
        {"role": "assistant", "content": "yes", "weight": 1},
    ],
    "images": [],
}
_TAGGED = {
    "messages": [{"role": "user", "content": "<image>?"}, {"role": "assistant", "content": "no"}],
    "images": ["a.png"],
}
_LLAVA = {
    "image": "a.png",
    "conversations": [{"from": "human", "value": "<image>?"}, {"from": "gpt", "value": "no"}],
}


def prepare_rows(place: Path) -> None:
    from tests.rows import picture

    place.mkdir(parents=True, exist_ok=True)
    picture(place / "a.png")


def judge_rows(draw: random.Random, place: Path) -> Verdict:
    from vtool.data.formats.llava import Llava
    from vtool.data.formats.messages import Messages

    tree = draw.choice((_ROW, _TAGGED, _LLAVA))
    content = mutate.as_json(draw, mutate.change(draw, json.loads(json.dumps(tree))))
    file = place / "rows.jsonl"
    file.write_bytes(content + b"\n")
    told = "clean"
    try:
        rows = Llava(str(file)) if tree is _LLAVA else Messages(str(file))
        for index in range(len(rows)):
            row = rows.row(index)
            # what is trained on is text that a tokenizer takes, and files that are in the folder
            json.dumps([row.messages, row.tools], ensure_ascii=False).encode()
            outside = [
                image
                for image in row.images
                if not image.startswith("data:") and not Path(image).is_file()
            ]
            if outside:
                return Verdict(told, "an image that is no file", f"{outside} {content[:SHOWN]!r}")
    except Findings:
        told = "refused"
    if told == "clean" and tree is not _LLAVA:
        lines = [line for line in content.split(b"\n") if line.strip()]
        try:
            for line in lines:
                json.loads(line.decode("utf-8-sig"))
        except (ValueError, RecursionError) as error:
            return Verdict(told, "clean, and it is not JSON", f"{error}: {content[:SHOWN]!r}")
    return Verdict(told)


# Recipes and overrides


_RECIPE: dict[str, Any] = {
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


def _examined(recipe: str, overrides: Sequence[str], content: bytes, oracle: str | None) -> Verdict:
    from vtool.config.load import effective_yaml, examine

    try:
        examined = examine(recipe, overrides)
    except Findings:
        return Verdict("refused")
    verdict = _judged(examined.findings, oracle, content)
    if (examined.loaded is None) == (verdict.told == "clean"):
        return Verdict(
            verdict.told, "clean and not loaded, or the other way", repr(content[:SHOWN])
        )
    if examined.loaded is not None:
        yaml.safe_load(effective_yaml(examined.loaded))
    return verdict


def judge_recipe(draw: random.Random, place: Path) -> Verdict:
    tree = mutate.change(draw, json.loads(json.dumps(_RECIPE)))
    # not 10^300 and the like: what `yaml` writes is to be read again
    content = yaml.safe_dump(tree, sort_keys=False, allow_unicode=True).encode("utf-8", "replace")
    if draw.random() < 0.4:
        content = mutate.damage(draw, content)
    file = place / "fuzz.yaml"
    file.write_bytes(content)
    try:
        yaml.safe_load(content.decode())
        oracle = None
    except Exception as error:
        oracle = str(error)[:SHOWN]
    return _examined(str(file), (), content, oracle)


def judge_overrides(draw: random.Random, place: Path) -> Verdict:
    words = [draw.choice(_OVERRIDES) for _ in range(draw.randrange(1, 4))]
    at = draw.randrange(len(words))
    words[at] = mutate.damage(draw, words[at].encode()).decode(errors="replace").replace("\0", "")
    return _examined("digits", words, repr(words).encode(), None)


# Checkpoints and the files of a run


def prepare_checkpoint(place: Path) -> None:
    import torch

    from vtool.training.checkpoint import Snapshot, save

    run = place / "run"
    if run.exists():  # another target's
        return
    run.mkdir(parents=True)
    one = {"weight": torch.arange(4.0)}
    save(run / "checkpoints", Snapshot(4, one, one, {"visits": torch.ones(3)}, {"seconds": 1.0}), 1)
    (run / "config.yaml").write_text(yaml.safe_dump(_RECIPE))


def judge_checkpoint(draw: random.Random, place: Path) -> Verdict:
    from vtool.training.checkpoint import damage

    folder = place / "run" / "checkpoints" / "step-000004"
    kept = {file.name: file.read_bytes() for file in folder.iterdir()}
    name = draw.choice(sorted(kept))
    if name.endswith(".json") and draw.random() < 0.7:
        content = mutate.as_json(draw, mutate.change(draw, json.loads(kept[name])))
    else:
        content = mutate.damage(draw, kept[name])
    (folder / name).write_bytes(content)
    try:
        told = "refused" if damage(folder) else "clean"
    finally:
        (folder / name).write_bytes(kept[name])
    same = content == kept[name]
    if name == "manifest.json":
        try:
            same = json.loads(content) == json.loads(kept[name])
        except (ValueError, RecursionError):
            same = False
    if told == "clean" and not same:
        return Verdict(told, f"clean, and {name} is another", repr(content[:SHOWN]))
    if told == "refused" and content == kept[name]:
        return Verdict(told, "refused, and nothing has changed", "")
    return Verdict(told)


_RESULT: dict[str, Any] = {
    "status": "finished",
    "steps": 4,
    "epochs": 1.0,
    "test_exact_match": 0.5,
    "test_nll": 1.0,
    "test_samples": 2,
    "train_seconds": 1.0,
    "parameters": 100,
    "trained_parameters": 100,
    "ledger": {"rows": 4, "seen": 4, "trained": 4, "dropped": 0, "samples": 4, "distinct": 4},
    "checks": {"broken-row": "passed", "ledger-mismatch": "passed"},
    "versions": {"vtool": "1", "torch": "2"},
}
_LINE = {"step": 1, "epoch": 0, "loss": 1.0, "grad_norm": 1.0, "lr": 0.1, "tokens": 5, "samples": 2}


def judge_result(draw: random.Random, place: Path) -> Verdict:
    """Damage `result.json` and `metrics.jsonl`; a page is made of one in two hundred."""
    from vtool.report.page import render
    from vtool.report.run_files import read_run
    from vtool.training.run_folder import RunFolder
    from vtool.training.start import _check_result

    folder = place / "run"
    content = mutate.as_json(draw, mutate.change(draw, json.loads(json.dumps(_RESULT))))
    (folder / "result.json").write_bytes(content)
    line = mutate.as_json(draw, mutate.change(draw, dict(_LINE)))
    (folder / "metrics.jsonl").write_bytes(json.dumps(_LINE).encode() + b"\n" + line + b"\n")
    try:
        _check_result(RunFolder(folder))
        told = "clean"
    except Findings:
        told = "refused"
    try:
        run = read_run(folder)
    except Findings:
        return Verdict(told)
    if draw.random() < 1 / 200:
        page = render([run])
        if "<script>" in page and b"<script>" in content + line:
            return Verdict(
                told, "a page with a script of its input", repr((content + line)[:SHOWN])
            )
    try:
        whole = isinstance(json.loads(content)["steps"], int)
    except (ValueError, KeyError, TypeError, RecursionError):
        whole = False
    if told == "clean" and not whole:
        return Verdict(told, "clean, and it has no steps", repr(content[:SHOWN]))
    return Verdict(told)


TARGETS = {
    "header": Target(640, judge_header),
    "index": Target(90, judge_index, prepare_folder),
    "config.json": Target(90, judge_config, prepare_folder),
    "rows": Target(100, judge_rows, prepare_rows),
    "checkpoint": Target(50, judge_checkpoint, prepare_checkpoint),
    "result.json": Target(20, judge_result, prepare_checkpoint),
    "recipe": Target(2, judge_recipe),
    "overrides": Target(2, judge_overrides),
}
"""By name; an input of a recipe takes a hundred times as long as a header."""
