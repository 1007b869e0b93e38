"""Files and folders that are given in the place of a recipe: what each is, and what reads it."""

import re
import shlex
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from vtool.config.schema.formats.entry import ROWS_SUFFIXES, has_rows_files
from vtool.contents import small_file
from vtool.diagnostics import Diagnostic, Findings
from vtool.families import can_train
from vtool.model_folder import MODEL_CONFIG, ModelFolder

_WEIGHTS = ".safetensors"
_SCRIPTS = {".py": "python", ".sh": "bash"}
_VERL = re.compile(r"verl\b.*sft_trainer")
_COMMANDS = (
    *("python", "python3", "torchrun", "accelerate", "deepspeed", "bash", "sh"),
    *("swift", "llamafactory-cli", "trl", "axolotl"),
)
_MOST_TEXT = 1 << 16
_LEAST = 0.6
"""The share of a command's options that a trainer must know, whose file it seems to start."""
_MOST_NAMED = 3
ANOTHER_FAMILY = (
    "vtool trains image-text-to-text models of transformers: of any other, `vtool watch -- python"
    " train.py` shows what its trainer teaches it, and `vtool load-check FOLDER`, of a folder with"
    " its weights, whether they land"
)
"""Help for a family that vtool does not have."""
NOT_RECIPES = frozenset({_WEIGHTS, *_SCRIPTS})
"""Suffixes of files that are no recipes."""


def given_for_recipe(recipe: str, path: Path) -> Diagnostic:
    """Return the finding for what is there and is no recipe.

    Args:
        recipe: as the user has typed it.
    """
    given = shlex.quote(recipe)
    what, help = "is not a file", "give a YAML file, or the name of a recipe"
    if path.suffix in _SCRIPTS and path.is_file():
        what = "is a script, and no recipe"
        run = shlex.join([_SCRIPTS[path.suffix], recipe])
        help = f"vtool watch -- {run} shows what its training really teaches"
        if trainer := started_by(path):
            help += (
                f"; vtool validate-config --from {trainer} {given} checks its settings, and with"
                " --convert prints them as a recipe of vtool"
            )
    elif path.is_file():
        what = "has weights, and is no recipe"
        help = f"vtool load-check {given} checks that they load"
    elif (path / "config.yaml").is_file():
        what = "is the folder of a run, and no recipe"
        help = f"its recipe is {shlex.quote(str(path / 'config.yaml'))}"
    elif (path / "adapter_config.json").is_file():
        config = ModelFolder(path).settings("adapter_config.json") or {}
        named = config.get("base_model_name_or_path")
        base = shlex.quote(str(named or "BASE"))
        what = f"is the folder of an adapter for {base}, and no recipe"
        help = f"vtool train sft ROWS model.path={base} train.from={given} trains it further"
    elif (path / MODEL_CONFIG).is_file() and not has_model_files(path):
        what = "has a config.json that is no model's, or cannot be read"
        help = "look at that file; rows are in a folder without one"
    elif has_model_files(path):
        what, kind = "is a model's folder, and no recipe", ModelFolder(path).model_type
        help = (
            f"vtool train sft ROWS model.path={given} fine-tunes it, vtool verify ROWS"
            f" model.path={given} audits rows with its tokenizer, vtool load-check {given} checks"
            " its weights"
        )
        if kind and not can_train(kind):
            help = f"it is a model of type {kind}: {ANOTHER_FAMILY}"
    elif path.is_dir():
        what = f"is a folder without files of rows ({', '.join(ROWS_SUFFIXES)})"
        help = "give a YAML file, the name of a recipe, or rows: a file or the folder of some"
        if below := _rows_below(path):
            help = f"rows are in {', '.join(map(str, below))}: give one of these"
    return Diagnostic("unreadable-file", f"`{recipe}` {what}", help)


def a_command(recipe: str) -> Diagnostic | None:
    """Return the finding for a trainer's command that is given as one word, in quotes."""
    try:
        words = shlex.split(recipe)
    except ValueError:
        return None
    if len(words) < 2 or words[0].rpartition("/")[2] not in _COMMANDS:
        return None
    from vtool.config.foreign.trainers import TRAINERS

    commands = {name: one.command for name, one in TRAINERS.items()}
    commands |= {"axolotl": ("axolotl", "train")}
    started = (name for name, one in commands.items() if (*words[: len(one)],) == one)
    trainer = next(started, "verl" if _VERL.search(recipe) else None)
    help = f"vtool watch -- {recipe} shows what its training really teaches"
    if trainer:
        help += f"; vtool validate-config --from {trainer} FILE checks its settings, of its YAML"
        help += " file or of a script that has the command, and --convert makes a recipe of them"
    return Diagnostic("unknown-recipe", f"`{recipe}` is a command, and no recipe", help)


def _rows_below(folder: Path) -> list[Path]:
    """Return the first folders with files of rows inside of a folder, at most two levels down."""
    try:
        inside = [path for each in ("*/", "*/*/") for path in folder.glob(each)]
    except OSError:
        return []
    return [path for path in sorted(inside) if has_rows_files(str(path))][:_MOST_NAMED]


def started_by(script: Path) -> str | None:
    """Return the trainer that a script of a shell starts, as `--from` takes its name."""
    try:
        text = small_file(script).decode()[:_MOST_TEXT] if script.suffix == ".sh" else ""
    except (OSError, ValueError):
        return None
    from vtool.config.foreign.hf_script import split_command
    from vtool.config.foreign.shell import read_commands
    from vtool.config.foreign.trainers import TRAINERS

    scores = {"": _LEAST}
    for command in read_commands(text):
        if any(_VERL.search(word.text) for word in command):
            return "verl"
        for name, trainer in TRAINERS.items():
            if (found := split_command(command, trainer)) is None:
                continue
            start, *words = (word.text for word in found[1])
            options = [word[2:].partition("=")[0] for word in words if word.startswith("--")]
            known = sum(one.replace("-", "_") in trainer.fields for one in options)
            by_name = start == trainer.command[-1]  # and not by a file, which many have
            scores[name] = 1.0 if by_name else known / max(1, len(options))
    return max(scores, key=lambda name: scores[name]) or None


def refuse_other_family(folder: Path) -> None:
    """Refuse a folder that has a model of a family that vtool has not.

    Raises:
        Findings: `not-a-run`, fatal.
    """
    kind = ModelFolder(folder).model_type
    if kind is not None and not can_train(kind):
        raise other_family(folder, kind)


def other_family(folder: Path, kind: str) -> Findings:
    """Return the exception for a model of a family that vtool has not."""
    message = f"{folder} is a model of type {kind}, {no_class()}"
    help = ANOTHER_FAMILY
    return Findings(Diagnostic("not-a-run", message, help), fatal=True)


def no_class() -> str:
    """Return why a type of model cannot be trained, with the release that is looked into."""
    try:
        release = f"transformers {version('transformers')} here"
    except PackageNotFoundError:
        release = "transformers, which is not installed,"
    return f"for which {release} has no image-text-to-text class; a newer one may have it"


def has_model_files(folder: Path) -> bool:
    """Return whether a path is the folder of a model or an adapter, by its files."""
    try:
        if any(next(folder.glob(name), None) for name in ("adapter_config.json", f"*{_WEIGHTS}")):
            return True
    except (OSError, ValueError):  # also for a path that no file can have
        return False
    return not ModelFolder(folder).config.keys().isdisjoint(("model_type", "architectures"))
