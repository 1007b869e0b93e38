"""An architecture of vLLM's registry at tiny size, with a checkpoint that its class takes."""

import importlib
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor

from . import twin
from .constants import set_constants, shrink_constants
from .discover import discover
from .errors import NotRun, error_text
from .facts import CheckpointSource
from .host import OnProgress
from .state import named_parameters
from .stubs import STUBS, Stub, StubInstaller
from .subject import Subject, describe_class
from .vllm_setup import maker, read_vllm_config, start_vllm_groups, vllm_subject
from .vllm_stubs import save_processor

GENERATING = ("_TEXT_GENERATION_MODELS", "_MULTIMODAL_MODELS")
POOLING = (
    "_EMBEDDING_MODELS",
    "_LATE_INTERACTION_MODELS",
    "_REWARD_MODELS",
    "_TOKEN_CLASSIFICATION_MODELS",
    "_SEQUENCE_CLASSIFICATION_MODELS",
)
"""Groups of vLLM's registry: classes that generate, and classes that pool."""
PREDICTING = ("num_nextn_predict_layers", "num_mtp_layers", "num_mtp_modules")
"""Fields with the number of layers that predict further tokens."""
_ENDINGS = re.compile(
    r"(MTP|MTPModel|ForCausalLM|ForConditionalGeneration|Model|ForRewardModel"
    r"|ForSequenceClassification|Chat|DraftModel)+$"
)
"""The words that follow the name of a family in the name of an architecture."""


class TinyArchitecture:
    """The steps that make a subject of a registered architecture.

    Args:
        name: a name of vLLM's registry.
        folder: an empty one, for the tiny config, and the checkpoint of a twin.
        progress: is called with each stage.
        stubs: the table of what may be replaced.
    """

    def __init__(
        self, name: str, folder: Path, progress: OnProgress, stubs: tuple[Stub, ...] = STUBS
    ) -> None:
        from vllm.model_executor.models.registry import ModelRegistry

        self.name, self.folder, self.progress = name, folder, progress
        self.models = ModelRegistry.models
        self.entry = twin.twin_entry(name)
        self.served_as = self.entry.get("served_as", name)
        self.installer = StubInstaller(
            "vllm", twin.TWINS["fields"] | self.entry.get("fields", {}), folder, stubs
        )
        self.twin_class = None if "config_class" in self.entry else self._find_twin_class()
        self.why_no_twin: str | None = None

    def make_subject(self) -> Subject:
        """Return the subject, with the checkpoint of transformers' twin.

        Where there is no twin, or it is of another class than its name says, the checkpoint has
        the names that the class has shown to take.

        Raises:
            NotRun: too few names were found.
        """
        self.progress("import")
        model_class = self.installer.run(self.models[self.served_as].load_model_cls)
        shrink_constants(sys.modules[model_class.__module__])
        set_constants(self.entry.get("constants", {}))
        self.progress("tiny twin")
        saved = checkpoint = self._write_twin()
        if checkpoint is None:
            self.installer.run(
                partial(
                    twin.save_config,
                    self._config_class(),
                    self.entry,
                    self.folder,
                    self.served_as,
                )
            )
        if "MTP" in self.name:
            predict_one_layer(self.folder / "config.json")
        if self.entry.get("processor"):
            save_processor(self.folder)
        self.progress("vLLM's config")
        start_vllm_groups(0, 1, self.folder / "alone")
        config = self.installer.run(self._read_config)
        self.installer.configs.append(config)
        self.progress("construction")
        make = maker(config)
        model = self.installer.run(make)
        if checkpoint is not None:
            checkpoint, unwritten = twin.choose_names(
                checkpoint,
                twin.TWINS["renamings"],
                partial(twin.count_unwritten, make, run=self.installer.run_load),
            )
            if unwritten > len(named_parameters(model)) // 2:
                checkpoint = None  # the twin is of another class than it seemed
                self.why_no_twin = f"it does not take what transformers' {self.twin_class} saves"
                if error := twin.load_error(make, saved or {}):
                    self.why_no_twin += f": {error}"
        origin: CheckpointSource = "twin"
        if checkpoint is None:
            self.progress("names")
            origin = "discovered"
            checkpoint = self._discover(make)
            if not self.twin_class:
                checkpoint = twin.changed_names(checkpoint, self.entry)
        return vllm_subject(
            configure=self._read_config,
            config=config,
            folder=self.folder,
            checkpoint=checkpoint,
            model=model,
            load=lambda model, weights: model.load_weights(weights),
            origin=origin,
            twin=(
                (self.twin_class, self.folder / twin.TWIN_FOLDER, self._is_guessed())
                if origin == "twin"
                and self.twin_class
                and not {"drop", "extra"} & self.entry.keys()
                else None
            ),
            about=describe_class(
                type(model),
                type(model).load_weights,
                **(
                    twin.about_twin(self.name, self.twin_class, type(model), saved, checkpoint)
                    if saved and self.twin_class and origin == "twin"
                    else {}
                ),
                replaced=tuple(self.installer.replaced),
                fields=self.installer.added_fields,
                no_twin=self.why_no_twin,
            ),
        )

    def _discover(self, make: Callable[[], Any]) -> dict[str, Tensor]:
        """Return a checkpoint under names that the class takes, and give what its load asks for."""
        run = self.installer.run_load
        try:
            found = discover(make(), self.progress, run)
        except NotRun as why:
            raise NotRun(f"{self.why_no_twin}; {why}" if self.why_no_twin else str(why)) from why
        twin.load_error(make, found, run)  # of all at once: it may ask for more fields
        return found

    def _is_guessed(self) -> bool:
        """Return whether the class's config says what its twin's does not."""
        return bool(self.installer.added_fields or {"json", "without"} & self.entry.keys())

    def _find_twin_class(self) -> str | None:
        """Return transformers' class of the same name, or of another name of vLLM's class."""
        if "like" in self.entry:
            return str(self.entry["like"])
        if twin.known(self.name):
            return self.name
        target = _target(self.models[self.name])
        if "transformers" in target[0]:
            return None
        same = (
            other
            for other, model in self.models.items()
            if _target(model) == target and twin.known(other)
        )
        return next(same, None)

    def _write_twin(self) -> Mapping[str, Tensor] | None:
        """Save the twin into the folder; None where there is none, or it cannot be made."""
        if self.twin_class is None:
            return None
        try:
            return self.installer.run(
                partial(twin.save_twin, self.twin_class, self.entry, self.folder, self.served_as)
            )
        except Exception as error:
            self.why_no_twin = (
                f"transformers' {self.twin_class} cannot be made tiny: {error_text(error)}"
            )
            return None

    def _config_class(self) -> Any:
        """Return a class of configs: the twin's, of the same name, of its module, else Llama's."""
        import transformers
        from vllm.transformers_utils import configs

        if asked := self.entry.get("config_class"):
            home, _, name = asked.rpartition(":")
            places = [importlib.import_module(home)] if home else [configs, transformers]
            return next(getattr(place, name) for place in places if hasattr(place, name))
        if self.twin_class:
            return getattr(transformers, self.twin_class).config_class
        stem = _ENDINGS.sub("", self.name)
        for module in (configs, transformers):
            if word := words_of(module).get(f"{stem}Config".casefold()):
                return getattr(module, word)
        home = sys.modules[self.models[self.served_as].load_model_cls().__module__]
        plain = transformers.PretrainedConfig
        there = (
            value
            for value in vars(home).values()
            if isinstance(value, type)
            and issubclass(value, plain)
            and value is not plain
            and not re.search("Vision|Audio|Siglip|CLIP", value.__name__)
        )
        return next(there, transformers.LlamaConfig)

    def _read_config(self) -> Any:
        """Return the folder's VllmConfig, with the runner that vLLM would start for the class.

        Where a class generates and pools, that is the one that generates: the other is made of
        the class that does.
        """
        from vllm.config import CacheConfig
        from vllm.model_executor.models import registry

        def in_groups(groups: Sequence[str]) -> bool:
            return any(self.name in getattr(registry, group, {}) for group in groups)

        drafts = self.name in registry._SPECULATIVE_DECODING_MODELS
        pools = in_groups(POOLING) and not in_groups(GENERATING)
        runner = "draft" if drafts else "pooling" if pools else "auto"
        given = {"runner": runner, "dtype": "bfloat16"}
        try:
            config = read_vllm_config(self.folder, **given)
        except ValueError as error:
            if "enable-prefix-caching" not in str(error):
                raise
            # some linear attention asks for what is not the default, which releases differ in
            default = CacheConfig().enable_prefix_caching
            config = read_vllm_config(
                self.folder, CacheConfig(enable_prefix_caching=not default), **given
            )
        if drafts:
            by_name = "eagle3" if "agle3" in self.name else "mtp" if "MTP" in self.name else "eagle"
            _add_target(config, self.entry.get("drafts", by_name))
        return config


