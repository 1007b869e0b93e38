"""Makes objects of vLLM's classes: process groups, constructors, and subjects around them."""

import gc
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .checkpoint_files import write_checkpoint
from .errors import NotRun
from .facts import About, CheckFacts, CheckpointSource
from .formats import DEFAULT, WeightFormat
from .held import RankTensors, held_by
from .quantized import quantize_checkpoint, unfit
from .ranks import RANKS, RankLayout, compare_all_shards, leave_groups, on_two_ranks
from .shared_out import compare_experts, compare_stages, expert_places
from .state import named_parameters
from .subject import NamedTensor, QuantizedTwin, Subject
from .vllm_forward import compare_with_twin
from .vllm_kernels import any_kernel
from .vllm_paths import drive
from .vllm_processing import process_weights


def start_vllm_groups(rank: int, ranks: int, meeting: Path, stages: int = 1) -> None:
    """Start vLLM's process groups over gloo.

    Args:
        rank: this process's number, of `ranks`.
        meeting: a file that is not there yet, by which the ranks find each other.
        stages: the stages of a pipeline; ranks that are on the same one share tensors.
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
        initialize_model_parallel(ranks // stages, stages)


def become_rank(
    config: Any, rank: int, meeting: Path, *, stages: bool = False, experts: bool = False
) -> None:
    """Turn this process, a fork of one that was alone, into one of two ranks.

    The groups from before have no threads here, and are never ended. A process that is a rank
    already changes its layout.

    Args:
        stages: the ranks share layers out, as stages of a pipeline; else they share tensors.
        experts: in addition, whole experts are shared out.
    """
    import vllm.distributed.device_communicators.cpu_communicator as communicator
    import vllm.distributed.parallel_state as groups
    from vllm.config import VllmConfig, set_current_vllm_config

    tensor, pipeline = (1, RANKS) if stages else (RANKS, 1)
    parallel = config.parallel_config
    parallel.tensor_parallel_size, parallel.pipeline_parallel_size = tensor, pipeline
    parallel.enable_expert_parallel = experts
    parallel.world_size, parallel.rank = RANKS, rank
    if groups.get_world_group().world_size == RANKS:
        if groups.get_tp_group().world_size != tensor:
            groups.destroy_model_parallel()
            with set_current_vllm_config(VllmConfig()):
                groups.initialize_model_parallel(tensor, pipeline)
        return
    # Sockets will do. Shared memory, which has names, would stay behind.
    os.environ["VLLM_DIST_IDENT"] = ""
    communicator.CpuCommunicator._all_group_ranks_share_shm_group_name = lambda self: False
    leave_groups(dict(vars(groups)))
    for name, value in list(vars(groups).items()):
        if isinstance(value, groups.GroupCoordinator):
            setattr(groups, name, None)
    start_vllm_groups(rank, RANKS, meeting, pipeline)


def layouts_of(config: Any, model: Any) -> Mapping[str, RankLayout | str]:
    """Return the layouts in which two ranks can share a model, by rule; or why there is none.

    Args:
        config: the VllmConfig that it was made from.
        model: one that is not shared.
    """
    from vllm.model_executor.models.interfaces import supports_pp

    def started(**how: bool) -> Callable[[int, Path], None]:
        return lambda rank, meeting: become_rank(config, rank, meeting, **how)

    def look_at_stage(model: Any) -> RankTensors:
        missing = (name for name, one in model.named_modules() if _is_elsewhere(one))
        return replace(held_by(model), missing=tuple(missing))

    def look_at_experts(model: Any) -> RankTensors:
        places = expert_places(dict(model.named_modules()), _PLACES)
        return replace(held_by(model), experts=places)

    experts: RankLayout | str = RankLayout(started(experts=True), look_at_experts, compare_experts)
    if not any(hasattr(module, _PLACES) for module in model.modules()):
        experts = "it has no experts"
    stages: RankLayout | str = RankLayout(started(stages=True), look_at_stage, compare_stages)
    if not supports_pp(type(model)):
        stages = "its class does not support pipeline parallelism"
    elif config.speculative_config is not None:
        stages = "a draft model is whole on one rank"
    return {
        "shard-mismatch": RankLayout(started(), held_by, compare_all_shards),
        "expert-mismatch": experts,
        "stage-mismatch": stages,
    }


_PLACES = "_expert_map"
"""The attribute of a module of vLLM's with the place of each expert on a rank."""


def _is_elsewhere(module: Any) -> bool:
    return type(module).__name__ == "PPMissingLayer"


def read_vllm_config(folder: Path, cache: Any = None, **given: Any) -> Any:
    """Return the VllmConfig that a server would make of a folder, for a CPU and short sequences.

    Args:
        cache: a CacheConfig; None: the default.
        given: further arguments of ModelConfig, as `runner` and `dtype`, else chosen by vLLM.
    """
    from vllm.config import CacheConfig, DeviceConfig, LoadConfig, ModelConfig, VllmConfig

    return VllmConfig(
        model_config=ModelConfig(
            model=str(folder),
            tokenizer=str(folder),
            skip_tokenizer_init=not (folder / "tokenizer.json").exists(),
            seed=0,
            enforce_eager=True,
            max_model_len=64,
            **given,
        ),
        load_config=LoadConfig(),
        device_config=DeviceConfig(device="cpu"),
        cache_config=cache or CacheConfig(),
    )


