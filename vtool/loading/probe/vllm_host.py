"""vLLM's classes at tiny size, without its engine, on a CPU."""

import gc
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from . import twin
from .audit import text_of
from .discover import discover
from .ranks import RANKS, leave_groups, sharded
from .state import MARKS, mark, marked, named_parameters
from .stubs import StubInstaller
from .subject import NotRun, Subject
from .vllm_paths import drive
from .vllm_quantized import processing, quantized_subject
from .vllm_stubs import STUBS, shrink_constants, shrink_tables

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_V1": "1",
    "VLLM_KIMI_K3_GEMM_AR": "0",  # a kernel for GPUs, asked for by default
}

NEEDS_PROCESSOR = (
    "KeyError: '<image>'|Can't load image processor|skip_tokenizer_init|Failed to load the"
    " processor|has no attribute '(?:get_vocab|vocab)'"
)
SPECIAL = {
    f"{name}_token": f"<|{name}|>"
    for name in (
        "image",
        "video",
        "audio",
        "boi",
        "eoi",
        "boa",
        "eoa",
        "eol",
        "eof",
        "image_wrapper",
    )
}
COMMON = (
    "vllm.model_executor.kernels.linear",
    "vllm.model_executor.layers.rotary_embedding",
    "vllm.model_executor.layers.fused_moe",
    "vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors",
    "vllm.distributed.ec_transfer.ec_transfer_state",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.attention.backends.cpu_attn",
    "transformers.modeling_layers",
    "transformers.models.auto.image_processing_auto",
    "transformers.models.auto.processing_auto",
)
POOLING = (
    "_EMBEDDING_MODELS",
    "_LATE_INTERACTION_MODELS",
    "_REWARD_MODELS",
    "_TOKEN_CLASSIFICATION_MODELS",
    "_SEQUENCE_CLASSIFICATION_MODELS",
)
GENERATING = ("_TEXT_GENERATION_MODELS", "_MULTIMODAL_MODELS")
"""Groups of vLLM's registry: classes that pool, and classes that generate."""


def prepare(several: bool) -> Mapping[str, str]:
    """Import vLLM once, before any fork; its version."""
    os.environ.update(ENVIRONMENT)
    _import_beside_cuda_builds()
    import vllm
    import vllm.model_executor.model_loader.utils
    from vllm.model_executor.models import registry

    # vLLM looks at each class in a process of its own, which takes seconds; here every class has
    # one already.
    lazy: Any = registry._LazyRegisteredModel
    lazy.inspect_model_cls = lambda self: registry._ModelInfo.from_model_cls(self.load_model_cls())
    import vllm.model_executor.models.transformers

    shrink_tables()
    if several:
        _import_for_all()
        twin.warm()
    return {"name": "vllm", "version": vllm.__version__}


def _import_for_all() -> None:
    """What most classes import when they are made, once for all of them."""
    for module in COMMON:
        with suppress(Exception):  # each class that needs it will say so itself
            importlib.import_module(module)


def _import_beside_cuda_builds() -> None:
    """torchvision, torchaudio and torchcodec are often builds for CUDA, whose libraries do not load
    here. None is called.
    """
    for absent in ("torchaudio", "torchcodec"):
        sys.modules.setdefault(absent, None)  # type: ignore[arg-type]
    try:
        import torchvision  # noqa: F401
    except Exception:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        library: Any = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _KEPT.append(library)


_KEPT: list[Any] = []  # what a library defines lasts as long as it does


def names() -> list[str]:
    """Every architecture of the registry."""
    from vllm.model_executor.models.registry import ModelRegistry

    return list(ModelRegistry.models)


