"""The start of a command, which is mostly imports."""

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any


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
    with suppress(ImportError, AttributeError):  # of another release, which converts otherwise
        _leave_words_as_they_are()
    return True


def _leave_words_as_they_are() -> None:
    """Have typer convert no word that is typed: for that it imports pydantic, for 50 ms."""
    import typer.core
    from typer import _coercion

    plain = _coercion.PassThroughRuntimeParam

    def keep(descriptor: Any) -> Any:
        return plain(annotation=descriptor.annotation, parameter_info=descriptor.parameter_info)

    assert callable(typer.core.build_runtime_param)  # type: ignore[attr-defined]
    typer.core.build_runtime_param = keep  # type: ignore[attr-defined]
