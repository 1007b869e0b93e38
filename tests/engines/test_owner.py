"""A tensor goes to its owner alone, and is there what it is where every rank has it (on megatron:

megatron/test_owner.py).
"""

from functools import partial
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.functional import linear

from tests.engines.owned import Owned, check, take
from tests.engines.parity import base_model, made_run
from tests.engines.ranks import run_ranks
from tests.runs import session
from vtool.config.schema import Optim
from vtool.engines.contract import EngineInputs
from vtool.engines.ddp import DdpEngine
from vtool.engines.fsdp2 import Fsdp2Engine
from vtool.engines.ranks import Ranks
from vtool.training.eight_bit import AdamW8bit
from vtool.training.session import RunRequest

ENGINES = {"ddp": DdpEngine, "fsdp2": Fsdp2Engine}


class Uneven(nn.Module):
    """Weights of one row, of fewer rows than ranks and of rows that no number of ranks divides."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(66, 66, bias=False, dtype=torch.bfloat16)
        self.frozen.requires_grad_(False)
        self.layers = nn.Sequential(nn.Linear(66, 65), nn.Linear(65, 7), nn.Linear(7, 1))
        self.register_buffer("kept", torch.arange(3.0))

    def forward(self, rows: Tensor) -> Tensor:
        found: Tensor = self.layers(linear(rows, self.frozen.weight.float()))
        return found


def stepped(engine: str, ranks: Ranks) -> Any:
    """An engine that has taken a step, with means in eight bits where they are large enough."""
    torch.manual_seed(0)
    module = Uneven()

    def optimizer(module: nn.Module) -> torch.optim.Optimizer:
        trained = [one for one in module.parameters() if one.requires_grad]
        return AdamW8bit([{"params": trained, "lr_factor": 1.0}])

    built = ENGINES[engine](
        EngineInputs(
            module,
            [],
            SimpleNamespace(
                cpu_offload=False,
                reshard_after_forward=True,
                bucket_cap_mb=25,
                gradient_as_bucket_view=False,
            ),
            Optim(lr=1e-3),
            ranks,
            torch.float32,
            lambda _: "language",
            optimizer,
            0,
            packed=False,
        )
    )
    rows = torch.randn(4, 66, generator=torch.Generator().manual_seed(ranks.rank))
    built.forward_backward(
        [rows], lambda model, given: model(given).square().sum(), 8, every_parameter=True
    )
    return built


def of_every_shape(ranks: Ranks, engine: str) -> dict[str, Any]:
    built = stepped(engine, ranks)
    there = {
        name: parameter.grad.full_tensor()
        if isinstance(parameter.grad, DTensor)
        else parameter.grad.clone()
        for name, parameter in built.named_parameters()
        if parameter.grad is not None
    }
    kept = built.gradients()
    built.optimizer_step(1e-3)
    found = {
        "model": take(built.model_state, ranks),
        "optimizer": take(built.optimizer_state, ranks),
    }
    calls, gather = [0], dist.gather

    def counted(*arguments: Any, **more: Any) -> None:
        calls[0] += 1
        gather(*arguments, **more)

    def refused(_: Any) -> None:
        raise AssertionError("the whole is on every rank")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "gather", counted)
        if ranks.world > 1:
            patch.setattr(DTensor, "full_tensor", refused)
        sharded = sum(1 for _ in built.model_state(lambda _: ranks.world - 1)), calls[0]
    return {**found, "gradients": (there, kept), "sharded": sharded}


def padded_share(world: int, tensors: list[Tensor]) -> int:
    """The bytes of a rank's rows, and of those that fill them up to the first rank's."""
    (tensor,) = tensors
    if tensor.dim() == 0:
        return tensor.nbytes
    return -(-len(tensor) // world) * prod(tensor.shape[1:]) * tensor.element_size()


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.usefixtures("no_process_group")
def test_a_tensor_of_any_shape_is_whole_on_its_owner_and_nowhere_else(
    engine: str, world: int
) -> None:
    found = run_ranks(of_every_shape, world, engine)
    share = partial(padded_share, world)
    for kind, least in (("model", 8), ("optimizer", 20)):
        owned: list[Owned] = [one[kind] for one in found]
        assert len(owned[0].whole) >= least
        check(owned, share)
    dtypes = {tensor.dtype for tensor in found[0]["optimizer"].whole.values()}
    assert dtypes == {torch.float32, torch.uint8}
    given = sum(1 for _ in found[0]["model"].whole)
    for rank, one in enumerate(found):
        there, kept = one["gradients"]
        assert kept.keys() == (there.keys() if rank == 0 else set())
        assert all(torch.equal(tensor, there[name]) for name, tensor in kept.items())
        yielded, gathered = one["sharded"]
        assert yielded == (given if rank == world - 1 else 0)
        # all but the buffer
        assert gathered == (given - 1 if engine == "fsdp2" and world > 1 else 0)


def with_adapters(ranks: Ranks, made: RunRequest) -> dict[str, Owned]:
    torch.set_num_threads(1)
    engine = session(made, ranks)[0].engine
    return {
        kind: take(partial(engine.iter_hf_weights, kind), ranks)  # type: ignore[arg-type]
        for kind in ("merged", "none", "only")
    }


@pytest.mark.full
@pytest.mark.parametrize(
    ("engine", "base"),
    [("ddp", "float32"), ("ddp", "nf4"), ("fsdp2", "float32"), ("fsdp2", "bfloat16")],
)
def test_adapters_are_merged_on_the_owner_alone(tmp_path: Path, engine: str, base: str) -> None:
    files = base_model(tmp_path) / "model.safetensors"
    dtype = "bfloat16" if base == "bfloat16" else "float32"
    if dtype == "bfloat16":  # a base is not rounded
        narrow = {name: tensor.bfloat16() for name, tensor in load_file(files).items()}
        save_file(narrow, files, metadata={"format": "pt"})
    lora = f"lora={{rank: 3, base_dtype: {base}, modules_to_save: [merger]}}"
    more = (lora, f"run.dir={tmp_path}/adapted")
    made = made_run(tmp_path, engine, dtype, tmp_path / "model", *more)
    found = run_ranks(with_adapters, 2, made)
    for kind in ("merged", "none", "only"):
        check([one[kind] for one in found], partial(padded_share, 2))
