"""The files of a recipe, as Hydra asks for them."""

import io
from collections.abc import Iterator
from pathlib import Path

import yaml
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.core_plugins.structured_config_source import StructuredConfigSource
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from vtool.config.resources import share
from vtool.config.yaml_positions import YamlFile, not_yaml, read_yaml
from vtool.diagnostics import Diagnostic, Findings, Origin


class RecipeSource(FileConfigSource):  # type: ignore[misc]  # Hydra's classes are not followed
    """The files of one folder, as Hydra asks for them; keeps each one's marks, and names what is
    wrong with it.

    The provider `main` has the recipe itself, whatever its file is called, and the files beside it.
    It does not give the recipe
    a second time: where `digits.yaml` of one's own extends `digits`, the shipped one is meant.
    """

    def __init__(self, provider: str, path: str) -> None:
        super().__init__(provider, path)
        self.recipe = Path(self.path) if provider == "main" else None
        self.folder = self.recipe.parent if self.recipe else Path(self.path)
        self.files: dict[str, YamlFile] = {}

    @staticmethod
    def scheme() -> str:
        """What its search path begins with."""
        return "vtool"

    def load_config(self, config_path: str) -> ConfigResult:
        """A file, as OmegaConf reads it."""
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
        """Whether there is such a file."""
        return self._file(config_path) is not None

    def is_group(self, config_path: str) -> bool:
        """Whether there is a folder with files.

        One of images beside the recipe is no group of settings, whatever its name.
        """
        return not config_path or next((self.folder / config_path).glob("*.yaml"), None) is not None

    def available(self) -> bool:
        """Whether there is the folder."""
        return self.folder.is_dir()

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        """The files of a group."""
        names = sorted(path.stem for path in (self.folder / config_path).glob("*.yaml"))
        return names if results_filter in (None, ObjectType.CONFIG) else []

    def _file(self, config_path: str) -> Path | None:
        if self.recipe and config_path == self.recipe.name:
            return self.recipe
        path = self.folder / (
            config_path if config_path.endswith(".yaml") else f"{config_path}.yaml"
        )
        return path if path.is_file() and path != self.recipe else None


def search_path(recipe: Path) -> ConfigSearchPathImpl:
    """Where Hydra looks: beside the recipe, then in configs/, then among the shipped recipes."""
    for source in (RecipeSource, StructuredConfigSource):
        SourcesRegistry.instance().register(source)
    path = ConfigSearchPathImpl()
    for provider, folder in (
        ("main", recipe),
        ("configs", share("configs")),
        ("recipes", share("recipes")),
    ):
        path.append(provider, f"{RecipeSource.scheme()}://{folder}")
    path.append("schema", "structured://")  # Hydra wants it last
    return path


def _bad_reference(file: YamlFile) -> list[Diagnostic]:
    """The values of a file in which OmegaConf cannot make out what `${` begins."""
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
