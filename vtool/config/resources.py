"""The files of recipes: shipped ones, in a package or next to it in a checkout, or the user's."""

import json
import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from vtool.config.shipped import recipe_names, shipped_folder
from vtool.diagnostics import Diagnostic, Findings
from vtool.diagnostics.near_miss import did_you_mean, near

WEIGHTS_SUFFIX = ".safetensors"
"""The suffix of files of weights."""


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
        if path.is_file() and path.suffix != WEIGHTS_SUFFIX:
            return RecipeFile(path)
        there = path.exists()
    except OSError as error:
        raise Findings(
            Diagnostic("unreadable-file", f"`{recipe}` cannot be read: {error.strerror}"),
            fatal=True,
        ) from error
    if there and recipe:
        raise Findings(_no_file(recipe, path), fatal=True)
    raise Findings(
        Diagnostic(
            "unknown-recipe",
            f"there is no recipe named `{recipe}`, and no such file",
            help=_other_recipes(recipe, names),
        ),
        fatal=True,
    )


def _no_file(recipe: str, path: Path) -> Diagnostic:
    """Return the finding for what is there and is no file, with what it is."""
    if has_model_files(path):
        return model_folder_given(recipe)
    given = shlex.quote(recipe)
    if path.suffix == WEIGHTS_SUFFIX and path.is_file():
        help = f"to check that they load: vtool load-check {given}"
        return Diagnostic("unreadable-file", f"`{recipe}` has weights, and is no recipe", help)
    what = "a folder, not a recipe" if path.is_dir() else "not a file"
    help = "give a YAML file, or the name of a recipe"
    return Diagnostic("unreadable-file", f"`{recipe}` is {what}", help)


def has_model_files(folder: Path) -> bool:
    """Return whether a path is the folder of a model or an adapter, by its files."""
    try:
        if any(
            next(folder.glob(name), None) for name in ("adapter_config.json", f"*{WEIGHTS_SUFFIX}")
        ):
            return True
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError, RecursionError):  # also for a path that no file can have
        return False
    return isinstance(config, dict) and not config.keys().isdisjoint(
        ("model_type", "architectures")
    )


def model_folder_given(folder: str) -> Diagnostic:
    """Return the finding for a model's folder in the place of a recipe or of rows."""
    given = shlex.quote(folder)
    help = (
        f"to check its weights: vtool load-check {given}; to audit rows with its tokenizer: vtool"
        f" verify ROWS model.path={given}; to train it, behind a recipe: model.path={given}"
    )
    message = f"`{folder}` is a model's folder, not a recipe and not rows"
    return Diagnostic("unreadable-file", message, help)


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
    listed = f"shipped recipes are {', '.join(names)}; your own is given by its path"
    return did_you_mean(candidates) or listed


def _files_near(recipe: Path) -> list[str]:
    """Return the recipes of a folder whose names are like this one's."""
    if recipe.suffix not in (".yaml", ".yml"):
        return []
    try:
        there = [each.name for each in recipe.parent.iterdir() if each.suffix in (".yaml", ".yml")]
    except OSError:
        return []
    return [str(recipe.with_name(name)) for name in near(recipe.name, there)]


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
