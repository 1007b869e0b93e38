"""Limits of a chat template, which is a program that comes with a model's folder.

transformers renders it in Jinja's sandbox, in this process: what it may touch is limited there,
but neither its time nor its memory. Here, a timer of the thread's own time ends loops, and what
makes one large value at once (`"x" * 10**9`, `10**10**10`, `|center(10**9)`) is refused before.
"""

import signal
import threading
import time
from collections.abc import Callable
from contextlib import ContextDecorator
from datetime import datetime
from functools import cache, lru_cache, wraps
from types import FrameType
from typing import Any

from jinja2 import Template
from jinja2.sandbox import ImmutableSandboxedEnvironment
from transformers.utils import chat_template_utils

_SECONDS = 5.0
"""Time of the thread's own that a template may take: a thousand times what one does."""
SECONDS_OF_ROW = 30.0
"""Time of all renderings for one row, of which each answer takes two."""
LARGEST_VALUE = 64 * 2**20
"""Characters or items of the largest value that a template may make."""
MEMORY = 2**30
"""Bytes that a process may grow by meanwhile."""
_BITS = 1_000_000
_WIDEST = 10_000
_TICK = 0.05
_FILTERS = ("batch", "center", "format", "indent", "join", "replace", "slice", "tojson")
_ANY_NUMBER = ("format", "format_map", "join", "replace", "tojson")
"""Functions to which a number is nothing but a value."""
_METHODS = frozenset(
    ("center", "expandtabs", "format", "format_map", "join", "ljust", "replace", "rjust", "zfill")
)


class TooCostly(Exception):
    """A template takes too much time or memory."""


class LimitedTemplate(ContextDecorator):
    """A context in which transformers' chat templates raise `TooCostly` where they take too much.

    The timer needs the main thread of a process, in which rows are encoded, also by data workers.
    It counts the process's own time: a machine that is busy ends nothing. Only time within
    `apply_chat_template` counts. Entering and leaving take 5 µs: a row has one.
    """

    def __enter__(self) -> None:
        self.compile = chat_template_utils._compile_jinja_template
        chat_template_utils._compile_jinja_template = _compile_limited
        self.timed = threading.current_thread() is threading.main_thread()
        if self.timed:
            _watch_templates().begin()
            signal.setitimer(signal.ITIMER_VIRTUAL, _TICK, _TICK)

    def __exit__(self, *_: object) -> None:
        if self.timed:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        chat_template_utils._compile_jinja_template = self.compile


class _Watch:
    """The handler of the timer's signal."""

    def __init__(self) -> None:
        self.rendering: FrameType | None = None
        self.last = self.of_row = 0.0

    def begin(self) -> None:
        """Begin a row."""
        self.last, self.of_row = time.thread_time(), 0.0

    def __call__(self, signal: int, frame: FrameType | None) -> None:
        while frame is not None and frame.f_code.co_name != "apply_chat_template":
            frame = frame.f_back
        now = time.thread_time()
        past, self.last = now - self.last, now
        if frame is not self.rendering:  # its first tick: others are not to be seen any more
            self.rendering, self.since, self.memory = frame, now, _resident()
        if frame is None:
            return
        self.of_row += min(past, 2 * _TICK)  # what a tokenizer takes between is not a template's
        try:
            if now - self.since > _SECONDS:
                raise TooCostly(f"it runs for more than {_SECONDS:g} seconds")
            if self.of_row > SECONDS_OF_ROW:
                raise TooCostly(
                    f"it is rendered for each answer, and takes more than {SECONDS_OF_ROW:g}"
                    " seconds in all"
                )
            # what other threads take meanwhile is far below
            if _resident() - self.memory > MEMORY:
                raise TooCostly(f"it takes more than {MEMORY / 2**30:g} GiB of memory")
        except TooCostly:
            self.rendering = None
            raise


@cache
def _watch_templates() -> _Watch:
    """Handle the timer's signal from now on: to do so for each row would take longer than it."""
    watch = _Watch()
    signal.signal(signal.SIGVTALRM, watch)
    return watch


@cache
def today() -> datetime:
    """Return the day on which this process has first asked, which templates are given.

    A run may last longer than its first day, and a row stays what was audited.
    """
    return datetime.now().replace(hour=0, minute=0, second=0, microsecond=0)


