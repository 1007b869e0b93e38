"""The norm within the last layer: found by its kind, its gradient as autograd has it."""

import torch
from torch import Tensor, nn

from vtool.watch.inject.vtool_watch.inner_norm import InnerNorm, find_inner_norm, sum_of

WIDTH = 8


class Layer(nn.Module):
    """One layer with a norm of the width of all states, and one of a head's."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.of_head = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH // 2)
        self.mix = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = x + self.mix(self.norm(x))
        return mixed


class Base(nn.Module):
    """Two layers, an image tower behind them, and the final norm."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.visual = Layer()
        self.norm = nn.RMSNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        normed: Tensor = self.norm(x)
        return normed


def hooked(base: Base) -> InnerNorm:
    inner = InnerNorm(base, base.norm)
    inner.norm.register_forward_hook(inner.at_forward)
    return inner


def test_the_last_one_before_the_final_norm_is_found_and_none_of_an_image_tower() -> None:
    base = Base()
    assert find_inner_norm(base, base.norm) == ("layers.1.norm", base.layers[1].norm)


def test_there_is_none_where_no_other_norm_is_of_its_kind_and_width() -> None:
    base = nn.Sequential(nn.LayerNorm(WIDTH), nn.RMSNorm(WIDTH // 2), nn.RMSNorm(WIDTH))
    assert find_inner_norm(base, base[2]) == (None, None)
    assert find_inner_norm(base, None) == (None, None)


def test_its_gradient_is_that_of_autograd_summed_over_passes() -> None:
    torch.manual_seed(0)
    base = Base()
    inner, helds = hooked(base), []
    for _ in range(3):
        (base(torch.randn(2, 5, WIDTH)) * torch.randn(2, 5, WIDTH)).sum().backward()
        helds.append(inner.take())
    sums = sum_of(helds)
    assert sums is not None
    assert len(sums) == 3
    gradient = base.layers[1].norm.weight.grad
    assert gradient is not None
    torch.testing.assert_close(torch.stack(sums).sum(0), gradient.double(), rtol=1e-5, atol=1e-6)


def test_a_gradient_that_is_changed_behind_it_is_not_the_recomputed_one() -> None:
    torch.manual_seed(0)
    base = Base()
    inner = hooked(base)
    base.layers[1].norm.weight.register_hook(lambda gradient: 0.1 * gradient)
    base(torch.randn(2, 5, WIDTH)).square().sum().backward()
    sums = sum_of([inner.take()])
    gradient = base.layers[1].norm.weight.grad
    assert sums is not None
    assert gradient is not None
    torch.testing.assert_close(0.1 * sums[0], gradient.double(), rtol=1e-5, atol=1e-6)


def test_no_sum_is_known_where_a_pass_was_not_seen_or_came_back_twice() -> None:
    base = Base()
    inner = hooked(base)
    assert sum_of([]) is None
    with torch.no_grad():
        base(torch.randn(1, 2, WIDTH))
    assert sum_of([inner.take()]) is None
    loss = base(torch.randn(1, 2, WIDTH)).square().sum()
    loss.backward(retain_graph=True)
    loss.backward()
    assert sum_of([inner.take()]) is None
