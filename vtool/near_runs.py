"""The runs that a name without a run may have been meant for."""

from pathlib import Path

from vtool.diagnostics.near_miss import did_you_mean, near

_RUNS = Path("runs")
_MOST = 5


def runs_there(given: Path) -> str | None:
    """Return help with the runs that are there, for a path or a name of none; None: there are none.

    Those with a name that is near come alone, else the newest ones.
    """
    folder = _RUNS if len(given.parts) == 1 else given.parent
    try:
        there = {path: (path / "config.yaml").stat().st_mtime for path in _of(folder)}
    except OSError:
        return None
    by_name = {path.name: path for path in sorted(there, key=lambda path: -there[path])}
    if not by_name:
        return None
    if close := near(given.name, by_name):
        return did_you_mean([*map(str, map(by_name.get, close))])
    more = f" and {len(by_name) - _MOST} more" if len(by_name) > _MOST else ""
    return f"there are: {', '.join(map(str, [*by_name.values()][:_MOST]))}{more}"


def _of(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if (path / "config.yaml").is_file()]
