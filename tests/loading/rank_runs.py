"""Loads a class of vLLM's on two ranks, as it is and with mistakes put in: run where vLLM is.

`python rank_runs.py` prints a line of JSON: for each mistake and rule what the check says.
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from vtool.loading.probe.checks import CHECKS_ON_RANKS
from vtool.loading.probe.held import held_by
from vtool.loading.probe.ranks import RANKS
from vtool.loading.probe.reference import load_new
from vtool.loading.probe.sources import OwnedSource
from vtool.loading.probe.vllm_host import VllmHost
from vtool.loading.probe.vllm_tiny import TinyArchitecture

NAME = "Qwen3MoeForCausalLM"
Weights = Iterable[tuple[str, Any]]


def nothing() -> None:
    """Leave the class as it is."""


def a_stage_that_skips_its_layer() -> None:
    from vllm.distributed import get_pp_group
    from vllm.model_executor.models.qwen3_moe import Qwen3MoeForCausalLM

    right = Qwen3MoeForCausalLM.load_weights

    def skipping(self: Any, weights: Weights) -> Any:
        if get_pp_group().world_size == RANKS:
            weights = (pair for pair in weights if not pair[0].startswith("model.layers.1.mlp"))
        return right(self, weights)

    Qwen3MoeForCausalLM.load_weights = skipping


def a_layer_on_both_stages() -> None:
    from vllm.distributed import utils

    right = utils.get_pp_indices
    utils.get_pp_indices = lambda layers, rank, stages: (0, right(layers, rank, stages)[1])


def the_first_experts_on_each_rank() -> None:
    from vllm.model_executor.layers.fused_moe.expert_map_manager import ExpertMapManager

    def first(self: Any, expert: int) -> int:
        return expert if expert < self.local_num_experts else -1

    ExpertMapManager.map_global_to_local = first


def an_expert_that_no_rank_has() -> None:
    import vllm.model_executor.layers.fused_moe.expert_map_manager as manager

    right = manager.determine_expert_map

    def without_the_last(*args: Any, **more: Any) -> Any:
        count, places, mask = right(*args, **more)
        if places is not None:
            places[-1] = -1
        return count, places, mask

    manager.determine_expert_map = without_the_last


MISTAKES: tuple[Callable[[], None], ...] = (
    nothing,
    a_stage_that_skips_its_layer,
    a_layer_on_both_stages,
    the_first_experts_on_each_rank,
    an_expert_that_no_rank_has,
)


def found_with(mistake: Callable[[], None], folder: Path) -> dict[str, Any]:
    """Return the findings of each check on two ranks about the class with a mistake in it."""
    subject = TinyArchitecture(NAME, folder, lambda stage: None).make_subject()
    model = load_new(subject, OwnedSource(subject.checkpoint))
    alone = held_by(model)
    mistake()
    assert subject.on_ranks is not None
    found = subject.on_ranks(subject, CHECKS_ON_RANKS, alone)
    return {
        rule: {
            "reason": facts.reason,
            "measured": dict(facts.measured),
            "items": [(item.parameter, item.seen) for item in facts.items],
        }
        for rule, facts in found.items()
    }


def main() -> None:
    VllmHost().prepare(several=False)
    results = {}
    for mistake in MISTAKES:  # each in a fork, since it changes the process
        with tempfile.TemporaryDirectory(prefix="vtool-") as folder:
            out = Path(folder) / "results.json"
            if not (process := os.fork()):
                (work := Path(folder) / "work").mkdir()
                out.write_text(json.dumps(found_with(mistake, work)))
                os._exit(0)
            os.waitpid(process, 0)
            results[mistake.__name__] = json.loads(out.read_text())
    print(json.dumps(results))


if __name__ == "__main__":
    main()
