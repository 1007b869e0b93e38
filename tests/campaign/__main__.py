"""`python -m tests.campaign`: run the campaign, or resume it (docs/reliability.md)."""

import argparse
import gc
import os
import sys
import time
from pathlib import Path

PARTS = {"kills": 0.3, "faults": 0.2, "fuzz": 0.2, "commands": 0.2, "ends": 0.1}
"""The parts that share the minutes, and how."""
ONCE = ("security", "soak")
"""The parts that are done once, whole, before the others; a short campaign leaves them out."""
SHORT = 20.0
"""Minutes below which a campaign is a slice."""
TURN = 20.0
"""Seconds after which the next part has its turn."""


def main() -> int:
    """Return 0 if nothing was found, 1 else."""
    options = _options()
    _begin_anew_with_shim(options.state)
    from tests.campaign import fuzz, page, runs
    from tests.campaign.commands import damage_commands
    from tests.campaign.ends import kill_commands
    from tests.campaign.faults import fail_writes
    from tests.campaign.kills import kill_runs
    from tests.campaign.security import run_security_tests
    from tests.campaign.soak import soak
    from tests.campaign.state import Part, State

    state = State.read(options.state, options.seed)
    if options.table:
        page.renew(state)
        return 0
    if options.input is not None:
        fuzz.show(state.tally("fuzz"), options.input, runs.fresh(options.state / "input"))
        return 0
    work: dict[str, Part] = {
        "security": run_security_tests,
        "soak": soak(options.soak_steps),
        "kills": kill_runs,
        "faults": fail_writes,
        "fuzz": fuzz.fuzz,
        "commands": damage_commands,
        "ends": kill_commands,
    }
    asked = (
        options.parts.split(",")
        if options.parts
        else [
            *(ONCE if options.minutes >= SHORT else ()),
            *PARTS,
        ]
    )
    began = time.monotonic()
    folder = (options.state / "work").absolute()
    if set(asked) - {"security", "fuzz", "commands"}:
        runs.warm_up(folder)
    gc.freeze()  # what is forked shares it
    for name in (each for each in ONCE if each in asked):
        tally = state.tally(name)
        with state.timed(tally):
            work[name](tally, folder / name, time.monotonic())
    end = began + options.minutes * 60
    sharing = [name for name in PARTS if name in asked]
    whole = sum(PARTS[name] for name in sharing)
    while sharing and time.monotonic() < end:
        round_ends = min(end, time.monotonic() + TURN * len(sharing)) - time.monotonic()
        for name in sharing:
            tally = state.tally(name)
            with state.timed(tally):
                moment = time.monotonic() + round_ends * PARTS[name] / whole
                work[name](tally, folder / name, min(end, moment))
    print(page.table(state))
    return int(any(tally.problems for tally in state.tallies.values()))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    add = parser.add_argument
    add("--minutes", type=float, default=60.0, help="how long (default: 60)")
    add("--seed", type=int, default=0, help="what every trial follows from (default: 0)")
    add("--state", type=Path, default=Path(".campaign"), help="where it resumes from (.campaign)")
    add("--parts", help=f"some of {','.join([*ONCE, *PARTS])}")
    add("--soak-steps", type=int, default=20_000, help="steps of the long run (20000)")
    add("--input", type=int, metavar="N", help="make one fuzzed input again, and judge it")
    add("--table", action="store_true", help="write what was done into docs/reliability.md")
    return parser.parse_args()


def _python_path() -> list[str]:
    return [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]


def _begin_anew_with_shim(state: Path) -> None:
    """Start this Python again with the environment that runs need, and the shim preloaded."""
    from tests.campaign.faults import build_shim

    if os.environ.get("VTOOL_CAMPAIGN"):
        return
    shim = build_shim(state)
    needed = {
        "VTOOL_CAMPAIGN": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONWARNINGS": "ignore",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *_python_path()]),
        "RUST_BACKTRACE": "0",
        # an arena of the default one is larger than an input's memory may be
        "ARROW_DEFAULT_MEMORY_POOL": "system",
        **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
        **({"LD_PRELOAD": str(shim)} if shim else {}),
    }
    words = [sys.executable, "-m", "tests.campaign", *sys.argv[1:]]
    os.execve(sys.executable, words, {**os.environ, **needed})


if __name__ == "__main__":
    sys.exit(main())
