"""Reading a recipe in a process that the kernel limits, and that has no environment."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vtool.config.limits import MOST_ANSWER, SECONDS
from vtool.diagnostics import Diagnostic, Findings


class Here:
    """The process that this is."""

    limited = False
    stranger = False
    """True where it reads the recipe of a stranger, whose names are not looked up."""


_CHILD = str(Path(__file__).with_name("recipe_child.py"))


def start_child() -> None:
    """Start that process: it imports what it needs while this one does."""
    from vtool.limited_child import limited_child

    limited_child(_CHILD, bare=True).start()


def in_child(function: Callable[..., Any], *arguments: Any, trusted: bool = False) -> Any:
    """Call a function of a module there, and return its result, or raise its findings.

    Args:
        arguments: the first of a stranger's are the recipe, in whose folder files may be opened.
        trusted: whether it has this process's environment and files, and resolvers are called.

    Raises:
        Findings: those of the function; `broken-reference` where it is stopped.
    """
    if Here.limited:
        return function(*arguments)
    from vtool.limited_child import MEMORY, TooCostly, limited_child

    request = {
        "folder": os.getcwd(),
        "environment": dict(os.environ) if trusted else {},
        "trusted": trusted,
        "task": pickle.dumps((function, arguments)),
        "seconds": SECONDS,
    }
    try:
        answer = limited_child(_CHILD, bare=True).ask(request)
    except TooCostly:
        answer = None
    if answer is None or len(answer.get("result", b"")) > MOST_ANSWER:
        message = (
            f"the recipe takes more than {SECONDS:g} seconds of a processor, {MEMORY >> 30} GiB of"
            f" memory or {MOST_ANSWER:,} bytes to compose"
        )
        help = "look for references that lead to several others each, and these to others again"
        raise Findings(Diagnostic("broken-reference", message, help), fatal=True)
    if "crash" in answer:
        raise RuntimeError(answer["crash"])
    if "findings" in answer:
        raise pickle.loads(answer["findings"])
    return pickle.loads(answer["result"])
