"""The outputs of a class of vLLM for a text, in float32, without its engine.

Attention over the whole text is written out in the place of vLLM's, whose kernels read keys and
values from a cache that only the engine has. All else is the class's own.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .errors import NotRun
from .facts import CheckFacts
from .sources import OwnedSource
from .subject import Subject
from .twin_outputs import TEXT_TOKENS, OfImage, Outputs, Twin, compare_class
from .vllm_processing import process_weights

WRITTEN_OUT = frozenset(
    {"Attention", "MLAAttention", "EncoderOnlyAttention", "ChunkedLocalAttention"}
)
"""vLLM's layers whose attention over one short text is written out."""


def compare_with_twin(
    subject: Subject, config: Any, class_name: str, folder: Path, guessed: bool = False
) -> CheckFacts:
    """Load the class in float32, and compare what it computes with its twin.

    Args:
        config: the VllmConfig that the class is made from; its dtype is float32 meanwhile.
        class_name: transformers' class.
        folder: has its config.json, and the checkpoint that the subject is loaded from.
        guessed: fields of the class's config were made up, and may mean something else.

    Raises:
        NotRun: there is nothing to compare.
    """
    from vllm.config import set_current_vllm_config
    from vllm.forward_context import set_forward_context

    dtype = config.model_config.dtype
    config.model_config.dtype = torch.float32
    # the twin, too: vLLM has changed the classes of transformers that it runs itself
    try:
        with (
            set_current_vllm_config(config),
            set_forward_context(None, config, num_tokens=TEXT_TOKENS),
            _attention_written_out(),
            torch.compiler.set_stance("force_eager"),  # compiling takes longer than all else
            torch.no_grad(),
        ):
            twin = Twin(class_name, folder)
            model = _loaded(subject, config)
            return compare_class(twin, partial(_outputs, model, config), _of_image(model), guessed)
    finally:
        config.model_config.dtype = dtype


def _of_image(model: Any) -> OfImage | None:
    """Return a function that computes an image's features; None where the class takes no image."""
    if not hasattr(model, "embed_multimodal"):
        return None
    for module in model.modules():
        if type(module).__name__ == "FusedMMInputNorm":  # pixels come normalized, as from anywhere
            module._forward_method = _pixels_as_they_are
    return lambda image: model.embed_multimodal(**image)


def _loaded(subject: Subject, config: Any) -> Any:
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

    model = subject.make()
    for module in model.modules():
        kind = type(module).__name__
        if isinstance(module, AttentionLayerBase) and kind not in WRITTEN_OUT:
            raise NotRun(f"it computes with a {kind}, which needs what only vLLM's engine keeps")
    subject.load(model, OwnedSource(subject.checkpoint))
    process_weights(model, config)
    for module in model.modules():  # not the kernel that vLLM has chosen for this CPU
        if hasattr(module, "forward_native") and hasattr(module, "_forward_method"):
            module._forward_method = module.forward_native
    return model


def _outputs(model: Any, config: Any, tokens: Tensor, expected: Outputs) -> Outputs:
    """Compute the outputs of a text, those that the twin has.

    Raises:
        NotRun: the class computes something else than a row for each token.
    """
    positions = torch.arange(len(tokens))
    if config.model_config.uses_mrope:
        positions = positions.expand(3, -1)
    given: dict[str, Any] = {"input_ids": tokens, "positions": positions}
    if "intermediate_tensors" in inspect.signature(model.forward).parameters:
        given["intermediate_tensors"] = None
    made = model(**given)
    if isinstance(made, tuple):  # some return what a draft model needs, too
        made = made[0]
    if not isinstance(made, Tensor) or made.shape[:-1] != tokens.shape:
        raise NotRun("it returns something else than a row for each token")
    logits = expected.get("logits")
    if logits is None:
        return {"hidden states": made}
    if hasattr(model, "compute_logits"):
        return {"logits": model.compute_logits(made)}
    # a class that pools returns either
    return {"logits" if made.shape == logits.shape else "hidden states": made}


def _pixels_as_they_are(pixels: Tensor, dtype: torch.dtype, *_: Any) -> Tensor:
    return pixels.to(dtype)


@contextmanager
def _attention_written_out() -> Iterator[None]:
    """Compute attention from this text's own queries, keys and values."""
    from vllm.model_executor.layers.attention import Attention, MLAAttention

    kept: dict[str, tuple[Tensor, Tensor]] = {}

    def attention(self: Any, query: Tensor, key: Any, value: Any, *_: Any, **__: Any) -> Tensor:
        queries = query.reshape(-1, self.num_heads, self.head_size)
        if self.kv_sharing_target_layer_name is not None:
            key, value = kept[self.kv_sharing_target_layer_name]
        if key is None:
            raise NotRun("it attends to another model's outputs")
        kept[self.layer_name] = key, value
        keys = key.reshape(-1, self.num_kv_heads, self.head_size)
        values = value.reshape(-1, self.num_kv_heads, self.head_size_v)
        groups = self.num_heads // self.num_kv_heads
        return _attend(
            queries,
            keys.repeat_interleave(groups, 1),
            values.repeat_interleave(groups, 1),
            self.impl,
            window=self.sliding_window,
            causal=str(getattr(self.attn_type, "value", self.attn_type)) == "decoder",
        )

    def latent(self: Any, q: Tensor, kv_c_normed: Tensor, k_pe: Tensor, *_: Any, **__: Any) -> Any:
        rows = len(kv_c_normed)
        widths = (self.qk_nope_head_dim, self.v_head_dim)
        both = self.kv_b_proj(kv_c_normed)[0].view(rows, self.num_heads, sum(widths))
        keys, values = both.split(widths, -1)
        rotated = k_pe.reshape(rows, 1, -1).expand(-1, self.num_heads, -1)
        return _attend(q, torch.cat([keys, rotated], -1), values, self.impl)

    own = Attention.forward, MLAAttention.forward
    Attention.forward, MLAAttention.forward = attention, latent
    try:
        yield
    finally:
        Attention.forward, MLAAttention.forward = own


def _attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    impl: Any,
    *,
    window: int | None = None,
    causal: bool = True,
) -> Tensor:
    """Return attention over one text, of shape (tokens, heads × width).

    Args:
        queries, keys, values: of shape (tokens, heads, width).
        impl: vLLM's attention, which has the scale and further terms.
        window: positions that a token sees, itself included.
    """
    scores = torch.einsum("qhd,khd->hqk", queries, keys) * impl.scale
    if cap := getattr(impl, "logits_soft_cap", None):
        scores = cap * torch.tanh(scores / cap)
    places = torch.arange(len(queries))
    behind = places[:, None] - places
    if (slopes := getattr(impl, "alibi_slopes", None)) is not None:
        scores = scores - torch.as_tensor(slopes)[:, None, None] * behind
    if causal:
        hidden = behind < 0
        if window:
            hidden = hidden | (behind >= window)
        scores = scores.masked_fill(hidden, float("-inf"))
    if (sinks := getattr(impl, "sinks", None)) is not None:
        column = sinks.to(scores.dtype)[:, None, None].expand(-1, len(queries), 1)
        shares = torch.cat([scores, column], -1).softmax(-1)[..., :-1]
    else:
        shares = scores.softmax(-1)
    return torch.einsum("hqk,khd->qhd", shares, values).flatten(1)
