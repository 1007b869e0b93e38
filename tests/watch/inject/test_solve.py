"""Targets and weights read from gradients, against losses where they are known."""

import pytest
import torch

from tests.watch.inject.losses import Case, make
from vtool.watch.inject.vtool_watch.solve import SLACK, LanguageHead, Solution, _Block, solve

HEADS: dict[str, dict[str, object]] = {
    "plain": {},
    "bias": {"bias": True},
    "scale": {"scale": 0.125},
    "cap": {"cap": 20.0},
    "cap and scale": {"cap": 10.0, "scale": 0.5},
}


def worst(case: Case, solution: Solution) -> float:
    """Return the greatest error of a weight, in roundings over `resolved`."""
    error = (solution.weight.double() / case.weight - 1).abs() * solution.resolved.double()
    return float(error.max()) / case.u


@pytest.mark.parametrize("guessed", [True, False], ids=["next token tried", "all tokens searched"])
@pytest.mark.parametrize("kind", ["ce", "signs"])
@pytest.mark.parametrize("head", HEADS)
def test_targets_and_weights_of_a_plain_loss_are_read(head: str, kind: str, guessed: bool) -> None:
    case = make(kind, dtype=torch.float64, **HEADS[head])  # type: ignore[arg-type]
    got = case.solved(guessed=guessed)
    assert torch.equal(got.target, case.target)
    torch.testing.assert_close(got.weight, case.weight, rtol=1e-9, atol=0)
    assert float(got.misfit.max()) < 1e-9


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("head", HEADS)
def test_rounding_is_within_the_tolerance(head: str, dtype: torch.dtype) -> None:
    case = make(dtype=dtype, **HEADS[head])  # type: ignore[arg-type]
    got = case.solved()
    assert torch.equal(got.target, case.target)
    assert float((got.plain_misfit * got.resolved).max()) <= SLACK * case.u
    assert worst(case, got) < 32


def test_a_focal_loss_stays_on_the_line_with_its_own_weights() -> None:
    case = make("focal", dtype=torch.float64)
    got = case.solved(guessed=False)
    assert torch.equal(got.target, case.target)
    assert float(got.misfit.max()) < 1e-9
    assert not torch.allclose(got.weight, case.weight)


@pytest.mark.parametrize(
    ("kind", "name", "part"),
    [("smoothing", "smooth", -0.1), ("entropy", "entropy", 0.01)],
)
@pytest.mark.parametrize("guessed", [True, False])
def test_a_dense_term_is_distinguished_from_the_token(
    kind: str, name: str, part: float, guessed: bool
) -> None:
    case = make(kind, dtype=torch.float64)
    got = case.solved(guessed=guessed)
    assert torch.equal(got.target, case.target)
    torch.testing.assert_close(got.weight, case.weight, rtol=1e-6, atol=0)
    assert float(got.plain_misfit.median()) > 1e-4
    assert float(got.misfit.max()) < 1e-9
    relative = getattr(got, name) / got.weight
    torch.testing.assert_close(relative, torch.full_like(relative, part), rtol=1e-4, atol=1e-7)


def test_a_z_loss_is_distinguished_from_the_token() -> None:
    case = make("z-loss", dtype=torch.float64)
    got = case.solved(guessed=False)
    assert torch.equal(got.target, case.target)
    assert float(got.misfit.max()) < 1e-9
    z = torch.nn.functional.linear(case.h, case.head.weight)
    torch.testing.assert_close(got.z / got.weight, 2e-3 * z.logsumexp(-1), rtol=1e-5, atol=0)


def test_distillation_is_not_read() -> None:
    case = make("distillation", dtype=torch.float64)
    got = case.solved()
    assert float((got.misfit * got.resolved).median()) > 1e-2


@pytest.mark.parametrize("wrong", [{"cap": 20.0}, {"scale": 0.9}], ids=["cap", "scale"])
def test_a_cap_or_scale_that_is_not_known_shows(wrong: dict[str, float]) -> None:
    case = make(dtype=torch.float64, **wrong)  # type: ignore[arg-type]
    got = case.solved(head=LanguageHead(case.head.weight))
    assert float((got.plain_misfit * got.resolved).median()) > 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_a_token_that_is_certain_keeps_the_guess(dtype: torch.dtype) -> None:
    case = make(dtype=dtype, sharp=6.0)
    got = case.solved()
    assert torch.equal(got.target, case.target)
    assert int((got.resolved < 1000 * case.u).sum()) > 0  # such tokens are there


def test_a_wrong_guess_is_not_kept() -> None:
    case = make(dtype=torch.float32)
    shifted = Case(case.h, case.g, case.head, case.target.roll(1), case.weight, case.u)
    assert torch.equal(shifted.solved().target, case.target)


@pytest.mark.parametrize("head", ["plain", "cap and scale"])
@pytest.mark.parametrize("kind", ["ce", "smoothing"])
def test_blocks_change_nothing(kind: str, head: str) -> None:
    case = make(kind, dtype=torch.float64, **HEADS[head])  # type: ignore[arg-type]
    whole, blocks = case.solved(guessed=False), case.solved(guessed=False, block_bytes=64)
    for one, other in zip(vars(whole).values(), vars(blocks).values(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-12)


def test_no_position_is_no_solution() -> None:
    case = make()
    none = Case(case.h[:0], case.g[:0], case.head, case.target[:0], case.weight[:0], case.u)
    assert len(none.solved().weight) == 0


def test_a_token_is_found_among_rows_that_have_most_in_common() -> None:
    """Rows of other lengths in nearly one direction: most targets are none of the likely tokens."""
    random = torch.Generator().manual_seed(3)
    common = torch.randn(1, 16, generator=random, dtype=torch.float64)
    rows = 3 * common + torch.randn(4000, 16, generator=random, dtype=torch.float64)
    rows *= (torch.rand(4000, 1, generator=random, dtype=torch.float64) * 3 + 0.2) / 4
    target = torch.randint(0, 4000, (128,), generator=random)
    h = 2 * torch.randn(128, 16, generator=random, dtype=torch.float64)
    h.requires_grad_()
    torch.nn.functional.cross_entropy(h @ rows.T, target, reduction="sum").backward()
    assert h.grad is not None
    likely = _Block(h.detach(), h.grad, LanguageHead(rows), 1 << 20)._likely(torch.arange(128))
    assert 8 < int((likely == target).any(0).sum()) < 120  # else one of the two ways is not tested
    got = solve(h.detach(), h.grad, LanguageHead(rows), None, 2.0**-53)
    assert torch.equal(got.target, target)
    torch.testing.assert_close(got.weight, torch.ones_like(got.weight), rtol=1e-6, atol=0)


def test_ids_that_a_bias_masks_change_nothing() -> None:
    """A padded vocabulary is often masked by a bias of minus infinity: here, its first block."""
    case = make(dtype=torch.float64)
    weight = case.head.weight
    masked = LanguageHead(
        torch.cat([torch.ones_like(weight), weight]),
        torch.cat([torch.full((len(weight),), -torch.inf), torch.zeros(len(weight))]),
    )
    block_bytes = 8 * 256 * weight.shape[1]  # blocks of 256 rows
    got = solve(case.h, case.g, masked, None, case.u, block_bytes=block_bytes)
    assert torch.equal(got.target, case.target + len(weight))
    torch.testing.assert_close(got.weight, case.weight, rtol=1e-9, atol=0)
