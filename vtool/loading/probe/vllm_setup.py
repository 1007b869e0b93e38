"""Makes objects of vLLM's classes: process groups, constructors, and subjects around them."""

import gc
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from .ranks import RANKS, leave_groups, sharded
from .subject import Named, Subject
from .vllm_paths import drive
from .vllm_quantized import process_weights, quantized_subject


def start_groups(rank: int, ranks: int, meeting: Path) -> None:
    """Start vLLM's process groups over gloo.

    Args:
        rank: this process's number, of `ranks`.
        meeting: a file that is not there yet, by which the ranks find each other.
    """
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel

    with set_current_vllm_config(VllmConfig()):
        init_distributed_environment(
            world_size=ranks,
            rank=rank,
            local_rank=rank,
            distributed_init_method=f"file://{meeting}",
            backend="gloo",
        )
        initialize_model_parallel(ranks, 1)


def become_rank(config: Any, rank: int, meeting: Path) -> None:
    """Turn this process, a fork of one that was alone, into one of two ranks.

    The groups from before have no threads here, and are never ended.
    """
    import vllm.distributed.device_communicators.cpu_communicator as communicator
    import vllm.distributed.parallel_state as groups

    # Sockets will do. Shared memory, which has names, would stay behind.
    os.environ["VLLM_DIST_IDENT"] = ""
    communicator.CpuCommunicator._all_group_ranks_share_shm_group_name = lambda self: False
    leave_groups(dict(vars(groups)))
    for name, value in list(vars(groups).items()):
        if isinstance(value, groups.GroupCoordinator):
            setattr(groups, name, None)
    config.parallel_config.tensor_parallel_size = config.parallel_config.world_size = RANKS
    config.parallel_config.rank = rank
    start_groups(rank, RANKS, meeting)


def read_config(folder: Path, cache: Any = None, **given: Any) -> Any:
    """Return the VllmConfig that a server would make of a folder, for a CPU and short sequences.

    Args:
        cache: a CacheConfig; None: the default.
        given: further arguments of ModelConfig, as `runner` and `dtype`, else chosen by vLLM.
    """
    from vllm.config import CacheConfig, DeviceConfig, LoadConfig, ModelConfig, VllmConfig

    model = ModelConfig(
        model=str(folder),
        tokenizer=str(folder),
        skip_tokenizer_init=not (folder / "tokenizer.json").exists(),
        seed=0,
        enforce_eager=True,
        max_model_len=64,
        **given,
    )
    return VllmConfig(
        model_config=model,
        load_config=LoadConfig(),
        device_config=DeviceConfig(device="cpu"),
        cache_config=cache or CacheConfig(),
    )


def maker(config: Any) -> Callable[[], Any]:
    """Return a function that makes the model of a VllmConfig, with the same values each time."""
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    def make() -> Any:
        compilation = config.compilation_config
        compilation.static_forward_context.clear()
        if hasattr(compilation, "static_all_moe_layers"):
            compilation.static_all_moe_layers.clear()
        gc.collect()  # the model before this one refers to itself
        torch.manual_seed(0)
        with set_default_torch_dtype(config.model_config.dtype), torch.device("cpu"):
            return initialize_model(vllm_config=config).eval()

    return make


def vllm_subject(
    *,
    configure: Callable[[], Any],
    config: Any,
    model_class: type,
    folder: Path,
    checkpoint: Mapping[str, Tensor],
    load: Callable[[Any, Iterable[Named]], object],
    origin: Literal["given", "twin", "discovered"],
    about: Mapping[str, Any],
) -> Subject:
    """Return a subject with everything that is asked of vLLM's classes.

    Args:
        configure: reads a VllmConfig from `folder`, for the class made for quantized weights.
        config: the VllmConfig that the class is made from.
    """
    method = inspect.unwrap(model_class.load_weights)  # type: ignore[attr-defined]
    place = {"file": inspect.getsourcefile(method), "line": inspect.getsourcelines(method)[1]}
    plain = Subject(
        make=maker(config),
        checkpoint=checkpoint,
        load=load,
        origin=origin,
        code=(os.path.dirname(sys.modules["vllm"].__file__ or ""),),
        about={"class": f"{model_class.__module__}.{model_class.__name__}", **place, **about},
        paths=lambda subject: drive(subject, config),
        shards=lambda subject, reference: sharded(
            subject, lambda rank, meeting: become_rank(config, rank, meeting), reference, folder
        ),
        process=lambda model: process_weights(model, config),
    )

    def quantized(into: Any) -> Subject:
        return quantized_subject(plain, folder, configure, maker, into)

    return replace(plain, quantized=quantized)
