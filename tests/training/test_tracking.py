"""Trackers, through their own libraries, and runs that outlive them."""

import json
import math
import os
import sqlite3
import struct
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from tests.profiling.runs import made_run, write
from tests.runs import read_lines
from vtool.config.load import examine
from vtool.config.schema.tracking import TRACKERS
from vtool.diagnostics import Findings
from vtool.engines.ranks import Ranks
from vtool.training import tracking
from vtool.training.sft import train
from vtool.training.tracking import Trackers, open_trackers


def has(package: str) -> bool:
    try:
        return bool(metadata.version(package))
    except metadata.PackageNotFoundError:
        return False


def test_every_tracker_of_the_schema_can_be_opened_and_no_other() -> None:
    assert set(TRACKERS) == tracking.SINKS.keys()


def test_the_package_of_every_tracker_is_in_the_extra_that_a_finding_names() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    needs = {Requirement(one).name for one in project["optional-dependencies"]["trackers"]}
    assert set(TRACKERS) == needs - {"vtool"}


@pytest.mark.skipif(not has("tensorboard"), reason="not run: tensorboard is not installed")
def test_tensorboard_reads_the_numbers_of_metrics_jsonl(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    write(tmp_path)
    assert train(made_run(tmp_path, "run", "tracking=[{kind:tensorboard}]"), Ranks()).findings == ()
    found = EventAccumulator(str(tmp_path / "run/tensorboard"))
    found.Reload()
    lines = [line for line in read_lines(tmp_path / "run/metrics.jsonl") if "loss" in line]
    for name in ("loss", "lr", "grad_norm", "tokens"):
        seen = [(event.step, event.value) for event in found.Scalars(name)]
        assert seen == [(line["step"], pytest.approx(line[name], rel=1e-6)) for line in lines]


@pytest.mark.skipif(not has("tensorboard"), reason="not run: tensorboard is not installed")
def test_what_an_earlier_start_has_written_past_the_checkpoint_is_not_shown(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    write(tmp_path)
    made = made_run(tmp_path, "run", "tracking=[{kind:tensorboard}]")
    for begin, loss in ((0, 1.0), (2, 2.0)):
        with open_trackers(made, tmp_path, begin, Ranks()) as trackers:
            for step in range(begin + 1, 5):
                trackers.log({"step": step, "loss": loss})
    found = EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    assert [(event.step, event.value) for event in found.Scalars("loss")] == [
        (1, 1.0),
        (2, 1.0),
        (3, 2.0),
        (4, 2.0),
    ]


@pytest.mark.full
@pytest.mark.skipif(not has("wandb"), reason="not run: wandb is not installed")
def test_wandb_keeps_the_run_in_its_folder_without_a_network(tmp_path: Path) -> None:
    from wandb.proto.wandb_internal_pb2 import Record

    write(tmp_path)
    made = made_run(tmp_path, "run", "tracking=[{kind:wandb,project:mine}]")
    with open_trackers(made, tmp_path, 0, Ranks()) as trackers:
        trackers.log({"step": 1, "loss": 0.5})
    assert trackers.findings == []
    (file,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    # it is wandb's own process that writes, and on a busy machine it is not done when the run is
    end = time.monotonic() + 30
    records: list[Any] = []
    while not any(one.HasField("exit") for one in records):
        assert time.monotonic() < end, (
            f"of {file.stat().st_size} bytes: {[one.WhichOneof('record_type') for one in records]}"
        )
        records = [Record.FromString(data) for data in entries(file.read_bytes())]
    (run,) = [one.run for one in records if one.HasField("run")]
    assert (run.project, run.display_name) == ("mine", "rows")
    items = [item for one in records if one.HasField("history") for item in one.history.item]
    assert ("loss", "0.5") in [
        (item.key or ".".join(item.nested_key), item.value_json) for item in items
    ]


def entries(data: bytes) -> Iterator[bytes]:
    """The records of a wandb file:

    LevelDB's log format, behind a header of 7 bytes. A record's parts are of type 1 whole, or 2,
    3…, 4.
    """
    place, parts = 7, b""
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + 7])
        if place + 7 + length > len(data):  # it is being written
            return
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            yield parts
            parts = b""


@pytest.mark.skipif(not has("mlflow"), reason="not run: mlflow is not installed")
@pytest.mark.parametrize("own", [False, True])
def test_mlflow_has_one_run_of_all_starts_with_the_numbers_of_metrics_jsonl(
    tmp_path: Path, own: bool
) -> None:
    from mlflow import MlflowClient

    write(tmp_path)
    uri = f"sqlite:///{tmp_path}/{'own' if own else 'mlflow'}.db"
    given = f",uri:'{uri}'" if own else ""
    made = made_run(tmp_path, "run", f"tracking=[{{kind:mlflow,experiment:mine{given}}}]")
    for begin in (0, 2):
        with open_trackers(made, tmp_path, begin, Ranks()) as trackers:
            for step in (begin + 1, begin + 2):
                trackers.log({"step": step, "loss": 1 / step, "validation_nll/a b": 0.5})
        assert trackers.findings == []
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("mine")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("rows", "FINISHED")
    seen = client.get_metric_history(run.info.run_id, "loss")
    assert [(one.step, one.value) for one in seen] == [(n, 1 / n) for n in (1, 2, 3, 4)]
    assert run.data.params["optim.lr"] == str(made.run.optim.lr)


@pytest.mark.skipif(not has("mlflow"), reason="not run: mlflow is not installed")
@pytest.mark.parametrize(("given", "wanted"), [(None, True), ("false", False)])
def test_mlflow_sends_its_makers_nothing_unless_the_user_has_decided(
    tmp_path: Path, given: str | None, wanted: bool
) -> None:
    write(tmp_path)
    program = (
        "import os, sys; from pathlib import Path; from tests.profiling.runs import made_run;"
        "from vtool.engines.ranks import Ranks; from vtool.training.tracking import open_trackers;"
        "made = made_run(Path(sys.argv[1]), 'run', 'tracking=[{kind:mlflow,experiment:mine}]')\n"
        "with open_trackers(made, Path(sys.argv[1]), 0, Ranks()) as trackers:\n"
        "    trackers.log({'step': 1, 'loss': 0.5})\n"
        "assert trackers.findings == [], trackers.findings\n"
        "from mlflow.environment_variables import MLFLOW_DISABLE_TELEMETRY\n"
        "print(MLFLOW_DISABLE_TELEMETRY.get())\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("MLFLOW_DISABLE_TELEMETRY", None)
    environment |= {"MLFLOW_DISABLE_TELEMETRY": given} if given else {}
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, f"{wanted}\n"), done.stderr


def with_trackio(tmp_path: Path, trackio: Path, then: str) -> "subprocess.CompletedProcess[str]":
    """Log two steps to trackio in a process of their own; `then` looks at the trackers."""
    write(tmp_path)
    program = (
        "import sys; from pathlib import Path; from tests.profiling.runs import made_run;"
        "from vtool.engines.ranks import Ranks; from vtool.training.tracking import open_trackers;"
        "folder = Path(sys.argv[1]);"
        "made = made_run(folder, 'run', 'tracking=[{kind:trackio,project:mine}]')\n"
        "with open_trackers(made, folder, 0, Ranks()) as trackers:\n"
        "    trackers.log({'step': 1, 'loss': 0.5}); trackers.log({'step': 2, 'loss': 0.25})\n"
        f"{then}\n"
    )
    return subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        env=os.environ | {"TRACKIO_DIR": str(trackio), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.skipif(not has("trackio"), reason="not run: trackio is not installed")
def test_trackio_has_the_run_and_prints_nothing_among_its_lines(tmp_path: Path) -> None:
    then = "assert trackers.findings == [], trackers.findings"
    done = with_trackio(tmp_path, tmp_path / "trackio", then)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    with sqlite3.connect(tmp_path / "trackio/mine.db") as database:
        rows = database.execute("select run_name, step, metrics from metrics").fetchall()
    assert [(name, step, json.loads(each)["loss"]) for name, step, each in rows] == [
        ("rows", 1, 0.5),
        ("rows", 2, 0.25),
    ]


@pytest.mark.skipif(not has("trackio"), reason="not run: trackio is not installed")
def test_a_folder_that_trackio_cannot_write_into_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    then = "(found,) = trackers.findings; print(found.rule, found.message)"
    done = with_trackio(tmp_path, tmp_path / "file/trackio", then)
    assert done.stdout.startswith("tracker-failed trackio: "), done.stderr


class Breaks:
    """A tracker whose disk is full."""

    logged = 0

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.logged += 1
        raise OSError("No space left on device")

    def close(self) -> None:
        raise AssertionError("it has been let go")


class Keeps:
    def __init__(self) -> None:
        self.lines: list[tuple[int, Mapping[str, float]]] = []

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.lines.append((step, values))

    def close(self) -> None:
        pass


def test_one_that_fails_is_reported_once_and_the_others_continue() -> None:
    broken, kept = Breaks(), Keeps()
    trackers = Trackers({"wandb": lambda: broken, "tensorboard": lambda: kept})
    for step in (1, 2):
        trackers.log({"step": step, "loss": math.nan, "lr": 0.5})
    trackers.close()
    assert broken.logged == 1
    assert kept.lines == [(1, {"lr": 0.5}), (2, {"lr": 0.5})]
    (found,) = trackers.findings
    assert (found.rule, found.severity) == ("tracker-failed", "warning")
    assert "No space left" in found.message


def test_one_that_cannot_even_begin_is_reported() -> None:
    def make() -> Any:
        raise RuntimeError("no account")

    trackers = Trackers({"wandb": make})
    trackers.log({"step": 1, "loss": 1.0})
    assert [one.rule for one in trackers.findings] == ["tracker-failed"]


def test_mlflow_skinny_is_mlflow(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name != "mlflow-skinny":
            raise metadata.PackageNotFoundError(name)
        return "3.17.0"

    monkeypatch.setattr(metadata, "version", version)
    found = examine("digits", ["tracking=[{kind:mlflow,uri:'http://localhost:1'}]"])
    assert not [one for one in found.findings if one.rule == "extra-not-installed"]


def test_a_package_that_is_not_there_is_reported_with_the_recipe_and_before_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path)
    made = made_run(tmp_path, "run", "tracking=[{kind:wandb}]") if has("wandb") else None
    (tmp_path / "wandb").mkdir()
    monkeypatch.chdir(tmp_path)  # a folder of wandb's own name is no package

    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    both = "tracking=[{kind:wandb},{kind:tensorboard}]"
    found = [one for one in examine("digits", [both]).findings if "tracking" in one.message]
    assert [(one.rule, one.parameter, one.severity) for one in found] == [
        ("extra-not-installed", "tracking.0.kind", "error"),
        ("extra-not-installed", "tracking.1.kind", "error"),
    ]
    assert examine("digits").checks.get("extra-not-installed") is None
    if made is None:
        return
    # on another machine than the one on which the recipe was checked
    with (
        pytest.raises(Findings, match=r"extra-not-installed.*wandb is not installed"),
        open_trackers(made, tmp_path, 0, Ranks()),
    ):
        pass
