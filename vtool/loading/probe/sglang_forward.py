"""The outputs of a class of SGLang for a text, in float32, without its engine.

All of it is SGLang's own: its attention in torch (`--attention-backend torch_native`) over a pool
of keys and values, and where it has a way without a kernel for GPUs, that one.
"""

import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from .errors import NotRun
from .facts import CheckFacts
from .sources import OwnedSource
from .state import MARKS, fill_with_byte, marked, named_parameters
from .subject import Subject
from .twin_outputs import Outputs, Twin, compare_class

CPU_FLAGS = ("_is_cpu", "is_cpu_")
"""Names under which SGLang's modules keep whether they run on a CPU."""
NO_TRITON = "active drivers"
"""The words of Triton on a machine without a GPU."""
STATEFUL = frozenset({"MambaMixer2", "RadixLinearAttention"})
"""SGLang's layers with a state of their own, which kernels for GPUs compute."""
TAKE_HIDDEN_STATES = {"LogitsProcessor": 1, "Pooler": 0, "CrossEncodingPooler": 0, "BertPooler": 0}
"""SGLang's layers that are given the hidden states of each token, and at which place."""


def compare_with_twin(
    subject: Subject, make: Callable[[], Any], class_name: str, folder: Path, guessed: bool = False
) -> CheckFacts:
    """Load the class in float32, and compare what it computes with its twin.

    Args:
        make: makes the subject's object in float32.
        class_name: transformers' class.
        folder: has its config.json, and the checkpoint that the subject is loaded from.
        guessed: fields of the class's config were made up, and may mean something else.

    Raises:
        NotRun: there is nothing to compare.
    """
    from sglang.srt.model_loader.loader import DefaultModelLoader

    twin = Twin(class_name, folder)
    model = make()
    layers = _attention_layers(model)
    subject.load(model, OwnedSource(subject.checkpoint))
    DefaultModelLoader.postprocess_weights(model, torch.device("cpu"))
    with _on_cpu(), torch.no_grad():
        found = compare_class(twin, partial(_outputs, model, layers), guessed=guessed)
    if found.items and (left := _unwritten(subject)):
        raise NotRun(f"it computes something else, and no tensor is loaded into {min(left)}")
    return found


def _unwritten(subject: Subject) -> list[str]:
    """Return the parameters that a load leaves as they were."""
    model = subject.make()
    fill_with_byte(model, MARKS[0])
    subject.load(model, OwnedSource(subject.checkpoint))
    return [
        name for name, one in named_parameters(model).items() if bool(marked(one, MARKS[0]).all())
    ]


def _attention_layers(model: nn.Module) -> list[Any]:
    """Return the layers that read keys and values from a pool.

    Raises:
        NotRun: SGLang's attention in torch computes something else than one of them asks for.
    """
    from sglang.srt.layers.radix_attention import RadixAttention

    for module in model.modules():
        if (kind := type(module).__name__) in STATEFUL:
            raise NotRun(f"it computes with a {kind}, whose states only SGLang's engine keeps")
    # a class that runs transformers' own keeps them outside of its modules
    own = getattr(model, "attention_instances", {}).values()
    found: list[Any] = [one for one in (*model.modules(), *own) if isinstance(one, RadixAttention)]
    for layer in found:
        if layer.logit_cap:
            raise NotRun("SGLang's attention in torch has no soft cap; its kernels for GPUs have")
    return found


def _outputs(model: Any, layers: list[Any], tokens: Tensor, expected: Outputs) -> Outputs:
    """Compute one of the outputs of a text that the twin has.

    Raises:
        NotRun: the class computes something else than a row for each token.
    """
    if "logits" in expected:
        made = _forward(model, layers, _beginnings(tokens), logits=True)
        rows = getattr(made, "next_token_logits", None)
        if isinstance(rows, Tensor):
            return {"logits": rows}
    return {"hidden states": _hidden_states(model, layers, tokens)}


def _beginnings(tokens: Tensor) -> list[Tensor]:
    """Return every beginning of a text: a class computes logits of the last token alone."""
    return [tokens[: end + 1] for end in range(len(tokens))]


def _hidden_states(model: Any, layers: list[Any], tokens: Tensor) -> Tensor:
    """Return the hidden states of each token that the class gives to its pooler, or to its head."""
    seen: list[Tensor] = []

    def keep(_: Any, given: tuple[Any, ...], named: dict[str, Any], place: int) -> None:
        seen.append(given[place] if len(given) > place else named["hidden_states"])

    hooks = [
        one.register_forward_pre_hook(
            partial(keep, place=TAKE_HIDDEN_STATES[type(one).__name__]), with_kwargs=True
        )
        for one in model.modules()
        if type(one).__name__ in TAKE_HIDDEN_STATES
    ]
    try:
        _forward(model, layers, [tokens])
    finally:
        for hook in hooks:
            hook.remove()
    if seen:
        return seen[0]
    pooling = getattr(getattr(model, "pooler", None), "pooling_type", None)
    if getattr(pooling, "name", "") == "LAST":  # what a head of scores is given of each text
        pooled = _forward(model, layers, _beginnings(tokens)).pooled_hidden_states
        if isinstance(pooled, Tensor):
            return pooled
    raise NotRun("it gives hidden states to no pooler of SGLang's, and returns none")


