"""Drives SGLang's own ways of loading, to see which of them hand a class tensors that do not stay
valid.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType, SimpleNamespace
from typing import Any

from torch import Tensor

from .audit import text_of
from .sources import Owned, ReusableBuffer, Tracked
from .state import MARKS, compare, mark, snapshot
from .subject import Named, Subject

STREAMER = "runai_model_streamer"


def drive(subject: Subject) -> dict[str, str]:
    """For each path: `unprotected`, `protected`, or why it was not run.

    `load_format=runai_streamer` is SGLang's own iterator over a streamer that uses one buffer
    again: it marks what it yields (attribute `_sglang_runai_streamer_tensor`,
    model_loader/weight_utils.py), and a class that looks at the mark copies. Weight updates hand
    over a list, whose tensors stay until the call is over. `model.load_weights` is the class's own
    method, as loaders of others call it.
    """
    ways: dict[str, Callable[[], str]] = {
        "load_format=safetensors": lambda: _from_file(subject),
        "load_format=runai_streamer": lambda: _streamed(subject),
        "update_weights_from_distributed": lambda: _updated(subject),
        "model.load_weights": lambda: _verdict(
            subject, _loaded(subject, ReusableBuffer(subject.checkpoint, 1))
        ),
    }
    return {path: _attempt(run) for path, run in ways.items()}


def _attempt(run: Callable[[], str]) -> str:
    try:
        return run()
    except Exception as error:
        return f"not run: {text_of(error)}"


def _loaded(subject: Subject, weights: Any) -> Any:
    model = subject.make()
    mark(model, MARKS[0])
    subject.load(model, weights)
    return model


def _verdict(subject: Subject, model: Any) -> str:
    expected = snapshot(_loaded(subject, Owned(subject.checkpoint)))
    return "unprotected" if compare(expected, snapshot(model)) else "protected"


def _from_file(subject: Subject) -> str:
    """SGLang's loader of safetensors;

    whether what it yields is still right when it has yielded everything.
    """
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.model_loader.loader import DefaultModelLoader

    with _saved(subject) as folder:
        loader = DefaultModelLoader(LoadConfig(load_format="safetensors"))
        seen = dict(loader._get_weights_iterator(DefaultModelLoader.Source(str(folder), None)))
        return "unprotected" if compare(dict(subject.checkpoint), seen) else "protected"


def _streamed(subject: Subject) -> str:
    from sglang.srt.model_loader.weight_utils import runai_safetensors_weights_iterator

    with _streamer(ReusableBuffer(subject.checkpoint, 1)):
        return _verdict(
            subject, _loaded(subject, runai_safetensors_weights_iterator(["model.safetensors"]))
        )


def _updated(subject: Subject) -> str:
    """As `update_weights_from_distributed` loads what it has received:

    all of it at once, and freed when the call is over.
    """
    from sglang.srt.model_executor.model_runner_components.weight_updater import WeightUpdater

    model = subject.make()
    mark(model, MARKS[0])
    received = Tracked(subject.checkpoint)
    runner: Any = SimpleNamespace(
        get_model=lambda: model, _assert_weight_cache_inactive=lambda *arguments: None
    )
    done, said = WeightUpdater.load_weights_from_distributed(runner, list(received))
    if not done:
        return f"not run: {said}"
    received.destroy()
    return _verdict(subject, model)


@contextmanager
def _saved(subject: Subject) -> Iterator[Path]:
    from safetensors.torch import save_file

    with TemporaryDirectory(prefix="vtool-") as folder:
        save_file(
            {name: tensor.contiguous() for name, tensor in subject.checkpoint.items()},
            Path(folder) / "model.safetensors",
        )
        yield Path(folder)


@contextmanager
def _streamer(weights: ReusableBuffer) -> Iterator[None]:
    """Run:ai's library, with one buffer for every tensor:

    the hardest case, whatever version is installed, or none.
    """

    class SafetensorsStreamer:
        def __init__(self) -> None:
            self.files_to_tensors_metadata: dict[str, list[Tensor]] = {}

        def __enter__(self) -> "SafetensorsStreamer":
            return self

        def __exit__(self, *error: object) -> None:
            return

        def stream_files(self, files: Sequence[str], **more: Any) -> None:
            return

        def get_tensors(self) -> Iterator[Named]:
            yield from weights

    stand_in: Any = ModuleType(STREAMER)
    stand_in.SafetensorsStreamer = SafetensorsStreamer
    before = sys.modules.get(STREAMER)
    sys.modules[STREAMER] = stand_in
    try:
        yield
    finally:
        sys.modules.pop(STREAMER)
        if before is not None:
            sys.modules[STREAMER] = before
