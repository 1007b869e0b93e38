"""The tiny configs and twins that an SGLang class may be made with, the likeliest first."""

import importlib
import inspect
import json
import pkgutil
import re
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import twin
from .stubs import StubInstaller

SGLANG_TWINS: Mapping[str, Any] = json.loads(
    (Path(__file__).parent / "sglang_twins.json").read_text()
)
"""The table of SGLang's classes, of the form of `twin.TABLE`, which it comes before."""
STEM = re.compile(
    r"(ForCausalLM|ForConditionalGeneration|ForSequenceClassification|ForClassification"
    r"|ForRewardModel|ForBlockDiffusion|NextN|MTP|DSpark|Eagle3?|DraftModel|LMHeadModel|ModelLM"
    r"|EmbeddingModel|ChatModel|Model|Chat)+$"
)
"""The words that follow the name of a family in the name of an architecture."""
DRAFTS = re.compile("NextN|MTP")
"""Names of classes that load the layer after the last, by which a model drafts for itself."""
FIELDS = {"language_only": False, "encoder_only": False}
"""Fields that SGLang sets on a config from its own arguments."""


@dataclass(frozen=True)
class Template:
    """A way to make a class: a transformers class of like weights, or a class of configs alone."""

    like: str | None
    config_class: Any
    entry: twin.TwinEntry

    @property
    def words(self) -> str:
        """The template as stages and reasons name it."""
        return f"transformers' {self.like}" if self.like else str(self.config_class.__name__)


def sglang_entry(name: str) -> dict[str, Any]:
    """Return the entry of a class: SGLang's table's, else vLLM's without its class of configs."""
    if name not in SGLANG_TWINS["classes"]:
        entry = twin.twin_entry(name)
        return {key: value for key, value in entry.items() if key != "config_class"}
    entry = dict(SGLANG_TWINS["classes"][name])
    return {**sglang_entry(entry.pop("as")), **entry} if "as" in entry else entry


def sglang_constants(constants: Mapping[str, Any]) -> dict[str, Any]:
    """Return the constants of an entry but those of vLLM's modules, which may not be there."""
    return {place: given for place, given in constants.items() if not place.startswith("vllm.")}


def templates(name: str, model_class: type) -> Iterator[Template]:
    """Yield the templates to try: a twin of its name or of a base class, then configs alone."""
    import transformers

    entry = sglang_entry(name)
    if "config_class" not in entry:
        bases = [base.__name__ for base in model_class.__mro__[1:]]
        for like in [entry["like"]] if "like" in entry else dict.fromkeys([name, *bases]):
            if twin.known(like) and not like.startswith(("PreTrained", "Pretrained")):
                of_base = {key: value for key, value in sglang_entry(like).items() if key != "like"}
                yield Template(like, getattr(transformers, like).config_class, entry or of_base)
                break
    config_classes = _config_classes(name, model_class, entry.get("config_class"))
    for config_class in dict.fromkeys(config_classes):
        yield Template(None, config_class, entry)


def _config_classes(name: str, model_class: type, class_name: str | None) -> Iterator[Any]:
    import transformers

    known = {config_class.__name__: config_class for config_class in _own_configs().values()}
    if class_name:
        own = (
            getattr(module, class_name)
            for module in _config_modules()
            if hasattr(module, class_name)
        )
        yield next(own, None) or known.get(class_name) or getattr(transformers, class_name)
        return
    plain = transformers.PretrainedConfig
    stem = STEM.sub("", name).casefold()
    in_modules = {
        word: value
        for module in _config_modules()
        for word, value in vars(module).items()
        if isinstance(value, type)
    }
    in_transformers = ((word, word) for word in dir(transformers))
    for word, value in [*known.items(), *in_modules.items(), *in_transformers]:
        if word.casefold() in (f"{stem}config", f"{stem}vlconfig", f"{stem}chatconfig"):
            yield getattr(transformers, value) if isinstance(value, str) else value
    for base in model_class.__mro__:
        taken = _annotation(base)
        if isinstance(taken, type) and issubclass(taken, plain) and taken is not plain:
            yield taken
    yield transformers.LlamaConfig


def _own_configs() -> Any:
    """Return the classes of configs that SGLang has registered, by their model types."""
    try:
        from sglang.srt.utils.hf_transformers import common
    except ImportError:  # before 0.5.11
        from sglang.srt.utils import hf_transformers_utils as common
    return common._CONFIG_REGISTRY


def _config_modules() -> Iterator[Any]:
    import sglang.srt.configs as package

    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        try:
            yield importlib.import_module(module.name)
        except ImportError:
            continue


def _annotation(model_class: type) -> Any:
    """Return the class of configs that a constructor is annotated with."""
    if "__init__" not in vars(model_class):
        return None
    try:
        hints = typing.get_type_hints(model_class.__init__)  # type: ignore[misc]
    except Exception:
        parameters = inspect.signature(model_class).parameters
        hints = {key: value.annotation for key, value in parameters.items()}
    return next((hints[key] for key in ("config", "hf_config") if key in hints), None)


def write_sglang_config(
    template: Template, folder: Path, name: str, installer: StubInstaller
) -> dict[str, Tensor] | None:
    """Write a tiny config and, where the template has a twin, its checkpoint, which is returned."""
    config_class, entry, like = template.config_class, template.entry, template.like
    checkpoint = None
    if like:
        checkpoint = installer.run(lambda: twin.save_twin(like, entry, folder, name))
    else:
        installer.run(lambda: twin.save_config(config_class, entry, folder, name))
    if DRAFTS.search(name):
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "num_nextn_predict_layers": 1}))
    return checkpoint


def read_sglang_config(folder: Path, dtype: torch.dtype | None = None) -> Any:
    """Return the folder's config, as SGLang reads it.

    Args:
        dtype: the config and its parts then have it in place of their own.
    """
    from sglang.srt.utils.hf_transformers_utils import get_config

    config = get_config(str(folder), trust_remote_code=False)
    for field, value in FIELDS.items():
        setattr(config, field, value)
    if dtype is not None:
        parts = (getattr(config, name, None) for name in getattr(config, "sub_configs", ()))
        for one in (config, *(part for part in parts if part is not None)):
            one.dtype = dtype
    return config
