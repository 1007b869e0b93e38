"""Kills: at any moment, at every named phase, of all ranks or one. The end must be the same."""

import importlib
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.campaign import runs, template
from tests.campaign.state import Tally

CHAIN = 6
"""At most so many kills of one run."""
PHASES = {
    "recipe read": "vtool.cli.train:_train",
    "folder locked": "vtool.training.run_folder:RunFolder.lock",
    "start found": "vtool.training.sft:find_start",
    "rows, model and engine": "vtool.training.sft:set_up_run",
    "settings read back": "vtool.training.sft:check_arrival",
    "metrics rewound": "vtool.training.sft:_rewind",
    "a step": "vtool.training.loop:train_step",
    "a line of metrics": "vtool.training.loop:append",
    "evaluation": "vtool.training.loop:_validate",
    "state gathered": "vtool.training.loop:snapshot",
    "checkpoint": "vtool.training.checkpoint_writer:save",
    "weights written": "vtool.training.checkpoint_files:save_file",
    "digests": "vtool.training.checkpoint_files:sha256_of",
    "synced": "vtool.training.checkpoint:flush",
    "old ones looked for": "vtool.training.checkpoint:checkpoints",
    "ledger balanced": "vtool.training.finish:balance",
    "answers": "vtool.training.finish:_write_predictions",
    "export": "vtool.training.finish:write_export",
    "result": "vtool.training.finish:write_atomically",
    "report": "vtool.report:write_report",
}
"""The function that a kill comes before or after, by the name of its phase."""


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill of a run: when, by what, and of which rank (None: of all)."""

    number: signal.Signals
    rank: int | None
    phase: str | None = None
    call: int = 1
    after: bool = False
    moment: float = 0.0
    """The share of the run's usual time, where there is no phase."""

    def __str__(self) -> str:
        where = (
            f"{'after' if self.after else 'before'} {self.phase}, call {self.call}"
            if self.phase
            else f"at {self.moment:.2f} of its time"
        )
        return f"{self.number.name} {where}, {'all' if self.rank is None else self.rank}"


def draw_kill(draw: random.Random, world: int) -> Kill:
    """Half of the kills are at a named phase; most are `kill -9`."""
    number = draw.choice([signal.SIGKILL] * 4 + [signal.SIGTERM, signal.SIGINT])
    rank = draw.randrange(world) if world > 1 and draw.random() < 0.5 else None
    if draw.random() < 0.5:
        return Kill(number, rank, moment=draw.random())
    phase, call = draw.choice(list(PHASES)), draw.choice([1, 1, 2, 3, 5])
    return Kill(number, rank, phase, call, draw.random() < 0.5)


def kill_runs(tally: Tally, folder: Path, until: float) -> None:
    """Kill runs until a moment."""
    straights = runs.straights_in(folder)
    variants = list(runs.VARIANTS.values())
    while time.monotonic() < until:
        trial(tally, straights, variants[tally.next % len(variants)])
        tally.next += 1


def trial(tally: Tally, straights: runs.Straights, variant: runs.Variant) -> None:
    """Begin one run, kill it a few times, let it end, and compare it with a straight one."""
    number, draw = tally.next, tally.draw(tally.next)
    straight = straights.of(variant)
    place = runs.fresh(straights.folder / runs.PLACE)
    arguments = runs.command(straights.rows, variant)
    before = ""

    def wrong(kind: str, done: template.Forked) -> None:
        text = f"run {number}, {variant.name}, {before}: {done.status}"
        (straights.folder / f"wrong-{number}.log").write_text(done.printed)
        tally.problem(kind, f"{text} {runs.last_lines(done.printed)}")

    for turn in range(draw.randint(1, CHAIN)):
        kill = draw_kill(draw, variant.world)
        before = f"{before}; {kill}" if before else str(kill)
        done, hit = _killed(kill, arguments, place, variant, straight.seconds, f"printed-{turn}")
        tally.counts["kills" if hit else "ended before its kill"] += 1
        if hit:
            tally.counts[f"kills: {kill.number.name}"] += 1
            tally.counts[f"kills: {variant.name}"] += 1
            tally.counts["kills at a named phase"] += kill.phase is not None
            tally.counts["kills of one rank only"] += kill.rank is not None
        if done.hung:
            wrong("a killed run hangs", done)
        name = template.traceback_in(done.printed)
        if name and not (kill.number == signal.SIGKILL and _is_of_a_worker(done.printed)):
            wrong(f"a traceback of {name}", done)
        if not hit or (place / runs.RUN / "result.json").exists():
            break
    done = template.run(arguments, place, world=variant.world, log="printed-last")
    tally.counts["runs"] += 1
    if any(done.status.values()) or done.hung or template.traceback_in(done.printed):
        wrong("a killed run does not go on", done)
    elif different := runs.differences(straight.content, runs.content(place / runs.RUN)):
        wrong(f"other bytes in {', '.join(different[:3])}", done)
    else:
        shutil.rmtree(place)
        return
    place.rename(straights.folder / f"wrong-{number}")


def _killed(
    kill: Kill, arguments: list[str], place: Path, variant: runs.Variant, usual: float, log: str
) -> tuple[template.Forked, bool]:
    """Start a run and kill it; return it, and whether the kill came before its end."""
    first = kill.rank or 0
    if kill.phase:

        def prepare(rank: int) -> None:
            if rank == first:
                _at_phase(kill)

        done = template.fork(arguments, place, world=variant.world, prepare=prepare, log=log)
        while not done.poll() and first not in done.status:
            if time.monotonic() > done.began + template.PATIENCE:
                break
            time.sleep(0.002)
        hit = done.status.get(first) not in (0, 1, 2)
    else:
        done = template.fork(arguments, place, world=variant.world, log=log)
        hit = not done.wait_until(done.began + kill.moment * usual)
        if hit:
            done.send(kill.number, None if kill.rank is None else [kill.rank])
    if hit and kill.number == signal.SIGKILL and kill.rank is None:
        done.send(signal.SIGKILL)
    return done.wait(), hit


def _at_phase(kill: Kill) -> None:
    """Have this process killed by itself, before or after a call of the phase's function."""
    module, _, path = PHASES[kill.phase or ""].partition(":")
    owner: Any = importlib.import_module(module)
    *outer, name = path.split(".")
    for part in outer:
        owner = getattr(owner, part)
    real: Callable[..., Any] = getattr(owner, name)
    calls = 0

    def watched(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == kill.call and not kill.after:
            os.kill(os.getpid(), kill.number)
        result = real(*arguments, **named)
        if calls == kill.call and kill.after:
            os.kill(os.getpid(), kill.number)
        return result

    setattr(owner, name, watched)


def _is_of_a_worker(printed: str) -> bool:
    """Return whether the last traceback is of a data worker that has lost its rank to `kill -9`.

    It, and a thread of it, were handing over a tensor by means of `multiprocessing`; the worker may
    have been killed while it was printing.
    """
    return "/multiprocessing/" in printed.rpartition("Traceback (most recent call last)")[2]
