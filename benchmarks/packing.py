"""Benchmark: packing against padding, in supervised tokens a second.

One process, forwards and backwards, on rows of unequal lengths.

ROWS chats, every other one with an image, of lengths that are log-normal (most short, a few long),
uniform, or all the same; a language model of 4 layers of 256 features. Each way computes the same Σ
NLL, which is checked. CPU time, in turn, ROUNDS times; medians.

    padded               all rows in one batch, as long as the longest
    padded, 8 rows       micro-batches of 8 rows as they come
    padded, 8 by length  the same, sorted by length first
    packed               rows of at most 512, or 2048 tokens: `data.packing=token_budget`

    python -m benchmarks.packing [--rows N]
"""

import argparse
import time
from collections.abc import Callable, Sequence
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from vtool.data.collate import Batch, collate
from vtool.data.encode import Sample
from vtool.data.loss import summed_nll
from vtool.data.packing import collate_packed, pack, with_positions
from vtool.data.visuals import Visuals
from vtool.families.family import load_family
from vtool.families.tokens import TokenIds
from vtool.models.attention import use_document_attention

ROUNDS = 3
IMAGE = 5
IDS = TokenIds(image=IMAGE, video=6, vision_start=3, vision_end=4, end=2, pad=0)


def samples(distribution: str, count: int) -> list[Sample]:
    random = np.random.RandomState(7)
    lengths = {
        "log-normal": np.clip(random.lognormal(4.0, 0.9, count), 16, 500).astype(int),
        "uniform": random.randint(16, 257, count),
        "constant": np.full(count, 100),
    }[distribution]
    return [_sample(number, int(length)) for number, length in enumerate(lengths)]


def _sample(number: int, length: int) -> Sample:
    generator = torch.Generator().manual_seed(number)
    ids = torch.randint(7, 500, (length,), generator=generator)
    labels = ids.clone()
    labels[: length // 2] = -100
    visuals = Visuals()
    if number % 2:
        ids[1:7] = torch.tensor([3, *[IMAGE] * 4, 4])
        pixels = torch.randn(16, 1176, generator=generator)
        visuals = Visuals({"pixel_values": pixels, "image_grid_thw": torch.tensor([[1, 4, 4]])}, 1)
    return Sample(number, ids, labels, visuals, (), 1, False, 0, 1)


def model() -> Any:
    config = load_family("qwen2_5_vl").random_config("tiny", 512, IDS)
    text = config.text_config
    (
        text.hidden_size,
        text.intermediate_size,
        text.num_hidden_layers,
        text.num_attention_heads,
        text.num_key_value_heads,
    ) = (256, 768, 4, 8, 4)
    text.layer_types = ["full_attention"] * 4
    config.vision_config.out_hidden_size = 256
    torch.manual_seed(0)
    made = load_family("qwen2_5_vl").model_class()(config)
    use_document_attention(made)
    return made.train()


def run(made: Any, batches: Sequence[Batch]) -> tuple[float, float]:
    """Return CPU seconds, and the Σ NLL."""
    made.zero_grad(set_to_none=True)
    began, total = time.process_time(), 0.0
    for batch in batches:
        loss = summed_nll(made, with_positions(batch, made))
        loss.backward()
        total += loss.item()
    return time.process_time() - began, total


def ways(rows: list[Sample]) -> dict[str, Callable[[], list[Batch]]]:
    processor: Any = SimpleNamespace(ids=IDS)
    by_length = sorted(rows, key=lambda sample: len(sample.input_ids))
    lengths = [len(sample.input_ids) for sample in rows]

    def packed(budget: int) -> list[Batch]:
        groups = pack(range(len(rows)), lengths, 0, 1, budget)
        return [collate_packed([rows[number] for number in group], processor) for group in groups]

    def eights(of: list[Sample]) -> list[Batch]:
        return [collate(of[start : start + 8], processor) for start in range(0, len(of), 8)]

    return {
        "padded": lambda: [collate(rows, processor)],
        "padded, 8 rows": lambda: eights(rows),
        "padded, 8 by length": lambda: eights(by_length),
        "packed, 512": lambda: packed(512),
        "packed, 2048": lambda: packed(2048),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=48)
    options = parser.parse_args()
    torch.set_num_threads(1)
    made = model()
    print(f"{options.rows} rows, 1 thread; medians of {ROUNDS}")
    for distribution in ("log-normal", "uniform", "constant"):
        rows = samples(distribution, options.rows)
        tokens, supervised = (
            sum(len(one.input_ids) for one in rows),
            sum(one.supervised for one in rows),
        )
        longest = max(len(one.input_ids) for one in rows)
        padding = 1 - tokens / longest / len(rows)
        print(
            f"{distribution}: {tokens} tokens, {supervised} supervised, the longest row {longest};"
            f" padding {padding:.0%}"
        )
        seen: dict[str, list[tuple[float, float]]] = {}
        for _ in range(ROUNDS + 1):
            for name, batches in ways(rows).items():
                seen.setdefault(name, []).append(run(made, batches()))
        wanted = seen["padded"][0][1]
        for name, runs in seen.items():
            seconds = median(each for each, _ in runs[1:])
            assert abs(runs[0][1] / wanted - 1) < 1e-5, "the same loss"
            ratio = median(
                base / its for (base, _), (its, _) in zip(seen["padded"][1:], runs[1:], strict=True)
            )
            apart = runs[0][1] / wanted - 1
            print(
                f"  {name:20} {supervised / seconds:8.0f} supervised tokens/s   {ratio:5.2f} of"
                f" padded   Σ NLL {apart:+.0e}"
            )


if __name__ == "__main__":
    main()
