"""The model of a recipe without its weights: the config's shapes, on the meta device."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from vtool.config.schema import Run
from vtool.families.family import load_family
from vtool.families.tokens import TokenIds
from vtool.models.build import build_on_meta
from vtool.scratch import scratch_folder

# A tokenizer that is trained on rows has at most so many tokens (models/tokenizer.py).
TRAINED_VOCABULARY = 512
_IDS = TokenIds(image=1, video=2, vision_start=3, vision_end=4, end=5, pad=6)
# What ends an answer has no size.
_PROCESSOR: Any = SimpleNamespace(ids=SimpleNamespace(end=None, pad=None))


def model_of(run: Run) -> Any:
    """Build the model that a recipe trains, its parameters on the meta device.

    Raises:
        Findings: `model-does-not-load`.
    """
    settings = run.model
    if settings.starts_from == "pretrained" or settings.path is not None:
        assert settings.path is not None, "a rule demands it"
        folder = Path(settings.path)
        return build_on_meta(settings, _PROCESSOR, folder, run.run.seed, config=folder)
    assert settings.size is not None, "a rule demands it"
    config = load_family(settings.family).random_config(settings.size, TRAINED_VOCABULARY, _IDS)
    with scratch_folder() as scratch:
        config.save_pretrained(scratch)
        return build_on_meta(settings, _PROCESSOR, scratch, run.run.seed)
