"""Benchmark: the cost of `vtool watch` in a training step, and of reading a large vocabulary.

The recipe `digits` trains twice in one process with one thread: one session is watched, and the
other is not. Steps of both are taken in turn, in an order drawn by chance, each by
`time.thread_time`: what disturbs one mostly disturbs both. The median of the pairs' ratios, and in
brackets its 95 % interval (bootstrap).

    watched     steps that are looked at: the first is left out, which also computes rows alone
    first       that first step, once: with rows computed alone
    afterwards  only the ledger continues
    again       the plain session against itself: a cost below its interval has not been seen

Then one process reads tokens against a head of 151,936 ids of width 896 (Qwen2.5's), on one thread:
CPU seconds per 1,000 tokens, and how far its memory went beyond the head and what was kept.

    python -m benchmarks.watch [--pairs N] [--tokens N]
"""

import os

# before torch is imported
os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import argparse
import contextlib
import io
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

LOOKED_AT = 40
VOCABULARY, HIDDEN = 151_936, 896
QUIET = ("checkpoint.every_steps=null", "evaluation.every_steps=null", "data.validation=[]")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--read", choices=["float32", "bfloat16"], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.read:
        read_tokens(given.read, given.tokens)
        return
    measure_steps(given.pairs)
    for arithmetic in ("float32", "bfloat16"):
        command = [sys.executable, "-m", "benchmarks.watch", "--read", arithmetic]
        subprocess.run([*command, "--tokens", str(given.tokens)], check=True)


def measure_steps(pairs: int) -> None:
    """Print the ratios of watched steps to plain ones."""
    import torch

    import vtool.watch
    from vtool.devices import keep_freed_memory

    torch.set_num_threads(1)
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plain = _session(folder / "plain")
        vtool.watch.start(folder / "facts", steps=LOOKED_AT + 1)
        watched = _session(folder / "watched")
        plain = _paused(plain)
        plain()
        first = watched()
        looked_at = _pairs(watched, plain, LOOKED_AT)
        after = _pairs(watched, plain, pairs)
        again = _pairs(plain, plain, pairs)
        facts = "".join(file.read_text() for file in (folder / "facts").glob("*.jsonl"))
        assert facts.count('"kind": "solved"') == LOOKED_AT + 1, facts[-500:]
        assert '"kind": "error"' not in facts
    base = np.median([one for _, one in looked_at])
    print(f"a step of `digits` without a watch: {1000 * base:.1f} ms of CPU time, one thread")
    print(f"{'first':12} {first / base:.2f}x")
    for label, ratios in (("watched", looked_at), ("afterwards", after), ("again", again)):
        print(f"{label:12} {_in_words([mine / other for mine, other in ratios])}")


def _session(folder: Path) -> Callable[[], float]:
    """Return a function that takes one training step and returns its CPU seconds."""
    from tests.runs import request, session
    from vtool.data.loader import load_steps, micro_batches
    from vtool.training.step import train_step
    from vtool.training.stop import StopRequest

    with contextlib.redirect_stdout(io.StringIO()):
        opened, progress = session(request("digits", *QUIET, f"run.dir={folder}"))
    kept, run = opened.ledgers["train"].kept, opened.run

    def step() -> float:
        number = progress.step + 1

        def mine(step: int) -> object:
            return micro_batches(opened.plan, kept, step, 0, 1, run.data.micro_batch_size)

        loaded = list(load_steps(opened.rows["train"], [number], mine, 0))
        began = time.thread_time()
        train_step(opened, progress, number, loaded[0], StopRequest())
        progress.step = number
        return time.thread_time() - began

    return step


def _paused(step: Callable[[], float]) -> Callable[[], float]:
    from vtool.watch import paused

    def run() -> float:
        with paused():
            return step()

    return run


def _pairs(
    mine: Callable[[], float], other: Callable[[], float], count: int
) -> list[tuple[float, float]]:
    chance, found = random.Random(0), []
    for _ in range(count):
        if chance.random() < 0.5:
            base = other()
            found.append((mine(), base))
        else:
            own = mine()
            found.append((own, other()))
    return found


def _in_words(ratios: Sequence[float]) -> str:
    drawn = np.random.default_rng(0).choice(np.array(ratios), (2000, len(ratios)))
    low, high = np.percentile(np.median(drawn, axis=1), [2.5, 97.5])
    return f"{np.median(ratios):.3f}x [{low:.3f}, {high:.3f}]"


def read_tokens(arithmetic: str, tokens: int) -> None:
    """Read tokens of a large head, learnt with known weights, and print what that took."""
    import torch

    from vtool.watch.folder import INJECT

    sys.path.insert(0, str(INJECT))
    from vtool_watch.solve import LanguageHead, precision_for, solve  # type: ignore[import-not-found]

    torch.set_num_threads(1)
    torch.manual_seed(0)
    dtype = getattr(torch, arithmetic)
    weight = (torch.randn(VOCABULARY, HIDDEN) / HIDDEN**0.5).to(dtype)
    hidden, target = torch.randn(tokens, HIDDEN).to(dtype), torch.randint(VOCABULARY, (tokens,))
    gradient = torch.empty_like(hidden)
    for at in range(0, tokens, 16):
        h = hidden[at : at + 16].float().requires_grad_()
        logits = h @ weight.float().T
        loss = torch.nn.functional.cross_entropy(logits, target[at : at + 16], reduction="sum")
        (part,) = torch.autograd.grad(loss / tokens, h)
        gradient[at : at + 16] = part.to(dtype)
        del h, logits, loss
    u = 2.0**-24 if arithmetic == "float32" else 2.0**-9
    solved_in = precision_for(weight, u)
    for how, guess in (("the next token is the target", target), ("all ids searched", None)):
        _forget_peak()
        before = _resident()
        began = time.process_time()
        solved = solve(hidden, gradient, LanguageHead(weight), guess, u, solved_in)
        seconds = time.process_time() - began
        peak = _peak() - before
        right = int((solved.target == target).sum())
        unit = max(u, 2.0**-22) if solved_in == torch.float32 else u
        read = int((solved.misfit * solved.resolved <= 16 * unit).sum())
        off = float((solved.weight * tokens - 1).abs().max())
        print(
            f"{VOCABULARY:,} ids x {HIDDEN}, {arithmetic}, solved in {solved_in}, {how}:"
            f" {1000 * seconds / tokens:.1f} s of CPU per 1,000 tokens, {peak / 2**20:.0f} MiB"
            f" more; {right} of {tokens} right, {read} read, weights within {off:.1e}"
        )


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _peak() -> int:
    """Return the greatest resident size, in bytes, since it was forgotten last (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


if __name__ == "__main__":
    main()