@cache
def words_of(module: ModuleType) -> Mapping[str, str]:
    """Return a module's names by their lower case; those of transformers take a second to list."""
    return {word.casefold(): word for word in reversed(dir(module))}  # of two, the first


def _add_target(config: Any, method: str) -> None:
    """Give the config of a draft model a target to draft for: one of its own shape."""
    from vllm.config import SpeculativeConfig

    values = {
        "method": method,
        "num_speculative_tokens": 2,
        "parallel_drafting": False,
        "draft_tensor_parallel_size": 1,
        "disable_padded_drafter_batch": False,
        "eagle3_use_aux_hidden_state": True,
    }
    for name in ("model_config", "parallel_config"):
        values[f"draft_{name}"] = values[f"target_{name}"] = getattr(config, name)
    draft = object.__new__(SpeculativeConfig)
    for name, value in (dict.fromkeys(SpeculativeConfig.__dataclass_fields__) | values).items():
        object.__setattr__(draft, name, value)
    object.__setattr__(config, "speculative_config", draft)


def predict_one_layer(file: Path) -> None:
    """Say in a config.json that one layer predicts further tokens, where it says none.

    Without one, a class of such layers has nothing that could be loaded.
    """
    written = json.loads(file.read_text())
    for part in (written, written.get("text_config")):
        for name in PREDICTING:
            if isinstance(part, dict) and name in part and not part[name]:
                part[name] = 1
    file.write_text(json.dumps(written))


def _target(model: Any) -> tuple[str, str]:
    """Return the module and the class that an entry of vLLM's registry leads to."""
    return getattr(model, "module_name", ""), getattr(model, "class_name", "")
