"""Attention by lengths: each document, image and window computes what it does by itself."""

import copy
import pickle
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.utils import _to_kwargs
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import sdpa_backward_flop_count, sdpa_flop_count

from tests.each_family import EACH_FAMILY
from tests.models.rows import PACKED, Row, packed, padded, row
from tests.models.tiny import tiny_model
from tests.models.varlen_emulator import VarlenEmulator
from tests.training.waits import waits as counted_waits
from vtool.data.packing import with_positions
from vtool.families import FAMILIES
from vtool.families.family import load_family
from vtool.models import attention, by_lengths
from vtool.models.attention import use_document_attention, use_tower_attention
from vtool.models.by_lengths import KERNELS, OF_TRANSFORMERS, Form, attend_by_lengths
from vtool.models.dummy_visual import dummy_visual_term
from vtool.models.observe_model import observe_layers
from vtool.models.spans import Spans
from vtool.models.tower_index import TowerIndexer, tower_indexer, use_tower_index
from vtool.profiling.trace import TraceScan, read_trace
from vtool.releases import takes_tower_index

# of windows of one size and of several; of images that are one window, and of none
GRIDS = ([(4, 6)], [], [(12, 20), (8, 8)], [])
CPU = torch.device("cpu")
LENGTHS = (3, 3, 7, 1, 5)
of_the_newest = pytest.mark.skipif(
    not takes_tower_index(), reason="towers of this transformers take no index"
)
FORMS = {
    "causal": Form(),
    "both ways": Form(causal=False),
    "a window": Form(window=3),
    "a window of one token": Form(window=1),
    "a window beyond all": Form(window=7),
    "another scale": Form(scale=0.3),
}


def rows(model: Any) -> list[Row]:
    return [row(model, text, grids, text) for text, grids in zip((5, 7, 9, 1), GRIDS, strict=True)]


def by_kernel(plain: Any, kernel: str) -> Any:
    model = copy.deepcopy(plain)
    use_document_attention(model, kernel)
    use_tower_attention(model, kernel)
    use_tower_index(model)
    return model


def largest(one: Tensor, other: Tensor) -> float:
    return float((one - other).detach().abs().max() / other.detach().abs().max())


def compared(plain: Any, model: Any, alone: list[Row]) -> tuple[float, dict[str, float]]:
    """Return how far logits and gradients of a packed row are from those of rows of their own."""
    out = model(**packed(model, alone).arguments(), use_cache=False).logits[0]
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    (out * weight).sum().backward()
    own = weight.split([one.length for one in alone])
    expected = [plain(**one.inputs, use_cache=False).logits[0] for one in alone]
    sum((one * part).sum() for one, part in zip(expected, own, strict=True)).backward()
    gradients = {
        name: largest(ours.grad, theirs.grad)
        for (name, ours), theirs in zip(model.named_parameters(), plain.parameters(), strict=True)
        if theirs.grad is not None and theirs.grad.abs().max() > 0
    }
    return largest(out, torch.cat(expected)), gradients


@pytest.mark.parametrize("family", PACKED)
def test_a_packed_row_with_images_is_rows_of_their_own(family: str) -> None:
    """Against transformers' own calls, each row and each window by itself."""
    plain = tiny_model(family, torch.float64)
    logits, gradients = compared(plain, by_kernel(plain, "varlen"), rows(plain))
    # GLM's tower interpolates its positions in float32, whatever the model's dtype
    apart = gradients.pop("model.visual.embeddings.position_embedding.weight", 0.0)
    assert logits <= 1e-12
    assert max(gradients.values()) <= 1e-12
    assert apart <= 1e-5


@pytest.mark.full
@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl"])
def test_layers_with_a_window_pack_too(family: str) -> None:
    """transformers masks the window of rows of their own; here no mask is made."""
    plain = tiny_model(family, torch.float64)
    text = plain.config.get_text_config()
    text.sliding_window, text.layer_types = 4, ["full_attention", "sliding_attention"]
    layers = plain.model.language_model.layers
    layers[1].attention_type = layers[1].self_attn.layer_type = "sliding_attention"
    layers[1].self_attn.sliding_window = 4
    plain.model.language_model.has_sliding_layers = True
    before = tiny_model(family, torch.float64)
    alone = rows(plain)
    with torch.no_grad():
        seen, all_seen = (one(**alone[1].inputs).logits for one in (plain, before))
    assert largest(seen, all_seen) > 1e-3, "the window acts"
    logits, gradients = compared(plain, by_kernel(plain, "sdpa"), alone)
    assert logits <= 1e-12
    assert max(gradients.values()) <= 1e-12


