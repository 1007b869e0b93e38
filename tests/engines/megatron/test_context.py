"""Context parallelism: a row's tokens over several ranks.

Attention over ranks is Transformer Engine's, which has no build for a CPU. In its place is one of a
few lines, by definition: keys and values of all ranks are gathered, and each query sees those
before it. All else is the engine's own code.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from tests.engines.megatron import test_engine as by_one
from tests.engines.megatron.test_engine import OPTIM, Trained, take_step
from tests.engines.ranks import run_ranks
from tests.engines.state import state_of
from tests.runs import relative_difference
from vtool.config.schema.megatron import Parallel
from vtool.engines.megatron import context, gpt_model, start
from vtool.engines.megatron.groups import start_groups
from vtool.engines.megatron.shim import on_cpu
from vtool.engines.ranks import Ranks, SharedFindings

pytest.importorskip("megatron.core", reason="megatron-core is not installed")
DISTRIBUTED = {"wrap_config": {"use_distributed_optimizer": True}}
ON_TWO: dict[str, dict[str, Any]] = {
    "cp2": {"parallel": {"context": 2}},
    "cp2, distributed optimizer": {"parallel": {"context": 2}, **DISTRIBUTED},
    "cp2, divided in the collective": {
        "parallel": {"context": 2},
        "ddp_config": {"average_in_collective": True},
    },
}
ON_FOUR: dict[str, dict[str, Any]] = {
    "cp2×dp2, distributed optimizer": ON_TWO["cp2, distributed optimizer"],
    "cp2×dp2, divided in the collective": ON_TWO["cp2, divided in the collective"],
    "cp2×tp2+sp": {"parallel": {"context": 2, "tensor": 2, "sequence": True}},
    "cp2×pp2": {"parallel": {"context": 2, "pipeline": 2}},
    "cp4": {"parallel": {"context": 4}},
}


class OverRanks(nn.Module):
    """Stands where Transformer Engine's attention does:

    queries of this rank's tokens, keys and values of everybody's.
    """

    def __init__(
        self, config: Any, layer_number: int, attn_mask_type: Any, attention_type: str, **_: Any
    ) -> None:
        super().__init__()
        from megatron.core import parallel_state

        self.group = parallel_state.get_context_parallel_group()

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **_: Any
    ) -> Tensor:
        """[S / ranks, B, heads, D] each, the key's heads fewer; to [S / ranks, B, heads · D]."""
        assert attention_mask is None
        keys, values = (context.gather_tokens(one.contiguous(), self.group) for one in (key, value))
        places = context.scatter_tokens(torch.arange(len(keys)), self.group)
        seen = places[:, None] >= torch.arange(len(keys))
        q, k, v = (one.permute(1, 2, 0, 3) for one in (query, keys, values))
        out = scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)
        return out.permute(2, 0, 1, 3).flatten(2)


@contextmanager
def as_if_on_a_gpu() -> Iterator[None]:
    kept = gpt_model.attention_over_ranks, start.settings_for_transformer_engine
    gpt_model.attention_over_ranks, start.settings_for_transformer_engine = (
        (lambda: OverRanks),
        (lambda *_, **__: []),
    )
    try:
        yield
    finally:
        gpt_model.attention_over_ranks, start.settings_for_transformer_engine = kept


def trained(ranks: Ranks, cases: dict[str, dict[str, Any]]) -> dict[str, Trained]:
    found = {}
    with as_if_on_a_gpu():
        for name, case in cases.items():
            one, built = found.setdefault(name, Trained()), by_one.build(case, ranks, tied=True)
            sizes = {
                seen.name: seen.value
                for seen in built.observe(by_one.QWEN.component)
                if seen.name.startswith("engine.parallel.")
            }
            assert (
                sizes["engine.parallel.context"]
                == case["parallel"]["context"]
                == built.config.context_parallel_size
            )
            for step in range(3):
                if step == 2:  # all of it goes through a checkpoint
                    saved = ranks.all_gather_objects(state_of(built))[0]
                    built = by_one.build(case, ranks, tied=True)
                    built.load_state(*saved)
                one.losses.append(take_step(built, step))
                if step == 0:
                    one.first = built.gradients()
                one.norms.append(float(built.clip_gradient(OPTIM.clip_norm)))
                built.optimizer_step(OPTIM.lr)
            with built.evaluating():
                mine = torch.cat(
                    [parameter.detach().flatten() for parameter in built.module.parameters()]
                )
            copies = [mine.clone() for _ in range(built.groups.copies.world)]
            torch.distributed.all_gather(copies, mine, group=built.groups.copies.group)
            one.spread = max(float((copy - copies[0]).abs().max()) for copy in copies)
    return found


