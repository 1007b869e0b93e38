"""The folders of shipped recipes and of their groups, in a package or next to it in a checkout.

A shell's completion reads them too: nothing but Python's own is imported here.
"""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def shipped_folder(kind: str) -> Path:
    """Return the folder `recipes` of the shipped recipes, or `configs` of their groups."""
    shipped = _PACKAGE / "_share" / kind
    return shipped if shipped.is_dir() else _PACKAGE.parent / kind


def recipe_names() -> tuple[str, ...]:
    """Return the names of the shipped recipes."""
    folder = shipped_folder("recipes")
    return tuple(
        sorted(
            path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml")
        )
    )
