"""A pytest fixture for model authors, installed with vtool and found by its entry point."""

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture(name="check_load_weights")
def _check_load_weights() -> Callable[..., Any]:
    """Return `check_load_weights`, which fails the test for every weight that does not land."""
    from vtool.loading.testing import check_load_weights

    return check_load_weights
