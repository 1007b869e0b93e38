"""The bounds of the watch, from the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

FORMAT = 1
"""Version of the facts' format."""


@dataclass(frozen=True)
class WatchSettings:
    """All settings of the variables `VTOOL_WATCH_*`."""

    folder: str
    steps: int = 3
    every: int = 0
    tokens: int = 4096
    mib: int = 1024
    text: bool = True
    wait: float = 30.0
    alone: bool = True
    compiled: bool = False
    stop: str | None = None

    @property
    def budget(self) -> int:
        """Bytes of the device that may be held."""
        return self.mib << 20

    def looks_at(self, step: int) -> bool:
        """Return whether a step is looked at, by its number alone."""
        return step < self.steps or (self.every > 0 and (step + 1) % self.every == 0)


def from_environment(variables: Mapping[str, str] = os.environ) -> WatchSettings | None:
    """Return the settings, or None where nothing is to be watched. Bad numbers are the default."""
    folder = variables.get("VTOOL_WATCH_TO")
    if not folder:
        return None

    def number(name: str, default: int) -> int:
        try:
            return max(0, int(variables.get(f"VTOOL_WATCH_{name}", default)))
        except ValueError:
            return default

    return WatchSettings(
        folder=os.path.abspath(folder),
        steps=number("STEPS", 3),
        every=number("EVERY", 0),
        tokens=number("TOKENS", 4096),
        mib=number("MIB", 1024),
        text=variables.get("VTOOL_WATCH_TEXT") != "0",
        wait=float(number("WAIT", 30)),
        alone=variables.get("VTOOL_WATCH_ALONE") != "0",
        compiled=variables.get("VTOOL_WATCH_COMPILED") == "1",
        stop=variables.get("VTOOL_WATCH_STOP"),
    )
