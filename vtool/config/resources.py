"""Where the shipped recipes and groups are: inside an installed package, or beside it in a checkout."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def share(name: str) -> Path:
    """The folder `recipes` or `configs`."""
    installed = _PACKAGE / "_share" / name
    return installed if installed.is_dir() else _PACKAGE.parent / name


def recipe_names() -> list[str]:
    """The shipped recipes."""
    return sorted(path.stem for path in share("recipes").glob("*.yaml"))


def shown(path: Path) -> str:
    """A path as a message names it: a shipped file from `recipes/` or `configs/` on, another one as it was given."""
    for name in ("recipes", "configs"):
        if path.is_relative_to(share(name)):
            return str(Path(name) / path.relative_to(share(name)))
    return str(path)


def opened(name: str) -> Path:
    """The file that `shown` has named."""
    head, _, rest = name.partition("/")
    return share(head) / rest if head in ("recipes", "configs") and (share(head) / rest).is_file() else Path(name)