def test_a_row_without_documents_keeps_its_window() -> None:
    """No mask is made for it, so that the function must not compute without one."""
    plain = tiny_model("qwen2_vl", torch.float64)
    layer = plain.model.language_model.layers[0].self_attn
    assert attention.row_mask(batch_size=1, q_length=9, kv_length=9, local_size=4) is None
    q, k, v = of_heads(9)
    mask = torch.ones(9, 9, dtype=torch.bool).tril().triu(-3)
    expected = scaled_dot_product_attention(
        *heads_first(q, k, v), attn_mask=mask, enable_gqa=True
    ).transpose(1, 2)
    found, _ = attention.attention(layer, *heads_first(q, k, v), None, sliding_window=4)
    assert largest(found, expected) <= 1e-12


def of_heads(tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    q, k, v = (
        torch.randn(tokens, heads, 8, generator=generator, dtype=torch.float64).requires_grad_()
        for heads in (4, 2, 2)
    )
    return q, k, v


def heads_first(*tensors: Tensor) -> Iterator[Tensor]:
    return (one.transpose(0, 1)[None] for one in tensors)


@pytest.mark.parametrize("form", FORMS)
def test_what_varlen_attn_is_given_is_what_is_emulated_on_a_cpu(form: str) -> None:
    """Through torch's own function, to an operator of its published contract."""
    spans = Spans.of(LENGTHS)
    three = of_heads(spans.tokens)
    weight = torch.randn(spans.tokens, 4, 8, dtype=torch.float64)

    def gradients(out: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad((out * weight).sum(), three))

    on_cpu = attend_by_lengths(*three, spans, FORMS[form], "varlen")
    with VarlenEmulator() as emulator:
        on_cuda = by_lengths.by_varlen(*three, spans, FORMS[form])
        found = gradients(on_cuda)
    assert len(emulator.calls) == 1
    assert largest(on_cuda, on_cpu) <= 1e-12
    for one, other in zip(found, gradients(on_cpu), strict=True):
        assert float((one - other).abs().max()) <= 1e-12  # of one token alone they are 0


def test_a_window_of_one_token_too_many_would_be_seen() -> None:
    """The trap of its argument: (W, 0) lets a token see W before it, and itself."""
    spans = Spans.of(LENGTHS)
    three = of_heads(spans.tokens)
    with VarlenEmulator() as emulator:
        by_lengths.by_varlen(*three, spans, Form(window=3))
        off_by_one = by_lengths.by_varlen(*three, spans, Form(window=4))
    assert [call["window"] for call in emulator.calls] == [(2, 0), (3, 0)]
    assert largest(off_by_one, attend_by_lengths(*three, spans, Form(window=3))) > 1e-3


def test_on_cuda_the_operator_is_given_autocasts_dtype() -> None:
    """torch's autocast knows nothing of it, and float32 positions make queries float32.

    Shapes and dtypes alone: torch's own check of the operator, on a device that is not there.
    """
    spans = Spans.of((4, 6))
    with FakeTensorMode(allow_non_fake_inputs=True):
        q, k = (torch.empty(10, heads, 64, device="cuda") for heads in (4, 2))
        there = spans.map(lambda ends: torch.empty(3, dtype=torch.int32, device="cuda"))
        before = torch.get_autocast_dtype("cuda")
        torch.set_autocast_enabled("cuda", True)
        torch.set_autocast_dtype("cuda", torch.bfloat16)
        try:
            out = attend_by_lengths(q, k, k.bfloat16(), there, Form(), "varlen")
        finally:
            torch.set_autocast_enabled("cuda", False)
            torch.set_autocast_dtype("cuda", before)
    assert (out.device.type, out.dtype, out.shape) == ("cuda", torch.bfloat16, q.shape)


@pytest.fixture
def flash(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """Functions of FlashAttention's signatures in the place of its packages, and their calls.

    transformers loads and calls them. Neither package is here.
    """
    from transformers import modeling_flash_attention_utils as of_transformers

    calls: list[dict[str, Any]] = []

    def varlen(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        deterministic: bool = False,
    ) -> Tensor:
        spans = Spans.ending_at(cu_seqlens_k)
        assert torch.equal(cu_seqlens_q, cu_seqlens_k)
        assert cu_seqlens_q.dtype == torch.int32
        assert int(max_seqlen_q) == int(max_seqlen_k) == spans.longest
        left, right = window_size
        assert causal or right == -1
        calls.append({"causal": causal, "longest": max_seqlen_q})
        form = Form(causal, left + 1 if left >= 0 else None, softmax_scale)
        return attend_by_lengths(q, k, v, spans, form)

    def whole(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensor:
        rows, length = q.shape[:2]
        ends = Spans.of((length,) * rows).ends
        flat = (one.flatten(0, 1) for one in (q, k, v))
        return varlen(*flat, ends, ends, length, length, **how).unflatten(0, (rows, length))

    package, padding = ModuleType("flash_attn"), ModuleType("flash_attn.bert_padding")
    vars(package).update(
        flash_attn_func=whole, flash_attn_varlen_func=varlen, flash_attn_with_kvcache=None
    )
    vars(padding).update(
        pad_input=of_transformers._pad_input, unpad_input=of_transformers._unpad_input
    )
    for name in ("flash_attn", "flash_attn_interface"):
        monkeypatch.setitem(sys.modules, name, package)
    monkeypatch.setitem(sys.modules, "flash_attn.bert_padding", padding)
    for number in (2, 3, 4):
        there = partial(bool, number < 4)
        monkeypatch.setattr(of_transformers, f"is_flash_attn_{number}_available", there)
    monkeypatch.setattr(of_transformers, "_loaded_implementation", None)
    yield calls
    of_transformers._loaded_implementation = None


@pytest.mark.parametrize("kernel", OF_TRANSFORMERS)
@pytest.mark.parametrize("form", FORMS)
def test_what_flash_attention_is_given_through_transformers(
    flash: list[dict[str, Any]], kernel: str, form: str
) -> None:
    spans = Spans.of(LENGTHS)
    three = of_heads(spans.tokens)
    found = by_lengths.by_transformers(*three, spans, FORMS[form], kernel)
    assert [type(call["longest"]) for call in flash] == [int], "Python's, not the device's"
    assert largest(found, attend_by_lengths(*three, spans, FORMS[form])) <= 1e-12


@pytest.mark.parametrize("kernel", OF_TRANSFORMERS)
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("kept", [(9, 5), (9, 9)], ids=["padding", "none"])
def test_padded_rows_of_flash_attention_are_those_of_sdpa(
    flash: list[dict[str, Any]], kernel: str, window: int | None, kept: tuple[int, int]
) -> None:
    """By the mask that transformers makes for it, on CUDA: which tokens are kept."""
    layer = tiny_model("qwen2_vl").model.language_model.layers[0].self_attn
    q, k, v = (torch.stack([one, one.flip(0)]).transpose(1, 2) for one in of_heads(9))
    keep = torch.arange(9)[None] < torch.tensor(kept)[:, None]
    given = {"batch_size": 2, "q_length": 9, "kv_length": 9, "attention_mask": keep}
    mask = attention.flash_mask(**given, device="cuda")
    assert (mask is None) == (kept == (9, 9))
    assert mask is None or torch.equal(mask, keep)
    found = attention._rows_of_transformers(layer, q, k, v, mask, None, 0.0, window, kernel)
    seen = torch.ones(9, 9, dtype=torch.bool).tril().triu(1 - (window or 9))
    seen = (seen & keep[:, None]) | torch.eye(9, dtype=torch.bool)
    expected = scaled_dot_product_attention(q, k, v, seen[:, None], enable_gqa=True)
    assert largest(found[keep], expected.transpose(1, 2)[keep]) <= 1e-12
    assert [call["causal"] for call in flash] == [True]


@pytest.mark.parametrize("kernel", KERNELS)
def test_spans_that_are_not_those_of_the_tokens_are_refused(kernel: str) -> None:
    with pytest.raises(ValueError, match="spans of 19 tokens, and 18 tokens"):
        attend_by_lengths(*of_heads(18), Spans.of(LENGTHS), Form(), kernel)
    with pytest.raises(ValueError, match="a window of 3 tokens is causal"):
        attend_by_lengths(*of_heads(19), Spans.of(LENGTHS), Form(False, 3), kernel)
    with pytest.raises(ValueError, match=r"there is at least one; not \[3, 0\]"):
        Spans.of((3, 0))


def test_a_dropout_that_a_kernel_has_not_is_refused() -> None:
    """FlashAttention 3 would be called without it, by transformers, and nothing said."""
    three, spans = of_heads(19), Spans.of(LENGTHS)
    with pytest.raises(ValueError, match=r"a dropout of 0\.1: varlen_attn has none"):
        by_lengths.by_varlen(*three, spans, Form(dropout=0.1))
    with pytest.raises(ValueError, match=r"a dropout of 0\.1: FlashAttention 3 has none"):
        by_lengths.by_transformers(*three, spans, Form(dropout=0.1), "flash_attention_3")


# What remains: the split of features by image, and the check of their number.
OF_THE_MODEL = 3
# A mask of images for each level of DeepStack, in and out.
DEEPSTACK = 4


@of_the_newest
@pytest.mark.parametrize("family", [name for name in FAMILIES if "moe" not in name])
def test_a_tower_waits_for_the_device_three_times(family: str) -> None:
    """However many blocks it has; without its index, and with transformers' attention, for each.

    On a CPU what would be read off a device is counted.
    """
    plain = tiny_model(family, torch.float64)
    model = by_kernel(plain, "varlen")
    one = [rows(plain)[2]]  # two images
    batch = packed(model, one)
    given = batch.arguments() if family in PACKED else {**batch.inputs, **batch.towers}
    with torch.no_grad():
        with counted_waits(CPU) as waits:
            model(**given, use_cache=False)
        with counted_waits(CPU) as before:
            plain(**batch.inputs, use_cache=False)
    levels = DEEPSTACK if family == "qwen3_vl" else 0
    assert sum(waits.values()) == OF_THE_MODEL + levels, waits
    blocks = len(plain.model.visual.blocks)
    assert sum(before.values()) >= OF_THE_MODEL + levels + 3 * blocks, before


@of_the_newest
@pytest.mark.parametrize("family", EACH_FAMILY)
def test_padded_rows_have_the_positions_that_transformers_gives_them(family: str) -> None:
    """Ahead of the forward pass, which reads a device for them eight times a row."""
    model = tiny_model(family, torch.float64).eval()
    use_tower_index(model)
    batch = padded(model, rows(model))
    given = with_positions(batch, model)
    assert given.inputs["position_ids"].shape == (3, *batch.inputs["input_ids"].shape)
    with torch.no_grad():
        found, expected = (
            model(**one.arguments(), use_cache=False).logits for one in (given, batch)
        )
    assert torch.equal(found, expected)
    without = replace(batch, towers={})
    assert with_positions(without, model) is without, "a class of the user's own has its own way"


@of_the_newest
def test_experts_wait_and_the_tower_before_them_does_not() -> None:
    """Values decide which expert computes, so the experts wait for the device."""
    model = by_kernel(tiny_model("qwen3_vl_moe", torch.float64), "varlen")
    batch = packed(model, [rows(model)[2]])
    with torch.no_grad(), counted_waits(CPU) as waits:
        model.model.get_image_features(
            batch.inputs["pixel_values"], batch.inputs["image_grid_thw"], **batch.towers
        )
    assert sum(waits.values()) == 1, f"more than the split of features by image: {waits}"


@of_the_newest
@pytest.mark.parametrize("family", EACH_FAMILY)
def test_images_and_videos_at_once_have_the_index_of_all(family: str) -> None:
    indexer = tower_indexer(load_family(family), tiny_model(family))
    assert indexer is not None
    images, videos = torch.tensor([[1, 12, 20], [1, 4, 6]]), torch.tensor([[3, 6, 4], [2, 8, 8]])
    joined = indexer.index(images).joined(indexer.index(videos)).arguments()
    whole = indexer.index(torch.cat([images, videos])).arguments()
    assert joined.keys() == whole.keys()
    for name, value in whole.items():
        if isinstance(value, Tensor):
            assert torch.equal(joined[name], value), name
            assert joined[name].dtype == value.dtype, name
        elif name != "spans":
            assert joined[name] == value, name
    for one, other in zip(joined["spans"], whole["spans"], strict=True):
        assert one.lengths == other.lengths
        assert torch.equal(one.ends, other.ends)


@of_the_newest
def test_a_dummy_image_is_not_asked_for_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    model = by_kernel(tiny_model("qwen2_5_vl", torch.float64), "varlen")
    family, device = load_family("qwen2_5_vl"), torch.device("cpu")
    indexer = tower_indexer(family, model)
    assert indexer is not None
    with torch.no_grad():
        plain = dummy_visual_term(family, model, device)
        # made on the CPU, of a size that no device has: not counted
        made = indexer.index(torch.tensor([[1, 2, 2]]))
        monkeypatch.setattr(TowerIndexer, "index", lambda *_: made)
        with counted_waits(CPU) as waits:
            found = dummy_visual_term(family, model, device, indexer)
    assert torch.equal(found, plain)
    assert sum(waits.values()) == 1, f"more than the split of features by image: {waits}"


@of_the_newest
def test_a_class_of_the_users_own_gets_no_index() -> None:
    """The tower of such a class may do anything with sizes."""
    family = load_family("qwen2_5_vl")
    plain = tiny_model("qwen2_5_vl")
    assert pickle.loads(pickle.dumps(tower_indexer(family, plain))) is not None, "for data workers"
    own = type("Own", (family.model_class(),), {})
    assert tower_indexer(family, own._from_config(plain.config)) is None


@pytest.mark.parametrize("kernel", KERNELS)
def test_each_choice_is_read_back_by_its_name(kernel: str) -> None:
    model = by_kernel(tiny_model("qwen2_5_vl"), kernel)
    read = {(one.name, one.value) for one in observe_layers(model)}
    assert ("model.attention", kernel) in read
    assert {value for name, value in read if name == "model.attention"} == {kernel}
    assert {value for name, value in read if name == "data.packing"} == {"token_budget"}


@of_the_newest
def test_what_engines_do_with_tensors_leaves_lengths_and_an_index_alone() -> None:
    """FSDP2 rounds floats of a forward pass's arguments, and DDP takes tuples apart."""
    indexer = tower_indexer(load_family("qwen3_vl"), tiny_model("qwen3_vl"))
    assert indexer is not None
    index, spans = indexer.index(torch.tensor([[1, 4, 6]])), Spans.of((3, 4))
    given = {"documents": spans, "image_index": index}
    assert index.places["interp_weights"].dtype == torch.float32
    rounded = tree_map(
        lambda one: one.bfloat16() if isinstance(one, Tensor) and one.is_floating_point() else one,
        given,
    )
    ((), moved), *_ = zip(*_to_kwargs((), given, torch.device("cpu"), False), strict=True)
    for found in (rounded, moved):
        assert found["documents"] is spans
        assert found["image_index"] is index


# the windows of an image, of which those at its right edge are narrow
WINDOWS = [4, 4, 4, 2, 4, 4, 4, 2, 4, 4, 4, 2, 2, 2, 2, 1]


@pytest.mark.parametrize("form", FORMS)
def test_windows_of_one_length_in_one_call_are_those_one_after_the_other(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans = Spans.of(WINDOWS)
    own, together = (of_heads(spans.tokens) for _ in range(2))
    expected = attend_by_lengths(*own, spans, FORMS[form])
    calls: list[torch.Size] = []

    def counted(query: Tensor, *given: Any, **named: Any) -> Tensor:
        calls.append(query.shape)
        return scaled_dot_product_attention(query, *given, **named)

    monkeypatch.setattr(by_lengths, "scaled_dot_product_attention", counted)
    found = by_lengths.in_order_of_length(*together, spans, FORMS[form])
    assert largest(found, expected) <= 1e-12
    assert [shape[0] for shape in calls] == [1, 6, 9]
    for each in (found, expected):
        each.square().sum().backward()
    for ours, theirs in zip(together, own, strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        assert largest(ours.grad, theirs.grad) <= 1e-12


def test_a_profile_counts_the_flops_that_no_shape_says(tmp_path: Path) -> None:
    """Torch counts SDPA so, forward and backward; without a mark MFU would be too low."""
    spans = Spans.of(LENGTHS)
    q, k, v = of_heads(spans.tokens)
    with (
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile,
        VarlenEmulator(),
    ):
        by_lengths.by_varlen(q, k, v, spans, Form()).sum().backward()
        with torch.no_grad():
            by_lengths.by_varlen(q, k, v, spans, Form())
    profile.export_chrome_trace(str(tmp_path / "trace.json"))
    scan = TraceScan("cpu")
    with (tmp_path / "trace.json").open() as file:
        for event in read_trace(file):
            scan.add(event)
    forward = backward = 0
    for length in LENGTHS:
        shape = (1, 4, length, 8)
        forward += sdpa_flop_count(shape, shape, shape)
        backward += sdpa_backward_flop_count(shape, shape, shape, shape)
    assert scan.facts().attention_flops == 2 * forward + backward
