"""Which tiny config, and which twin of transformers, an SGLang class may be made with:

the likeliest first.
"""

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

from . import twin
from .sglang_stubs import StubInstaller

TABLE: Mapping[str, Any] = json.loads((Path(__file__).parent / "sglang_twins.json").read_text())
"""What no general rule gives, for SGLang's class of a name, in the form of `twins.json`, which it
comes before.
"""
STEM = re.compile(
    r"(ForCausalLM|ForConditionalGeneration|ForSequenceClassification|ForClassification|ForRewardModel|ForBlockDiffusion|"
    r"NextN|MTP|DSpark|Eagle3?|DraftModel|LMHeadModel|ModelLM|EmbeddingModel|ChatModel|Model|Chat)+$"
)
DRAFTS = re.compile("NextN|MTP")
"""Names of classes that load the layer after the last, by which a model drafts for itself."""
FIELDS = {"language_only": False, "encoder_only": False}
"""What SGLang sets on a config from its own arguments."""


@dataclass(frozen=True)
class Template:
    """A way to make a class: a transformers class of like weights, or a class of configs alone."""

    like: str | None
    config_class: Any
    said: Mapping[str, Any]


def entry(name: str) -> dict[str, Any]:
    """What the tables say of a class; `as` takes over what is said of another."""
    if name not in TABLE["classes"]:
        # vLLM's own
        return {key: value for key, value in twin.entry(name).items() if key != "config_class"}
    found = dict(TABLE["classes"][name])
    return {**entry(found.pop("as")), **found} if "as" in found else found


def templates(name: str, found: type) -> Iterator[Template]:
    """The ways to try:

    the twin of its name, of a class that it inherits from, of the config that it takes; then
    configs alone.
    """
    import transformers

    said = entry(name)
    if "config_class" not in said:
        twins = (
            [said["like"]]
            if "like" in said
            else [name, *(base.__name__ for base in found.__mro__[1:])]
        )
        for like in dict.fromkeys(twins):
            if twin.known(like) and not like.startswith(("PreTrained", "Pretrained")):
                yield Template(
                    like,
                    getattr(transformers, like).config_class,
                    said if like == name or "like" in said else _of_base(said, like),
                )
                break
    for config_class in dict.fromkeys(_config_classes(name, found, said.get("config_class"))):
        yield Template(None, config_class, said)


def _of_base(said: dict[str, Any], like: str) -> dict[str, Any]:
    return said or {key: value for key, value in entry(like).items() if key != "like"}


def _config_classes(name: str, found: type, said: str | None) -> Iterator[Any]:
    import transformers
    from sglang.srt.utils.hf_transformers import common

    known = {
        config_class.__name__: config_class for config_class in common._CONFIG_REGISTRY.values()
    }
    if said:
        of_sglang = [getattr(module, said) for module in _config_modules() if hasattr(module, said)]
        yield next(iter(of_sglang), None) or known.get(said) or getattr(transformers, said)
        return
    plain = transformers.PretrainedConfig
    stem = STEM.sub("", name).casefold()
    own = {
        word: value
        for module in _config_modules()
        for word, value in vars(module).items()
        if isinstance(value, type)
    }
    for word, value in [
        *known.items(),
        *own.items(),
        *((word, word) for word in dir(transformers)),
    ]:
        if word.casefold() in (f"{stem}config", f"{stem}vlconfig", f"{stem}chatconfig"):
            yield getattr(transformers, value) if isinstance(value, str) else value
    for base in found.__mro__:
        asked = _annotation(base)
        if isinstance(asked, type) and issubclass(asked, plain) and asked is not plain:
            yield asked
    yield transformers.LlamaConfig


def _config_modules() -> Iterator[Any]:
    import sglang.srt.configs as package

    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        try:
            yield importlib.import_module(module.name)
        except ImportError:
            continue


def _annotation(found: type) -> Any:
    """The class of configs that a constructor says it takes."""
    if "__init__" not in vars(found):
        return None
    try:
        hints = typing.get_type_hints(found.__init__)  # type: ignore[misc]
    except Exception:
        hints = {
            key: value.annotation for key, value in inspect.signature(found).parameters.items()
        }
    return next((hints[key] for key in ("config", "hf_config") if key in hints), None)


def write(
    template: Template, folder: Path, name: str, mender: StubInstaller
) -> dict[str, Any] | None:
    """Write a tiny config, and where there is a twin its checkpoint, which is given back."""
    checkpoint = None
    if template.like:
        like = template.like
        checkpoint = mender.run(lambda: twin.save_twin(like, template.said, folder, name))
    else:
        mender.run(
            lambda: twin.tiny_config(template.config_class, template.said).save_pretrained(folder)
        )
        twin.write_config(folder, template.said, name)
    if DRAFTS.search(name):
        written = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**written, "num_nextn_predict_layers": 1}))
    return checkpoint


def read(folder: Path) -> Any:
    """The config, as SGLang reads it."""
    from sglang.srt.utils.hf_transformers_utils import get_config

    config = get_config(str(folder), trust_remote_code=False)
    for field, value in FIELDS.items():
        setattr(config, field, value)
    return config
