"""Drives SGLang's own ways of loading, to see which hand a class tensors that do not stay valid."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

from torch import Tensor

from .checkpoint_files import temporary_checkpoint
from .loading_paths import Protection, protection, protection_of_loaded, run_paths
from .reference import load_new, marked_object
from .sources import ReusableBuffer, TrackedSource
from .streaming_loaders import runai_version, use_small_buffer
from .subject import NamedTensor, Subject

RUNAI = "runai-model-streamer"
STREAMER = "runai_model_streamer"


def drive(subject: Subject) -> dict[str, str]:
    """Return for each path `unprotected`, `protected`, or why it was not run.

    `load_format=runai_streamer` is SGLang's own iterator, which marks what it yields (attribute
    `_sglang_runai_streamer_tensor`, model_loader/weight_utils.py), so that a class that looks at
    the mark copies. It is driven over Run:ai's library, where there is one, and over a stand-in
    that uses one buffer for every tensor, the hardest case of any version. Weight updates hand
    over a list, whose tensors stay until the call is over. `model.load_weights` is the class's own
    method, as loaders of others call it.
    """
    buffer = ReusableBuffer(subject.checkpoint, 1)
    streamer = "load_format=runai_streamer"
    real = {}
    if there := runai_version():
        real[f"{streamer} ({RUNAI} {there})"] = lambda: _stream_file(subject)
    return run_paths(
        {
            "load_format=safetensors": lambda: _load_format(subject),
            **real,
            f"{streamer} (a stand-in with one buffer)": lambda: _stream(subject),
            "update_weights_from_distributed": lambda: _update(subject),
            "model.load_weights": lambda: protection_of_loaded(subject, load_new(subject, buffer)),
        }
    )


def _load_format(subject: Subject) -> Protection:
    """Read a file with SGLang's loader, and compare all tensors after the last was yielded."""
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.model_loader.loader import DefaultModelLoader

    with temporary_checkpoint(subject.checkpoint) as file:
        loader = DefaultModelLoader(LoadConfig(load_format="safetensors"))
        source = DefaultModelLoader.Source(str(file.parent), None)
        return protection(subject.checkpoint, dict(loader._get_weights_iterator(source)))


def _stream_file(subject: Subject) -> Protection:
    """Load through SGLang's iterator over the library that is installed, with a small buffer."""
    from sglang.srt.model_loader.weight_utils import runai_safetensors_weights_iterator

    with temporary_checkpoint(subject.checkpoint) as file:
        use_small_buffer(file)
        weights = runai_safetensors_weights_iterator([str(file)])
        return protection_of_loaded(subject, load_new(subject, weights))


def _stream(subject: Subject) -> Protection:
    from sglang.srt.model_loader.weight_utils import runai_safetensors_weights_iterator

    with _streamer(ReusableBuffer(subject.checkpoint, 1)):
        weights = runai_safetensors_weights_iterator(["model.safetensors"])
        return protection_of_loaded(subject, load_new(subject, weights))


def _update(subject: Subject) -> str:
    """Load as `update_weights_from_distributed` does: all at once, freed when the call is over."""
    from sglang.srt.model_executor.model_runner_components.weight_updater import WeightUpdater

    model = marked_object(subject)
    received = TrackedSource(subject.checkpoint)
    runner: Any = SimpleNamespace(
        get_model=lambda: model, _assert_weight_cache_inactive=lambda *args: None
    )
    done, message = WeightUpdater.load_weights_from_distributed(runner, list(received))
    if not done:
        return f"not run: {message}"
    received.destroy()
    return protection_of_loaded(subject, model)


@contextmanager
def _streamer(weights: ReusableBuffer) -> Iterator[None]:
    """Put a streamer with one buffer for every tensor in the place of Run:ai's library.

    That is the hardest case, whatever version is installed, or none.
    """

    class SafetensorsStreamer:
        def __init__(self) -> None:
            self.files_to_tensors_metadata: dict[str, list[Tensor]] = {}

        def __enter__(self) -> "SafetensorsStreamer":
            return self

        def __exit__(self, *error: object) -> None:
            return

        def stream_files(self, files: Sequence[str], **kwargs: Any) -> None:
            return

        def get_tensors(self) -> Iterator[NamedTensor]:
            yield from weights

    streamer: Any = ModuleType(STREAMER)
    streamer.SafetensorsStreamer = SafetensorsStreamer
    before = sys.modules.get(STREAMER)
    sys.modules[STREAMER] = streamer
    try:
        yield
    finally:
        sys.modules.pop(STREAMER)
        if before is not None:
            sys.modules[STREAMER] = before