def _forward(model: Any, layers: list[Any], texts: list[Tensor], logits: bool = False) -> Any:
    """Run the class over texts, to logits or to what it pools."""
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
    from sglang.srt.model_executor.forward_context import ForwardContext, forward_context

    batch, requests = _batch(texts)
    runner = SimpleNamespace(
        device="cpu",
        req_to_token_pool=requests,
        token_to_kv_pool=_pool(layers, len(batch.input_ids)),
    )
    pools = "get_embedding" in inspect.signature(model.forward).parameters and not logits
    batch.return_pooled_hidden_states = pools
    backend = TorchNativeAttnBackend(runner)
    backend.init_forward_metadata(batch)
    with (
        forward_context(ForwardContext(attn_backend=backend), forward_batch=batch),
        torch.compiler.set_stance("force_eager"),  # compiling takes longer than all else
    ):
        more = {"get_embedding": True} if pools else {}
        try:
            return model.forward(batch.input_ids, batch.positions, batch, **more)
        except Exception as error:
            if NO_TRITON not in str(error):
                raise
            raise NotRun(f"{_place_in_sglang(error)} calls a kernel of Triton, for GPUs") from error


def _place_in_sglang(error: BaseException) -> str:
    """Return the last function of SGLang that an exception came through, with its place."""
    frames = traceback.extract_tb(error.__traceback__)
    last = [one for one in frames if "/sglang/" in one.filename][-1]
    return f"SGLang's {last.name} ({Path(last.filename).name}:{last.lineno})"


def _pool(layers: list[Any], size: int) -> Any:
    """Return an empty pool of keys and values, of each layer's own size."""
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool

    common = {
        "size": size,
        "page_size": 1,
        "dtype": torch.float32,
        "layer_num": 1 + max((layer.layer_id for layer in layers), default=0),
        "device": "cpu",
        "enable_memory_saver": False,
    }
    if latent := [layer for layer in layers if _is_latent(layer, layers)]:
        rank = latent[0].v_head_dim
        rotated = latent[0].qk_head_dim - rank
        return MLATokenToKVPool(**common, kv_lora_rank=rank, qk_rope_head_dim=rotated)
    pool = MHATokenToKVPool(**common, head_num=1, head_dim=1)
    for layer in layers:
        shapes = (layer.tp_k_head_num, layer.qk_head_dim), (layer.tp_v_head_num, layer.v_head_dim)
        for kept, shape in zip((pool.k_buffer, pool.v_buffer), shapes, strict=True):
            kept[layer.layer_id] = torch.zeros(size + 1, *shape)
    return pool


def _is_latent(layer: Any, layers: list[Any]) -> bool:
    """Return whether a layer attends to what another one of its number has made smaller."""
    return layer.tp_k_head_num == 1 and any(
        one.layer_id == layer.layer_id and one is not layer for one in layers
    )


def _batch(texts: list[Tensor]) -> tuple[Any, Any]:
    """Return a batch of whole texts, and the pool of the places of their tokens."""
    from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
    from sglang.srt.model_executor.forward_batch_info import (
        CaptureHiddenMode,
        ForwardBatch,
        ForwardMode,
    )

    lengths = [len(text) for text in texts]
    total = sum(lengths)
    requests = ReqToTokenPool(len(texts), max(lengths), "cpu", enable_memory_saver=False)
    places = torch.arange(1, total + 1)
    rows = torch.arange(1, len(texts) + 1)
    for row, place in zip(rows, torch.split(places, lengths), strict=True):
        requests.req_to_token[row, : len(place)] = place.int()
    sizes = torch.tensor(lengths)
    positions = torch.cat([torch.arange(length) for length in lengths])
    batch = ForwardBatch(
        forward_mode=ForwardMode.EXTEND,
        batch_size=len(texts),
        input_ids=torch.cat(texts),
        req_pool_indices=rows,
        seq_lens=sizes,
        out_cache_loc=places,
        seq_lens_sum=total,
        seq_lens_cpu=sizes,
        orig_seq_lens=sizes,
        positions=positions,
        mrope_positions=positions.expand(3, -1),
        extend_num_tokens=total,
        extend_seq_lens=sizes,
        extend_prefix_lens=torch.zeros_like(sizes),
        extend_start_loc=sizes.cumsum(0) - sizes,
        extend_prefix_lens_cpu=[0] * len(texts),
        extend_seq_lens_cpu=lengths,
        capture_hidden_mode=CaptureHiddenMode.NULL,
    )
    return batch, requests


@contextmanager
def _on_cpu() -> Iterator[None]:
    """Have SGLang's modules take the ways that they have for a CPU.

    They ask once, when they are imported; what they then are is the audit's.
    """
    changed = [
        (module, name)
        for module in list(sys.modules.values())
        if getattr(module, "__name__", "").startswith("sglang.")
        for name in CPU_FLAGS
        if vars(module).get(name) is False
    ]
    for module, name in changed:
        setattr(module, name, True)
    # of latent attention the form that needs no kernel, which SGLang takes behind a kept prefix
    with suppress(ImportError):
        from sglang.srt.models.deepseek_common import attention_backend_handler as latent

        latent.AttentionBackendRegistry.register("torch_native", latent._dispatch_mla_subtype)
    try:
        yield
    finally:
        for module, name in changed:
            setattr(module, name, False)