def subject(name: str, folder: Path, progress: Callable[[str], None]) -> Subject:
    """An architecture at tiny size: with the checkpoint of transformers' twin, else with one whose
    names the class has shown to take.

    Raises:
        NotRun: why there is none.
    """
    from vllm.model_executor.models import registry

    if os.path.isabs(name):
        from . import vllm_folder

        return vllm_folder.subject(Path(name), folder, progress)
    if name not in registry.ModelRegistry.models:
        raise NotRun(f"vLLM has registered no `{name}`")
    said = twin.entry(name)
    served = said.get("served_as", name)
    built: list[Any] = []

    def give_tokenizer() -> None:
        _save_processor(folder)
        for config in built:
            config.model_config.skip_tokenizer_init = False

    mender = StubInstaller(
        twin.TABLE["fields"], (*STUBS, ("a tokenizer", NEEDS_PROCESSOR, give_tokenizer))
    )
    progress("import")
    shrink_constants(
        sys.modules[mender.run(registry.ModelRegistry.models[served].load_model_cls).__module__]
    )
    progress("tiny twin")
    like = (
        None
        if "config_class" in said
        else said.get("like") or _class_like(name, registry.ModelRegistry.models)
    )
    checkpoint: Mapping[str, Tensor] | None = None
    why = ""
    if like:
        try:
            checkpoint = mender.run(lambda: twin.save_twin(like, said, folder, served))
        except Exception as error:
            why = f"transformers' {like} cannot be made tiny: {text_of(error)}"
    if checkpoint is None:
        config_class = _config_class(
            name, said.get("config_class"), like, registry.ModelRegistry.models[served]
        )
        mender.run(lambda: twin.tiny_config(config_class, said).save_pretrained(folder))
        twin.write_config(folder, said, served)
    if said.get("processor"):
        _save_processor(folder)
    progress("vLLM's config")
    _start_distributed(0, 1, folder / "alone")
    runner = _runner(registry, name)
    method = (
        said.get("drafts", "eagle3" if "agle3" in name else "mtp" if "MTP" in name else "eagle")
        if runner == "draft"
        else None
    )
    configure = lambda: _as_draft(_vllm_config(folder, runner), method)  # noqa: E731
    built.append(config := mender.run(configure))
    progress("construction")
    make = _maker(config)
    model = mender.run(make)
    origin: Literal["twin", "discovered"] = "twin"
    if checkpoint is not None:
        checkpoint, left = _best_names(make, model, checkpoint)
        if left > len(named_parameters(model)) // 2:
            checkpoint = None  # the twin is of another class than it seemed
    if checkpoint is None:
        progress("names")
        origin, checkpoint = "discovered", discover(make(), progress)
    about = {
        "class": f"{type(model).__module__}.{type(model).__name__}",
        **_place(type(model)),
        "like": like if origin == "twin" else None,
        "own_twin": origin == "twin" and like == name,
        "replaced": mender.replaced,
        "fields": mender.added,
    }
    found = Subject(
        make=make,
        checkpoint=checkpoint,
        load=lambda model, weights: model.load_weights(weights),
        origin=origin,
        code=(os.path.dirname(sys.modules["vllm"].__file__ or ""),),
        about={key: value for key, value in about.items() if value}
        | ({"no_twin": why} if why else {}),
        paths=lambda subject: drive(subject, config),
        shards=lambda subject, reference: sharded(
            subject, lambda rank, meeting: _be_rank(config, rank, meeting), reference, folder
        ),
        process=processing(config),
    )
    return replace(
        found, quantized=lambda into: quantized_subject(found, folder, configure, _maker, into)
    )


def _runner(registry: Any, name: str) -> str:
    """What vLLM would start for it:

    where it generates and pools, what generates, for the other is made of that class.
    """
    groups = [group for group in (*GENERATING, *POOLING) if name in getattr(registry, group, {})]
    if name in registry._SPECULATIVE_DECODING_MODELS:
        return "draft"
    return "pooling" if groups and not set(groups) & set(GENERATING) else "auto"


def _class_like(name: str, models: Mapping[str, Any]) -> str | None:
    """The transformers class of this name; else of another name for the same class of vLLM's."""
    if twin.known(name):
        return name
    same = [
        other
        for other, model in models.items()
        if _target(model) == _target(models[name]) and twin.known(other)
    ]
    return None if "transformers" in _target(models[name])[0] else next(iter(same), None)


def _config_class(name: str, said: str | None, like: str | None, model: Any) -> Any:
    """The class of configs for an architecture that has no twin:

    of its name, of its module, else Llama's.
    """
    import transformers
    import vllm.transformers_utils.configs as own

    if said or like:
        return (
            getattr(own, said, None) or getattr(transformers, said)
            if said
            else getattr(transformers, str(like)).config_class
        )
    stem = re.sub(
        r"(MTP|MTPModel|ForCausalLM|ForConditionalGeneration|Model|ForRewardModel|ForSequenceClassification|Chat|DraftModel)+$",
        "",
        name,
    )
    for module in (own, transformers):
        for word in dir(module):
            if word.casefold() == f"{stem}Config".casefold():
                return getattr(module, word)
    home = sys.modules[model.load_model_cls().__module__]
    there = [
        value
        for value in vars(home).values()
        if isinstance(value, type) and issubclass(value, transformers.PretrainedConfig)
    ]
    whole = [
        value
        for value in there
        if value is not transformers.PretrainedConfig
        and not re.search("Vision|Audio|Siglip|CLIP", value.__name__)
    ]
    return next(iter(whole), transformers.LlamaConfig)


def _target(model: Any) -> tuple[str, str]:
    return getattr(model, "module_name", ""), getattr(model, "class_name", "")


def _place(found: type) -> dict[str, Any]:
    method = inspect.unwrap(found.load_weights)  # type: ignore[attr-defined]
    return {"file": inspect.getsourcefile(method), "line": inspect.getsourcelines(method)[1]}


