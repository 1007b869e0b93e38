"""The base of every group of settings."""

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """Frozen and strict, and an unknown key is an error: what was written is what is used."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
