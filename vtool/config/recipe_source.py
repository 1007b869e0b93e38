"""The files of a recipe as Hydra reads them, and the parts that Hydra's `compose()` is made of.

The one module that imports `hydra._internal`; docs/decisions.md says why.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository
from hydra._internal.core_plugins.structured_config_source import StructuredConfigSource
from hydra._internal.defaults_list import create_defaults_list
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.types import Override
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import DictConfig, OmegaConf
from omegaconf._utils import get_yaml_loader
from omegaconf.errors import OmegaConfBaseException
from omegaconf.grammar_parser import parse

from vtool.config.limited import Here
from vtool.config.limits import (
    FEW_REFERENCES,
    LONGEST_REFERENCE,
    MOST_FILES,
    MOST_REFERENCE_TEXT,
    MOST_REFERENCES_IN_DEFAULTS,
)
from vtool.config.shipped import shipped_folder
from vtool.config.yaml_positions import YamlFile, not_yaml, read_yaml
from vtool.diagnostics import Diagnostic, Findings, Origin

NOT_VALUES = (
    OmegaConfBaseException,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    OverflowError,
)
"""Exceptions of PyYAML and OmegaConf at a value or a key that is not what it is written as."""


_OMEGACONF = get_yaml_loader()


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Reads values as OmegaConf's own loader does, a SafeLoader, with libyaml where it is there.

    OmegaConf's refuses a key that is there twice, as `read_yaml` has done before.
    """

    yaml_implicit_resolvers = _OMEGACONF.yaml_implicit_resolvers
    yaml_constructors = _OMEGACONF.yaml_constructors


class ManyReferences(Exception):
    """The files have more references than this process may follow: OmegaConf's merging does."""


class RecipeSource(ConfigSource):  # type: ignore[misc]  # Hydra's classes are not followed
    """The YAML files of one folder; keeps each file's positions, and names what is wrong with it.

    The provider `main` has the recipe itself, whatever its file is called, and the files next to
    it. It does not give the recipe a second time: where a user's `digits.yaml` extends `digits`,
    the shipped one is meant.
    """

    def __init__(self, provider: str, path: Path) -> None:
        super().__init__(provider, f"{self.scheme()}://{path}")
        self.recipe = path if provider == "main" else None
        self.folder = path.parent if self.recipe else path
        self.files: dict[str, YamlFile] = {}

    @staticmethod
    def scheme() -> str:
        """Return the scheme of its paths."""
        return "vtool"

    def load_config(self, config_path: str) -> ConfigResult:
        """Read a file with OmegaConf; references in settings are not followed yet.

        Raises:
            Findings: `bad-yaml`, `broken-reference`, `bad-defaults-list`.
        """
        path = self._file(config_path)
        assert path is not None, "Hydra asks is_config() first"
        file = self.files[config_path] = read_yaml(path)
        if problems := list(_bad_references(file)):
            raise Findings(problems, fatal=True)
        try:
            config = OmegaConf.create(yaml.load(file.text, _Loader))
        except yaml.YAMLError as error:
            raise not_yaml(file.name, error, file.text) from error
        except NOT_VALUES as error:
            # such as `!!bool x`, and 1:59:59:59.5 with two thousand parts
            raise Findings(
                Diagnostic(
                    "bad-yaml",
                    f"{file.name} has a value or a key that is not of the kind it is written as",
                    origin=Origin(file.name),
                ),
                fatal=True,
            ) from error
        return ConfigResult(
            self.provider, self.full_path(), config, ConfigSource._get_header_dict(file.text[:512])
        )

    def is_config(self, config_path: str) -> bool:
        """Return whether the file exists."""
        return self._file(config_path) is not None

    def is_group(self, config_path: str) -> bool:
        """Return whether a folder is a group of settings, and not one of images, for example."""
        return not config_path or bool(self._names(config_path))

    def available(self) -> bool:
        """Return whether the folder exists."""
        return self.folder.is_dir()

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        """Return the names of the files of a group."""
        names = self._names(config_path)
        return [*names] if results_filter in (None, ObjectType.CONFIG) else []

    def _names(self, group: str) -> Sequence[str]:
        sys.audit("os.listdir", str(self.folder / group))
        try:
            return sorted(path.stem for path in (self.folder / group).glob("*.yaml"))
        except (OSError, ValueError):  # a name that is too long, or that no file can have
            return []

    def _file(self, config_path: str) -> Path | None:
        if self.recipe and config_path == self.recipe.name:
            return self.recipe
        path = self.folder / (
            config_path if config_path.endswith(".yaml") else f"{config_path}.yaml"
        )
        sys.audit("open", str(path), "r", 0)  # a stranger's may lead out: refused, there or not
        try:
            return path if path.is_file() and path != self.recipe else None
        except (OSError, ValueError):
            return None


