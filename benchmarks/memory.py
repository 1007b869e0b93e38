"""Benchmark: the demo's peak memory.

The largest resident set of `vtool train sft digits`, as the kernel counts it, evaluation and export
included.

    python -m benchmarks.memory
"""

import resource
import subprocess
import sys
import tempfile


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "vtool",
            "train",
            "sft",
            "digits",
            "train.steps=60",
            f"run.dir={folder}/run",
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    print(
        "peak memory of the demo (60 steps):"
        f" {resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024:.0f} MiB"
    )


if __name__ == "__main__":
    main()
