"""Benchmark: how long a run stops for a checkpoint, asynchronous or not.

It measures `checkpoint.asynchronous` and its absence, and the cost to the steps during a save.

Weights and both running means of a quarter of SIZE million parameters each, so 12 bytes a
parameter, are saved ROUNDS times, in turn each way; between two saves a matrix product stands for
the steps of a run.

    python -m benchmarks.save [--size MILLIONS] [--folder DIR]
"""

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

import torch

from vtool.training.checkpoint import Snapshot
from vtool.training.checkpoint_writer import CheckpointWriter

ROUNDS = 3


def snapshot(step: int, millions: int) -> Snapshot:
    """Return tensors of 4 million parameters."""
    names = [f"layers.{number}.weight" for number in range(max(1, millions // 4))]
    state = {
        f"{name}.{mean}": torch.randn(2000, 2000)
        for name in names
        for mean in ("exp_avg", "exp_avg_sq")
    }
    model = {name: torch.randn(2000, 2000) for name in names}
    return Snapshot(step, lambda _: model.items(), lambda _: state.items(), torch.zeros(9), {})


def steps(seconds: float) -> int:
    """Return the number of matrix products in so long a time."""
    matrix, count, end = torch.randn(512, 512), 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        matrix @ matrix
        count += 1
    return count


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=int, default=80, metavar="MILLIONS")
    parser.add_argument(
        "--folder",
        type=Path,
        help="where checkpoints are written and removed again; default: the temporary folder",
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    stood: dict[bool, list[float]] = {False: [], True: []}
    during: list[float] = []
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        for round_ in range(ROUNDS):
            alone = steps(1.0)
            for asynchronous, seconds in stood.items():
                with CheckpointWriter(
                    Path(name) / str(asynchronous), 1, asynchronous=asynchronous
                ) as writer:
                    saved = snapshot(round_, options.size)
                    began = time.perf_counter()
                    writer.save(saved)
                    seconds.append(time.perf_counter() - began)
                    if asynchronous:
                        during.append(steps(1.0) / alone)
    ratio = sorted(
        later / waiting for waiting, later in zip(stood[False], stood[True], strict=True)
    )
    print(
        f"{12 * options.size / 1000:.2f} GB; medians of {ROUNDS}, [smallest, largest] ratio within"
        " a round"
    )
    print(
        f"the run stands still {median(stood[False]):.2f} s; asynchronous"
        f" {median(stood[True]):.2f} s: ",
        end="",
    )
    print(f"{median(ratio):.2f} [{ratio[0]:.2f}, {ratio[-1]:.2f}]")
    print(f"speed of steps while it is written: {median(during):.2f} of alone")


if __name__ == "__main__":
    main()
