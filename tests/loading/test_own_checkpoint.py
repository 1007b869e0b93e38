"""A user's own checkpoint, and buffers of a streamer that hold all of one."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.loading import models
from vtool.loading.probe.audit import run_checks
from vtool.loading.probe.checkpoint_files import write_checkpoint
from vtool.loading.probe.errors import LoadFailed
from vtool.loading.probe.file_host import subject_of_factory
from vtool.loading.probe.streaming_loaders import use_small_buffer


@pytest.mark.parametrize("make", [list, iter, dict])
def test_pairs_are_taken_as_load_weights_takes_them(make: Any) -> None:
    tensors = models.checkpoint()
    made = subject_of_factory(models.Good, make(tensors.items()))
    assert made.checkpoint.keys() == tensors.keys()
    assert all(torch.equal(made.checkpoint[name], tensors[name]) for name in tensors)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (5, "the checkpoint is a int, not a mapping of names to tensors, or their pairs"),
        ([1, 2], "the checkpoint is a list, not a mapping"),
        ([("a", torch.ones(1))] * 2, "the checkpoint has `a` twice"),
        ({"a": [1.0]}, "the checkpoint has str and list where a name and a tensor"),
        ([], "the checkpoint has no tensors"),
    ],
)
def test_anything_else_is_said_to_be_what_it_is(given: Any, why: str) -> None:
    with pytest.raises(LoadFailed, match=re.escape(why)):
        subject_of_factory(models.Good, given)


def test_a_streamers_buffer_is_smaller_than_a_file_of_two_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 64 KiB more, a small file stayed in it as a whole, and no stale tensor was seen."""
    for name in ("MEMORY_LIMIT", "CONCURRENCY"):
        monkeypatch.setenv(f"RUNAI_STREAMER_{name}", "1")
    file = write_checkpoint({"a": torch.ones(16), "b": torch.ones(4)}, tmp_path)
    use_small_buffer(file)
    assert os.environ["RUNAI_STREAMER_MEMORY_LIMIT"] == "64"


def test_a_streamer_whose_buffer_must_hold_the_whole_checkpoint_is_not_run() -> None:
    made = subject_of_factory(OneParameter, None)
    facts = run_checks(made, ("stale-reference",), 1, ("owned", "runai"))
    reason = "its buffer holds the whole checkpoint, of one tensor: nothing is overwritten"
    assert reason in str(facts["stale-reference"])


class OneParameter(torch.nn.Module):
    """Copies its one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.a = torch.nn.Parameter(torch.zeros(4))

    def load_weights(self, weights: Any) -> set[str]:
        for _, tensor in weights:
            self.a.data.copy_(tensor)
        return {"a"}
