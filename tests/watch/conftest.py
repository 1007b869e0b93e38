"""Processes that trainings are forked from, one of each kind for all tests of a session."""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from tests.watch.forks import Forks

# with what they import when an optimizer is made
LOOPS = ("torch", "torch._dynamo", "tests.watch.inject.tiny")
TRAINER = (
    *LOOPS,
    "peft",
    "peft.utils.transformers_weight_conversion",
    "transformers.trainer",
    "transformers.models.qwen2.modeling_qwen2",
)
TRL = ("datasets", *(f"trl.trainer.{kind}_trainer" for kind in ("sft", "dpo", "grpo")))


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    """Fork trainings of torch alone."""
    with Forks(*LOOPS) as made:
        yield made


@pytest.fixture(scope="session")
def trainer_forks() -> Iterator[Forks]:
    """Fork trainings by transformers' Trainer, by accelerate, and by TRL where it is installed."""
    with Forks(*TRAINER, *(TRL if find_spec("trl") and find_spec("datasets") else ())) as made:
        yield made
