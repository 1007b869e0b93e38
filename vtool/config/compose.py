"""Composition of a recipe with Hydra: defaults list, groups of configs/, `KEY=VALUE` on top."""

import json
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from hydra import version
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from vtool.config.alternatives import unset_overridden
from vtool.config.foreign.refuse import refuse_foreign
from vtool.config.limited import in_child
from vtool.config.limits import MOST_FINDINGS
from vtool.config.origins import COMMAND_LINE, Key, Layer, Origins, layered
from vtool.config.overrides import choose_groups, parse_overrides
from vtool.config.own_values import ComposedFile, lost_values
from vtool.config.recipe_paths import resolve_recipe_paths
from vtool.config.recipe_source import Composer, ManyReferences, RecipeSource
from vtool.config.references import resolve_references, value_at
from vtool.config.resources import RecipeFile, find_recipe, group_names, refuse_link
from vtool.config.rows_recipe import (
    more_rows,
    names_rows,
    recipe_of_rows,
    small_json,
    spell_out_rows,
)
from vtool.config.schema import Run
from vtool.config.shipped import recipe_names, shipped_folder
from vtool.config.yaml_positions import YamlFile, read_yaml
from vtool.diagnostics import Diagnostic, Findings, Origin
from vtool.diagnostics.near_miss import did_you_mean, near
from vtool.words import first_line


@dataclass(frozen=True, slots=True)
class Composed:
    """A recipe after composition and before validation."""

    file: RecipeFile
    values: dict[str, Any]
    origins: Origins
    findings: tuple[Diagnostic, ...] = ()
    """Overrides that could not be applied, and choices of a group that it does not have."""
    unknown: frozenset[Key] = frozenset()
    """Places whose values cannot be known: of a group without its file, of a variable not read."""
    name: str = ""
    """The name of its run, unless it sets one."""


def compose_recipe(recipe: str, overrides: Sequence[str], *, trusted: bool = True) -> Composed:
    """Compose a shipped recipe, or a YAML file, with `KEY=VALUE` on top; of rows, theirs.

    Args:
        trusted: False for the recipe of a stranger: no environment variable is read, and no file
            outside of its folder and the shipped ones.

    Raises:
        Findings: VT001 to VT007, `fatal`.
    """
    if trusted:
        with suppress(ManyReferences):
            return _composed(recipe, overrides)
    elif not names_rows(recipe):
        refuse_link(Path(recipe))
    composed: Composed = in_child(_composed, recipe, overrides, trusted=trusted)
    return composed


def _composed(recipe: str, overrides: Sequence[str]) -> Composed:
    if more := list(more_rows(recipe, overrides)):
        raise Findings(more, fatal=True)
    rows = recipe_of_rows(recipe, overrides) if names_rows(recipe) else None
    if rows:
        refuse_foreign(recipe, small_json(recipe))
        recipe, overrides = rows.recipe, rows.overrides
    file = find_recipe(recipe)
    # before the overrides, which may refer to what is wrong with it
    refuse_foreign(recipe, read_yaml(file.path).text)
    given = parse_overrides(overrides)
    with _hydra_as_of("1.3"):
        composer = Composer(file.path)
        composed, config, rest, missing = _followed(composer, given)
    layers = [each.layer for each in composed]
    applied, findings = _apply(rest, config)
    typed = [(_keys(override.key_or_group), override.value()) for override in applied]
    origins = layered(layers, typed)
    values, unread, notes = _resolved(config, origins)
    spell_out_rows(values)
    resolve_recipe_paths(values, origins)
    unset_overridden(values, [*(layered([each], []) for each in layers), layered([], typed)])
    return Composed(
        file,
        values,
        origins,
        (
            *(finding for _, finding in missing),
            *findings,
            *lost_values(composed, origins),
            *notes,
        ),
        unread.union(group for group, _ in missing),
        rows.name if rows else file.name,
    )


_Missing = list[tuple[Key, Diagnostic]]
"""Groups whose file is not there, each with its finding."""


def _followed(
    composer: Composer, given: list[Override]
) -> tuple[list[ComposedFile], DictConfig, list[Override], _Missing]:
    """Follow the defaults list; return its files, their values, and the overrides that set some."""
    sources, files = composer.sources, composer.files
    try:
        missing: _Missing = choose_groups(given, composer)
        given = [each for each in given if each.key_or_group not in _names(missing)]
        while True:
            try:
                listed = composer.defaults_list(given)
                break
            except MissingConfigException as error:
                # what the rest says is checked as if the file were empty
                name = str(error.missing_cfg_file).lstrip("/")
                group = name.rpartition("/")[0]
                found = _no_such_file(error, sources)
                known = group.partition("/")[0] in Run.model_fields
                if not known or len(missing) >= _MOST_MISSING:
                    raise Findings(
                        (*(one for _, one in missing), *found.diagnostics), fatal=True
                    ) from error
                missing.append((_keys(group.replace("/", ".")), found.diagnostics[0]))
                composer.repository.stand_ins.add(str(error.missing_cfg_file))
        files = composer.files
        composed = _composed_files(listed.defaults, files)
        if clashes := list(_clashes([each.layer for each in composed])):
            raise Findings(clashes, fatal=True)
        return composed, composer.compose(listed), list(listed.config_overrides), missing
    except RecursionError as error:
        message = "the defaults list leads back to itself"
        raise _refused("bad-defaults-list", message, sources=sources) from error
    except AssertionError as error:
        message = "an entry of the defaults list is neither a name nor `/GROUP: FILE`"
        raise _refused("bad-defaults-list", message, sources=sources) from error
    except Findings:
        raise
    except _UNFOLLOWED as error:
        message = f"the defaults list cannot be followed: {first_line(error)}"
        raise _refused("bad-defaults-list", message[:500], sources=sources) from error


