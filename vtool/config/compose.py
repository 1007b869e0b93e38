"""Composition of a recipe with Hydra: defaults list, groups of configs/, `KEY=VALUE` on top."""

import json
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import yaml
from hydra import version
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from vtool.config.origins import COMMAND_LINE, Key, Layer, Origins, layered
from vtool.config.overrides import choose_groups, first_line, parse_overrides
from vtool.config.recipe_source import Composer, RecipeSource
from vtool.config.resources import RecipeFile, find_recipe, recipe_names, share
from vtool.config.yaml_positions import YamlFile, read_yaml
from vtool.diagnostics import Diagnostic, Findings, Origin
from vtool.diagnostics.near_miss import did_you_mean, near


@dataclass(frozen=True, slots=True)
class Composed:
    """A recipe after composition and before validation."""

    file: RecipeFile
    values: dict[str, Any]
    origins: Origins
    findings: tuple[Diagnostic, ...] = ()
    """Overrides that could not be applied."""


def compose_recipe(recipe: str, overrides: Sequence[str]) -> Composed:
    """Compose a shipped recipe, or a YAML file, with `KEY=VALUE` on top.

    Raises:
        Findings: VT001 to VT007, `fatal`.
    """
    file = find_recipe(recipe)
    read_yaml(file.path)  # before the overrides, which may refer to what is wrong with it
    given = parse_overrides(overrides)
    with _hydra_as_of("1.3"):
        composer = Composer(file.path)
        sources = composer.sources
        try:
            choose_groups(given, composer)
            listed = composer.defaults_list(given)
            files = composer.files
            layers = [
                Layer(_keys(default.package or ""), files[default.config_path])
                for default in listed.defaults
            ]
            if clashes := list(_clashes(layers)):
                raise Findings(clashes, fatal=True)
            config = composer.compose(listed)
        except MissingConfigException as error:
            raise _no_such_file(error, sources) from error
        except RecursionError as error:
            raise _refused(
                "bad-defaults-list", "the defaults list leads back to itself", sources=sources
            ) from error
        except AssertionError as error:
            raise _refused(
                "bad-defaults-list",
                "an entry of the defaults list is neither a name nor `/GROUP: FILE`",
                sources=sources,
            ) from error
        except (HydraException, OmegaConfBaseException, ValueError) as error:
            raise (
                error
                if isinstance(error, Findings)
                else _refused("bad-defaults-list", first_line(error), sources=sources)
            ) from error
    applied, findings = _apply(listed.config_overrides, config)
    origins = layered(
        layers, [(_keys(override.key_or_group), override.value()) for override in applied]
    )
    return Composed(file, _resolved(config, origins), origins, tuple(findings))


def _clashes(layers: Sequence[Layer]) -> Iterator[Diagnostic]:
    """Yield a finding for each setting that is a group in one file and a list in a later one."""
    kinds: dict[Key, tuple[str, str]] = {}
    words: dict[type[yaml.Node], str] = {
        yaml.MappingNode: "a group of settings",
        yaml.SequenceNode: "a list",
    }

    def look(node: yaml.Node, keys: Key, file: YamlFile) -> Iterator[Diagnostic]:
        kind = words.get(type(node))
        if kind is None:
            return
        before, where = kinds.setdefault(keys, (kind, file.name))
        if before != kind:
            name = ".".join(keys)
            yield Diagnostic(
                "wrong-type",
                f"`{name}` is {before} in {where}, and {kind} here",
                f"write {before}, as {where} does",
                name,
                file.place(node),
                before,
                kind,
            )
        elif isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if keys or key.value != "defaults":
                    yield from look(value, (*keys, str(key.value)), file)

    for layer in layers:
        yield from look(layer.file.root, layer.package, layer.file)


@contextmanager
def _hydra_as_of(release: str) -> Iterator[None]:
    """Hydra's behaviour of a release, without its hints for those who come from an older one."""
    state = version.VersionBase.instance()
    before = state.version_base
    version.setbase(release)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        state.version_base = before


def _apply(
    overrides: Sequence[Override], config: DictConfig
) -> tuple[list[Override], list[Diagnostic]]:
    """Set what the overrides say; the ones that were applied, and findings for the others."""
    applied, findings = [], []
    for override in overrides:
        try:
            Composer.apply(override, config)
            applied.append(override)
        except (
            HydraException,
            OmegaConfBaseException,
            AssertionError,
            ValueError,
            IndexError,
        ) as error:
            name, why, help = override.key_or_group, first_line(error.__cause__ or error), None
            around = (".".join(_keys(name)[:end]) for end in range(1, len(_keys(name)) + 1))
            for outer in around:
                entries = OmegaConf.select(config, outer, throw_on_missing=False)
                if isinstance(entries, ListConfig):
                    why, help = (
                        (f"`{name}` is a list", f"give the whole list: {name}=[…]")
                        if outer == name
                        else (
                            f"`{outer}` is a list of {len(entries)}, whose first entry is"
                            f" `{outer}.0`",
                            f"to add an entry, give the whole list: {outer}=[…]",
                        )
                    )
                    break
            message = f"`{override.input_line}` cannot be set: {why}"
            findings.append(Diagnostic("bad-override", message, help, name, COMMAND_LINE))
    return applied, findings


