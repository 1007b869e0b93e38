"""Words of printed lines and of pages."""


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's text: some libraries write pages."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def plural(count: int, noun: str, several: str | None = None) -> str:
    """Return a count with its noun: `1 row`, `2 rows`.

    Args:
        count: of it.
        noun: for one.
        several: for more, where that is not the noun with an s.
    """
    return f"{count:,} {noun if count == 1 else several or noun + 's'}"
