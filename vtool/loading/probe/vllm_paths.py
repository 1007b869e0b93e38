"""Drives vLLM's own ways of loading, to see which of them hand a class tensors that do not stay
valid.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from .audit import text_of
from .processed import snapshot_everything
from .sources import Owned, ReusableBuffer
from .state import compare, mark, snapshot
from .subject import Subject

DISK = ("safetensors", "runai_streamer", "fastsafetensors")
"""vLLM's load formats that read a folder."""


def drive(subject: Subject, config: Any) -> dict[str, str]:
    """For each path: `unprotected`, `protected`, or why it was not run."""
    found = {
        f"load_format={kind}": _attempt(lambda kind=kind: _from_disk(subject, config, kind))
        for kind in DISK
    }
    found["reload_weights(weights_iterator)"] = _attempt(lambda: _reload(subject, config))
    found["model.load_weights"] = _attempt(lambda: _direct(subject))
    return found


def _attempt(run: Any) -> str:
    try:
        return str(run())
    except ImportError as error:
        return f"not run: {error}"
    except Exception as error:
        return f"not run: {text_of(error)}"


def _loaded(subject: Subject, source: Owned) -> Any:
    model = subject.make()
    mark(model, 0x4B)
    subject.load(model, source)
    return model


def _direct(subject: Subject) -> str:
    """As weight synchronisation calls it:

    the class's own method, with the sender's buffer, and what is then made of the weights.
    """

    models = [
        _loaded(subject, source)
        for source in (Owned(subject.checkpoint), ReusableBuffer(subject.checkpoint, 1))
    ]
    if compare(*(snapshot(model) for model in models)):
        return "unprotected"
    if subject.process is None:
        return "protected"
    for model in models:
        subject.process(model)
    return (
        "unprotected" if compare(*(snapshot_everything(model) for model in models)) else "protected"
    )


def _reload(subject: Subject, config: Any) -> str:
    """`reload_weights` of the model runner, with an iterator of the caller's, into a model made
    ready as vLLM's loader does.
    """
    from vllm.model_executor.model_loader.utils import process_weights_after_loading

    run = _reload_weights(config)

    def reloaded(source: Owned) -> dict[str, Tensor]:
        model = _loaded(subject, Owned(subject.checkpoint))
        process_weights_after_loading(model, config.model_config, torch.device("cpu"))
        run(model, source)
        return snapshot(model)

    with _weights_stay():
        expected = reloaded(Owned(subject.checkpoint))
        seen = reloaded(ReusableBuffer(subject.checkpoint, 1))
    return "unprotected" if compare(expected, seen) else "protected"


def _reload_weights(config: Any) -> Callable[[Any, Owned], None]:
    """A function of its own since vLLM 0.3x;

    before, a method of the runner, which asks the runner for three things only.
    """
    try:
        from vllm.model_executor.model_loader.reload.inplace import reload_weights
    except ImportError:
        from vllm.v1.worker.gpu_model_runner import GPUModelRunner

        def of_runner(model: Any, source: Owned) -> None:
            runner = SimpleNamespace(
                get_model=lambda: model,
                model_config=config.model_config,
                load_config=config.load_config,
            )
            GPUModelRunner.reload_weights(runner, iter(source))

        return of_runner
    return lambda model, source: reload_weights(config, model, iter(source), None, True)


@contextmanager
def _weights_stay() -> Iterator[None]:
    """Layers multiply by torch's own product.

    The packed ones keep an empty weight, and nothing is left to compare.
    """
    import vllm._custom_ops as operators
    import vllm.model_executor.layers.utils as layers

    before = operators._supports_onednn, layers.check_cpu_sgl_kernel
    operators._supports_onednn, layers.check_cpu_sgl_kernel = False, lambda *arguments: False
    try:
        yield
    finally:
        operators._supports_onednn, layers.check_cpu_sgl_kernel = before


def _from_disk(subject: Subject, config: Any, kind: str) -> str:
    """A loader of vLLM's own over a file;

    whether what it yields is still right when it has yielded everything.
    """
    from safetensors.torch import save_file
    from vllm.config import LoadConfig
    from vllm.model_executor.model_loader import get_model_loader

    with TemporaryDirectory(prefix="vtool-") as folder:
        save_file(
            {name: tensor.contiguous() for name, tensor in subject.checkpoint.items()},
            Path(folder) / "model.safetensors",
        )
        import copy

        model_config = copy.copy(config.model_config)
        model_config.model = folder
        model_config.model_weights = ""
        loader = get_model_loader(LoadConfig(load_format=kind))
        if hasattr(loader, "get_all_weights"):
            weights = loader.get_all_weights(model_config, subject.make())
        else:
            weights = loader._get_weights_iterator(folder, None)
        seen = dict(weights)  # all of them at once: what does not stay is found out
        return "unprotected" if compare(dict(subject.checkpoint), seen) else "protected"
