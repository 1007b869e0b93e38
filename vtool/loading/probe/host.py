"""The base class of what subjects come from, a framework or the user's own file, and the registry.

Adding a host takes a subclass of `Host` in a file of its own and a line in `HOSTS`.
"""

import importlib
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from . import twin
from .errors import NotRun
from .facts import SubjectFacts
from .subject import Subject

OnProgress = Callable[[str], None]
"""Notes the stage that a subject has reached, for the reason that is given where it ends there."""


class Host(ABC):
    """A framework, or the user's own file, whose classes can be made and loaded on a CPU.

    One object serves a whole probe: `prepare` runs once, before any fork; `make_subject` runs once
    in the process of each subject, which it may change as it likes.

    Args:
        checkpoint: the folder of weights that the user gives with an object of their own.
    """

    name: ClassVar[str]
    """The name of the framework in the probe's first event."""
    environment: ClassVar[Mapping[str, str]] = {}
    """Variables that are set before the framework is imported."""
    subjects_are_users: ClassVar[bool] = False
    """Subjects are the user's own, so that what stops one is a finding.

    Elsewhere our tiny model may be at fault, and the subject is not judged.
    """

    def __init__(self, checkpoint: str | None = None) -> None:
        self.checkpoint = checkpoint

    def prepare(self, several: bool) -> dict[str, str]:
        """Import the framework, and return its `name` and `version`.

        Args:
            several: several subjects follow, so that what each would build for itself pays.

        Raises:
            Exception: what the framework's import raises.
        """
        os.environ.update(self.environment)
        version = self.import_framework()
        if several:
            self.warm_up()
        return {"name": self.name, "version": version}

    @abstractmethod
    def import_framework(self) -> str:
        """Import the framework, and return its version."""

    def warm_up(self) -> None:
        """Import and build what most subjects need, once for all of them."""
        twin.warm_up()

    @abstractmethod
    def list_subjects(self) -> list[str]:
        """Return the name of every class that can be asked for."""

    def package(self) -> Path:
        """Return the folder of the framework's package."""
        return Path(str(sys.modules[self.name].__file__)).parent

    def module_of(self, name: str) -> str | None:
        """Return the module of a class of `list_subjects`; None where it is not known."""
        return None

    @abstractmethod
    def make_subject(self, name: str, folder: Path, progress: OnProgress) -> Subject:
        """Make a subject of a class: an object that can be loaded, and a checkpoint for it.

        Args:
            name: one of `list_subjects`, or what the user typed.
            folder: an empty one, for this subject alone.
            progress: is called with each stage.

        Raises:
            NotRun: no verdict can be had, for the reason that it says.
            LoadFailed: what the user gave cannot be loaded.
        """

    def judge_by_headers(
        self, name: str, folder: Path, rules: Sequence[str], memory: int, progress: OnProgress
    ) -> SubjectFacts:
        """Judge the class of a checkpoint folder that is too large to be loaded whole.

        Args:
            name: the folder's path.
            folder: an empty one, for this subject alone.
            rules: the checks that are asked.
            memory: resident bytes that this process may take.
            progress: is called with each stage.

        Raises:
            NotRun: no verdict can be had, for the reason that it says.
            LoadFailed: the class refuses what the folder has.
        """
        raise NotRun(f"{self.name} loads no folders")


HOSTS: Mapping[str, str] = {
    "vllm": "vllm_host:VllmHost",
    "sglang": "sglang_host:SglangHost",
    "transformers": "transformers_host:TransformersHost",
    "python": "file_host:FileHost",
}
"""Each host's module and class, by the name in a request; imported on use."""


def open_host(name: str, checkpoint: str | None = None) -> Host:
    """Return the host of a name of `HOSTS`; see `Host` for `checkpoint`."""
    module, _, host_class = HOSTS[name].partition(":")
    host: Host = getattr(importlib.import_module(f".{module}", __package__), host_class)(checkpoint)
    return host
