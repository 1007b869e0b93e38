"""Loads the user's own object once, and writes its tensors, for the processes of `hash_seeds`."""

from pathlib import Path

import torch

from .file_host import FileHost
from .reference import load_new
from .sources import OwnedSource
from .state import copy_state
from .threads import threads_in_order


def write_state(name: str, checkpoint: str, file: str) -> None:
    """Load once, and write the tensors into a file."""
    folder = Path(file).parent
    subject = FileHost(checkpoint or None).make_subject(name, folder, lambda stage: None)
    with threads_in_order(subject.code):
        state = copy_state(load_new(subject, OwnedSource(subject.checkpoint)), held=True)
    torch.save(state, file)
