"""Benchmark: the cost of the training loop over a bare loop, next to HF Trainer and TRL.

All train the recipe `digits`: the same initial weights, the same rows in the same order, the same
fused AdamW with the same parameter groups, learning rates and clipping, 32 rows a step in one
micro-batch.

    bare           forward, vtool's summed NLL divided by the supervised tokens, backward, clip,
                   step, on batches made beforehand
    bare, again    the same: the difference between the two is the measurement's own error
    bare, HF loss  the same with `model(**inputs, labels=labels).loss`: logits at every position,
                   not only where there is a target
    vtool          `vtool.training.loop.train_loop` on a real session: batches collated from encoded
                   rows, metrics.jsonl written, display silent
    Trainer, TRL   their own loops, loss and gradient norm reported for each step, nothing saved;
                   batches collated by vtool's `collate`

First, loss and gradient norm of step 1 must agree to 1e-5, or nothing is timed. Then, in one
process with one thread, they take turns of TURN steps, in an order that rotates, and each turn is
timed by `time.process_time`. A ratio is the median over rounds of a turn's time over the mean of
the two bare loops' in the same round; in brackets, its quartiles. All of them have memory kept for
them by `keep_freed_memory`, as a run of vtool has.

    python -m benchmarks.loop [--rounds N]
    python -m benchmarks.loop --alone Trainer [--trim]

With --alone, one of them runs in a process of its own, and prints time and page faults of a step;
with --trim, it runs without `keep_freed_memory`.
"""

import os

# before torch is imported
os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import argparse
import contextlib
import ctypes
import io
import resource
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
from datasets import Dataset
from torch.nn.utils import clip_grad_norm_
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments
from trl import SFTConfig, SFTTrainer

from tests.runs import request, session
from vtool.data.chat import IGNORED
from vtool.data.collate import Batch, collate
from vtool.data.loss import summed_nll
from vtool.devices import keep_freed_memory
from vtool.engines.ranks import Ranks
from vtool.models.build import build_model
from vtool.profiling.profiler import open_profiler
from vtool.training.checkpoint_writer import CheckpointWriter
from vtool.training.display import Display
from vtool.training.loop import LoopTools, train_loop
from vtool.training.optimizer import build_optimizer
from vtool.training.schedule import learning_rate
from vtool.training.session import Progress, Session
from vtool.training.stop import StopRequest
from vtool.training.tracking import Trackers

TURN = 5
# a step up to which the loss is the same to 6 digits; later, rounding leads the runs apart
SHOWN = 25
TOLERANCE = 1e-5

Tick = Callable[[float, float], None]
"""Called after each step with its loss and its gradient norm."""


class Contender(threading.Thread):
    """A loop that trains in turns: it runs while `turn` waits, and waits until the next one."""

    def __init__(self, name: str, loop: Callable[[Tick], object]) -> None:
        super().__init__(name=name, daemon=True)
        self.loop = loop
        self.reports: list[tuple[float, float]] = []
        self.seconds: list[float] = []
        self.failure: BaseException | None = None
        self._mine, self._over = threading.Semaphore(0), threading.Semaphore(0)
        self.start()

    def turn(self) -> float:
        """Run TURN steps, and return the CPU seconds of one of them."""
        began = time.process_time()
        self._mine.release()
        self._over.acquire()
        if self.failure is not None:
            raise self.failure
        return (time.process_time() - began) / TURN

    def run(self) -> None:
        self._mine.acquire()
        try:
            self.loop(self._tick)
        except BaseException as failure:
            self.failure = failure
            self._over.release()

    def _tick(self, loss: float, grad_norm: float) -> None:
        self.reports.append((loss, grad_norm))
        if len(self.reports) % TURN == 0:
            self._over.release()
            self._mine.acquire()


class Ticking(Display):
    """The silent display of a rank that prints nothing; it only passes each step on."""

    def __init__(self, total: int, tick: Tick) -> None:
        super().__init__(0, total, silent=True)
        self.tick = tick

    def step(self, metrics: Mapping[str, Any], step_seconds: float) -> None:
        super().step(metrics, step_seconds)
        self.tick(metrics["loss"], metrics["grad_norm"])


