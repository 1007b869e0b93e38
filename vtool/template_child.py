"""The answers of the process that renders chat templates, which are programs of others.

`limited_child` runs it. It imports no more than Jinja.
"""

import datetime
import json
import signal
import time
import traceback
from functools import lru_cache
from typing import Any, ClassVar, NoReturn

from jinja2 import Template, TemplateError, Undefined, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace, missing


class _Generation(Extension):
    """A Jinja tag, `{% generation %}`, that prints the text inside it and nothing else."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 asks for a class attribute)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the nodes between the tag and its end."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Dict:
    """`dict` as templates may call it: its attributes lead nowhere."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Noted(Undefined):
    """A name that is not given: written, it is noted, and nothing is written, as in Jinja."""

    names: ClassVar[set[str]] = set()

    def __str__(self) -> str:
        if self._undefined_obj is missing and self._undefined_name:
            self.names.add(self._undefined_name)
        return ""


class _PlainNamespace(Namespace):
    """`namespace`, whose attributes do not begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # `self` may be a template's own attribute
        self, *given = args
        attributes = dict(*given, **kwargs)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        Namespace.__setitem__(self, name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a template may not set an attribute {name!r} of a namespace")


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _as_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


@lru_cache
def _compiled(text: str, day: str) -> Template:
    """Compile a template in an environment that is as transformers' (`chat_template_utils`)."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, "jinja2.ext.loopcontrols"],
        undefined=_Noted,
    )
    today = datetime.datetime.fromisoformat(day)
    environment.filters["tojson"] = _as_json
    environment.globals |= {
        "raise_exception": _raise,
        "strftime_now": today.strftime,
        "dict": _Dict(),
        "namespace": _PlainNamespace,
    }
    return environment.from_string(text)


class _Late(Exception):
    """The time of a rendering is nearly over."""


def _stop(*_: object) -> NoReturn:
    raise _Late


def _line_of(error: Exception) -> int | None:
    """Return the line of the template at which something was raised, if it was there."""
    frames = traceback.extract_tb(error.__traceback__)
    return next((one.lineno for one in reversed(frames) if one.filename == "<template>"), None)


def work(request: dict[str, Any]) -> dict[str, Any]:
    """Render a template for some chats, or say what it raises at the first that it refuses."""
    before = time.process_time()
    # a little before the kernel ends this process, so that the line can be said
    signal.setitimer(signal.ITIMER_VIRTUAL, 0.9 * request["seconds"])
    try:
        render = _compiled(request["template"], request["day"]).render
        texts = []
        _Noted.names.clear()
        for values in request["chats"]:
            texts.append(render(**values))
            if len(texts[-1]) > request["most"]:
                return {"costly": f"it writes {len(texts[-1]):,} characters"}
    except MemoryError:
        raise
    except _Late as error:
        return {"late": True, "line": _line_of(error)}
    except Exception as error:
        line = [error.lineno] if hasattr(error, "lineno") else []
        return {
            "raised": type(error).__name__,
            "arguments": [str(error), *line],
            "line": line[0] if line else _line_of(error),
        }
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    seconds = time.process_time() - before
    return {"texts": texts, "seconds": seconds, "unknown": sorted(_Noted.names)}


_compiled("", "2000-01-01").render()  # what is imported for a first one
signal.signal(signal.SIGVTALRM, _stop)
