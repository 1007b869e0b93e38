"""The model of a recipe without its weights: the config's shapes, on the meta device."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from vtool.config.schema import Run
from vtool.diagnostics import Findings
from vtool.families.family import load_family
from vtool.families.images import beyond_any_model
from vtool.families.tokens import TokenIds
from vtool.models.build import build_on_meta
from vtool.models.mapped_weights import does_not_load
from vtool.scratch import scratch_folder
from vtool.words import first_line

# A tokenizer that is trained on rows has at most so many tokens (models/tokenizer.py).
TRAINED_VOCABULARY = 512
_IDS = TokenIds(image=1, video=2, vision_start=3, vision_end=4, end=5, pad=6)
# What ends an answer has no size.
_PROCESSOR: Any = SimpleNamespace(ids=SimpleNamespace(end=None, pad=None), whole=None)


def model_of(run: Run, vocabulary: int | None = None) -> Any:
    """Build the model that a recipe trains, its parameters on the meta device.

    Args:
        vocabulary: entries of a tokenizer that is trained on rows; None: as many as it may have.

    Raises:
        Findings: `model-does-not-load`.
    """
    settings = run.model
    if settings.starts_from == "pretrained" or settings.path is not None:
        assert settings.path is not None, "a rule demands it"
        folder = Path(settings.path)
        _check_config(folder)
        try:
            return build_on_meta(settings, _PROCESSOR, folder, run.run.seed, config=folder)
        except Findings:
            raise
        except Exception as error:
            if settings.modeling is not None:  # it is the user's class, and shows where it fails
                raise
            raise _no_model(error) from error
    assert settings.size is not None, "a rule demands it"
    config = load_family(settings.family).random_config(
        settings.size, vocabulary or TRAINED_VOCABULARY, _IDS
    )
    with scratch_folder() as scratch:
        config.save_pretrained(scratch)
        return build_on_meta(settings, _PROCESSOR, scratch, run.run.seed)


def _check_config(folder: Path) -> None:
    """Refuse a config.json that no model can be loaded by, as `train` does once it loads."""
    from transformers import AutoConfig

    if beyond := beyond_any_model(folder):
        raise _no_model(ValueError(beyond))
    try:
        AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # its classes check themselves, each with exceptions of its own
        raise _no_model(error) from error


def _no_model(error: Exception) -> Findings:
    """Return the finding of what transformers raises of a config."""
    # huggingface_hub says which check failed, and what it was about in the exception behind it
    cause = error.__cause__ or error if first_line(error).endswith(":") else error
    return does_not_load(
        f"no model can be built of its config.json: {type(cause).__name__}: {first_line(cause)}"
    )
