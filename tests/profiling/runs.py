"""Short runs with a profiler, and what their traces say, read with nothing of vtool's."""

import gzip
import json
from pathlib import Path
from typing import Any

from tests.rows import mixed_rows, write_rows
from tests.runs import messages, request
from vtool.training.session import RunRequest

ROWS = 8


def write(folder: Path) -> None:
    write_rows(folder / "rows.jsonl", mixed_rows(folder, ROWS, text_only=(1, 2)))


def made_run(folder: Path, name: str, *more: str, engine: str = "ddp") -> RunRequest:
    """6 steps of 2 rows, a micro-batch each."""
    overrides = [
        messages(folder / "rows.jsonl"),
        *(
            "data.global_batch_size=2",
            "data.micro_batch_size=1",
            "data.image={min_pixels:784,max_pixels:784}",
            "device.threads=1",
        ),
        *(
            "train={steps:6,epochs:null}",
            "optim.warmup_steps=2",
            f"run.dir={folder / name}",
            f"engine={engine}",
        ),
    ]
    return request("rows", *overrides, *more)


TORCH = ("profiler=torch", "profiler.profile_interval=[3,4]")


def opened(path: Path) -> dict[str, Any]:
    """A trace, whole, by the standard library's JSON. NaN and infinity are no JSON."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    with gzip.open(path, "rt", encoding="utf-8") as file:
        return json.load(file, parse_constant=refuse)  # type: ignore[no-any-return]


def break_rules(trace: dict[str, Any]) -> list[str]:
    """Return the events of a trace that break the rules of the Trace Event Format."""
    needed = {
        "X": ("name", "pid", "tid", "ts", "dur"),
        "i": ("name", "pid", "tid", "ts"),
        "M": ("name", "pid", "args"),
    }
    needed |= dict.fromkeys("stf", ("id", "pid", "tid", "ts"))
    broken = []
    for event in trace["traceEvents"]:
        missing = [key for key in needed[event["ph"]] if key not in event]
        numbers = [event[key] for key in ("ts", "dur") if key in event]
        if missing or any(not isinstance(value, int | float) or value < 0 for value in numbers):
            broken.append(f"{event} {missing}")
        if event["ph"] == "i" and event.get("s", "t") not in "gpt":
            broken.append(f"{event} has no such scope")
    return broken


def annotations(trace: dict[str, Any], *names: str) -> list[dict[str, Any]]:
    found = [
        one
        for one in trace["traceEvents"]
        if one.get("cat") == "user_annotation" and one["name"].startswith(names)
    ]
    return sorted(found, key=lambda one: one["ts"])


def inside(inner: dict[str, Any], outer: dict[str, Any]) -> bool:
    return bool(
        outer["ts"] <= inner["ts"]
        and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"] + 1e-3
    )
