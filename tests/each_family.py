"""Model families as parameters of a test: two of them in `make test`, all in `make test-all`."""

import pytest

from vtool.families import FAMILIES

IN_MAKE_TEST = ("qwen2_5_vl", "qwen3_5")
"""One with windows in its tower and attention alone, and one with linear attention."""
EACH_FAMILY = [
    name if name in IN_MAKE_TEST else pytest.param(name, marks=pytest.mark.full)
    for name in sorted(FAMILIES)
]
