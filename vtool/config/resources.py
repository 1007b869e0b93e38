"""The files of recipes: shipped ones, in a package or next to it in a checkout, or the user's."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vtool.config.given_for_recipe import NOT_RECIPES, a_command, given_for_recipe
from vtool.config.shipped import recipe_names, shipped_folder
from vtool.diagnostics import Diagnostic, Findings
from vtool.diagnostics.near_miss import did_you_mean, near
from vtool.near_files import near_file


@dataclass(frozen=True, slots=True)
class RecipeFile:
    """The file of a recipe."""

    path: Path

    @property
    def name(self) -> str:
        """The name of its run, unless the recipe sets one."""
        return self.path.stem


def group_names(group: str) -> list[str]:
    """Return the files of a group of configs/, as a defaults list names them."""
    folder = shipped_folder("configs") / group
    try:
        return sorted(path.stem for path in folder.glob("*.yaml"))
    except (OSError, ValueError):  # a name that no folder can have
        return []


def find_recipe(recipe: str) -> RecipeFile:
    """Return the file of a shipped recipe, by its name, or of the user's own, by its path.

    Raises:
        Findings: `unknown-recipe`, `unreadable-file`.
    """
    names = recipe_names()
    if recipe in names:
        return RecipeFile(shipped_folder("recipes") / f"{recipe}.yaml")
    path = Path(recipe)
    try:
        if path.is_file() and path.suffix not in NOT_RECIPES:
            return RecipeFile(path)
        there = path.exists()
    except OSError as error:
        raise Findings(
            Diagnostic("unreadable-file", f"`{recipe}` cannot be read: {error.strerror}"),
            fatal=True,
        ) from error
    if there and recipe:
        raise Findings(given_for_recipe(recipe, path), fatal=True)
    if found := a_command(recipe):
        raise Findings(found, fatal=True)
    raise Findings(
        Diagnostic(
            "unknown-recipe",
            f"there is no recipe named `{recipe}`, and no such file",
            help=_other_recipes(recipe, names),
        ),
        fatal=True,
    )


BEGIN_WITH_DEFAULTS = (
    "begin the recipe with `defaults: [finetune, _self_]`, and write only what differs from that"
    " recipe: `vtool explain finetune` prints its settings"
)


def allowed_roots(recipe: Path) -> tuple[Path, ...]:
    """Return the folders that a recipe that is not trusted may use."""
    return tuple(
        folder.resolve()
        for folder in (recipe.parent, shipped_folder("configs"), shipped_folder("recipes"))
    )


def lies_in_one(path: Path, roots: Sequence[Path]) -> bool:
    """Return whether a path, all links followed, is in one of some folders."""
    try:
        real = path.resolve()
    except (OSError, ValueError, RuntimeError):
        return False
    return any(real.is_relative_to(root) for root in roots)


def refuse_link(path: Path) -> None:
    """Refuse the file of a recipe that is not trusted, if a link leads out of its folder.

    Raises:
        Findings: `unreadable-file`.
    """
    here, given = Path(os.path.realpath(Path.cwd())), Path(os.path.abspath(path))
    folder = Path(os.path.realpath(path.parent))
    moved = given.is_relative_to(here) and not folder.is_relative_to(here)
    if moved or not Path(os.path.realpath(path)).is_relative_to(folder):
        message = f"`{path}` is behind a link that leads elsewhere, and is not trusted"
        help = "give a file that is no link"
        raise Findings(Diagnostic("unreadable-file", message, help), fatal=True)


def _other_recipes(recipe: str, names: tuple[str, ...]) -> str:
    candidates = [f"{recipe}.yaml"] if recipe and Path(f"{recipe}.yaml").is_file() else []
    candidates += _files_near(Path(recipe)) or near(recipe, names) or near(Path(recipe).stem, names)
    is_path = Path(recipe).suffix or os.sep in recipe
    if is_path and (found := near_file(recipe)):
        candidates = [*found.paths]
    listed = f"shipped recipes are {', '.join(names)}; your own is given by its path"
    if is_path:
        listed = f"give a file that is there; paths begin at {os.getcwd()}"
    return did_you_mean(candidates) or listed


def _files_near(recipe: Path) -> list[str]:
    """Return the recipes of a folder whose names are like this one's."""
    if recipe.suffix not in (".yaml", ".yml"):
        return []
    try:
        there = [each for each in recipe.parent.iterdir() if each.suffix in (".yaml", ".yml")]
    except OSError:
        return []
    # the extension is the same of all, and says nothing
    close = near(recipe.stem, {each.stem for each in there})
    found = sorted(there, key=lambda each: each.suffix != recipe.suffix)
    return [
        str(recipe.with_name(each.name)) for stem in close for each in found if each.stem == stem
    ]


def shown_path(path: Path) -> str:
    """Return a path as messages name it: a shipped file from `recipes/` or `configs/` on."""
    resolved = Path(os.path.realpath(path))
    for kind, folder in (
        ("recipes", shipped_folder("recipes")),
        ("configs", shipped_folder("configs")),
    ):
        if resolved.is_relative_to(folder):
            return f"{kind}/{resolved.relative_to(folder).as_posix()}"
    return f"./{path}" if opened(str(path)) != path else str(path)


def opened(name: str) -> Path:
    """Return the path of a file from the name that `shown_path` has given it."""
    head, _, rest = name.partition("/")
    if head in ("recipes", "configs") and (found := shipped_folder(head) / rest).is_file():
        return found
    return Path(name)