def maker(config: Any) -> Callable[[], Any]:
    """Return a function that makes the model of a VllmConfig, with the same values each time.

    Its tensors are on the default device: a context for the CPU would be asked at each call of
    torch's.
    """
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.model_executor.models import utils
    from vllm.utils.torch_utils import set_default_torch_dtype

    def make() -> Any:
        # known by an address, which another model had before
        getattr(utils, "_model_to_pp_missing_layer_names", {}).clear()
        compilation = config.compilation_config
        compilation.static_forward_context.clear()
        if hasattr(compilation, "static_all_moe_layers"):
            compilation.static_all_moe_layers.clear()
        gc.collect()  # the model before this one refers to itself
        torch.manual_seed(0)
        with set_default_torch_dtype(config.model_config.dtype):
            return initialize_model(vllm_config=config).eval()

    return make


def vllm_subject(
    *,
    configure: Callable[[], Any],
    config: Any,
    folder: Path,
    checkpoint: Mapping[str, Tensor],
    model: Any,
    load: Callable[[Any, Iterable[NamedTensor]], object],
    origin: CheckpointSource,
    about: About,
    twin: tuple[str, Path, bool] | None,
) -> Subject:
    """Return a subject with everything that is asked of vLLM's classes.

    Args:
        configure: reads a VllmConfig from `folder`, for the class made for quantized weights.
        config: the VllmConfig that the class is made from.
        model: an object of it, which is not kept.
        twin: transformers' class and the folder of what computes the same, and whether fields of
            the class's config were guessed; None where nothing does.
    """
    layouts = layouts_of(config, model)
    plain = Subject(
        make=maker(config),
        checkpoint=checkpoint,
        load=load,
        origin=origin,
        code=(os.path.dirname(sys.modules["vllm"].__file__ or ""),),
        about=about,
        paths=lambda subject: drive(subject, config),
        on_ranks=lambda subject, rules, reference: _on_ranks(
            subject, layouts, rules, reference, folder / "on_ranks"
        ),
        computed=twin and (lambda subject: compare_with_twin(subject, config, *twin)),
        process=lambda model: process_weights(model, config),
    )
    values = json.loads((folder / "config.json").read_text())
    return replace(plain, quantized=partial(_quantized_twin, plain, folder, values, configure))


def _on_ranks(
    subject: Subject,
    layouts: Mapping[str, RankLayout | str],
    rules: Sequence[str],
    reference: RankTensors,
    folder: Path,
) -> Mapping[str, CheckFacts]:
    """Load in the layout of each rule; of a rule without one, say why."""
    there = {rule: one for rule, one in layouts.items() if isinstance(one, RankLayout)}
    asked = {rule: layout for rule, layout in there.items() if rule in rules}
    found = on_two_ranks(subject, asked, reference, folder) if asked else {}
    return found | {
        rule: CheckFacts(reason=one)
        for rule, one in layouts.items()
        if rule in rules and isinstance(one, str)
    }


def _quantized_twin(
    plain: Subject,
    folder: Path,
    values: Mapping[str, Any],
    configure: Callable[[], Any],
    form: WeightFormat,
    into: Mapping[str, Sequence[str]],
) -> QuantizedTwin:
    """Return the subject's class made for a format: its config gets a `quantization_config`.

    Args:
        plain: the class as it is without.
        folder: where config.json is written, and read from.
        values: those of config.json without.
        into: for each parameter, the checkpoint's tensors that go into it when nothing is
            quantized.

    Raises:
        NotRun: nothing of it can be quantized.
    """
    if "quantization_config" in values:
        raise NotRun("its checkpoint is quantized already")
    for file in folder.glob("*.safetensors"):
        file.unlink()  # of a twin, with plain weights
    settings = dict(form.config)
    left_out = unfit(plain.checkpoint, form, into)
    if form.left_out in settings:
        names = [name.removesuffix(".weight") for name in left_out]
        settings[form.left_out] = [*settings[form.left_out], *names]
    # names that were found by trying are no file's, and its headers would say nothing
    by_headers = form.from_headers and plain.origin != "discovered"
    config_file = folder / "config.json"
    config_file.write_text(json.dumps({**values, "quantization_config": settings}))
    try:
        made = _made_for_quantized(configure, form)
        parameters = named_parameters(made.model)
        given = quantize_checkpoint(
            plain.checkpoint, form, into, parameters, left_out if by_headers else ()
        )
        if by_headers:
            write_checkpoint(given.tensors, folder)
            made = _made_for_quantized(configure, form)
    finally:
        config_file.write_text(json.dumps(values))
    subject = replace(
        plain,
        make=made.make,
        checkpoint=given.tensors,
        paths=lambda subject: drive(subject, made.config),
        process=lambda model: process_weights(model, made.config),
        on_ranks=None,
        computed=None,
        quantized=None,
    )
    return QuantizedTwin(subject, given, made.replaced)


class _Made(NamedTuple):
    """A class for quantized weights: one object, how it was made, and what was replaced for it."""

    config: Any
    make: Callable[[], Any]
    model: Any
    replaced: tuple[str, ...] = ()


def _made_for_quantized(configure: Callable[[], Any], form: WeightFormat) -> _Made:
    """Make the class by the folder's config, with any kernel where it finds none."""
    config = configure()
    make = maker(config)
    try:
        return _Made(config, make, make())
    except Exception:
        if form.name == DEFAULT:  # it is processed too, by the kernel that was chosen
            raise

    def make_with_any() -> Any:
        with any_kernel():
            return make()

    return _Made(config, make_with_any, make_with_any(), ("kernels for quantized weights",))
