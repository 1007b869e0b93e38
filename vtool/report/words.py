"""Numbers, as people read them."""

import math

_MISSING = "—"


def in_words(value: float | None) -> str:
    """Return three significant digits, without an exponent where that stays short.

    0.0313, 1.2, 12,345, 2e-05.
    """
    if value is None:
        return _MISSING
    if not math.isfinite(value):
        return "not finite"
    if value == int(value) and abs(value) < 1e12:
        return f"{int(value):,}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 1e-4 else f"{value:.2g}"


def percent(value: float | None) -> str:
    """Return a share in percent: 96.4 %, 100 %."""
    if value is None:
        return _MISSING
    return f"{100 * value:.3g} %" if math.isfinite(value) else "not finite"


def duration(seconds: float | None) -> str:
    """Return a time: 43.2 s, 5 min 12 s, 3 h 20 min."""
    if seconds is None:
        return _MISSING
    if not math.isfinite(seconds):
        return "not finite"
    if seconds < 100:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def difference(value: float | None, zero: str) -> str:
    """Return a measured difference, `zero` where there is none, and nothing where it is unknown."""
    return "" if value is None else f"{value:.1e}" if value else zero
