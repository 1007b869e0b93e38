"""Gets a class made where its config lacks a field that only files on the hub have, or where a part
of it does not run on a CPU.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from .shrink import HIDDEN, shrink, small

MOST_ATTEMPTS = 60
UNKNOWN = 1 << 20
T = TypeVar("T")
WORDS: Mapping[str, Any] = {
    **dict.fromkeys(("act", "activation"), "silu"),
    **dict.fromkeys(("eps", "epsilon"), 1e-6),
    **dict.fromkeys(("theta", "base"), 10000.0),
    **dict.fromkeys(("std", "range"), 0.02),
    **dict.fromkeys(("scale", "factor", "multiplier", "scaling", "alpha"), 1.0),
    "dropout": 0.0,
    "func": "sigmoid",
    "limit": 7.0,
}
"""The value of a field by the last word of its name."""
SWITCHES = (
    "use",
    "is",
    "has",
    "add",
    "enable",
    "apply",
    "with",
    "do",
    "norm",
    "tie",
    "include",
    "skip",
)


def guess(name: str, table: Mapping[str, Any]) -> Any:
    """The value of a field that a config lacks: of the table, else by what its name says."""
    if name in table:
        return table[name]
    if name.endswith("_config") or name == "model":
        return _inner_config(name)
    parts = name.split("_")
    found: Any = None
    if (tiny := small(name, UNKNOWN)) != UNKNOWN:
        found = tiny
    elif parts[0] in SWITCHES or parts[-1] == "bias":
        found = False
    elif parts[-1] in WORDS:
        found = WORDS[parts[-1]]
    elif parts[0] in ("num", "n"):
        found = 1
    elif parts[-1] in ("dim", "size", "width", "channels", "features"):
        found = HIDDEN
    return found


def _inner_config(name: str) -> Any:
    """A config for a part: what it lacks is mended in turn."""
    import transformers

    kinds = {
        "vision": ("SiglipVisionConfig", "SiglipVisionModel"),
        "audio": ("WhisperConfig", "WhisperModel"),
    }
    word, architecture = next(
        (kinds[part] for part in kinds if part in name), ("Qwen2Config", "Qwen2ForCausalLM")
    )
    made = shrink(getattr(transformers, word)())
    made.architectures = [architecture]
    return made


class StubInstaller:
    """Runs the steps that make a class;

    mends what is known to be missing, and remembers what it has replaced.
    """

    def __init__(self, fields: Mapping[str, Any], stubs: "tuple[Stub, ...]") -> None:
        self.fields, self.stubs = fields, stubs
        self.replaced: list[str] = []
        self.added: dict[str, Any] = {}

    def run(self, step: Callable[[], T]) -> T:
        """The step's result, once nothing is missing that can be given."""
        for _ in range(MOST_ATTEMPTS):
            try:
                return step()
            except Exception as error:
                if not (self._field(error) or self._part(error)):
                    raise
        return step()

    def _field(self, error: Exception) -> bool:
        """Give a config's class the field that an object of it has been asked for."""
        if not isinstance(error, AttributeError) or not error.name:
            return False
        owner = type(error.obj)
        if not any(
            base.__name__ in ("PretrainedConfig", "PreTrainedConfig") for base in owner.__mro__
        ):
            return False
        key = f"{owner.__name__}.{error.name}"
        if key in self.added:
            return False
        self.added[key] = self.fields[key] if key in self.fields else guess(error.name, self.fields)
        setattr(owner, error.name, self.added[key])
        return True

    def _part(self, error: Exception) -> bool:
        text = f"{type(error).__name__}: {error}"
        for words, pattern, replace in self.stubs:
            match = re.search(pattern, text)
            if match and (named := words.format(*match.groups())) not in self.replaced:
                replace(*match.groups())
                self.replaced.append(named)
                return True
        return False


Stub = tuple[str, str, Callable[..., None]]
"""What is replaced, in words;

the error that asks for it; how. The pattern's groups fill the words, and are given to the
replacement.
"""
