"""The files of a recipe as Hydra reads them, and the parts that Hydra's `compose()` is made of.

The one module that imports `hydra._internal`; docs/decisions.md says why.
"""

import io
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
from omegaconf.errors import OmegaConfBaseException

from vtool.config.resources import share
from vtool.config.yaml_positions import YamlFile, not_yaml, read_yaml
from vtool.diagnostics import Diagnostic, Findings, Origin


class RecipeSource(ConfigSource):  # type: ignore[misc]  # Hydra's classes are not followed
    """The YAML files of one folder; keeps each file's positions, and names what is wrong with it.

    The provider `main` has the recipe itself, whatever its file is called, and the files beside it.
    It does not give the recipe a second time: where a user's `digits.yaml` extends `digits`, the
    shipped one is meant.
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
        """Read a file with OmegaConf.

        Raises:
            Findings: `bad-yaml`, `broken-reference`.
        """
        path = self._file(config_path)
        assert path is not None, "Hydra asks is_config() first"
        file = self.files[config_path] = read_yaml(path)
        try:
            config = OmegaConf.load(io.StringIO(file.text))
        except yaml.YAMLError as error:
            raise not_yaml(file.name, error) from error
        except OmegaConfBaseException as error:
            raise Findings(_bad_reference(file), fatal=True) from error
        return ConfigResult(
            self.provider, self.full_path(), config, ConfigSource._get_header_dict(file.text[:512])
        )

    def is_config(self, config_path: str) -> bool:
        """Return whether the file exists."""
        return self._file(config_path) is not None

    def is_group(self, config_path: str) -> bool:
        """Return whether a folder is a group of settings, and not one of images, for example."""
        return not config_path or next((self.folder / config_path).glob("*.yaml"), None) is not None

    def available(self) -> bool:
        """Return whether the folder exists."""
        return self.folder.is_dir()

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        """Return the names of the files of a group."""
        names = sorted(path.stem for path in (self.folder / config_path).glob("*.yaml"))
        return names if results_filter in (None, ObjectType.CONFIG) else []

    def _file(self, config_path: str) -> Path | None:
        if self.recipe and config_path == self.recipe.name:
            return self.recipe
        path = self.folder / (
            config_path if config_path.endswith(".yaml") else f"{config_path}.yaml"
        )
        return path if path.is_file() and path != self.recipe else None


class Composer:
    """Hydra's composition of one recipe, without its global state, plug-ins and own settings.

    Files are looked for beside the recipe, then in configs/, then in the shipped recipes.
    """

    def __init__(self, recipe: Path) -> None:
        self._name = recipe.name
        self.sources = [
            RecipeSource("main", recipe),
            RecipeSource("configs", share("configs")),
            RecipeSource("recipes", share("recipes")),
        ]
        self._loader = ConfigLoaderImpl(SimpleNamespace(get_path=list))
        schema = StructuredConfigSource("schema", "structured://")  # Hydra wants it last
        self.repository: Any = CachingConfigRepository(self._loader.repository)
        self.repository.delegate.sources = [*self.sources, schema]
        """Hydra's view of the files: `group_exists`, `config_exists`, `get_group_options`."""

    @property
    def files(self) -> dict[str, YamlFile]:
        """The files that have been read, by their path in Hydra."""
        return {path: file for source in self.sources for path, file in source.files.items()}

    def defaults_list(self, overrides: Sequence[Override], *, skip_missing: bool = False) -> Any:
        """Return what the recipe is composed of, in order, with the overrides that set values."""
        return create_defaults_list(
            self.repository, self._name, overrides, prepend_hydra=False, skip_missing=skip_missing
        )

    def compose(self, defaults: Any) -> DictConfig:
        """Merge the files of a defaults list."""
        config: DictConfig = self._loader._compose_config_from_defaults_list(
            defaults.defaults, self.repository
        )
        return config

    @staticmethod
    def apply(override: Override, config: DictConfig) -> None:
        """Set a value in place."""
        ConfigLoaderImpl._apply_overrides_to_config([override], config)


def _bad_reference(file: YamlFile) -> list[Diagnostic]:
    """Return a finding for each value in which OmegaConf cannot read what `${` begins."""
    findings = []
    for node in (token for token in _scalars(file.root) if "${" in token.value):
        try:
            OmegaConf.create({"value": node.value})
        except OmegaConfBaseException:
            findings.append(
                Diagnostic(
                    "broken-reference",
                    f"`{node.value}` is not a reference: they are ${{group.key}}",
                    origin=file.place(node),
                )
            )
    return findings or [
        Diagnostic(
            "broken-reference",
            f"{file.name} has a value that is no reference",
            origin=Origin(file.name),
        )
    ]


def _scalars(node: yaml.Node) -> Iterator[yaml.ScalarNode]:
    if isinstance(node, yaml.ScalarNode):
        yield node
    else:
        for child in node.value:
            for part in child if isinstance(child, tuple) else (child,):
                yield from _scalars(part)
