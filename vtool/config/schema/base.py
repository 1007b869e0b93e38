"""The base of every group of settings, and what a setting says of how it is known to arrive."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict


@dataclass(frozen=True, slots=True)
class OtherWords:
    """The mark of a setting that takes more words than its type names: which, in words."""

    text: str


@dataclass(frozen=True, slots=True)
class ReadBack:
    """A setting that is read back from a live object before the first step."""

    reader: str
    """The function that observes it, as `module:name`."""


@dataclass(frozen=True, slots=True)
class ActsLater:
    """A setting that no object has before the first step; a test shows it acting."""


@dataclass(frozen=True, slots=True)
class NotReadable:
    """A setting that is in no object."""

    why: str


Arrival = ReadBack | ActsLater | NotReadable


@dataclass(frozen=True, slots=True)
class PathMark:
    """A mark of a setting that says where files are, and nothing of what is in them."""


class NotValid(Exception):
    """A setting is read that has no valid value, or none that is known (`config/partial.py`)."""


class Settings(BaseModel):
    """A group of settings: frozen, strict, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    arrival: ClassVar[Arrival | None] = None
    """The proof that its settings arrive; `Annotated[…, ReadBack(…)]` gives that of one of them."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raise `NotValid` for a setting that `partial` has left out."""
            if name in type(self).model_fields:
                raise NotValid(name)
            return super().__getattr__(name)

    def model_dump(self, **options: Any) -> dict[str, Any]:
        """Return plain values.

        Raises:
            NotValid: a setting of this group has none.
        """
        for name in type(self).model_fields:
            getattr(self, name)
        return super().model_dump(**options)
