"""Orders of rows in which one stands for another."""


def one_for_another(rank: int, world: int, count: int) -> list[int]:
    """Show the first row in the place of the last, in the first of two epochs."""
    return [*always_one_for_another(rank, world, count), *range(count)]


def always_one_for_another(rank: int, world: int, count: int) -> list[int]:
    return [*range(count - 1), 0]


def never_the_last(rank: int, world: int, count: int) -> list[int]:
    """Leave the same third of the rows out of each of three epochs."""
    return list(range(count * 2 // 3)) * 3


def two_orders(rank: int, world: int, count: int) -> list[int]:
    """Show all rows in two orders."""
    return [*range(count), *reversed(range(count))]
