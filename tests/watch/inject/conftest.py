"""Keeps what tests make apart: a watch looks for models among all objects of the process."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _objects_of_its_own() -> Iterator[None]:
    """Hide what is there from the search, and leave no model behind that the next one would find.

    A worker of these tests has millions of objects by then, which each search would go through.
    """
    gc.freeze()
    yield
    gc.collect()
    gc.unfreeze()
