"""Models whose layers, or experts, two ranks share: each must be on one of them, and right."""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from .facts import CheckFacts, Item
from .held import RankTensors
from .ranks import RANKS, compare_shards
from .state import compare_states


def compare_stages(reference: RankTensors, stages: Sequence[RankTensors]) -> CheckFacts:
    """Compare what two stages of a pipeline hold with the whole.

    Each parameter and buffer is on one of them at least, of the same values, and each layer on one
    alone. A parameter of several names, as of a list of the layers that a stage has besides the
    list of all, is right under any of them.

    Args:
        reference: what one rank that is alone holds.
    """
    lists = {
        name.rpartition(".")[0]
        for stage in stages
        for name in stage.missing
        if name.rpartition(".")[2].isdecimal()
    }
    if not lists:
        return CheckFacts(reason="no layer was left to the other stage")
    there = {name for stage in stages for name in stage.state}
    items = [
        *(
            Item("differs", names[0], (), "on one rank", "on none")
            for names in _parameters(reference)
            if there.isdisjoint(names)
        ),
        *_layers_on_both(lists, stages),
        *(
            item
            for rank, stage in enumerate(stages)
            for names in _parameters(stage)
            if (item := _wrong(names, reference.state, stage.state[names[0]], rank))
        ),
    ]
    counts = [len(_parameters(stage)) for stage in stages]
    return CheckFacts(tuple(items), {"ranks": RANKS, "on_each": counts})


def _parameters(rank: RankTensors) -> list[tuple[str, ...]]:
    """Return each parameter and buffer of a rank by all of its names."""
    groups = {name: group for group in rank.aliases for name in group}
    return list(dict.fromkeys(groups.get(name, (name,)) for name in rank.state))


def _wrong(
    names: Sequence[str], reference: Mapping[str, Tensor], held: Tensor, rank: int
) -> Item | None:
    """Return an item for a parameter that under none of its names has the values of one rank."""
    found: Item | None = None
    for name in names:
        if name not in reference:
            continue
        differences = compare_states({name: reference[name]}, {name: held})
        if not differences:
            return None
        expected, seen = differences[name]
        found = found or Item("differs", name, (), expected, f"{seen}, on rank {rank}")
    return found or Item(
        "differs", names[0], (), "a name of the class on one rank", f"only on rank {rank}"
    )


def _layers_on_both(lists: set[str], stages: Sequence[RankTensors]) -> Iterator[Item]:
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


def compare_experts(reference: RankTensors, ranks: Sequence[RankTensors]) -> CheckFacts:
    """Compare the experts of two ranks with those of one, and all else as shards.

    Args:
        reference: what one rank that is alone holds.
    """
    homes = sorted(ranks[0].experts)
    if not homes:
        return CheckFacts(reason="none of its modules shares its experts out")
    items: list[Item] = []
    compared = 0
    for name, whole in reference.state.items():
        home = next((one for one in homes if name.startswith(f"{one}.")), None)
        places = [rank.experts[home] for rank in ranks] if home else []
        if places and _of_experts(name, whole, places, ranks):
            compared += len(places[0])
            items += _expert_by_expert(name, whole, places, ranks)
        elif difference := compare_shards(name, reference.state, [rank.state for rank in ranks]):
            items.append(Item("differs", name, (), *difference))
    return CheckFacts(tuple(items), {"ranks": RANKS, "experts": compared})


def _of_experts(
    name: str, whole: Tensor, places: Sequence[Tensor], ranks: Sequence[RankTensors]
) -> bool:
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
    name: str, whole: Tensor, places: Sequence[Tensor], ranks: Sequence[RankTensors]
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
