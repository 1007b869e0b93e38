"""Compose a recipe with Hydra, and keep where every value came from.

The origins lean on Hydra's list of composed files (`compute_defaults_list`), which is only half public; no other module touches it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from vtool.config.marks import Key, read_marks
from vtool.config.resources import recipe_names, share, shown
from vtool.diagnostics import Diagnostic, Findings, Origin

COMMAND_LINE = Origin("command line")


@dataclass(frozen=True, slots=True)
class Composed:
    """A recipe after composition and before validation."""

    name: str
    values: dict[str, Any]
    origins: Mapping[Key, Origin]


def compose_recipe(recipe: str, overrides: Sequence[str]) -> Composed:
    """Compose a shipped recipe, or a YAML file, with `KEY=VALUE` on top.

    Raises:
        Findings: VT001 to VT006.
    """
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import ConfigCompositionException, MissingConfigException
    from hydra.types import RunMode
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    path = _find(recipe)
    read_marks(path)  # its own errors, before Hydra's
    given = [_Override.parse(text) for text in overrides]
    search = ",".join(f"'file://{share(name)}'" for name in ("configs", "recipes"))
    arguments = [f"hydra.searchpath=[{search}]", *(override.for_hydra for override in given)]
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(config_dir=str(path.parent.resolve()), version_base="1.3", job_name="vtool"):
            config = compose(config_name=path.stem, overrides=arguments)
            loader = GlobalHydra.instance().config_loader()
            files = loader.compute_defaults_list(config_name=path.stem, overrides=arguments, run_mode=RunMode.RUN).defaults
        values: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    except MissingConfigException as error:
        raise _missing_file(error, path) from error
    except ConfigCompositionException as error:
        cause = error.__cause__ or error
        raise _refused("bad-override", f"the recipe and its overrides do not compose: {_first_line(cause)}") from error
    except OmegaConfBaseException as error:
        raise _refused("broken-reference", _first_line(error), getattr(error, "full_key", None)) from error
    return Composed(path.stem, values, _origins(files, path, given))


@dataclass(frozen=True, slots=True)
class _Override:
    text: str
    key: str
    value: Any
    chooses_group: bool
    deletes: bool

    @staticmethod
    def parse(text: str) -> "_Override":
        from hydra.core.override_parser.overrides_parser import OverridesParser
        from hydra.errors import HydraException

        try:
            parsed = OverridesParser.create().parse_override(text)
        except HydraException as error:
            raise _refused("bad-override", f"`{text}` is not KEY=VALUE: {_first_line(error)}") from error
        if parsed.is_sweep_override():
            message = f"`{text}` names several values, and one run takes one"
            raise _refused(
                "bad-override", message, parsed.key_or_group, help="start a run for each; for a text with a comma in it, quote the value"
            )
        value = parsed.value()
        group = (share("configs") / parsed.key_or_group).is_dir() and isinstance(value, str)
        return _Override(text, parsed.key_or_group, value, group, parsed.is_delete())

    @property
    def for_hydra(self) -> str:
        """Any key may be set without a plus: whether it exists is for the schema to say, which knows better what was meant."""
        return self.text if self.chooses_group or self.deletes else "++" + self.text.lstrip("+")


def _find(recipe: str) -> Path:
    if "/" not in recipe and not recipe.endswith((".yaml", ".yml")):
        path = share("recipes") / f"{recipe}.yaml"
    else:
        path = Path(recipe)
    if path.exists():
        return path
    near = get_close_matches(recipe, recipe_names(), 1)
    help = f"did you mean `{near[0]}`?" if near else f"shipped recipes: {', '.join(recipe_names())}; or give the path of a YAML file"
    raise Findings(Diagnostic("unknown-recipe", f"there is no recipe `{recipe}`", help=help, origin=COMMAND_LINE), fatal=True)


def _origins(files: Sequence[Any], recipe: Path, given: Sequence[_Override]) -> dict[Key, Origin]:
    """In the order of composition, so that the last one of a key is the one in force."""
    origins: dict[Key, Origin] = {}
    folders = (recipe.parent, share("configs"), share("recipes"))
    for file in files:
        if file.config_path is None or file.config_path.startswith("hydra"):
            continue
        found = next((folder / f"{file.config_path}.yaml" for folder in folders if (folder / f"{file.config_path}.yaml").exists()), None)
        if found is None:
            continue
        package = tuple(part for part in (file.package or "").split(".") if part and part != "_global_")
        origins |= {(*package, *keys): origin for keys, origin in read_marks(found).items() if keys[0] != "defaults"}
    for override in given:
        if override.chooses_group:
            continue
        place = tuple(override.key.split("."))
        if not isinstance(override.value, Mapping):  # a mapping is merged; anything else takes the place of all that was there
            origins = {keys: origin for keys, origin in origins.items() if keys[: len(place)] != place}
        if not override.deletes:
            origins |= dict.fromkeys(_keys(override.value, place), COMMAND_LINE)
    return origins


def _keys(value: Any, keys: Key) -> Iterator[Key]:
    yield keys
    entries = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in entries:
        yield from _keys(entry, (*keys, str(key)))


def _missing_file(error: Any, recipe: Path) -> Findings:
    missing = error.missing_cfg_file
    options = [str(option) for option in error.options or ()]
    if missing is None:
        return _refused("unknown-group-choice", _first_line(error))
    group, _, choice = str(missing).lstrip("/").rpartition("/")
    near = get_close_matches(choice, options, 1)
    help = f"did you mean `{near[0]}`?" if near else f"there are: {', '.join(options)}" if options else None
    return _refused("unknown-group-choice", f"{shown(recipe)}: there is no {group or 'recipe'} `{choice}`", group or None, help=help)


def _refused(rule: str, message: str, parameter: str | None = None, help: str | None = None) -> Findings:
    return Findings(
        Diagnostic(rule, message, parameter=parameter, help=help, origin=COMMAND_LINE if rule == "bad-override" else None), fatal=True
    )


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