def _start_distributed(rank: int, ranks: int, meeting: Path) -> None:
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


def _be_rank(config: Any, rank: int, meeting: Path) -> None:
    """Turn this process, a fork of one that was alone, into one of two.

    The groups from before have no threads here, and are let lie.
    """
    import vllm.distributed.device_communicators.cpu_communicator as communicator
    import vllm.distributed.parallel_state as groups

    # Sockets will do. Shared memory, which has names, would stay behind.
    os.environ["VLLM_DIST_IDENT"] = ""
    communicator.CpuCommunicator._all_group_ranks_share_shm_group_name = lambda self: False
    _KEPT.append(dict(vars(groups)))
    leave_groups()
    for name, value in list(vars(groups).items()):
        if isinstance(value, groups.GroupCoordinator):
            setattr(groups, name, None)
    config.parallel_config.tensor_parallel_size = config.parallel_config.world_size = RANKS
    config.parallel_config.rank = rank
    _start_distributed(rank, RANKS, meeting)


def _vllm_config(folder: Path, runner: str) -> Any:
    from vllm.config import CacheConfig, DeviceConfig, LoadConfig, ModelConfig, VllmConfig

    model = ModelConfig(
        model=str(folder),
        tokenizer=str(folder),
        skip_tokenizer_init=not (folder / "tokenizer.json").exists(),
        trust_remote_code=False,
        dtype="bfloat16",
        seed=0,
        enforce_eager=True,
        max_model_len=64,
        runner=runner,
    )
    whole = {
        "model_config": model,
        "load_config": LoadConfig(),
        "device_config": DeviceConfig(device="cpu"),
    }
    try:
        return VllmConfig(**whole)
    except ValueError as error:
        if "enable-prefix-caching" not in str(error):
            raise
        # some linear attention asks for it
        return VllmConfig(**whole, cache_config=CacheConfig(enable_prefix_caching=True))


def _maker(config: Any) -> Callable[[], Any]:
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


def _best_names(
    make: Callable[[], Any], model: Any, checkpoint: Mapping[str, Tensor]
) -> tuple[Mapping[str, Tensor], float]:
    """The checkpoint, under the names that the class loads whole: transformers saves some that are
    not those of the hub's files.

    And how many parameters are never written.
    """
    best, fewest = checkpoint, _never_written(model, checkpoint)
    for rules in twin.TABLE["renamings"]:
        if not fewest:
            break
        tried = twin.renamed(checkpoint, rules)
        if list(tried) != list(checkpoint) and (left := _never_written(make(), tried)) < fewest:
            best, fewest = tried, left
    return best, fewest


def _never_written(model: Any, checkpoint: Mapping[str, Tensor]) -> float:
    """How many parameters a load leaves as they were; infinitely many where it raises."""
    mark(model, MARKS[0])
    try:
        model.load_weights((name, tensor.clone()) for name, tensor in checkpoint.items())
    except Exception:
        return float("inf")
    return sum(bool(marked(tensor, MARKS[0]).all()) for tensor in named_parameters(model).values())


def _save_processor(folder: Path) -> None:
    """A tokenizer and image processors of Qwen's kind, for classes that ask for them when they are
    made.
    """
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast, Qwen2VLImageProcessor, Qwen3VLVideoProcessor

    words = [
        "[UNK]",
        "<|image_pad|>",
        "<|video_pad|>",
        "<|vision_start|>",
        "<|vision_end|>",
        "<image>",
        *SPECIAL.values(),
    ]
    tokenizer = Tokenizer(
        models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]")
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", extra_special_tokens=SPECIAL
    ).save_pretrained(folder)
    Qwen2VLImageProcessor().save_pretrained(folder)
    Qwen3VLVideoProcessor().save_pretrained(folder)


def _as_draft(config: Any, method: str | None) -> Any:
    """The config;

    for a draft model, made to answer what its constructor asks of the model that it drafts for: one
    of its own shape.
    """
    if method is None:
        return config
    from vllm.config import SpeculativeConfig

    fields = {
        **{
            f"{whose}_{what}": getattr(config, what)
            for whose in ("draft", "target")
            for what in ("model_config", "parallel_config")
        },
        "method": method,
        "num_speculative_tokens": 2,
        "parallel_drafting": False,
        "draft_tensor_parallel_size": 1,
        "disable_padded_drafter_batch": False,
        "eagle3_use_aux_hidden_state": True,
    }
    draft = object.__new__(SpeculativeConfig)
    for name in SpeculativeConfig.__dataclass_fields__:
        object.__setattr__(draft, name, fields.pop(name, None))
    for name, value in fields.items():
        object.__setattr__(draft, name, value)
    object.__setattr__(config, "speculative_config", draft)
    return config
