"""Select linear layers by name, for adapters. Torch-free."""

from collections.abc import Collection, Iterable


def select_layers(
    names: Iterable[str], targets: Collection[str] | None, exclude: Collection[str] = ()
) -> list[str]:
    """Return the names that end in one of `targets` (None: all) and in none of `exclude`."""
    return [
        name
        for name in names
        if (targets is None or any(ends_in(name, target) for target in targets))
        and not any(ends_in(name, excluded) for excluded in exclude)
    ]


def ends_in(name: str, end: str) -> bool:
    """Return whether the last parts of a layer's dotted name are those of `end`.

    Any number matches the N of a name of `FamilyFacts.linear_layers`.
    """
    asked, parts = end.split("."), name.split(".")
    pairs = zip(reversed(asked), reversed(parts), strict=False)
    return len(asked) <= len(parts) and all(
        ask == part or (part == "N" and ask.isdigit()) for ask, part in pairs
    )


def is_inside(name: str, modules: Collection[str]) -> bool:
    """Return whether a dotted name is of something inside of a module with one of these ends."""
    parts = name.split(".")
    return any(
        ends_in(".".join(parts[:count]), module)
        for count in range(1, len(parts))
        for module in modules
    )
