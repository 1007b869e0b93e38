"""A fixture for model authors: installed with vtool, found by pytest itself."""

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture(name="check_load_weights")
def _check_load_weights() -> Callable[..., Any]:
    """`check_load_weights(factory, checkpoint)`:

    fails the test for every weight that does not land.
    """
    from vtool.loading.testing import check_load_weights

    return check_load_weights
