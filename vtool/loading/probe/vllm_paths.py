"""Drives vLLM's own ways of loading, to see which hand a class tensors that do not stay valid."""

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from .checkpoint_files import temporary_checkpoint
from .loading_paths import Protection, protection, run_paths
from .processed import snapshot_everything
from .reference import load_new, marked_object
from .sources import OwnedSource, ReusableBuffer
from .state import compare_states, copy_state
from .streaming_loaders import runai_version, use_small_buffer
from .subject import Subject

DISK_FORMATS = ("safetensors", "runai_streamer", "fastsafetensors")
"""vLLM's load formats that read a folder."""
KEEPS = "not run: it keeps tensors itself, of every class"


def drive(subject: Subject, config: Any) -> dict[str, str]:
    """Return for each path `unprotected`, `protected`, or why it was not run."""

    return run_paths(
        {
            **{
                _path_name(each): partial(_load_format, subject, config, each)
                for each in DISK_FORMATS
            },
            "reload_weights(weights_iterator)": lambda: _reload(subject, config),
            "model.load_weights": lambda: direct_load(subject),
        }
    )


def _path_name(load_format: str) -> str:
    library = runai_version() if load_format == "runai_streamer" else None
    return f"load_format={load_format}" + (f" (runai-model-streamer {library})" if library else "")


def direct_load(subject: Subject) -> Protection:
    """Call the class's own method with the sender's buffer, as weight synchronization does.

    What is then made of the weights is compared too.
    """
    models = [
        load_new(subject, source)
        for source in (OwnedSource(subject.checkpoint), ReusableBuffer(subject.checkpoint, 1))
    ]
    if compare_states(*map(copy_state, models)):
        return "unprotected"
    if subject.process is None:
        return "protected"
    for model in models:
        subject.process(model)
    return protection(*map(snapshot_everything, models))


def _reload(subject: Subject, config: Any) -> str:
    """Call the model runner's `reload_weights` with an iterator of the caller's.

    The model was made ready as vLLM's loader does. Where the function itself keeps tensors, until
    it has all of a layer's, that says nothing of the class.
    """
    from vllm.model_executor.model_loader.utils import process_weights_after_loading

    reload_weights, record_metadata = _reload_weights(config), _record_metadata()

    def reloaded(source: OwnedSource) -> dict[str, Tensor]:
        model = marked_object(subject)
        record_metadata(model)
        subject.load(model, OwnedSource(subject.checkpoint))
        process_weights_after_loading(model, config.model_config, torch.device("cpu"))
        reload_weights(model, source)
        return copy_state(model)

    with _unpacked_weights(), _rotary_embeddings_of_its_own():
        checkpoint = subject.checkpoint
        found = protection(
            reloaded(OwnedSource(checkpoint)), reloaded(ReusableBuffer(checkpoint, 1))
        )
    return KEEPS if found == "unprotected" and keeps_itself(reload_weights) else found


class CopiesAtOnce(torch.nn.Module):
    """A layer of two tensors, each of which is copied before the next is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Copy each tensor by its parameter's own loader, or at once."""
        parameters, loaded = dict(self.named_parameters()), set()
        for name, tensor in weights:
            parameter = parameters[name]
            loader = getattr(parameter, "weight_loader", lambda into, value: into.data.copy_(value))
            loader(parameter, tensor)
            loaded.add(name)
        return loaded


def keeps_itself(reload_weights: Callable[[Any, OwnedSource], None]) -> bool:
    """Return True if a class that keeps nothing is reloaded wrongly from a ring of one buffer."""
    checkpoint = {name: tensor + 1 for name, tensor in CopiesAtOnce().state_dict().items()}
    model = CopiesAtOnce()
    _record_metadata()(model)
    with torch.no_grad():
        reload_weights(model, ReusableBuffer(checkpoint, 1))
    return protection(checkpoint, copy_state(model)) == "unprotected"


def _record_metadata() -> Callable[[Any], None]:
    """Return vLLM's function that keeps what a reload of a new object needs."""
    try:
        from vllm.model_executor.model_loader.reload import record_metadata_for_reloading
    except ImportError:  # before layers were reloaded one by one
        return lambda model: None
    record: Callable[[Any], None] = record_metadata_for_reloading
    return record


def _reload_weights(config: Any) -> Callable[[Any, OwnedSource], None]:
    """Return vLLM's function; before 0.3x, the runner's method, which asks it for three things."""
    try:
        from vllm.model_executor.model_loader.reload.inplace import reload_weights
    except ImportError:
        from vllm.v1.worker.gpu_model_runner import GPUModelRunner

        def call_method(model: Any, source: OwnedSource) -> None:
            runner = SimpleNamespace(
                get_model=lambda: model,
                model_config=config.model_config,
                load_config=config.load_config,
            )
            GPUModelRunner.reload_weights(runner, iter(source))

        return call_method
    return lambda model, source: reload_weights(config, model, iter(source), None, True)


@contextmanager
def _unpacked_weights() -> Iterator[None]:
    """Have layers multiply by torch's own product.

    Packed layers keep an empty weight, and nothing would be left to compare.
    """
    import vllm._custom_ops as operators
    import vllm.model_executor.layers.utils as layers

    before = operators._supports_onednn, layers.check_cpu_sgl_kernel
    operators._supports_onednn, layers.check_cpu_sgl_kernel = False, lambda *args: False
    try:
        yield
    finally:
        operators._supports_onednn, layers.check_cpu_sgl_kernel = before


@contextmanager
def _rotary_embeddings_of_its_own() -> Iterator[None]:
    """Let no object that is made meanwhile share a rotary embedding with others.

    vLLM keeps them for all models of a process, and a reload leaves their buffers on the meta
    device where a class has not loaded every layer.
    """
    from vllm.model_executor.layers import rotary_embedding as module

    shared = dict(module._ROPE_DICT)
    module._ROPE_DICT.clear()
    try:
        yield
    finally:
        module._ROPE_DICT.clear()
        module._ROPE_DICT.update(shared)


def _load_format(subject: Subject, config: Any, load_format: str) -> Protection:
    """Read a file with a loader of vLLM's, and compare all tensors after the last was yielded."""
    from vllm.config import LoadConfig
    from vllm.model_executor.model_loader import get_model_loader

    with temporary_checkpoint(subject.checkpoint) as file:
        use_small_buffer(file)
        model_config = copy.copy(config.model_config)
        model_config.model = str(file.parent)
        model_config.model_weights = ""
        loader = get_model_loader(LoadConfig(load_format=load_format))
        if hasattr(loader, "get_all_weights"):
            weights = loader.get_all_weights(model_config, subject.make())
        else:
            weights = loader._get_weights_iterator(str(file.parent), None)
        return protection(subject.checkpoint, dict(weights))
