"""The table of docs/reliability.md, from what a campaign has written down."""

import os
import platform
from datetime import UTC, datetime
from pathlib import Path

from tests.campaign.state import KEPT, State, Tally

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
BEGIN, END = "<!-- the campaign's table: python -m tests.campaign --table -->", "<!-- end -->"


def table(state: State) -> str:
    """Return the table, with a line for every part, and under it what was found."""
    lines = [
        f"{datetime.now(UTC):%Y-%m-%d}; {os.cpu_count()} CPU cores, {platform.machine()}, no"
        f" accelerator; Python {platform.python_version()}; seed {state.seed}.",
        "",
        "| part | done | minutes | problems |",
        "|---|---|---|---|",
    ]
    found: list[str] = []
    for name, describe in _DESCRIBED.items():
        tally = state.tallies.get(name)
        if tally is None or not tally.seconds:
            lines.append(f"| {name} | not run | | |")
            continue
        lines.append(
            f"| {name} | {describe(tally)} | {tally.seconds / 60:.0f} |"
            f" {len(tally.problems) or 'none'} |"
        )
        found += [f"- {name}: {_plain(text)}" for text in tally.problems]
    return "\n".join([*lines, *(["", "What was found:", *found] if found else [])])


def _kills(tally: Tally) -> str:
    counts = tally.counts
    kinds = ", ".join(f"{counts[f'kills: {name}']:,} {name}" for name in _SIGNALS)
    return (
        f"{counts['kills']:,} kills ({kinds};"
        f" {counts['kills at a named phase']:,} at a named phase,"
        f" {counts['kills of one rank only']:,} of one rank only) of {counts['runs']:,} runs"
    )


def _faults(tally: Tally) -> str:
    if not tally.counts["faults"]:
        return "skipped: no `cc`"
    cases = [
        f"{name.partition(': ')[2]} {tally.counts[name.replace('operations', 'faults')]:,} of"
        f" {total:,}"
        for name, total in tally.measured.items()
    ]
    return f"{tally.counts['faults']:,} faults, of the operations: {', '.join(cases)}"


def _fuzz(tally: Tally) -> str:
    kinds = sorted(name for name in tally.counts if name.startswith("inputs: "))
    shown = ", ".join(f"{name.partition(': ')[2]} {tally.counts[name]:,}" for name in kinds)
    return f"{tally.counts['inputs']:,} inputs ({shown})"


def _commands(tally: Tally) -> str:
    most = f"at most {tally.measured['most seconds']:.0f} s and {tally.measured['most MiB']:,} MiB"
    return f"{tally.counts['commands']:,} commands ({_by_kind(tally, 'commands: ')}); {most}"


def _ends(tally: Tally) -> str:
    return f"{tally.counts['kills']:,} kills ({_by_kind(tally, 'ends: ')}){_not_run(tally)}"


def _by_kind(tally: Tally, begins: str) -> str:
    kinds = sorted(name for name in tally.counts if name.startswith(begins))
    return ", ".join(f"{name.removeprefix(begins)} {tally.counts[name]:,}" for name in kinds)


def _not_run(tally: Tally) -> str:
    return f"; not run: {tally.measured['not run']}" if "not run" in tally.measured else ""


def _soak(tally: Tally) -> str:
    numbers = "; ".join(f"{name} {shown}" for name, shown in tally.measured.items())
    return f"{tally.counts['steps']:,} steps, {tally.counts['samples']:,} samples: {numbers}"


def _security(tally: Tally) -> str:
    return str(tally.measured.get("security", ""))


_SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT")
_DESCRIBED = {
    "kills": _kills,
    "faults": _faults,
    "fuzz": _fuzz,
    "commands": _commands,
    "ends": _ends,
    "soak": _soak,
    "security": _security,
}


def _plain(text: str, most: int = 260) -> str:
    shown = text.encode("ascii", "backslashreplace").decode().replace("`", "'").replace("|", "/")
    return f"`{shown[:most]}`"


def renew(state: State) -> None:
    """Put the table into the page, and the tallies next to it."""
    state.write(KEPT)
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{table(state)}\n{END}{after}", encoding="utf-8")
