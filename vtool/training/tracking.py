"""Trackers: the lines of metrics.jsonl in TensorBoard, Weights & Biases, MLflow or trackio.

A tracker that fails is closed and reported once; the run continues.
"""

import io
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from vtool.config.schema import Tracker, Wandb
from vtool.config.schema.tracking import Mlflow, Trackio
from vtool.config.tracker_packages import missing_trackers
from vtool.diagnostics import Diagnostic
from vtool.engines.ranks import Ranks, SharedFindings
from vtool.training.session import RunRequest


class Sink(Protocol):
    """A tracker that is open."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take the numbers of a step."""

    def close(self) -> None:
        """Write what is left."""


class _TensorBoard:
    def __init__(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # What an earlier start has written past the step that the run resumes from is not shown.
        self._writer: Any = SummaryWriter(
            str(folder / "tensorboard"), purge_step=step + 1 if step else None
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class _Wandb:
    def __init__(self, settings: Wandb, request: RunRequest, folder: Path) -> None:
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


class _Mlflow:
    def __init__(self, settings: Mlflow, request: RunRequest, folder: Path) -> None:
        # It sends what it is used for to its makers, unless this is set before it is imported. Who
        # has set it has decided.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow import MlflowClient

        # a client, and not its functions: those are of one run in the whole process
        self._client: Any = MlflowClient(settings.uri or f"sqlite:///{folder.resolve()}/mlflow.db")
        known = self._client.get_experiment_by_name(settings.experiment)
        experiment = (
            known.experiment_id
            if known is not None
            else self._client.create_experiment(
                settings.experiment, artifact_location=(folder.resolve() / "mlflow").as_uri()
            )
        )
        # the same run after each start, found by its folder
        of = str(folder.resolve())
        found = self._client.search_runs([experiment], f"tags.vtool_run = '{_quoted(of)}'")
        if found:
            self._id = found[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
            return
        made = self._client.create_run(
            experiment, run_name=request.run.run.name, tags={"vtool_run": of}
        )
        self._id = made.info.run_id
        for name, value in _flat(request.effective):
            self._client.log_param(self._id, name, value)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(_plain(name), value, now, step) for name, value in values.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def close(self) -> None:
        self._client.set_terminated(self._id)


class _Trackio:
    def __init__(self, settings: Trackio, request: RunRequest) -> None:
        import trackio
        from trackio.utils import TRACKIO_DIR

        # its own thread writes, and only warns of a folder that cannot be written into
        TRACKIO_DIR.mkdir(parents=True, exist_ok=True)
        if not os.access(TRACKIO_DIR, os.W_OK):
            raise PermissionError(f"trackio's folder {TRACKIO_DIR} cannot be written into")
        # it prints hints on standard output, where a run's own lines are
        with redirect_stdout(io.StringIO()):
            self._run: Any = trackio.init(
                project=settings.project,
                name=request.run.run.name,
                config=dict(_flat(request.effective)),
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        import trackio

        with redirect_stdout(io.StringIO()):
            trackio.finish()


SINKS: dict[str, Callable[[Any, RunRequest, Path, int], Sink]] = {
    "tensorboard": lambda _settings, _request, folder, step: _TensorBoard(folder, step),
    "wandb": lambda settings, request, folder, _step: _Wandb(settings, request, folder),
    "mlflow": lambda settings, request, folder, _step: _Mlflow(settings, request, folder),
    "trackio": lambda settings, request, _folder, _step: _Trackio(settings, request),
}
"""The functions that open a tracker, by its `kind`.

Each is given the tracker's settings, the request, the run's folder and the step that it
continues from.
"""


def _fit(name: str) -> str:
    """Return a name without the characters that an id of wandb's must not have."""
    return "".join("-" if letter in "/\\#?%:" else letter for letter in name)[:128]


def _plain(name: str) -> str:
    """Return a name with what mlflow's names of metrics may have."""
    return "".join(letter if letter.isalnum() or letter in "_-. :/" else "-" for letter in name)


def _quoted(text: str) -> str:
    return text.replace("'", "\\'")


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield every setting by its dotted name, as short text: trackers limit its length."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", str(value)[:500]


class Trackers:
    """The open trackers of a run, on rank 0, and a finding for each that has failed."""

    def __init__(self, makers: Mapping[str, Callable[[], Sink]]) -> None:
        self.findings: list[Diagnostic] = []
        self._sinks: dict[str, Sink] = {}
        for kind, make in makers.items():
            with self._kept_from_the_run(kind):
                self._sinks[kind] = make()

    def log(self, metrics: Mapping[str, Any]) -> None:
        """Log a line of metrics.jsonl.

        Numbers that are not finite are left out: not every viewer takes them.
        """
        values = {
            name: float(value)
            for name, value in metrics.items()
            if name != "step" and math.isfinite(value)
        }
        for kind, sink in list(self._sinks.items()):
            with self._kept_from_the_run(kind):
                sink.log(metrics["step"], values)

    def close(self) -> None:
        """Write what is left."""
        for kind, sink in list(self._sinks.items()):
            with self._kept_from_the_run(kind):
                sink.close()

    @contextmanager
    def _kept_from_the_run(self, kind: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._sinks.pop(kind, None)
            first = (str(error).splitlines() or [""])[0]
            self.findings.append(
                Diagnostic(
                    "tracker-failed",
                    f"{kind}: {type(error).__name__}: {first}",
                    parameter="tracking",
                )
            )


@contextmanager
def open_trackers(request: RunRequest, folder: Path, step: int, ranks: Ranks) -> Iterator[Trackers]:
    """Open the trackers of a run that continues after `step`, and close them however it ends.

    Raises:
        SharedFindings: `extra-not-installed`.
    """
    wanted: Sequence[Tracker] = request.run.tracking
    # validate-config has reported this already, of this machine; the run may be on another
    missing = list(missing_trackers(request.run, request.origins))
    if missing:
        raise SharedFindings(missing)

    openers: dict[str, Callable[[], Sink]] = {
        tracker.kind: partial(SINKS[tracker.kind], tracker, request, folder, step)
        for tracker in wanted
    }
    trackers = Trackers(openers if ranks.rank == 0 else {})
    try:
        yield trackers
    finally:
        trackers.close()