class Reporting(TrainerCallback):
    """Passes on what a Trainer logs."""

    def __init__(self, tick: Tick) -> None:
        self.tick = tick

    def on_log(self, *_: object, logs: Mapping[str, float], **__: object) -> None:
        self.tick(logs["loss"], logs["grad_norm"])


class Work:
    """The work of every contender: the real session of a run of `digits`, and its rows by step."""

    def __init__(self, opened: Session, progress: Progress, steps: int) -> None:
        self.session, self.progress = opened, progress
        self.optim = opened.run.optim
        kept = opened.ledgers["train"].kept
        self.rows = [
            [kept[place] for place in opened.plan.step(step)] for step in range(1, steps + 1)
        ]
        self.batches = [self.batch(rows) for rows in self.rows]

    def batch(self, rows: Sequence[int]) -> Batch:
        encoded = self.session.rows["train"]
        return collate([encoded.sample(row) for row in rows], encoded.processor)

    def labelled(self, rows: Sequence[int]) -> dict[str, torch.Tensor]:
        """Return the batch with labels at every position, as transformers' own loss needs it."""
        inputs = self.batch(rows).inputs
        labels = torch.full_like(inputs["input_ids"], IGNORED)
        for place, row in enumerate(rows):
            found = self.session.rows["train"].sample(row).labels
            labels[place, : len(found)] = found
        return inputs | {"labels": labels}

    def model(self) -> Any:
        run = self.session.run
        return build_model(
            run.model, self.session.processor, self.session.folder.processor, run.run.seed
        )

    def lr(self, step: int) -> float:
        return learning_rate(self.optim, step, self.session.total_steps)

    def bare(self, tick: Tick) -> None:
        model = self.model()
        self._bare(
            model,
            lambda step: summed_nll(model, self.batches[step]) / self.batches[step].supervised,
            tick,
        )

    def bare_hf_loss(self, tick: Tick) -> None:
        model = self.model()
        batches = [self.labelled(rows) for rows in self.rows]
        self._bare(model, lambda step: model(**batches[step]).loss, tick)

    def _bare(self, model: Any, loss_of: Callable[[int], torch.Tensor], tick: Tick) -> None:
        optimizer = build_optimizer(model, self.optim, self.session.family.component)
        for step in range(len(self.rows)):
            loss = loss_of(step)
            loss.backward()
            norm = clip_grad_norm_(model.parameters(), self.optim.clip_norm)
            for group in optimizer.param_groups:
                group["lr"] = self.lr(step + 1)
            optimizer.step()
            optimizer.zero_grad()
            tick(loss.item(), norm.item())

    def vtool(self, tick: Tick) -> None:
        opened, ticking = self.session, Ticking(self.session.total_steps, tick)
        writer = CheckpointWriter(opened.folder.checkpoints, 1, asynchronous=False)
        profiler = open_profiler(
            opened.run,
            Ranks(),
            opened.folder.path,
            self.progress.step,
            opened.total_steps,
            ticking.say,
        )
        train_loop(
            opened, self.progress, LoopTools(writer, StopRequest(), ticking, Trackers({}), profiler)
        )

    def trainer(self, tick: Tick) -> None:
        self._trainer(
            Trainer,
            TrainingArguments(**self._arguments()),
            [{"rows": rows} for rows in self.rows],
            tick,
        )

    def trl(self, tick: Tick) -> None:
        arguments = SFTConfig(
            **self._arguments(),
            max_length=None,
            gradient_checkpointing=False,
            dataset_kwargs={"skip_prepare_dataset": True},
        )
        dataset = Dataset.from_list([{"rows": rows} for rows in self.rows])
        self._trainer(
            SFTTrainer, arguments, dataset, tick, processing_class=self.session.processor.tokenizer
        )

    def _arguments(self) -> dict[str, Any]:
        return {
            "output_dir": str(self.session.folder.path / "other"),
            "per_device_train_batch_size": 1,  # an item of the data set is a step's rows
            "train_sampling_strategy": "sequential",
            "max_steps": self.session.total_steps,
            "max_grad_norm": self.optim.clip_norm,
            "logging_steps": 1,
            "save_strategy": "no",
            "report_to": [],
            "disable_tqdm": True,
            "remove_unused_columns": False,
            "use_cpu": True,
            "bf16": False,
        }

    def _trainer(self, kind: Any, arguments: Any, dataset: Any, tick: Tick, **more: Any) -> None:
        model = self.model()
        optimizer = build_optimizer(model, self.optim, self.session.family.component)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda done: self.lr(done + 1) / self.optim.lr
        )
        trainer = kind(
            model=model,
            args=arguments,
            train_dataset=dataset,
            data_collator=lambda items: self.labelled(items[0]["rows"]),
            callbacks=[Reporting(tick)],
            optimizers=(optimizer, schedule),
            **more,
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()


class Enough(Exception):
    """Ends a loop that runs alone."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--alone", metavar="NAME")
    parser.add_argument("--trim", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if not options.trim:
        keep_freed_memory()
    with tempfile.TemporaryDirectory() as folder:
        quiet = ["checkpoint.every_steps=null", "evaluation.every_steps=null"]
        with contextlib.redirect_stdout(io.StringIO()):
            opened, progress = session(request("digits", f"run.dir={Path(folder) / 'run'}", *quiet))
        work = Work(opened, progress, TURN * (options.rounds + 1))
        loops = {
            "bare": work.bare,
            "bare, again": work.bare,
            "vtool": work.vtool,
            "bare, HF loss": work.bare_hf_loss,
            "Trainer": work.trainer,
            "TRL": work.trl,
        }
        if options.alone:
            _run_alone(options.alone, loops[options.alone], len(work.rows))
        else:
            _print(_run_in_turns(loops, options.rounds), work)


def _run_alone(name: str, loop: Callable[[Tick], object], steps: int) -> None:
    seen: list[tuple[float, int]] = []

    def tick(*_: float) -> None:
        seen.append((time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt))
        if len(seen) == steps:
            raise Enough

    with contextlib.suppress(Enough):
        loop(tick)
    seconds, faults = zip(
        *((after[0] - before[0], after[1] - before[1]) for before, after in pairwise(seen[TURN:])),
        strict=True,
    )
    print(
        f"{name}, alone: {1000 * median(seconds):.2f} ms and {median(faults):.0f} page faults a"
        " step"
    )


def _run_in_turns(loops: Mapping[str, Callable[[Tick], object]], rounds: int) -> list[Contender]:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        # M_ARENA_MAX: threads share the main thread's heap, in which each loop would run if it were
        # alone
        mallopt(-8, 1)
    contenders = [Contender(name, loop) for name, loop in loops.items()]
    for contender in contenders:
        contender.turn()  # the first turn builds and warms up; it is not counted
    _agree(contenders)
    for number in range(rounds):
        for place in range(len(contenders)):
            contender = contenders[(place + number) % len(contenders)]
            contender.seconds.append(contender.turn())
    return contenders


def _agree(contenders: Sequence[Contender]) -> None:
    print("step 1            loss           gradient norm")
    for contender in contenders:
        loss, norm = contender.reports[0]
        print(f"{contender.name:15}   {loss:.8f}     {norm:.8f}")
    for numbers in zip(*(contender.reports[0] for contender in contenders), strict=True):
        if max(abs(number / numbers[0] - 1) for number in numbers) > TOLERANCE:
            raise SystemExit("they do not train the same thing")
    print(f"equal to {TOLERANCE:.0e}\n")


def _print(contenders: Sequence[Contender], work: Work) -> None:
    first, again, *_ = contenders
    bare = [(one + other) / 2 for one, other in zip(first.seconds, again.seconds, strict=True)]
    tokens = median(batch.tokens for batch in work.batches)
    print(
        f"{len(bare)} rounds of {TURN} steps, {len(work.rows[0])} rows and {tokens:.0f} tokens a"
        " step, CPU time of one thread"
    )
    print(f"{'':15}   ms a step   over the bare loop      loss at step {SHOWN}")
    for contender in contenders:
        low, middle, high = quantiles(
            [mine / its - 1 for mine, its in zip(contender.seconds, bare, strict=True)], n=4
        )
        cost = f"{middle:+6.1%} [{low:+.1%}, {high:+.1%}]"
        loss, _ = contender.reports[SHOWN - 1]
        print(
            f"{contender.name:15}   {1000 * median(contender.seconds):6.2f}      {cost:22} "
            f" {loss:.5f}"
        )


if __name__ == "__main__":
    main()
