"""Benchmark: the audit of rows, next to what it cannot do without.

Rows are made here: text of about a hundred tokens, JPEGs of 224 × 224 and of 1024 × 1024 pixels, a
quality of 88, with soft shapes and some noise, as a camera's. CPU time of one process and one
thread, all in one run:

    bare      open a picture and `convert("RGB")`, as Pillow does it
    audit     the audit of its row, whole: parsing, template, tokens, labels, the picture, digests
    again     the same rows, from the audit that was kept
    encoded   its row for a step: read, decoded, cut into patches, held against its audit
    processor transformers' image processor alone, of a decoded picture

and the index of a file of rows, in GB/s.

    python -m benchmarks.audit [--rows N] [--pictures N]
"""

import os

# before torch is imported
os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Any

WORDS = ("the", "of", "picture", "cat", "what", "is", "house", "tree", "blue", "river", "seven")
FEW = 50
"""Pictures that are encoded, from the first one."""
FEW_SECONDS = 2.2
"""Until the file system's marks of a new file are trusted."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--pictures", type=int, default=1_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        measure_text(folder, given.rows)
        measure_pictures(folder / "224", given.pictures, 224)
        measure_pictures(folder / "1024", max(1, given.pictures // 10), 1024)


def measure_text(folder: Path, count: int) -> None:
    """Print the costs of rows of text alone."""
    from vtool.data.json_lines import JsonLines

    chance = random.Random(0)
    file = folder / "text.jsonl"
    with file.open("w") as out:
        for number in range(count):
            question = " ".join(chance.choices(WORDS, k=60)) + f" {number}?"
            _write(out, question, " ".join(chance.choices(WORDS, k=25)), [])
    index = _cpu(lambda: JsonLines(str(file)))
    print(f"index of {count:,} rows: {file.stat().st_size / index / 1e9:.2f} GB/s")
    first, again, grown = _audits(file)
    print(
        f"text, {count:,} rows: audit {1000 * first / count:.3f} ms a row ({first:.1f} s), again"
        f" {again:.2f} s; memory {grown:.0f} MiB above that of the first row's audit"
    )


def measure_pictures(folder: Path, count: int, edge: int) -> None:
    """Print the costs of rows with a picture each."""
    from PIL import Image

    from tests.models.test_measured_pictures import photo

    folder.mkdir()
    with (folder / "rows.jsonl").open("w") as out:
        for number in range(count):
            photo(edge, edge, number % 100).save(folder / f"{number}.jpg", quality=88)
            _write(out, "<image>What is it?", f"thing {number}", [f"{number}.jpg"])
    time.sleep(FEW_SECONDS)

    def decode() -> None:
        for number in range(count):
            with Image.open(folder / f"{number}.jpg") as picture:
                picture.convert("RGB")

    bare = _cpu(decode)
    first, again, _ = _audits(folder / "rows.jsonl")
    print(
        f"JPEG of {edge}², {count:,} rows: bare {1000 * bare / count:.2f} ms, audit"
        f" {1000 * first / count:.2f} ms ({first / bare:.2f} of bare), again {again:.2f} s"
    )
    step, cut = (1000 * seconds / min(count, FEW) for seconds in _encoded(folder / "rows.jsonl"))
    print(f"JPEG of {edge}²: encoded for a step {step:.2f} ms, processor {cut:.2f} ms")


def _write(out: Any, question: str, answer: str, images: list[str]) -> None:
    turns = (("user", question), ("assistant", answer))
    messages = [{"role": role, "content": content} for role, content in turns]
    out.write(json.dumps({"messages": messages, "images": images}) + "\n")


def _audits(file: Path) -> tuple[float, float, float]:
    """Return the CPU seconds of a first audit and of one that finds it kept, and MiB of memory."""
    from tests.runs import encoded, messages, request
    from vtool.data import audit_cache, inspect_rows
    from vtool.data.audit_cache import audit_split, usual_cache

    audit_cache.FEWEST_ROWS = 1
    inspect_rows.AUDIT_CACHE_BYTES = 0  # nothing is cut for the first steps: a run's own work
    rows, _ = encoded(request("rows", messages(file)))
    audit_split(rows, range(1), None)
    before = getrusage(RUSAGE_SELF).ru_maxrss
    seconds = []
    for _ in range(2):
        began = time.process_time()
        cache = usual_cache(rows)
        audits = audit_split(rows, range(len(rows.rows)), cache)
        seconds.append(time.process_time() - began)
        assert cache
        cache.write(audits, seconds=60.0)
    assert audits.reused == len(rows.rows)
    grown = (getrusage(RUSAGE_SELF).ru_maxrss - before) / 1024  # Linux has it in KiB
    return seconds[0], seconds[1], grown


def _encoded(file: Path) -> tuple[float, float]:
    """Return the CPU seconds of encoding the first rows, and of the image processor for them."""
    import torch

    from tests.runs import encoded, messages, request
    from vtool.data import inspect_rows
    from vtool.data.audit_cache import audit_split

    torch.set_num_threads(1)
    inspect_rows.AUDIT_CACHE_BYTES = 0
    rows, processor = encoded(request("rows", messages(file)))
    few = range(min(FEW, len(rows.rows)))
    rows.audited = audit_split(rows, few, None).table["digest"]
    pictures = [processor.pictures.read(rows.rows.row(index).images[0])[0] for index in few]
    rows.sample(0)  # what is loaded once

    def encode() -> None:
        for index in few:  # a step lets its samples go: new memory costs as much as the work
            rows.cache.clear()
            rows.sample(index)

    def cut() -> None:
        for picture in pictures:
            processor.image_processor(images=[picture], return_tensors="pt")

    return _cpu(encode), _cpu(cut)


def _cpu(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


if __name__ == "__main__":
    main()
