"""Make the runs that are named, each in a process of its own: python -m tests.watch.runs FOLDER.

What is imported is imported once: each run is forked off, and takes a fifth of a second. The
watch is on the path of this process, as `vtool watch` puts it there, and finds the folder of a
run's facts in the environment.
"""

import gc
import os
import sys
import traceback
from importlib import import_module
from pathlib import Path

from tests.watch.runs import healthy, planted
from tests.watch.runs.loop import FAMILIES, Recipe, tokenizer, train, train_hf

IMPORTED = (
    *(f"transformers.models.{name}.modeling_{name}" for name in (*FAMILIES, "clip", "llava")),
    "transformers.trainer",
    "peft",
    "peft.utils.transformers_weight_conversion",
    "torch._dynamo",  # by the first optimizer
)


def recipes() -> dict[str, Recipe]:
    return {
        **{f"healthy: {name}": recipe for name, recipe in healthy.RUNS.items()},
        **{f"planted: {name}": one.recipe for name, one in planted.RUNS.items()},
    }


def place(folder: Path, name: str) -> Path:
    """Return where a run's facts go."""
    return folder / "".join(letter if letter.isalnum() else "-" for letter in name)


def fork(recipe: Recipe, folder: Path, rank: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.environ |= {
            "VTOOL_WATCH_TO": str(folder),
            "VTOOL_WATCH_EVERY": str(recipe.every),
        }
        if recipe.world > 1:
            ranks = {"RANK": rank, "WORLD_SIZE": recipe.world, "LOCAL_RANK": rank}
            os.environ |= {name: str(value) for name, value in ranks.items()}
        if recipe.trainer == "hf":
            train_hf(recipe, folder)
        else:
            train(recipe, folder, rank)
        from vtool_watch import install  # type: ignore[import-not-found]

        install.current().end()  # what the interpreter does at its end
        status = 0
    except BaseException:
        (folder / f"error-{rank}.txt").write_text(traceback.format_exc())
    finally:
        os._exit(status)


def main(folder: Path, names: list[str]) -> int:
    import torch

    for module in IMPORTED:
        import_module(module)
    torch.set_num_threads(1)
    tokenizer(folder)
    gc.freeze()  # what is forked shares it
    known = recipes()
    failed = 0
    for name in names or known:
        here = place(folder, name)
        here.mkdir()
        children = [fork(known[name], here, rank) for rank in range(known[name].world)]
        for child in children:
            failed += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
    return failed


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
