"""Names of models on a hub: `ORGANIZATION/NAME`, or `ORGANIZATION/NAME@REVISION`."""

import os
import re
import shlex
from dataclasses import dataclass

_PART = r"[A-Za-z0-9][A-Za-z0-9_.-]*"
_NAME = re.compile(rf"({_PART}/{_PART})(?:@({_PART}(?:/{_PART})*))?")


@dataclass(frozen=True, slots=True)
class HubName:
    """A model on a hub."""

    name: str
    revision: str | None = None
    """A branch, a tag or a commit; None: the branch `main`."""

    def __str__(self) -> str:
        return self.name if self.revision is None else f"{self.name}@{self.revision}"

    @property
    def download(self) -> str:
        """The command that downloads it."""
        revision = ["--revision", self.revision] if self.revision else []
        return shlex.join(["hf", "download", self.name, *revision])


def hub_name(given: str, revision: str | None = None) -> HubName | None:
    """Return the model on a hub that a path names; None where it is a path.

    What is there is a path, and so is what could be there: a file next to others of its folder.
    """
    found = _NAME.fullmatch(given)
    if found is None or _is_here(given) or os.path.isdir(given.partition("/")[0]):
        return None
    return HubName(found[1], found[2] or revision)


def _is_here(path: str) -> bool:
    """Return whether a file is there, or may be and nobody may look."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return os.path.islink(path)
    except (OSError, ValueError):
        return True
    return True
