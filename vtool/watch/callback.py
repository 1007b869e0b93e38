"""The watch as a callback of transformers' Trainer, and of the trainers that are built on it."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from vtool.diagnostics.render import render_results
from vtool.watch import start
from vtool.watch.conclude import conclude
from vtool.watch.reading import read_facts
from vtool.watch.text import describe_results


class WatchCallback(TrainerCallback):  # type: ignore[misc]
    """Watches from when it is made, and prints what was found when the training ends.

    `Trainer(…, callbacks=[WatchCallback("facts")])`, in a notebook or a script.
    """

    def __init__(
        self, folder: str | Path, *, tokenizer: str | Path | None = None, **options: Any
    ) -> None:
        """Start to watch this process.

        Args:
            folder: where the facts go; it must be empty, or not be there yet.
            tokenizer: a folder with tokenizer.json, if it is not the model's.
            options: as those of `vtool.watch.start`.

        Raises:
            ValueError: the folder is not empty, or cannot be written into.
            RuntimeError: this process is watched already.
        """
        self.folder = start(folder, **options)
        self.tokenizer = Path(tokenizer) if tokenizer is not None else None

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Print the findings, on the first rank alone. What fails here ends no training."""
        if not state.is_world_process_zero:
            return
        try:
            watched = replace(read_facts(self.folder), unended=0)  # this process has yet to end
            results = conclude(watched, str(self.folder), self.tokenizer)
            sys.stderr.writelines(f"{line}\n" for line in describe_results(results))
            render_results(results, "full", command="watch", stream=sys.stderr)
        except Exception as error:  # such as a folder that is gone
            sys.stderr.write(f"vtool watch: nothing is concluded of this training: {error}\n")
