"""Benchmark: how long `vtool` takes to answer where nothing is trained.

CPU and wall milliseconds of a whole process, median of RUNS.

Python's own start is measured too, in turn with the others. What builds live objects, and so
imports torch and transformers, is run LIVE_RUNS times.

    python -m benchmarks.startup
"""

import resource
import subprocess
import sys
import time
from statistics import median

RUNS, LIVE_RUNS = 11, 3
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "vtool --help": [sys.executable, "-m", "vtool", "--help"],
    "vtool explain VT4<TAB>": [
        *("env", "_VTOOL_COMPLETE=complete_bash", "COMP_WORDS=vtool explain VT4", "COMP_CWORD=2"),
        *(sys.executable, "-c"),
        "import sys; sys.argv = ['vtool']; from vtool.cli.app import main; main()",
    ],
    "vtool train sft digits optim.<TAB>": [
        *(
            "env",
            "_VTOOL_COMPLETE=complete_zsh",
            "_TYPER_COMPLETE_ARGS=vtool train sft digits optim.",
        ),
        *(sys.executable, "-c"),
        "import sys; sys.argv = ['vtool']; from vtool.cli.app import main; main()",
    ],
    "vtool validate-config digits": [sys.executable, "-m", "vtool", "validate-config", "digits"],
}
LIVE = {f"{name} --live": [*COMMANDS[name], "--live"] for name in COMMANDS if "validate" in name}
LIVE |= {
    name: [sys.executable, "-m", *name.split()]
    for name in ("vtool verify digits --fast", "vtool verify digits")
}


def measure(command: list[str]) -> tuple[float, float]:
    """Return CPU and wall milliseconds of one process."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime), 1000 * wall


def main() -> None:
    for command in COMMANDS.values():
        measure(command)  # the first run reads the files from the disk
    runs = [{name: measure(command) for name, command in COMMANDS.items()} for _ in range(RUNS)]
    live = [{name: measure(command) for name, command in LIVE.items()} for _ in range(LIVE_RUNS)]
    print(f"{'':36}  CPU ms   wall ms   (medians of {RUNS}; of --live {LIVE_RUNS})")
    for name, its in [*((name, runs) for name in COMMANDS), *((name, live) for name in LIVE)]:
        cpu, wall = (median(run[name][part] for run in its) for part in (0, 1))
        print(f"{name:36}  {cpu:6.0f}   {wall:7.0f}")


if __name__ == "__main__":
    main()
