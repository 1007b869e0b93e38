"""The NLL that a head computes in chunks is that of its logits, and so is its gradient."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear_cross_entropy

from vtool.data import head_nll
from vtool.data.head_nll import head_gives_nll, summed_nll_of_hidden

Gradients = tuple[Tensor, Tensor, Tensor]
N = 77  # the sum is divided by it, and is no power of two
BOUND = {torch.float64: 1e-12, torch.float32: 5e-7, torch.bfloat16: 1e-2}


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_nll, "_CHUNK_BYTES", 0)  # 64 rows, the fewest


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
    assert apart(found[0], expected[0]) <= 1e-12
    assert apart(found[1], expected[1]) <= 1e-12


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


def test_torchs_own_rounds_its_loss_to_bfloat16() -> None:
    """Hold the reason for our own, and ask again of each torch."""
    hidden, weight, targets = given(torch.bfloat16)
    theirs = linear_cross_entropy(
        hidden.flatten(0, 1), weight, targets.flatten(), reduction="sum", ignore_index=-100
    )
    assert theirs.dtype == torch.bfloat16
