"""The NLL that a head computes in chunks is that of its logits, and so is its gradient."""

import math

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.each_family import EACH_FAMILY
from tests.engines.ranks import run_ranks
from vtool.data import head_nll
from vtool.data.collate import Batch
from vtool.data.head_nll import VocabularyShard, head_gives_nll, summed_nll_of_hidden
from vtool.data.loss import summed_nll
from vtool.engines.ranks import Ranks
from vtool.families.family import load_family
from vtool.families.tokens import TokenIds
from vtool.models.build import implementations

Gradients = tuple[Tensor, Tensor, Tensor]
N = 77  # the sum is divided by it, and is no power of two
BOUND = {torch.float64: 1e-12, torch.float32: 5e-7, torch.bfloat16: 1e-2}


@pytest.fixture(autouse=True, params=[0, 2**16], ids=["blocks", "chunks"])
def _small_blocks(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Let a block have 64 rows, the fewest; or several chunks of so many."""
    monkeypatch.setattr(head_nll, "_BLOCK_BYTES", request.param)
    monkeypatch.setattr(head_nll, "_CHUNK_BYTES", 0)
    monkeypatch.setattr(head_nll, "_ADDED", 40)


def given(dtype: torch.dtype, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Return hidden states [3, 111, 32], a weight [97, 32], and targets of which some are none."""
    torch.manual_seed(seed)
    hidden = torch.randn(3, 111, 32, dtype=torch.float64)
    weight = torch.randn(97, 32, dtype=torch.float64)
    targets = torch.randint(0, 97, (3, 111))
    targets[:, ::5] = -100
    # rounded first: what is compared is the computation
    return hidden.to(dtype), weight.to(dtype), targets


def in_float64(hidden: Tensor, weight: Tensor, targets: Tensor) -> Gradients:
    """Return the loss and its gradients from the closed form: softmax less the target."""
    x, w = hidden.double().flatten(0, 1), weight.double()
    kept = targets.flatten() != -100
    x, wanted = x * kept[:, None], targets.flatten().clamp(min=0)
    logs = (x @ w.T).log_softmax(1)
    inner = logs.exp()
    inner[torch.arange(len(x)), wanted] -= 1
    inner *= kept.double()[:, None] / N
    loss = -(logs.gather(1, wanted[:, None])[:, 0] * kept).sum()
    return loss, (inner @ w).view_as(hidden), inner.T @ x


def ours(hidden: Tensor, weight: Tensor, targets: Tensor) -> Gradients:
    x, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
    loss = summed_nll_of_hidden(x, w, targets)
    (loss / N).backward()
    assert x.grad is not None
    assert w.grad is not None
    return loss.detach(), x.grad, w.grad


def apart(one: Tensor, other: Tensor) -> float:
    return float((one.double() - other).norm() / other.norm())


@pytest.mark.parametrize("dtype", BOUND)
def test_loss_and_gradients_are_those_of_the_closed_form(dtype: torch.dtype) -> None:
    expected, found = in_float64(*given(dtype)), ours(*given(dtype))
    assert all(
        apart(one, other) <= BOUND[dtype] for one, other in zip(found, expected, strict=True)
    )
    assert [each.dtype for each in found[1:]] == [dtype, dtype]
    # a loss in bfloat16 would be up to 0.4 % off by its last rounding alone
    assert found[0].dtype == torch.promote_types(dtype, torch.float32)
    assert math.isclose(found[0].item(), expected[0].item(), rel_tol=min(BOUND[dtype], 2e-3))


def test_under_autocast_the_matrix_is_computed_with_in_bfloat16_and_its_gradient_is_not() -> None:
    hidden, weight, targets = given(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found = ours(hidden, weight, targets)
    expected = in_float64(hidden.bfloat16(), weight.bfloat16(), targets)
    assert found[2].dtype == torch.float32
    assert all(apart(one, other) <= 1e-2 for one, other in zip(found, expected, strict=True))


def test_a_weight_that_is_frozen_gets_no_gradient() -> None:
    hidden, weight, targets = given(torch.float64)
    hidden.requires_grad_()
    summed_nll_of_hidden(hidden, weight, targets).backward()
    assert weight.grad is None
    assert hidden.grad is not None
    assert apart(hidden.grad / N, in_float64(hidden.detach(), weight, targets)[1]) <= 1e-12


def test_without_gradients_none_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, weight, targets = given(torch.float64)
    expected = in_float64(hidden, weight, targets)[0]
    monkeypatch.setattr(torch, "mm", None)
    with torch.no_grad():
        found = summed_nll_of_hidden(hidden.requires_grad_(), weight.requires_grad_(), targets)
    assert math.isclose(found.item(), expected.item(), rel_tol=1e-12)


def test_rows_without_a_target_count_for_nothing_even_where_they_are_not_finite() -> None:
    hidden, weight, targets = given(torch.float64)
    expected = in_float64(hidden, weight, targets)
    broken = hidden.clone()
    broken[targets == -100] = torch.nan
    found = ours(broken, weight, targets)
    assert all(apart(one, other) <= 1e-12 for one, other in zip(found, expected, strict=True))


def test_of_no_position_the_sum_is_zero_and_so_are_the_gradients() -> None:
    hidden, weight, targets = given(torch.float32)
    loss, of_hidden, of_weight = ours(hidden[:, :0], weight, targets[:, :0])
    assert loss == 0
    assert of_hidden.shape == (3, 0, 32)
    assert not of_weight.any()


def test_a_head_with_a_bias_still_gives_logits() -> None:
    model = nn.Module()
    model.get_output_embeddings = lambda: head  # type: ignore[assignment]
    head = nn.Linear(32, 97, bias=True)
    with head_gives_nll(model, torch.zeros(1, 4, dtype=torch.long)) as given_nll:
        assert not given_nll
        assert head(torch.zeros(1, 4, 32)).shape == (1, 4, 97)
    head = nn.Linear(32, 97, bias=False)
    with head_gives_nll(model, torch.zeros(1, 4, dtype=torch.long)) as given_nll:
        assert given_nll
        assert head(torch.zeros(1, 4, 32)).item() == pytest.approx(4 * math.log(97))
    assert head(torch.zeros(1, 4, 32)).shape == (1, 4, 97)


def of_shard(ranks: Ranks, dtype: torch.dtype) -> Gradients:
    """Compute with this rank's half of 98 rows of the weight, of which the last is padding."""
    hidden, weight, targets = given(dtype)
    padded = torch.cat([weight, torch.full((1, 32), 9.0, dtype=dtype)])
    first = 49 * ranks.rank
    x = hidden.requires_grad_()
    w = padded[first : first + 49].clone().requires_grad_()
    group = dist.group.WORLD
    assert group is not None
    loss = summed_nll_of_hidden(x, w, targets, VocabularyShard(group, first, 97))
    (loss / N).backward()
    assert x.grad is not None
    assert w.grad is not None
    return loss.detach(), x.grad, w.grad


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_ranks_with_their_share_of_a_padded_vocabulary_compute_the_same(dtype: torch.dtype) -> None:
    loss, of_hidden, of_weight = in_float64(*given(dtype))
    one, other = run_ranks(of_shard, 2, dtype)
    assert torch.equal(one[0], other[0])
    whole = torch.cat([one[2], other[2]])
    assert not whole[97].any()
    found = (one[0], one[1].double() + other[1], whole[:97])
    expected = (loss, of_hidden, of_weight)
    assert all(
        apart(here, there) <= BOUND[dtype] for here, there in zip(found, expected, strict=True)
    )


@pytest.mark.parametrize("name", EACH_FAMILY)
def test_the_head_of_each_family_gives_the_sum_of_its_logits(name: str) -> None:
    """A family that scales or caps its logits behind the head would fail here."""
    family = load_family(name)
    torch.manual_seed(0)
    config = family.random_config("tiny", 64, TokenIds(1, 2, 3, 4, end=5, pad=6))
    model = family.model_class()._from_config(config, **implementations(torch.float64, "sdpa"))
    ids = torch.randint(7, 64, (2, 9))
    batch = Batch(
        inputs={"input_ids": ids, "attention_mask": torch.ones_like(ids)},
        targets=ids.roll(-1, 1),
        columns=torch.arange(9),
        indices=(0, 1),
        supervised=18,
        tokens=18,
        visual=0,
        padding=0,
    )
    plain, fused = summed_nll(model, batch), summed_nll(model, batch, model)
    wanted, found = (
        torch.autograd.grad(loss, model.get_output_embeddings().weight)[0]
        for loss in (plain, fused)
    )
    assert math.isclose(fused.item(), plain.item(), rel_tol=1e-12)
    assert apart(found, wanted) <= 1e-12


def test_a_copy_of_the_head_that_is_trained_gives_the_sum_and_an_adapter_on_it_logits() -> None:
    """`lora.modules_to_save` makes the copy; an adapter may come with a model that is loaded."""
    for chosen, in_chunks in (({"modules_to_save": ["head"]}, True), ({}, False)):
        model = nn.Module()
        model.head, model.q_proj = nn.Linear(32, 97, bias=False), nn.Linear(32, 32)
        targets = ["q_proj"] if in_chunks else ["head"]
        from peft import LoraConfig, inject_adapter_in_model  # takes seconds

        inject_adapter_in_model(LoraConfig(r=2, target_modules=targets, **chosen), model)
        model.get_output_embeddings = lambda model=model: model.head
        hidden, _, wanted = given(torch.float32)
        with head_gives_nll(model, wanted) as given_nll:
            found = model.head(hidden)
        assert given_nll == in_chunks
        assert found.shape == (() if in_chunks else (3, 111, 97))
        if in_chunks:
            found.backward()
            copy = model.head.modules_to_save["default"].weight
            expected = in_float64(hidden, copy.detach(), wanted)
            assert apart(found.detach(), expected[0]) <= BOUND[torch.float32]
            assert apart(copy.grad / N, expected[2]) <= BOUND[torch.float32]
            assert model.head.original_module.weight.grad is None


def test_torchs_own_rounds_its_loss_to_bfloat16() -> None:
    """Hold the reason for our own, and ask again of each torch."""
    linear_cross_entropy = getattr(torch.nn.functional, "linear_cross_entropy", None)
    if linear_cross_entropy is None:
        pytest.skip("not run: this torch has none")
    hidden, weight, targets = given(torch.bfloat16)
    theirs = linear_cross_entropy(
        hidden.flatten(0, 1), weight, targets.flatten(), reduction="sum", ignore_index=-100
    )
    truth = in_float64(hidden, weight, targets)[0].item()
    assert theirs.dtype == torch.bfloat16
    assert theirs.item() != pytest.approx(truth, rel=2e-3)
    assert summed_nll_of_hidden(hidden, weight, targets).item() == pytest.approx(truth, rel=2e-4)
