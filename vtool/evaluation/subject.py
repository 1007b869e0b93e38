"""The model that is evaluated: a run's, an export, an adapter, or any folder of a known family."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import xxhash

from vtool.config.schema import Data
from vtool.diagnostics import Findings
from vtool.evaluation.predict import Export, data_settings, find_export
from vtool.models.adapters import CONFIG, add_saved_adapter
from vtool.models.build import load_model
from vtool.models.model_class import recorded_modeling
from vtool.models.processor import Processor, load_processor

_BLOCK = 2**24
_OF_A_MODEL = (
    "*.safetensors",
    "pytorch_model*.bin",
    "config.json",
    CONFIG,
    "*.jinja",
    "tokenizer.json",
    "preprocessor_config.json",
)


@dataclass(frozen=True, slots=True)
class Subject:
    """A model that is asked."""

    given: Path
    export: Export
    data: Data | None
    """The settings by which its run has read its rows; None where it is no run's."""

    @property
    def is_adapter(self) -> bool:
        return self.export.base != self.export.folder

    def in_words(self) -> str:
        """Return the folder, and the base of an adapter."""
        base = f" on {self.export.base}" if self.is_adapter else ""
        return f"{self.export.folder}{base} ({self.export.family})"

    def processor(self, settings: Data) -> Processor:
        """Load its processor, with these sizes of images and videos."""
        return load_processor(
            self.export.folder,
            self.export.family,
            settings.image,
            settings.video,
            config_of=self.export.base,
        )

    def load(self, dtype: torch.dtype) -> Any:
        """Load the model, in evaluation mode, with its adapter.

        Raises:
            Findings: `model-does-not-load`, `modeling-changed`.
        """
        export = self.export
        own_run = export.folder != self.given
        modeling = recorded_modeling(self.given) if own_run else None
        model = load_model(export.base, export.family, dtype, "sdpa", modeling).eval()
        if self.is_adapter:
            add_saved_adapter(model, export.folder)
        return model

    def digest(self) -> str:
        """Return a digest of the files that make it what it is, weights included."""
        digest = xxhash.xxh3_128()
        for folder in dict.fromkeys((self.export.base, self.export.folder)):
            for pattern in _OF_A_MODEL:
                for file in sorted(folder.glob(pattern)):
                    digest.update(f"{file.name} {file.stat().st_size}\n".encode())
                    with file.open("rb") as opened:
                        while block := opened.read(_BLOCK):
                            digest.update(block)
        return digest.hexdigest()


def open_subject(given: str, base: Path | None = None) -> Subject:
    """Find a model by its folder, or by the name of a run in `runs/`.

    Args:
        given: the folder or the name.
        base: where the weights under an adapter are, in the place of what the adapter says.

    Raises:
        Findings: `not-a-run`, `model-does-not-load`; fatal.
    """
    path, named = Path(given), Path("runs") / given
    path = named if not path.exists() and named.is_dir() else path
    try:
        export = find_export(path, base)
        return Subject(path, export, data_settings(path, export.folder))
    except Findings as findings:
        moved = (
            "say where it is now: --base FOLDER; or a whole model: vtool export"
            f" {shlex.quote(given)} --merge"
        )
        found = [
            replace(one, help=moved)
            if one.rule == "model-does-not-load" and "is an adapter for" in one.message
            else one
            for one in findings.diagnostics
        ]
        raise Findings(found, fatal=True) from findings


def with_own_reading(data: Data, own: Data | None, given: Mapping[str, Any]) -> Data:
    """Return how rows are read: as the model's run did, but for what is given on the command line.

    A model that has learnt images of one size is not shown them in another.

    Args:
        data: of the rows' recipe.
        own: of the model's run.
        given: the settings of the command line.
    """
    if own is None:
        return data
    changed: dict[str, Any] = {}
    for group in ("image", "video"):
        prefix = f"data.{group}."
        asked = {key.removeprefix(prefix) for key in given if key.startswith(prefix)}
        mine = getattr(data, group)
        changed[group] = getattr(own, group).model_copy(
            update={key: getattr(mine, key) for key in asked}
        )
    if "data.drop_model_inputs" not in given:
        changed["drop_model_inputs"] = own.drop_model_inputs
    return data.model_copy(update=changed)
