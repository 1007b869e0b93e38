"""Models whose layers, or experts, two ranks share: each must be on one of them, and right."""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from .facts import CheckFacts, Item
from .ranks import RANKS, Held, compare_shards
from .state import compare_states


def compare_stages(reference: Mapping[str, Tensor], stages: Sequence[Held]) -> CheckFacts:
    """Compare what two stages of a pipeline hold with the whole.

    Each parameter and buffer is on one of them at least, of the same values, and each layer on one
    alone.

    Args:
        reference: parameters and buffers after a load without parallelism.
    """
    lists = {
        name.rpartition(".")[0]
        for stage in stages
        for name in stage.missing
        if name.rpartition(".")[2].isdecimal()
    }
    if not lists:
        return CheckFacts(reason="no layer was left to the other stage")
    items = [
        *(item for name in reference for item in _on_stages(name, reference, stages)),
        *_layers_on_both(lists, stages),
        *(
            Item("differs", name, (), "a name of the class on one rank", f"only on rank {rank}")
            for rank, stage in enumerate(stages)
            for name in stage.state
            if name not in reference
        ),
    ]
    counts = [len(stage.state) for stage in stages]
    return CheckFacts(tuple(items), {"ranks": RANKS, "on_each": counts})


def _on_stages(
    name: str, reference: Mapping[str, Tensor], stages: Sequence[Held]
) -> Iterator[Item]:
    """Yield an item where a parameter is on no stage, or has other values on one."""
    there = {rank: stage.state for rank, stage in enumerate(stages) if name in stage.state}
    if not there:
        yield Item("differs", name, (), "on one rank", "on none")
    for rank, state in there.items():
        for difference in compare_states({name: reference[name]}, {name: state[name]}).values():
            seen = f"{difference.seen}, on rank {rank}"
            yield Item("differs", name, (), difference.expected, seen)


def _layers_on_both(lists: set[str], stages: Sequence[Held]) -> Iterator[Item]:
    layers = [
        {
            f"{home}.{name.removeprefix(f'{home}.').partition('.')[0]}"
            for name in stage.state
            for home in lists
            if name.startswith(f"{home}.")
        }
        for stage in stages
    ]
    for layer in sorted(set.intersection(*layers)):
        yield Item("differs", layer, (), "on one rank", "on both")


def compare_experts(reference: Mapping[str, Tensor], ranks: Sequence[Held]) -> CheckFacts:
    """Compare the experts of two ranks with those of one, and all else as shards.

    Args:
        reference: parameters and buffers after a load without parallelism.
    """
    homes = sorted(ranks[0].experts)
    if not homes:
        return CheckFacts(reason="none of its modules shares its experts out")
    items: list[Item] = []
    compared = 0
    for name, whole in reference.items():
        home = next((one for one in homes if name.startswith(f"{one}.")), None)
        places = [rank.experts[home] for rank in ranks] if home else []
        if places and _of_experts(name, whole, places, ranks):
            compared += len(places[0])
            items += _expert_by_expert(name, whole, places, ranks)
        elif difference := compare_shards(name, reference, [rank.state for rank in ranks]):
            items.append(Item("differs", name, (), *difference))
    return CheckFacts(tuple(items), {"ranks": RANKS, "experts": compared})


def _of_experts(name: str, whole: Tensor, places: Sequence[Tensor], ranks: Sequence[Held]) -> bool:
    """Return whether a parameter has an entry for each expert, and on a rank for its own."""
    return (
        bool(whole.dim())
        and len(whole) == len(places[0])
        and all(
            name in rank.state
            and rank.state[name].dim() == whole.dim()
            and len(rank.state[name]) != len(whole)
            for rank in ranks
        )
    )


def _expert_by_expert(
    name: str, whole: Tensor, places: Sequence[Tensor], ranks: Sequence[Held]
) -> Iterator[Item]:
    for expert in range(len(whole)):
        owners = [rank for rank, of_rank in enumerate(places) if int(of_rank[expert]) >= 0]
        if len(owners) != 1:
            where = "both ranks" if owners else "no rank"
            yield Item("differs", name, (), f"expert {expert} on one rank", f"on {where}")
            continue
        (rank,) = owners
        place, held = int(places[rank][expert]), ranks[rank].state[name]
        if place >= len(held):
            seen = f"there is no place {place} on rank {rank}"
            yield Item("differs", name, (), f"expert {expert}", seen)
            continue
        for difference in compare_states({name: whole[expert]}, {name: held[place]}).values():
            seen = f"{difference.seen}, of expert {expert} on rank {rank}"
            yield Item("differs", name, (), difference.expected, seen)


def expert_places(modules: Mapping[str, object], attribute: str) -> dict[str, Tensor]:
    """Return, for each module that has one, the places of its experts on this rank."""
    found = {name: getattr(module, attribute, None) for name, module in modules.items()}
    return {name: places for name, places in found.items() if isinstance(places, torch.Tensor)}
