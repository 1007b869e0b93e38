"""Processes that trainings are forked from, one of each kind for all tests of a session."""

from collections.abc import Iterator

import pytest

from tests.watch.forks import Forks


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    """Fork trainings of torch alone."""
    # what torch imports when an optimizer is made
    with Forks("torch", "torch._dynamo", "tests.watch.inject.tiny") as made:
        yield made
