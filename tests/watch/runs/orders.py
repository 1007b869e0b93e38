"""Orders of rows in which one stands for another."""


def one_for_another(rank: int, world: int, count: int) -> list[int]:
    """Show the first row in the place of the last, in the first of two epochs."""
    return [*always_one_for_another(rank, world, count), *range(count)]


def always_one_for_another(rank: int, world: int, count: int) -> list[int]:
    return [*range(count - 1), 0]


def never_the_last(rank: int, world: int, count: int) -> list[int]:
    """Leave the same third of the rows out of each of three epochs."""
    return list(range(count * 2 // 3)) * 3


def pairs_of_half(rank: int, world: int, count: int) -> list[int]:
    """Show each row of the first half twice, and no other."""
    return [at // 2 for at in range(count)]


def overlapping(rank: int, world: int, count: int) -> list[int]:
    """Show each of two ranks half of the rows, and a quarter that the other one has as well."""
    begin, shown = rank * count // 4, count // 2
    return list(range(begin, begin + shown))


def padded(rank: int, world: int, count: int) -> list[int]:
    """Show a rank its part of all rows but three, filled up, in each of four epochs."""
    from torch.utils.data import DistributedSampler

    sampler = DistributedSampler(range(count - 3), world, rank)
    rows: list[int] = []
    for epoch in range(4):
        sampler.set_epoch(epoch)
        rows += sampler
    return rows


def two_orders(rank: int, world: int, count: int) -> list[int]:
    """Show all rows in two orders."""
    return [*range(count), *reversed(range(count))]
