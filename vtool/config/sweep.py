"""Sweeps: `KEY=A,B` in Hydra's grammar, every combination of which is a job of its own."""

import hashlib
import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob
from hydra.errors import HydraException

from vtool.config.origins import COMMAND_LINE
from vtool.diagnostics import Diagnostic, Findings

MOST_JOBS = 1_000
"""Combinations of a sweep: one slip of the hand in `range(1,1000000)` makes millions."""
_LONGEST = 100
"""Characters that a job adds to a name; file systems take 255 in all."""


@dataclass(frozen=True, slots=True)
class Job:
    """One combination."""

    overrides: tuple[str, ...]
    """All, with one value each."""
    swept: tuple[str, ...]
    """The overrides in which jobs differ."""

    @property
    def suffix(self) -> str:
        """The end of its run's name, `lr=1e-3,seed=2`, without characters unfit for files."""
        keys = [override.partition("=")[0].lstrip("+") for override in self.swept]
        leaves = [key.rpartition(".")[2] for key in keys]
        named = [
            leaf if leaves.count(leaf) == 1 else key for key, leaf in zip(keys, leaves, strict=True)
        ]
        values = [override.partition("=")[2] for override in self.swept]
        plain = ",".join(
            f"{name}={value.strip(chr(34) + chr(39))}"
            for name, value in zip(named, values, strict=True)
        )
        made = re.sub(r"[^A-Za-z0-9.,=+_-]+", "_", plain)
        # Two values that are written alike, or cut off, stay two names.
        lossy = made != plain or len(made) > _LONGEST
        return made[:_LONGEST] + (
            f"-{hashlib.sha256(plain.encode()).hexdigest()[:6]}" if lossy else ""
        )


def expand_grid(overrides: Sequence[str]) -> tuple[Job, ...]:
    """Return a job for every combination of the values given, the last override changing fastest.

    Raises:
        Findings: `bad-override`, for those that no list of values can be made of.
    """
    parser = OverridesParser.create()
    choices: list[list[str]] = []
    findings = []
    for text in overrides:
        try:
            override = parser.parse_override(text)
        except HydraException:
            choices.append([text])  # reported where the job is composed, as without a sweep
            continue
        if not override.is_sweep_override():
            choices.append([text])
        elif not override.is_discrete_sweep() or isinstance(override.value(), Glob):
            findings.append(
                Diagnostic(
                    "bad-override",
                    f"`{text}` is a sweep without a list of values",
                    "write KEY=A,B,C, or KEY=range(1,4)",
                    origin=COMMAND_LINE,
                )
            )
        else:
            values = itertools.islice(override.sweep_string_iterator(), MOST_JOBS + 1)
            choices.append(
                [
                    f"{override.input_line.partition('=')[0]}={value}"
                    for value in dict.fromkeys(values)  # each once
                ]
            )
    if findings:
        raise Findings(findings, fatal=True)
    if math.prod(map(len, choices)) > MOST_JOBS:
        message = f"these overrides make more than {MOST_JOBS:,} combinations"
        help = "sweep over fewer values, or over some of them at a time"
        raise Findings(Diagnostic("bad-override", message, help, origin=COMMAND_LINE), fatal=True)
    several = [number for number, values in enumerate(choices) if len(values) > 1]
    return tuple(
        Job(each, tuple(each[number] for number in several)) for each in itertools.product(*choices)
    )
