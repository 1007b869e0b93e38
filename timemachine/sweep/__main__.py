"""Run which of transformers' classes Trainer trains wrongly under gradient accumulation.

python -m timemachine.sweep [CLASS…]

Without a name: all whose code looks so (`scan.py`). Each is made at tiny size and trained twice by
Trainer on the same rows, with one micro-batch a step and, under `vtool watch`, with four. Each
training is a process of its own. What has been run with this code and this transformers is not run
again. Exits with 1 where a class could not be run, with 2 where none of this name is there.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from timemachine.page import write
from timemachine.sweep.page import PAGE, page
from timemachine.sweep.results import RESULTS, read_results, write_results
from timemachine.sweep.run import QUIET, Sweep


def main(words: Sequence[str]) -> int:
    """Run the classes that are named, or all candidates; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m timemachine.sweep", description=__doc__)
    parser.add_argument("classes", metavar="CLASS", nargs="*")
    parser.add_argument("--again", action="store_true", help="run what has been run before, too")
    parser.add_argument("--to", type=Path, default=RESULTS, metavar="FILE", help="the results")
    given = parser.parse_args(words)
    try:
        kept = read_results(given.to)
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"sweep: {given.to} has no results: {error}", file=sys.stderr)
        return 2
    os.environ.update(QUIET)
    sweep = Sweep()
    if unknown := [name for name in given.classes if not sweep.has(name)]:
        print(f"sweep: transformers has no class {', '.join(unknown)}", file=sys.stderr)
        return 2
    results = {} if given.again and not given.classes else sweep.still_holds(kept)
    names = given.classes or sweep.candidates
    for name in names:
        if given.again or name not in results:
            results[name] = sweep.run(name)
            write_results(given.to, results, sweep)
        print(f"{name}: {results[name].summary}", flush=True)
    write_results(given.to, results, sweep)
    if given.to == RESULTS:
        write(PAGE, page(RESULTS))
    return int(any(results[name].state != "ran" for name in names))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