class _Repository(CachingConfigRepository):  # type: ignore[misc]
    """Hydra's view of the files, which counts them, and stands in for those that are not there."""

    def __init__(self, delegate: Any) -> None:
        super().__init__(delegate)
        self.asked = self.counted = 0
        self.stand_ins: set[str] = set()
        """Files that are not there, and in whose place nothing is composed."""

    def load_config(self, config_path: str) -> ConfigResult | None:
        """Read a file, or return it as it was read before.

        Raises:
            ValueError: there are too many.
        """
        self.asked += 1
        if self.asked > 3 * MOST_FILES:  # Hydra asks two or three times for each
            raise ValueError(f"it names more than {MOST_FILES} files, those in files each time")
        if config_path in self.stand_ins:
            header = {"package": None}
            return ConfigResult("main", config_path, OmegaConf.create(), header)
        result = super().load_config(config_path)
        files = [
            file
            for source in self.delegate.sources
            for file in getattr(source, "files", {}).values()
        ]
        if len(files) > self.counted:
            self.counted = len(files)
            if not Here.limited and sum(file.text.count("${") for file in files) > FEW_REFERENCES:
                raise ManyReferences
            listed = [token for file in files for token in _references_in_defaults(file)]
            if sum(token.value.count("${") for token in listed) > MOST_REFERENCES_IN_DEFAULTS:
                raise ValueError(f"it has more than {MOST_REFERENCES_IN_DEFAULTS} references")
        return result


class Composer:
    """Hydra's composition of one recipe, without its global state, plug-ins and own settings.

    Files are looked for next to the recipe, then in configs/, then in the shipped recipes.
    """

    def __init__(self, recipe: Path) -> None:
        self._name = recipe.name
        self.sources = [
            RecipeSource("main", recipe),
            RecipeSource("configs", shipped_folder("configs")),
            RecipeSource("recipes", shipped_folder("recipes")),
        ]
        self._loader = ConfigLoaderImpl(SimpleNamespace(get_path=list))
        schema = StructuredConfigSource("schema", "structured://")  # Hydra wants it last
        self.repository: Any = _Repository(self._loader.repository)
        self.repository.delegate.sources = [*self.sources, schema]
        """Hydra's view of the files: `group_exists`, `config_exists`, `get_group_options`."""

    @property
    def files(self) -> dict[str, YamlFile]:
        """The files that have been read, by their path in Hydra."""
        return {path: file for source in self.sources for path, file in source.files.items()}

    def defaults_list(self, overrides: Sequence[Override], *, skip_missing: bool = False) -> Any:
        """Return the files that compose the recipe, in order, with the overrides that set values.

        Raises:
            ValueError: it is too much.
        """
        self.repository.asked = 0
        return create_defaults_list(
            self.repository, self._name, overrides, prepend_hydra=False, skip_missing=skip_missing
        )

    def compose(self, defaults: Any) -> DictConfig:
        """Merge the files of a defaults list."""
        self.repository.asked = 0
        config: DictConfig = self._loader._compose_config_from_defaults_list(
            defaults.defaults, self.repository
        )
        return config

    @staticmethod
    def apply(override: Override, config: DictConfig) -> None:
        """Set a value in place; its references are not followed yet."""
        value = override.value()
        OmegaConf.update(config, override.key_or_group, value, merge=True, force_add=True)


def _bad_references(file: YamlFile) -> Iterator[Diagnostic]:
    """Yield a finding for each text in which OmegaConf cannot read what `${` begins."""
    total = 0
    for node in (token for token in _scalars(file.root) if "${" in token.value):
        total += len(node.value)
        if len(node.value) > LONGEST_REFERENCE or total > MOST_REFERENCE_TEXT:
            message = (
                f"{file.name} has texts with references of more than {LONGEST_REFERENCE}"
                f" characters, or of more than {MOST_REFERENCE_TEXT} in all"
            )
            yield Diagnostic("broken-reference", message, origin=file.place(node))
            return
        try:
            parse(node.value)
        except (OmegaConfBaseException, RecursionError):
            yield Diagnostic(
                "broken-reference",
                f"`{node.value}` is not a reference: they are ${{group.key}}",
                origin=file.place(node),
            )


def _references_in_defaults(file: YamlFile) -> list[yaml.ScalarNode]:
    return [
        token
        for key, value in file.root.value
        if key.value == "defaults"
        for token in _scalars(value)
        if "${" in token.value
    ]


def _scalars(node: yaml.Node) -> Iterator[yaml.ScalarNode]:
    if isinstance(node, yaml.ScalarNode):
        yield node
    elif isinstance(node, yaml.CollectionNode):
        for child in node.value:
            for part in child if isinstance(child, tuple) else (child,):
                yield from _scalars(part)
