"""Runs:

rows that are not trained on, ranks that do not agree, checkpoints and profiles that are not what
they seem.
"""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.zoo.defect import Defect
from tests.zoo.looks import Exported, Ranked, Train
from vtool.engines.ranks import Ranks

RUN = Train(("train={steps: 5, epochs: null}",))
MIXED = Train(("train={steps: 6, epochs: null}", "data.train.0.repeat=1"))
RESUMED = Train(
    ("train={steps: 5, epochs: null}", "checkpoint={every_steps: 1, keep_last: 9}"), again=True
)
STOPPED = Train(again=True)
PROFILED = Train(("profiler=torch", "profiler.profile_interval=[2, 2]", "profiler.warmup=1"))
VALIDATED = Train(("data.validation=${data.train}", "evaluation.generate.max_new_tokens=1"))
TWO = Ranked(("launch.nproc=2", "engine=ddp"))
EXPORTED = Exported()


def another_row(real: Any) -> Any:
    """A row that is too long is passed over, and the next one takes its place."""
    return lambda self, index: real(self, index if index != 4 else 5)


def whole_batches(_: Any) -> Any:
    return property(lambda self: max(1, self.rows // self.global_batch_size))


def first_batch_again(_: Any) -> Any:
    """An iterator that is made anew for each step."""
    return lambda self, step: np.arange(self.rows)[: self.global_batch_size]


def draws(_: Any) -> Any:
    return lambda places, size, key: np.random.RandomState(list(key)).randint(
        size, size=len(places)
    )


def at_the_epochs_end(real: Any) -> Any:
    """The restored position of the data is the end of an epoch, and what is left of it is not
    trained on.
    """
    return lambda checkpoint: replace(snapshot := real(checkpoint), step=-(-snapshot.step // 3) * 3)


def loses_bytes(real: Any) -> Any:
    """The bytes in the page cache are lost when the machine goes down."""

    def flush(path: Path) -> None:
        real(path)
        if path.name == "optimizer.safetensors":
            with path.open("r+b") as file:
                file.truncate(path.stat().st_size // 2)

    return flush


def of_its_own(real: Any) -> Any:
    """Weights drawn from the state that a rank happens to have."""

    def build(*given: Any, **more: Any) -> Any:
        *others, seed = given
        return real(
            *others, seed + Ranks.from_environment().rank + torch.distributed.get_rank(), **more
        )

    return build


def own_order(real: Any) -> Any:
    return lambda rows, size, seed, parts: real(
        rows, size, seed + torch.distributed.get_rank(), parts
    )


def everybodys_rows(real: Any) -> Any:
    return lambda rows, _rank, _world, size: real(rows, 0, 1, size)[:1]


def empty_file(real: Any) -> Any:
    """The handle that is read is one that nothing was written through."""

    def pack(source: Any, target: Path, *given: Any, **more: Any) -> Any:
        packed = real(source, target, *given, **more)
        target.write_bytes(b"")
        return packed

    return pack


def nothing_left(_: Any) -> Any:
    """The rows are fewer than a batch of training, and the last one that is not full is dropped."""
    return lambda _engine, _rows, chunk, _ranks: np.zeros((len(chunk), 3))


def next_to_the_old(real: Any) -> Any:
    """The folder is written into, and what an earlier export has left stays there."""

    def put(fill: Any, folder: Path) -> Path:
        made: Path = real(fill, folder)
        shutil.copy(made / "model.safetensors", made / "model-old.safetensors")
        return made

    return put


def without_the_tower(real: Any) -> Any:
    return lambda model, state, *more: real(
        model, {name: tensor for name, tensor in state.items() if ".visual." not in name}, *more
    )


def one_is_lost(real: Any) -> Any:
    def export(model: Any, state: Any, *more: Any) -> Any:
        name = next(name for name in state if name.endswith("mlp.down_proj.weight"))
        broken = state[name].clone()
        broken[0, 0] = float("nan")
        return real(model, {**state, name: broken}, *more)

    return export


DEFECTS = (
    Defect(
        "row-replaced",
        "ms-swift#10162",
        "A row that cannot be used is silently replaced by another one.",
        "ledger-mismatch",
        RUN,
        "vtool.data.loader:EncodedRows.sample",
        another_row,
    ),
    Defect(
        "last-batch-dropped",
        "PromptSRC#22",
        "The rows that do not fill a batch are never trained on.",
        "ledger-mismatch",
        RUN,
        "vtool.data.plan:Plan.steps_per_epoch",
        whole_batches,
    ),
    Defect(
        "first-batch-again",
        "face.evoLVe#39",
        "Each step has the same rows: the loss goes to 0, and the rest of the data is never seen.",
        "ledger-mismatch",
        RUN,
        "vtool.data.plan:Plan.step",
        first_batch_again,
    ),
    Defect(
        "drawn-with-replacement",
        "datasets#7786",
        "The rows of a mixture are drawn anew each time: some come twice, others never.",
        "ledger-mismatch",
        MIXED,
        "vtool.data.plan:permute",
        draws,
    ),
    Defect(
        "epoch-skipped",
        "verl#7401",
        "A resumed run begins behind the end of the epoch that it was in.",
        "ledger-mismatch",
        RESUMED,
        "vtool.training.session:open_checkpoint",
        at_the_epochs_end,
    ),
    Defect(
        "checkpoint-torn",
        "pytorch-lightning#688",
        "A checkpoint has lost its end, has the name of a whole one, and is loaded.",
        "corrupt-checkpoint",
        STOPPED,
        "vtool.training.checkpoint:flush",
        loses_bytes,
    ),
    Defect(
        "validation-of-nothing",
        "verl#7464",
        "Validation drops the batch that is not full, which is all of it: its loss is NaN.",
        "nonfinite-loss",
        VALIDATED,
        "vtool.evaluation.evaluate:_scores",
        nothing_left,
    ),
    Defect(
        "trace-empty",
        "pytorch#167601",
        "The profiler's trace is an empty file, and nothing says so.",
        "profile-missing",
        PROFILED,
        "vtool.profiling.tools:write_trace",
        empty_file,
    ),
    Defect(
        "models-differ",
        "torchtitan#166",
        "Each rank draws weights of its own, and nothing brings them together.",
        "ranks-differ",
        TWO,
        "vtool.training.model_and_engine:build_model",
        of_its_own,
    ),
    Defect(
        "orders-differ",
        "LongLive#71",
        "Each rank shuffles with a seed of its own: some rows come twice, others never.",
        "setting-not-arrived",
        TWO,
        "vtool.training.session:Plan",
        own_order,
        mentions="run.seed",
    ),
    Defect(
        "ranks-alike",
        "icefall#1616",
        "All ranks are given the same rows: more ranks train on no more data.",
        "ledger-mismatch",
        TWO,
        "vtool.data.loader:rank_micro_batches",
        everybodys_rows,
    ),
    Defect(
        "old-weights-left",
        "vllm#54230",
        "A file of an earlier export lies next to the new weights, and is loaded over them.",
        "duplicate-tensor",
        EXPORTED,
        "vtool.export.huggingface:_put",
        next_to_the_old,
    ),
    Defect(
        "weight-not-a-number",
        "vmlx-swift#217",
        "A weight is NaN in the file that is served.",
        "nonfinite-value",
        EXPORTED,
        "vtool.training.finish:write_export",
        one_is_lost,
    ),
    Defect(
        "tower-not-exported",
        "ms-swift#9187",
        "The trained tower is left out of what is exported.",
        "model-does-not-load",
        EXPORTED,
        "vtool.training.finish:write_export",
        without_the_tower,
    ),
)