@pytest.mark.parametrize(
    ("world", "cases"),
    [
        pytest.param(2, ON_TWO, marks=pytest.mark.full),
        pytest.param(4, ON_FOUR, marks=pytest.mark.soak),
    ],
    ids=["two ranks", "four ranks"],
)
def test_training_is_that_of_one_process(world: int, cases: dict[str, dict[str, Any]]) -> None:
    """Rows of 17 tokens, which are padded to 20, or to 24;

    with unequal tokens, and in the third step without any image.
    """
    wanted = by_one.reference(tied=True)
    for name, ours in run_ranks(trained, world, cases)[0].items():
        first = relative_difference(
            {key: tensor.double() for key, tensor in ours.first.items()}, wanted.first
        )
        print(f"{name}: gradient {first:.1e}")
        assert first <= 5e-6, name
        assert ours.losses == pytest.approx(wanted.losses[:3], rel=1e-5), name
        assert ours.norms == pytest.approx(wanted.norms[:3], rel=1e-5), name
        assert ours.spread == 0, name


def cut_by_megatron_core(ranks: Ranks) -> bool:
    from megatron.core.models.common.embeddings.rope_utils import get_pos_emb_on_this_cp_rank
    from megatron.core.utils import get_batch_on_this_cp_rank

    start_groups(Parallel(context=ranks.world), ranks)
    tokens = torch.randn(12, 2, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    group = torch.distributed.group.WORLD
    mine = context.scatter_tokens(tokens, group)
    theirs = get_batch_on_this_cp_rank({"tokens": tokens.transpose(0, 1).contiguous()})[
        "tokens"
    ].transpose(0, 1)
    with on_cpu(ranks.device):
        places = get_pos_emb_on_this_cp_rank(tokens, 0, group)
        whole = context.gather_tokens(mine.contiguous(), group)
        weight = torch.randn(12, 2, 3, generator=torch.Generator().manual_seed(1))
        (whole * weight).sum().backward()
    own = context.scatter_tokens(torch.arange(12), group)
    some = torch.zeros(12, 2, 3)
    some[own] = weight[own] * ranks.world
    assert tokens.grad is not None
    return (
        torch.equal(mine, theirs)
        and torch.equal(mine, places)
        and torch.equal(whole, tokens)
        and torch.equal(tokens.grad, some)
    )


def test_pieces_are_megatron_cores_and_come_back_in_order_with_summed_gradients() -> None:
    assert run_ranks(cut_by_megatron_core, 3) == [True] * 3


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_front_and_back_pieces_go_together(ranks: int) -> None:
    tokens = torch.arange(4 * ranks)
    pieces = [context.cut_tokens(tokens, ranks, rank) for rank in range(ranks)]
    assert pieces[0].tolist() == [0, 1, 4 * ranks - 2, 4 * ranks - 1]
    seen = [int((piece + 1).sum()) for piece in pieces]
    assert len(set(seen)) == 1  # tokens that attention looks at: as many on each rank
    assert torch.equal(context.join_tokens(torch.cat(pieces), ranks), tokens)


def test_a_cpu_refuses_it_before_anything_is_built() -> None:
    with pytest.raises(SharedFindings) as raised:
        by_one.build({"parallel": {"context": 2}}, Ranks(world=2), tied=True)
    (one,) = raised.value.diagnostics
    assert (one.rule, one.parameter) == ("needs-transformer-engine", "engine.parallel.context")
    assert "there is none for a CPU" in one.message