_MOST_MISSING = 20
# What Hydra raises of lists that it does not expect.
_UNFOLLOWED = (
    HydraException,
    OmegaConfBaseException,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    OSError,
)


def _composed_files(defaults: Sequence[Any], files: Mapping[str, YamlFile]) -> list[ComposedFile]:
    """Return the files of Hydra's list, in order, each with those whose lists have led to it."""
    parents = {default.config_path: default.parent for default in defaults}

    def above(path: str) -> Iterator[str]:
        while parent := parents.get(path):
            yield parent
            path = parent

    return [
        ComposedFile(
            Layer(_keys(default.package or ""), files[default.config_path]),
            default.config_path,
            (*above(default.config_path),),
            chosen="/" in default.config_path,
        )
        for default in defaults
        if default.config_path in files
    ]


def _names(missing: _Missing) -> set[str]:
    return {".".join(group) for group, _ in missing}


def _clashes(layers: Sequence[Layer]) -> Iterator[Diagnostic]:
    """Yield a finding for each setting that is a group in one file and a list in a later one.

    Nor is a reference in one file a group in a later one, which it would be merged with.
    """
    kinds: dict[Key, tuple[str, str]] = {}
    words: dict[type[yaml.Node], str] = {
        yaml.MappingNode: "a group of settings",
        yaml.SequenceNode: "a list",
    }

    def look(node: yaml.Node, keys: Key, file: YamlFile) -> Iterator[Diagnostic]:
        kind = words.get(type(node))
        if isinstance(node, yaml.ScalarNode):
            if "${" in node.value:
                kinds[keys] = (_REFERENCE, file.name)
            elif kinds.get(keys, ("", ""))[0] == _REFERENCE:
                del kinds[keys]
            return
        assert kind is not None
        before, where = kinds.setdefault(keys, (kind, file.name))
        if before == _REFERENCE and kind == words[yaml.SequenceNode]:
            kinds[keys] = (kind, file.name)  # which takes its place
        elif before != kind:
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
        for end in range(1, len(layer.package) + 1):
            if kinds.get(layer.package[:end], ("", ""))[0] == _REFERENCE:
                yield from look(layer.file.root, layer.package[:end], layer.file)
                return
        yield from look(layer.file.root, layer.package, layer.file)


_REFERENCE = "a reference"


@contextmanager
def _hydra_as_of(release: str) -> Iterator[None]:
    """Give Hydra the behavior of a release for a while, without its hints on older ones."""
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
        if problem := _on_a_reference(override, config):
            findings.append(problem)
            continue
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


def _on_a_reference(override: Override, config: DictConfig) -> Diagnostic | None:
    """Return a finding for `a.b=1` where the recipe has `a: ${c}`."""
    keys, values = _keys(override.key_or_group), OmegaConf.to_container(config, resolve=False)
    for end in range(1, len(keys)):
        outer, found = ".".join(keys[:end]), value_at(values, keys[:end])
        if isinstance(found, str) and "${" in found:
            message = f"`{override.input_line}` cannot be set: `{outer}` is a reference"
            help = f"give the whole group: {outer}={{…}}"
            return Diagnostic("bad-override", message, help, override.key_or_group, COMMAND_LINE)
    return None


def _resolved(
    config: DictConfig, origins: Origins
) -> tuple[dict[str, Any], frozenset[Key], list[Diagnostic]]:
    """Return plain values, with each `${key}` replaced, those not read, and notes of these.

    Raises:
        Findings: `broken-reference`, of all that lead nowhere.
    """
    followed = resolve_references(OmegaConf.to_container(config, resolve=False))
    if followed.broken:
        names = [".".join(keys) for keys in origins.places]
        raise Findings(
            [
                _leads_nowhere(".".join(place), reason, origins, names if number < 10 else [])
                for number, (place, reason) in enumerate(followed.broken.items())
            ][:MOST_FINDINGS],
            fatal=True,
        )
    notes = [
        Diagnostic(
            "not-looked-at",
            f"`{'.'.join(place)}` is {text}: with --untrusted no resolver is called",
            "nothing need be done; what depends on it is not checked",
            ".".join(place),
            origins.near(".".join(place)),
        )
        for place, text in followed.unread.items()
    ]
    return followed.values, frozenset(followed.unread), notes[:MOST_FINDINGS]


def _leads_nowhere(name: str, reason: str, origins: Origins, names: Sequence[str]) -> Diagnostic:
    problem = reason
    wanted = re.match(r"Interpolation key '(.+)' not found", reason)
    if wanted or reason.startswith(("Environment", "Unsupported")):
        problem = f"something that is not there: {reason}"
    help = did_you_mean(near(wanted[1], names)) if wanted else None
    if wanted and (default := _default_of(wanted[1])) is not None:
        help = (
            f"the recipe does not set `{wanted[1]}`, and only what it sets can be referred to; the"
            f" default is {default}: write it"
        )
    if (wanted and wanted[1].isupper()) or reason == "Unsupported interpolation type env":
        variable = wanted[1] if wanted else "NAME"
        help = f"an environment variable is ${{oc.env:{variable}}}"
    message = f"`{name}` refers to {problem}"
    return Diagnostic("broken-reference", message, help, name, origins.near(name))


def _default_of(name: str) -> str | None:
    """Return the default of a setting as JSON; None for a group, and where there is none."""
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
    """Return the findings about a file that a defaults list names and that is not found."""
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
            or f"recipes to extend are {', '.join(recipe_names())}, and the files next to this one"
        )
        return _refused("unknown-recipe", message, help, origin, sources)
    groups = sorted(
        folder.name for folder in shipped_folder("configs").iterdir() if folder.is_dir()
    )
    options = [str(option) for option in error.options or ()] or group_names(group)
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
