"""The user's cache folder, of which everything can be deleted at any time."""

import os
from pathlib import Path


def user_cache(name: str) -> Path:
    """Return vtool's folder of this name below `XDG_CACHE_HOME`, or else below `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME")
    if not base:
        try:
            base = str(Path.home() / ".cache")
        except RuntimeError:  # a user without a home: nothing can be kept
            base = os.devnull
    return Path(base) / "vtool" / name