def _resident() -> int:
    """Return the bytes of memory that this process has, 0 where that cannot be read."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * 4096
    except OSError:
        return 0


@lru_cache
def _compile_limited(chat_template: str) -> Template:
    """Compile a template as transformers does, in its environment, with limits."""
    environment = chat_template_utils._cached_compile_jinja_template("").environment
    environment.__class__ = _Limited
    for name in _FILTERS:
        environment.filters[name] = _limited(environment.filters[name])
    environment.globals["strftime_now"] = lambda form: today().strftime(form)
    environment.globals["lipsum"] = _limited(environment.globals["lipsum"])
    compiled: Template = environment.from_string(chat_template)
    compiled.globals = dict(compiled.globals)  # a ChainMap is slow, and read for each chat
    return compiled


class _Limited(ImmutableSandboxedEnvironment):
    """The sandbox, where no operation makes a value that is too large."""

    intercepted_binops = frozenset(("*", "**", "%", "+"))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str):
            _check_format(left, right if isinstance(right, tuple) else (right,))
        elif operator == "+":
            _check(_size(left) + _size(right))
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _check(left.bit_length() * max(right, 0), _BITS)
        elif operator == "*" and isinstance(left, int) and isinstance(right, int):
            _check(left.bit_length() + right.bit_length(), _BITS)
        elif operator == "*":
            _check(_times(left, right))
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        method = getattr(__obj, "__wrapped__", __obj)  # the sandbox wraps str.format
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str) and method.__name__ in _METHODS:
            _check_arguments(method.__name__, (owner, *args), kwargs)
        return super().call(__context, __obj, *args, **kwargs)


def _limited(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter whose arguments are looked at before."""

    @wraps(function)  # with what Jinja marks functions by
    def limited(*args: Any, **kwargs: Any) -> Any:
        _check_arguments(function.__name__.removeprefix("do_"), args, kwargs)
        return function(*args, **kwargs)

    return limited


def _check_arguments(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    values = [*args, *kwargs.values()]
    if name not in _ANY_NUMBER and any(
        isinstance(value, int) and abs(value) > _WIDEST for value in values
    ):
        raise TooCostly(f"`{name}` is given a number above {_WIDEST:,}")
    texts = [value for value in values if isinstance(value, str)]
    if name == "replace" and len(texts) > 2:
        text, old, new = texts[:3]
        _check(len(text) + text.count(old) * len(new))
    elif name in ("indent", "expandtabs") and texts:
        width = max((value for value in values if isinstance(value, int)), default=8)
        _check(len(texts[0]) + (texts[0].count("\n") + texts[0].count("\t")) * width)
    elif name == "join" and texts:
        items = next((value for value in values if isinstance(value, list | tuple | dict)), ())
        separator = max(map(len, texts))
        _check(sum(_size(item) for item in items) + separator * len(items))
    elif name in ("format", "format_map") and texts:
        _check_format(texts[0], values[1:])


def _check_format(text: str, values: Any) -> None:
    """Refuse a format that names a width of millions, or takes one from its values."""
    digits = 0
    for character in text:
        digits = digits + 1 if character.isdecimal() else 0
        if digits > len(str(_WIDEST)):
            raise TooCostly("a format names a width of more than 5 digits")
    if ("*" in text or ":{" in text) and any(
        isinstance(value, int) and abs(value) > _WIDEST for value in values
    ):
        raise TooCostly(f"a format's width is a number above {_WIDEST:,}")


def _size(value: Any) -> int:
    """Return the characters of a text, the items of a list, or the bits of a number."""
    if isinstance(value, int):
        return value.bit_length()
    return len(value) if isinstance(value, str | list | tuple | dict) else 0


def _times(left: Any, right: Any) -> int:
    """Return the size of a text or a list that is repeated."""
    count, value = (left, right) if isinstance(left, int) else (right, left)
    return _size(value) * max(count, 0) if isinstance(count, int) else 0


def _check(size: int, most: int = LARGEST_VALUE) -> None:
    if size > most:
        raise TooCostly(f"it makes a value of {size:,} characters, items or bits")
