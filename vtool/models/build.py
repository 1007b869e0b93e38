"""Build a run's model: random weights of a size, or the weights of a Hugging Face folder."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from vtool.config.schema import Model
from vtool.families.any_family import odd_components
from vtool.families.family import load_family
from vtool.families.twin_config import narrowed, with_fewer_layers
from vtool.model_folder import GENERATION
from vtool.models.mapped_weights import (
    check_numbers,
    check_one_save,
    check_report,
    check_ties,
    does_not_load,
    not_loaded,
    pickled_files,
    weight_files,
)
from vtool.models.model_class import model_class
from vtool.models.on_meta import parameters_on_meta
from vtool.models.processor import Processor
from vtool.models.whole_processor import find_unreached, on_meta
from vtool.releases import enable_checkpointing
from vtool.words import first_line

# Where the weights live. bfloat16 is a compute dtype: its weights stay float32, or an update of
# 1e-5 would be lost in rounding.
WEIGHT_DTYPE = {"float32": torch.float32, "bfloat16": torch.float32, "float64": torch.float64}
# A folder's own settings for generating: a server uses them, so that an export must carry them on.


def model_config(settings: Model, processor: Processor, vocabulary: int | None = None) -> Any:
    """Return the transformers config of a run that starts: the folder's, or that of a size.

    Args:
        settings: of the model.
        processor: has the token ids, and the tokenizer.
        vocabulary: the number of tokens of a model with random weights; None: the tokenizer's.
    """
    from transformers import AutoConfig

    if settings.starts_from == "pretrained":
        return AutoConfig.from_pretrained(
            settings.path, local_files_only=True, trust_remote_code=False
        )
    if settings.path is not None:  # of a family that has no sizes of random weights
        config = AutoConfig.from_pretrained(
            settings.path, local_files_only=True, trust_remote_code=False
        )
        return _twin(with_fewer_layers(config), processor)
    assert settings.size is not None, "a rule demands it"
    return load_family(settings.family).random_config(
        settings.size, vocabulary or len(processor.tokenizer), processor.ids
    )


def _twin(config: Any, processor: Processor) -> Any:
    """Return a narrower config, where a model of this one is large and its class takes another."""
    from transformers import AutoModelForImageTextToText

    assert processor.whole is not None, "only such a family has a twin"
    if sum(one.numel() for one in on_meta(config).parameters()) <= _MOST_OF_A_TWIN:
        return config
    try:
        made = narrowed(config)
        with parameters_on_meta():
            model = AutoModelForImageTextToText.from_config(made)
        processor.whole.try_on(model)
    except Exception:  # the class wants another width: the proofs take longer
        return config
    return made


def implementations(dtype: torch.dtype, attention: str) -> dict[str, Any]:
    """Return transformers' arguments for a dtype and an attention implementation.

    Its default for experts, torch's grouped product, has no float64: there each computes by itself.
    """
    # what goes by lengths is set once the model is there: by its own name, transformers would look
    # for it on a hub, or in packages that a CPU has not
    plain = "eager" if attention == "eager" else "sdpa"
    chosen: dict[str, Any] = {"dtype": dtype, "attn_implementation": plain}
    return chosen | ({"experts_implementation": "eager"} if dtype == torch.float64 else {})


_MOST_OF_A_TWIN = 30_000_000
"""The parameters of a twin that need not be narrower."""

# What transformers' classes raise of settings that they do not expect.
_OF_A_CONFIG = (KeyError, ValueError, TypeError, AttributeError, RuntimeError, ArithmeticError)


def build_model(
    settings: Model, processor: Processor, folder: Path, seed: int, *, weights: bool = True
) -> Any:
    """Build a model in training mode, on the CPU.

    Args:
        settings: of the model.
        processor: has the token ids that end an answer and pad it.
        folder: holds the run's config.json, and its generation_config.json where it began from a
            folder that has one.
        seed: of random weights.
        weights: false where a checkpoint's weights follow, so that none need be read here.

    Raises:
        Findings: `model-does-not-load`, where a folder lacks weights, has some too many, or of
            other shapes; what stands against `model.modeling`.
    """
    if weights and settings.starts_from == "pretrained":
        assert settings.path is not None, "a rule demands it"
        model = load_model(
            Path(settings.path),
            settings.family,
            WEIGHT_DTYPE[settings.dtype],
            settings.attention,
            settings.modeling,
        )
    else:
        model = _build(settings, folder, seed)
    return _finish(model, settings, processor, folder)


def build_on_meta(
    settings: Model, processor: Processor, folder: Path, seed: int, *, config: Path | None = None
) -> Any:
    """Build a model in training mode whose parameters are on the meta device; weights follow.

    Its buffers, which no file keeps, are real.

    Args:
        config: the folder of its config.json, where that is another than the run's `folder`.

    Raises:
        Findings: see `build_model`.
    """
    model = _build(settings, config or folder, seed, on_meta=True)
    return _finish(model, settings, processor, folder)


def _build(settings: Model, folder: Path, seed: int, *, on_meta: bool = False) -> Any:
    """Build the model of a folder's config.json, with random weights or none."""
    from transformers import AutoConfig, AutoModelForImageTextToText

    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    kind = model_class(settings.family, settings.modeling)
    build = (
        AutoModelForImageTextToText.from_config if settings.modeling is None else kind._from_config
    )
    torch.manual_seed(seed)
    how = implementations(WEIGHT_DTYPE[settings.dtype], settings.attention)
    try:
        with parameters_on_meta() if on_meta else nullcontext():
            model = build(config, **how)
    except _OF_A_CONFIG as error:
        if settings.modeling is not None:
            raise
        raise does_not_load(
            f"no model can be built of its config.json: {type(error).__name__}: {first_line(error)}"
        ) from error
    assert isinstance(model, kind)
    return model


