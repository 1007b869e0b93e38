"""The tiny runs of the campaign, and what two of them must share to the byte."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.campaign import template
from tests.rows import mixed_rows, write_rows

STEPS, EVERY = 6, 2
TIMES = ("seconds", "data_seconds", "data_share", "train_seconds", "peak_memory_mib")
RUN = "run"
PLACE = "place"
"""The folder in which runs are made."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A kind of run."""

    name: str
    overrides: tuple[str, ...] = ()
    world: int = 1


ASYNC = "checkpoint.asynchronous=true"
LORA = "+lora={rank: 4}"
VARIANTS = {
    each.name: each
    for each in (
        Variant("ddp"),
        Variant("ddp, 2 ranks", world=2),
        Variant("fsdp2", ("engine=fsdp2",)),
        Variant("fsdp2, 2 ranks", ("engine=fsdp2", ASYNC), 2),
        Variant("megatron", ("engine=megatron",)),
        Variant("megatron, 2 ranks", ("engine=megatron",), 2),
        Variant("lora", (LORA,)),
        Variant("async", (ASYNC,)),
        Variant("workers", ("data.workers=1", ASYNC)),
    )
}


def command(rows: Path, variant: Variant, *more: str) -> list[str]:
    """Return the words after `vtool`; the run's folder is `run` where it is started."""

    def split(name: str) -> str:
        return f"data.{name}=[{{format:messages,path:'{rows / name}.jsonl'}}]"

    return [
        *("train", "sft", "--no-preflight", "rows"),
        *map(split, ("train", "validation", "test")),
        *("data.global_batch_size=3", "data.micro_batch_size=1", "model.dtype=float32"),
        "data.max_overlap_rows=1",  # the third row is also one of the test split
        "data.image={min_pixels:784,max_pixels:784}",
        *(f"train={{steps:{STEPS},epochs:null}}", "optim.warmup_steps=2"),
        *(f"checkpoint.every_steps={EVERY}", "checkpoint.keep_last=2"),
        *("evaluation.every_steps=3", "evaluation.generate.max_new_tokens=1"),
        *(f"run.dir={RUN}", "run.name=run", "device.threads=1"),
        *variant.overrides,
        *more,
    ]


def write_all_rows(folder: Path) -> Path:
    """Write the three splits; five rows of batches of three cross an epoch's end."""
    folder.mkdir(parents=True, exist_ok=True)
    write_rows(folder / "train.jsonl", mixed_rows(folder, 5, text_only=(1,)))
    for name, first in (("validation", 0), ("test", 1)):
        write_rows(folder / f"{name}.jsonl", mixed_rows(folder, 3)[first : first + 2])
    return folder


def content(run: Path) -> dict[str, Any]:
    """Return the content that no time changes: metrics, weights, state, export, answers, ledger."""
    found: dict[str, Any] = {}
    for file in sorted(run.rglob("*")):
        name = file.relative_to(run).as_posix()
        kept = name.startswith(
            ("export/", "processor/", "samples/", f"checkpoints/step-{STEPS:06}")
        )
        if name == "result.json":
            found[name] = _timeless(json.loads(file.read_text()))
        elif name == "metrics.jsonl":
            found[name] = [_timeless(json.loads(line)) for line in file.read_text().splitlines()]
        elif file.is_file() and (kept or name in ("predictions.jsonl", "data.json", "config.yaml")):
            found[name] = file.read_bytes()
            if name.endswith(("state.json", "manifest.json")):
                # the state has the seconds of the steps, the manifest its digest
                found[name] = sorted(json.loads(found[name]))
    return found


def _timeless(record: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in TIMES}


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return the names of the files that are not the same."""
    return [name for name in sorted(one.keys() | other.keys()) if one.get(name) != other.get(name)]


@dataclass(frozen=True, slots=True)
class Straight:
    """A run that nothing happened to."""

    content: Mapping[str, Any]
    seconds: float


def warm_up(folder: Path) -> None:
    """Import and compute here, once, what every forked run would: recipes, templates, charts."""
    from vtool.config.load import load_run
    from vtool.report import write_report

    rows = write_all_rows(folder / "rows")
    place = fresh(folder / "warm")
    for name in ("ddp", "fsdp2", "megatron", "lora"):
        arguments = command(rows, VARIANTS[name])
        template.import_all_of(arguments, fresh(place / name))
        load_run("rows", arguments[4:])
    write_report([place / "ddp" / RUN], place / "report.html")


class Straights:
    """The runs that nothing happened to, made when first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows = write_all_rows(folder / "rows")
        self._made: dict[str, Straight] = {}

    def folder_of(self, variant: Variant) -> Path:
        return self.folder / f"straight {variant.name}"

    def of(self, variant: Variant) -> Straight:
        if variant.name not in self._made:
            # an adapter names its base by its path: all are made in one place
            place = fresh(self.folder / PLACE)
            began = template.time.monotonic()
            done = template.run(command(self.rows, variant), place, world=variant.world)
            seconds = template.time.monotonic() - began
            if any(done.status.values()):
                raise SystemExit(
                    f"a run without faults failed: {variant.name} {done.status}\n{done.printed}"
                )
            self._made[variant.name] = Straight(content(place / RUN), seconds)
            shutil.rmtree(self.folder_of(variant), ignore_errors=True)
            place.rename(self.folder_of(variant))
        return self._made[variant.name]


@cache
def straights_in(folder: Path) -> Straights:
    """Return the runs of a folder that nothing happened to, made once in a campaign."""
    return Straights(folder)


def fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def last_lines(text: str, count: int = 6) -> str:
    return " / ".join(line.strip() for line in text.strip().splitlines()[-count:])[:600]
