"""Linear layers in NF4, against the paper's table in float64 and plain layers of that."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from vtool.models.nf4 import WEIGHTS_PER_SCALE, Nf4Linear, numbers_of, packed_bytes, quantize
from vtool.verification.unpack_base import NF4, unpack

pytestmark = pytest.mark.skipif(
    find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed"
)
SHAPES = [(64, 128), (5, 100), (33, 31), (1, 7), (7, 2), (64, 1)]


def linear(out: int, into: int, *, bias: bool = True) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(into, out, bias=bias)


def nearest(weight: Tensor) -> Tensor:
    """The weight in NF4, block by block in float64: the nearest of 16 numbers of its scale."""
    table = torch.tensor(NF4, dtype=torch.float64)
    blocks = weight.detach().double().reshape(-1).split(WEIGHTS_PER_SCALE)
    found = []
    for block in blocks:
        scale = block.abs().max()
        apart = (block[:, None] - table * scale).abs()
        found.append(table[apart.argmin(1)] * scale)
    return torch.cat(found).reshape(weight.shape)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_weight_is_the_nearest_of_nf4s_numbers(shape: tuple[int, int]) -> None:
    plain = linear(*shape)
    wanted = nearest(plain.weight)
    layer = Nf4Linear(plain)
    assert layer.weight.dtype == torch.uint8
    assert float((layer.unpacked().double() - wanted).abs().max()) <= 1e-7
    assert float((unpack(layer) - wanted).abs().max()) <= 1e-7
    assert not layer.unpacked().equal(linear(*shape).weight)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("narrow", [False, True])
def test_output_and_gradients_are_those_of_a_plain_layer_to_the_bit(
    shape: tuple[int, int], narrow: bool
) -> None:
    layer = Nf4Linear(linear(*shape))
    plain = linear(*shape)
    with torch.no_grad():
        plain.weight.copy_(unpack(layer))
    found = []
    for one in (layer, plain):
        torch.manual_seed(1)
        given = torch.randn(2, 3, shape[1], requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
            out = one(given)
        (out.float() * torch.randn(out.shape)).sum().backward()
        found.append((out, given.grad))
    (ours, our_gradient), (theirs, their_gradient) = found
    assert ours.dtype == theirs.dtype == (torch.bfloat16 if narrow else torch.float32)
    assert torch.equal(ours, theirs)
    assert our_gradient is not None
    assert their_gradient is not None
    assert torch.equal(our_gradient, their_gradient)
    assert all(one.grad is None for one in layer.parameters())


def test_a_weight_in_bfloat16_is_packed_as_the_same_in_float32() -> None:
    weight = linear(64, 128).weight.detach().bfloat16()
    (packed, scales), (wide, wide_scales) = quantize(weight), quantize(weight.float())
    assert torch.equal(packed, wide)
    assert torch.equal(scales, wide_scales)


def test_packing_what_was_packed_changes_nothing() -> None:
    layer = Nf4Linear(linear(64, 100))
    again = linear(64, 100)
    with torch.no_grad():
        again.weight.copy_(layer.unpacked())
    assert torch.equal(Nf4Linear(again).unpacked(), layer.unpacked())


def test_a_block_of_zeros_stays_zero() -> None:
    plain = linear(2, 64)
    with torch.no_grad():
        plain.weight[0].zero_()
    assert not Nf4Linear(plain).unpacked()[0].any()


@pytest.mark.parametrize("shape", SHAPES)
def test_a_layer_counts_its_numbers_and_its_bytes(shape: tuple[int, int]) -> None:
    plain = linear(*shape, bias=False)
    layer = Nf4Linear(plain)
    assert layer.absmax is not None
    assert numbers_of(layer)[layer.weight] == shape[0] * shape[1]
    assert packed_bytes(layer)[layer.weight] == layer.weight.nbytes + layer.absmax.nbytes
    on_meta = Nf4Linear(nn.Linear(shape[1], shape[0], bias=False, device="meta"))
    assert list(packed_bytes(on_meta).values()) == list(packed_bytes(layer).values())


@pytest.mark.full
def test_no_hub_is_asked_for_a_kernel(tmp_path: Path) -> None:
    """bitsandbytes' import asks one, where `kernels` is there and the CPU has bfloat16."""
    (tmp_path / "kernels.py").write_text(
        "def get_kernel(*args, **kwargs):\n    print('ASKED', args)\n    raise OSError('no hub')\n"
    )

    def printed(code: str) -> str:
        path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
        environment = os.environ | {"PYTHONPATH": path}
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
        )
        return done.stdout + done.stderr

    theirs = "import bitsandbytes.functional as f; print(f.has_avx512bf16())"
    said = printed(theirs)
    if "ASKED" not in said:
        pytest.skip("bitsandbytes asks no hub on this CPU")
    ours = (
        "import torch\nfrom vtool.models.nf4 import Nf4Linear\n"
        "from vtool.models.adapters import import_peft\nimport_peft()\n"
        "layer = Nf4Linear(torch.nn.Linear(64, 64)).eval()\n"
        "layer(torch.randn(1, 64))\nimport kernels, sys\n"
        "assert 'bitsandbytes' in sys.modules and hasattr(kernels, 'get_kernel')"
    )
    assert printed(ours) == ""
