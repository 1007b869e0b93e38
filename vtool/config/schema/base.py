"""The base of every group of settings, and what a setting says of how it is known to arrive."""

from dataclasses import dataclass
from typing import ClassVar

from pydantic import BaseModel, ConfigDict


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


class Settings(BaseModel):
    """A group of settings: frozen, strict, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    arrival: ClassVar[Arrival | None] = None
    """The proof that its settings arrive; `Annotated[…, ReadBack(…)]` gives that of one of them."""
