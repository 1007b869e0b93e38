"""The start of a command, which is mostly imports."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collections() -> Iterator[None]:
    """Pause Python's garbage collection while modules are imported.

    What an import makes stays, so a collection meanwhile finds nothing: 8 % of `validate-config`.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
