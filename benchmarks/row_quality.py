"""Benchmark: checks of rows that can all be used, in µs of CPU a row of a hundred words.

    trait     each check of a row's own text and turns, without the reading of its texts
    split     the checks of a whole split over the columns of its audit
    near      `vtool verify --near`, whole: rows are read again, and pairs compared
    page      what the page of `vtool verify --html` collects

One process and one thread; the best of three, but for `near` and `page`, which are run once.

    python -m benchmarks.row_quality [--rows N]
"""

import os

# before torch is imported
os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

WORDS = ("the", "of", "picture", "cat", "what", "is", "house", "tree", "blue", "river", "seven")
KINDS = {"ASCII": "", "accents": " café à côté", "HTML": " <div>x[0]</div>"}
BEST_OF = 3


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=20_000)
    count = parser.parse_args().rows
    measure_traits(count)
    with tempfile.TemporaryDirectory() as name:
        measure_split(Path(name), count)


def texts(count: int, more: str = "") -> list[tuple[str, str]]:
    """Questions and answers of a hundred words in all, each another one."""
    chance = random.Random(0)
    return [
        (
            " ".join(chance.choices(WORDS, k=60)) + f" {number}?{more}",
            " ".join(chance.choices(WORDS, k=40)) + more,
        )
        for number in range(count)
    ]


def measure_traits(count: int) -> None:
    """Print the costs of the checks of one row."""
    for kind, more in KINDS.items():
        _measure_rows(f"trait, {kind}", texts(count, more))


def _measure_rows(kind: str, made: Sequence[tuple[str, str]]) -> None:
    from vtool.data.digest import id_of
    from vtool.data.row import Row
    from vtool.data.text_traits import TEXT_TRAITS, traits_of
    from vtool.diagnostics import Origin

    rows = [
        Row(
            f"r:{number}",
            [{"role": "user", "content": question}, {"role": "assistant", "content": answer}],
            ["data/a.jpg"],
            origin=Origin("data/rows.jsonl", number),
            given_id=str(number),
            folder="data",
        )
        for number, (question, answer) in enumerate(made)
    ]
    pairs = [(row, [*row.texts()]) for row in rows]
    for trait in TEXT_TRAITS:
        has = trait.has
        seconds = _best(lambda has=has: [has(*pair) for pair in pairs])
        _say(f"{kind}: {trait.words[:44]}", seconds, len(rows))
    _say(f"{kind}: all, and texts", _best(lambda: [*map(traits_of, rows)]), len(rows))
    _say(f"{kind}: digest of the id", _best(lambda: [*map(id_of, rows)]), len(rows))


def measure_split(folder: Path, count: int) -> None:
    """Print the costs of the checks of all rows together."""
    from vtool.config.load import load_run
    from vtool.data.box_findings import BoxSummary
    from vtool.data.inspect_rows import inspect_rows
    from vtool.data.loader import EncodedRows
    from vtool.data.near import find_near
    from vtool.data.quality import cross_split_findings, split_findings
    from vtool.data.sources import Rows
    from vtool.models.processor import new_processor
    from vtool.training.setup import read_texts
    from vtool.verification.split_summary import summarize_split

    with (folder / "rows.jsonl").open("w") as out:
        for number, (question, answer) in enumerate(texts(count)):
            turns = [{"role": "user", "content": question}]
            turns.append({"role": "assistant", "content": answer})
            out.write(json.dumps({"id": number, "messages": turns}) + "\n")
    run = load_run("rows", [f"data.train=[{{format: messages, path: {folder}/rows.jsonl}}]"]).run
    rows = Rows(run.data.train)
    processor = new_processor(run.model, run.data.image, read_texts(rows), run.data.video)
    encoded = EncodedRows(rows, processor, run.data)
    audits = inspect_rows(encoded, range(count), 0)
    every = {"train": audits, "test": audits}
    sources = {"train": rows, "test": rows}
    _say("split", _best(lambda: [*split_findings("train", run.data, rows, audits)]), count)
    _say(
        "split, against another",
        _best(lambda: cross_split_findings(run.data, sources, every)),
        count,
    )
    _say("near", _once(lambda: find_near({"train": rows}, {"train": audits})), count)
    _say("page", _once(lambda: summarize_split(run, "train", encoded, audits, BoxSummary())), count)


def _say(what: str, seconds: float, rows: int) -> None:
    print(f"{what:<64} {1e6 * seconds / rows:8.2f} µs a row", flush=True)


def _once(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def _best(work: Callable[[], object]) -> float:
    return min(_once(work) for _ in range(BEST_OF))


if __name__ == "__main__":
    main()
