"""Paths of a recipe that begin with `./`: they are relative to the file that has them."""

from pathlib import Path
from typing import Any

from vtool.config.origins import COMMAND_LINE, Origins
from vtool.config.schema.formats import PLACES

# Other relative paths, and those of the command line, begin in the working folder.
_NAMES = (
    "model.path",
    "model.modeling",
    "data.root",
    "train.from",
    "checkpoint.resume",
    "run.dir",
)


def resolve_recipe_paths(values: dict[str, Any], origins: Origins) -> None:
    """Replace paths that begin with `./` by those from the working folder, in place."""
    for name in _NAMES:
        group, _, leaf = name.partition(".")
        _place(values.get(group), leaf, name, origins)
    data = values.get("data")
    for split in ("train", "validation", "test"):
        entries = data.get(split) if isinstance(data, dict) else None
        for number, entry in enumerate(entries if isinstance(entries, list) else ()):
            for leaf in PLACES:
                _place(entry, leaf, f"data.{split}.{number}.{leaf}", origins)


def _place(group: Any, leaf: str, name: str, origins: Origins) -> None:
    given = group.get(leaf) if isinstance(group, dict) else None
    origin = origins.near(name)
    if not isinstance(given, str) or not given.startswith("./") or origin is None:
        return
    folder = Path(origin.file).parent
    # in the working folder it stays as it is: `./never` is no word of checkpoint.resume
    if origin != COMMAND_LINE and folder != Path():
        group[leaf] = str(folder / given)