def _finish(model: Any, settings: Model, processor: Processor, folder: Path) -> Any:
    """Give a model its settings for generating, and let it recompute what it is to."""
    from transformers import GenerationConfig

    if (folder / GENERATION).exists():
        try:
            model.generation_config = GenerationConfig.from_pretrained(
                folder, local_files_only=True
            )
        except (OSError, ValueError) as error:
            raise does_not_load(
                f"{settings.path or folder}: {GENERATION} cannot be read: {first_line(error)}"
            ) from error
    else:
        model.generation_config.eos_token_id, model.generation_config.pad_token_id = (
            processor.ids.end,
            processor.ids.pad,
        )
    family = load_family(settings.family)
    if processor.whole is not None:
        model.smallest_image = processor.whole.smallest
        model.unreached = processor.whole.unreached
        if settings.starts_from == "random":  # a twin, which has other layers
            small = processor.whole.smallest
            model.unreached = find_unreached(family, on_meta(model.config), small)
        if odd := odd_components(family, model):
            raise does_not_load(
                f"{settings.path}: {', '.join(odd[:3])} and {len(odd)} parameters in all lie in"
                f" another part of a {settings.family} than their names say"
            )
    blocks = family.recomputable(model)
    if again := settings.recomputed(len(blocks)):
        enable_checkpointing(model, blocks[again:])
    return model.train()


@contextmanager
def _only_our_report() -> Iterator[None]:
    """Keep transformers from printing its report of keys, which `check_report` makes a finding."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def load_model(
    folder: Path, family_name: str, dtype: torch.dtype, attention: str, modeling: str | None = None
) -> Any:
    """Load the weights of a Hugging Face folder, every one of them accounted for.

    Args:
        folder: the model's.
        family_name: a name of `FAMILIES`.
        dtype: of the weights.
        attention: `model.attention`.
        modeling: `model.modeling`, the class that gets them. The folder is read by transformers'
            own, which knows the names that weights have in files.

    Raises:
        Findings: `model-does-not-load`; what stands against `model.modeling`.
    """
    kind = model_class(family_name, modeling)
    files = weight_files(folder) or pickled_files(folder)
    check_numbers(folder, files, family_name)
    check_one_save(files)
    try:
        with _only_our_report():
            model, report = (
                load_family(family_name)
                .model_class()
                .from_pretrained(
                    folder,
                    local_files_only=True,
                    output_loading_info=True,
                    ignore_mismatched_sizes=True,  # they are reported below, each with its shapes
                    **implementations(dtype, attention),
                )
            )
    except Exception as error:  # the loader raises whatever its reader of a broken file raises
        raise not_loaded(folder, files, error) from error
    check_report(folder, report)
    check_ties(folder, model)
    if modeling is None:
        return model
    made = kind.from_pretrained(
        None,
        config=model.config,
        state_dict=model.state_dict(),
        **implementations(dtype, attention),
    )
    made.generation_config = model.generation_config
    return made