def _resolved(config: DictConfig, origins: Origins) -> dict[str, Any]:
    """Plain values, with each `${key}` replaced. All those that lead nowhere are named."""
    findings: dict[str, Diagnostic] = {}
    while True:
        try:
            values = OmegaConf.to_container(config, resolve=True)
        except OmegaConfBaseException as error:
            name = (error.full_key or "").replace("[", ".").replace("]", "")
            if name in findings:
                raise Findings(findings.values(), fatal=True) from error
            reason = first_line(error).partition("raised while resolving interpolation: ")[2].strip(
                '"'
            ) or first_line(error)
            problem = (
                "itself, at once or by way of others"
                if reason.startswith("Recursive interpolation")
                else f"something that is not there: {reason}"
            )
            wanted = re.match(r"Interpolation key '(.+)' not found", reason)
            help = (
                did_you_mean(near(wanted[1], [".".join(keys) for keys in origins.places]))
                if wanted
                else None
            )
            if wanted and (default := _default_of(wanted[1])) is not None:
                help = (
                    f"the recipe does not set `{wanted[1]}`, and only what it sets can be referred"
                    f" to; the default is {default}: write it"
                )
            findings[name] = Diagnostic(
                "broken-reference", f"`{name}` refers to {problem}", help, name, origins.near(name)
            )
            OmegaConf.update(config, name, None)
            continue
        if findings:
            raise Findings(findings.values(), fatal=True)
        assert isinstance(values, dict)
        return values  # type: ignore[return-value]


def _default_of(name: str) -> str | None:
    """The default of a setting that has a plain one, as JSON."""
    from vtool.config.settings import all_settings

    found = next(
        (
            setting
            for setting in all_settings()
            if setting.name == name and not setting.required and not setting.groups
        ),
        None,
    )
    return (
        json.dumps(found.field.get_default(call_default_factory=True), default=str)
        if found
        else None
    )


def _no_such_file(error: MissingConfigException, sources: Sequence[RecipeSource]) -> Findings:
    """A defaults list names a file that is nowhere."""
    group, _, choice = str(error.missing_cfg_file).lstrip("/").rpartition("/")
    origin = _in_defaults(choice, sources)
    if not group and any(source.recipe and source.recipe.stem == choice for source in sources):
        return _refused(
            "bad-defaults-list",
            f"the defaults list leads back to `{choice}`, where it began",
            None,
            origin,
            sources,
        )
    if not group:
        message = f"the defaults list names `{choice}`, and there is no such recipe"
        help = (
            did_you_mean(near(choice, recipe_names()))
            or f"recipes to extend are {', '.join(recipe_names())}, and the files beside this one"
        )
        return _refused("unknown-recipe", message, help, origin, sources)
    groups = sorted(folder.name for folder in share("configs").iterdir() if folder.is_dir())
    options = [str(option) for option in error.options or ()] or sorted(
        file.stem for file in (share("configs") / group).glob("*.yaml")
    )
    if options:
        message = f"the defaults list names `{choice}`, and configs/{group} has no such file"
        help = did_you_mean(near(choice, options)) or f"there are: {', '.join(options)}"
    else:
        message = (
            f"the defaults list names the group `{group}`, and there is no folder configs/{group}"
        )
        help = (
            did_you_mean([f"/{near_by}" for near_by in near(group, groups)])
            or f"there are: {', '.join(groups)}"
        )
    return _refused("unknown-group-choice", message, help, origin, sources)


def _in_defaults(choice: str, sources: Sequence[RecipeSource]) -> Origin | None:
    """Return the place where a defaults list names a file."""
    for file in (file for source in sources for file in source.files.values()):
        for entry in (
            entry
            for key, value in file.root.value
            if key.value == "defaults"
            for entry in value.value
        ):
            named = entry.value[0][1] if isinstance(entry, yaml.MappingNode) else entry
            if str(named.value).rpartition("/")[2] == choice:
                return file.place(named)
    return None


def _keys(name: str) -> Key:
    return tuple(part for part in name.split(".") if part)


def _refused(
    rule: str,
    message: str,
    help: str | None = None,
    origin: Origin | None = None,
    sources: Sequence[RecipeSource] = (),
) -> Findings:
    return Findings(
        Diagnostic(rule, message, help, origin=origin or _defaults_of_recipe(sources)), fatal=True
    )


def _defaults_of_recipe(sources: Sequence[RecipeSource]) -> Origin | None:
    for file in (
        source.files[source.recipe.name]
        for source in sources
        if source.recipe and source.recipe.name in source.files
    ):
        return next(
            (file.place(key) for key, _ in file.root.value if key.value == "defaults"),
            Origin(file.name),
        )
    return None
