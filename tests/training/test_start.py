"""Differences between the settings of a run and those of the command that resumes it."""

import pytest

from vtool.config.schema import Lora
from vtool.config.schema.formats import MessagesSource
from vtool.training.start import setting_differences


def test_a_group_that_was_not_there_has_no_defaults() -> None:
    rank = Lora.model_fields["rank"].default
    assert setting_differences({"lora": None}, {"lora": {"rank": rank}}) == [
        f"lora.rank: null → {rank}"
    ]


def test_differences_are_of_values_not_of_spelling() -> None:
    assert setting_differences({"a": {"b": 1.0}, "c": [1]}, {"a": {"b": 1}, "c": (1,)}) == []
    assert setting_differences({"a": None}, {"a": 2, "launch": {"nproc": 3}}) == ["a: null → 2"]


def test_a_setting_of_a_source_that_was_not_there_is_null() -> None:
    before = MessagesSource(format="messages", path="a.jsonl").model_dump()
    now = dict(before)
    del before["ignore"]
    assert setting_differences({"data": {"train": [before]}}, {"data": {"train": [now]}}) == []


@pytest.mark.parametrize("name", ["micro_batch_size", "micro_batch_tokens"])
def test_a_run_that_lacked_memory_resumes_with_smaller_micro_batches(name: str) -> None:
    assert setting_differences({"data": {name: 4096}}, {"data": {name: 1024}}) == []
