"""Words of printed lines and of pages."""


def plural(count: int, noun: str, several: str | None = None) -> str:
    """Return a count with its noun: `1 row`, `2 rows`.

    Args:
        count: of it.
        noun: for one.
        several: for more, where that is not the noun with an s.
    """
    return f"{count:,} {noun if count == 1 else several or noun + 's'}"
