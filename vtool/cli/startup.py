"""The start of a command, which is mostly imports."""

import gc
import os
import sys
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


def prepare_completion() -> bool:
    """Return whether a shell asks for words, and leave out what it would wait for.

    typer would import rich, for 60 ms, to find markup that no help has, and pydantic would look for
    plugins of other packages, for 15.
    """
    if "_VTOOL_COMPLETE" not in os.environ:
        return False
    sys.modules["rich"] = None  # type: ignore[assignment]
    os.environ["PYDANTIC_DISABLE_PLUGINS"] = "__all__"
    gc.disable()
    return True
