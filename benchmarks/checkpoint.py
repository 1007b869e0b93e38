"""Benchmark: the audit of a checkpoint folder, against reading the same files.

A folder of SIZE GiB of bfloat16 weights in shards of 1 GiB is written, read once so that the page
cache holds it, and then, ROUNDS times in turn, each in a process of its own:

    readv, 1 thread   every file into one buffer of 8 MiB, with `os.readv`: what the ratios are of
    readv, 2 threads  the same, each thread its half of the files
    headers           `audit_folder` needs them first: here without the bytes
    audit             `vtool.loading.checkpoint.audit_folder`: headers, index and every value, on
                      two threads
    audit, 1 thread   the same
    audit, digest     the same with xxh3-128 of every file
    safetensors       its own load: `safetensors.torch.load_file`, and a clone of each tensor in
                      turn, since mapping alone reads nothing
    torch.isfinite    `load_file`, and `torch.isfinite(tensor).all()` of each, on two threads

Peak memory is the process's largest resident set (VmHWM) less what it was after its imports; pages
of a mapped file count.

    python -m benchmarks.checkpoint [--size GiB] [--folder DIR]
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

ROUNDS = 3
BUFFER = 8 << 20


def write(folder: Path, gibibytes: float) -> None:
    """Write an indexed checkpoint of shards of at most 1 GiB, of tensors of 32 MiB."""
    import json

    import torch
    from safetensors.torch import save_file

    left = max(1, round(gibibytes * 32))
    count = -(-left // 32)
    weight_map = {}
    values = torch.randn(4096, 4096).bfloat16()
    for shard in range(1, count + 1):
        name = f"model-{shard:05}-of-{count:05}.safetensors"
        tensors = {
            f"layers.{shard}.{number}.weight": values.roll(number)
            for number in range(min(32, left))
        }
        left -= len(tensors)
        save_file(tensors, folder / name)
        weight_map |= dict.fromkeys(tensors, name)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map})
    )
    (folder / "config.json").write_text("{}")


def readv(files: list[Path]) -> None:
    buffer = bytearray(BUFFER)
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        while os.readv(descriptor, [buffer]):
            pass
        os.close(descriptor)


def readv_threads(files: list[Path]) -> None:
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(readv, (files[::2], files[1::2])))


def headers(files: list[Path]) -> None:
    from vtool.loading.checkpoint.headers import read_header

    assert all(read_header(file)[0] for file in files)


def audit(files: list[Path], **options: int) -> None:
    from vtool.loading.checkpoint import audit_folder

    result = audit_folder(files[0].parent, **options)
    assert result.verdict == "clean", result


def load_file(files: list[Path]) -> None:
    from safetensors.torch import load_file as load

    for file in files:
        for tensor in load(file).values():
            tensor.clone()


def is_finite(files: list[Path]) -> None:
    import torch
    from safetensors.torch import load_file as load

    torch.set_num_threads(2)
    for file in files:
        assert all(torch.isfinite(tensor).all() for tensor in load(file).values())


CONTENDERS: dict[str, Callable[[list[Path]], None]] = {
    "readv, 1 thread": readv,
    "readv, 2 threads": readv_threads,
    "headers": headers,
    "audit": audit,
    "audit, 1 thread": lambda files: audit(files, threads=1),
    "audit, digest": lambda files: audit(files, digest=True),
    "safetensors": load_file,
    "torch.isfinite": is_finite,
}


def alone(name: str, folder: Path) -> None:
    """Run one contender in this process, and print its seconds and the MiB that it took."""
    imports(name)
    before = peak()
    began = time.perf_counter()
    CONTENDERS[name](sorted(folder.glob("*.safetensors")))
    print(time.perf_counter() - began, (peak() - before) / 1024)


def peak() -> int:
    """Return the peak in KiB; `ru_maxrss` would include that of the parent process."""
    (line,) = (
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmHWM:")
    )
    return int(line.split()[1])


def imports(name: str) -> None:
    if name.startswith(("safetensors", "torch")):
        import safetensors.torch  # noqa: F401
    if name.startswith(("audit", "headers")):
        import xxhash  # noqa: F401

        import vtool.loading.checkpoint  # noqa: F401


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=float, default=4, metavar="GiB")
    parser.add_argument(
        "--folder",
        type=Path,
        help="where the weights are written and removed again; default: the temporary folder",
    )
    parser.add_argument("--alone", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        alone(options.alone[0], Path(options.alone[1]))
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        write(folder, options.size)
        files = sorted(folder.glob("*.safetensors"))
        total = sum(file.stat().st_size for file in files)
        readv(files)
        seen: dict[str, list[tuple[float, float]]] = {contender: [] for contender in CONTENDERS}
        for _ in range(ROUNDS):
            for contender, runs in seen.items():
                command = [
                    sys.executable,
                    "-m",
                    "benchmarks.checkpoint",
                    "--alone",
                    contender,
                    name,
                ]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                seconds, memory = map(float, done.stdout.split())
                runs.append((seconds, memory))
    print(
        f"{len(files)} files, {total / 2**30:.2f} GiB, from the page cache; medians of {ROUNDS},"
        " [smallest, largest] ratio within a round"
    )
    print(f"{'':20}     ms     GB/s   speed of readv on 1 thread   MiB above the imports")
    base = [seconds for seconds, _ in seen["readv, 1 thread"]]
    for contender, runs in seen.items():
        ratios = sorted(its / seconds for its, (seconds, _) in zip(base, runs, strict=True))
        middle, memory = median(seconds for seconds, _ in runs), max(memory for _, memory in runs)
        ratio = (
            ""
            if contender == "headers"
            else f"{median(ratios):.2f} [{ratios[0]:.2f}, {ratios[-1]:.2f}]"
        )
        speed = "" if contender == "headers" else f"{total / middle / 1e9:.1f}"
        print(f"{contender:20} {1000 * middle:7.1f}   {speed:>5}   {ratio:26}   {memory:6.0f}")


if __name__ == "__main__":
    main()
