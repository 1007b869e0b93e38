"""The trackers: the lines of metrics.jsonl, given to viewers through their own libraries.

A tracker that fails is closed, and reported once. To add one: its settings in
`vtool/config/schema/tracking.py`, and a class in `TRACKERS`.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

from vtool.config.schema import TensorBoard, Tracker, Wandb
from vtool.diagnostics import Diagnostic
from vtool.engines.ranks import Ranks, SharedFindings
from vtool.training.session import Request


class TrackerWriter(Protocol):
    """An open tracker."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take the numbers of a step."""

    def close(self) -> None:
        """Write what is left."""


class _TensorBoard:
    def __init__(self, settings: TensorBoard, request: Request, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # What an earlier start has written past the step that the run goes on from is not shown.
        self._writer: Any = SummaryWriter(
            str(folder / "tensorboard"), purge_step=step + 1 if step else None
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class _Wandb:
    def __init__(self, settings: Wandb, request: Request, folder: Path, step: int) -> None:
        import wandb

        (folder / "wandb").mkdir(exist_ok=True)
        # The same run after each start: `wandb sync` puts them together by its id.
        name = request.run.run.name
        self._run: Any = wandb.init(
            project=settings.project,
            name=name,
            id=_fit(f"{name}-{request.run.run.seed}"),
            dir=str(folder),
            mode="offline",
            config=dict(request.effective),
            settings=wandb.Settings(silent=True, console="off"),
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


TRACKERS: Mapping[str, Callable[[Any, Request, Path, int], TrackerWriter]] = {
    "tensorboard": _TensorBoard,
    "wandb": _Wandb,
}
"""By `kind`, which is also the name of the package: opens the tracker of a run.

It is given its settings, the request, the run's folder, and the step that the run goes on after.
"""


def _installed(package: str) -> bool:
    """Return true where the package is installed.

    Not by `find_spec`: a folder wandb/, which wandb makes where it runs, looks like a package.
    """
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def _fit(name: str) -> str:
    """Return a name without the characters that wandb does not allow in an id."""
    return "".join("-" if letter in "/\\#?%:" else letter for letter in name)[:128]


class Trackers:
    """All trackers of a run, on rank 0. `findings` has one for each that has failed."""

    def __init__(self, makers: Mapping[str, Callable[[], TrackerWriter]]) -> None:
        self.findings: list[Diagnostic] = []
        self._writers: dict[str, TrackerWriter] = {}
        for kind, make in makers.items():
            with self._failing_alone(kind):
                self._writers[kind] = make()

    def log(self, metrics: Mapping[str, Any]) -> None:
        """Give a line of metrics.jsonl to all trackers.

        Numbers that are not finite are left out: not every viewer takes them.
        """
        values = {
            name: float(value)
            for name, value in metrics.items()
            if name != "step" and math.isfinite(value)
        }
        for kind, writer in list(self._writers.items()):
            with self._failing_alone(kind):
                writer.log(metrics["step"], values)

    def close(self) -> None:
        """Write what is left."""
        for kind, writer in list(self._writers.items()):
            with self._failing_alone(kind):
                writer.close()

    @contextmanager
    def _failing_alone(self, kind: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._writers.pop(kind, None)
            first = (str(error).splitlines() or [""])[0]
            self.findings.append(
                Diagnostic(
                    "tracker-failed",
                    f"{kind}: {type(error).__name__}: {first}",
                    parameter="tracking",
                )
            )


@contextmanager
def open_trackers(request: Request, folder: Path, step: int, ranks: Ranks) -> Iterator[Trackers]:
    """Yield the trackers of a run that goes on after `step`; close them however it ends.

    Raises:
        SharedFindings: `extra-not-installed`.
    """
    wanted: Sequence[Tracker] = request.run.tracking
    missing = [
        Diagnostic(
            "extra-not-installed",
            f"tracking: {one.kind} is not installed",
            "pip install 'vtool[trackers]'",
            "tracking",
        )
        for one in wanted
        if not _installed(one.kind)
    ]
    if missing:
        raise SharedFindings(missing)

    makers: dict[str, Callable[[], TrackerWriter]] = {
        one.kind: partial(TRACKERS[one.kind], one, request, folder, step)
        for one in (wanted if ranks.rank == 0 else ())
    }
    trackers = Trackers(makers)
    try:
        yield trackers
    finally:
        trackers.close()
