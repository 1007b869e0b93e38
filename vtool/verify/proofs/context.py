"""What proofs stand on:

the recipe's model at its tiny size, on the CPU in float32, and the first rows of its data.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vtool.config import schema
from vtool.config.origins import Origins
from vtool.config.rules.engine import packing_not_built
from vtool.config.schema import Run
from vtool.data.audit import Ledger, RowAudit
from vtool.data.collate import Batch
from vtool.data.encode import Sample
from vtool.data.loader import EncodedRows, MicroBatch
from vtool.data.row import Row
from vtool.data.sources import Rows
from vtool.engines.ranks import Ranks
from vtool.families import FAMILIES
from vtool.families.family import Family, load_family
from vtool.models.build import build_model, model_config
from vtool.models.processor import Processor, new_processor
from vtool.training.model_and_engine import prepare_model
from vtool.training.run_folder import RunFolder
from vtool.training.session import Progress, Session
from vtool.verify.live_rank import keep_flags
from vtool.verify.proofs.select_rows import FRAMES, LOOKED_AT, InMemoryRows, read, select_rows
from vtool.verify.proofs.vocabulary import Vocabulary, vocabulary
from vtool.verify.proved import PROCESSES
from vtool.verify.shrink_run import shrink_run

FEWEST, MOST = 4, 32  # tokens of an image
RATE = 1e-3  # a step that is seen in float32
FACTOR = 10.0  # between it and that of a part
EPS, CLIP = 1e-8, 1.0  # the largest, and the smallest
ONE_ROW = "of the rows looked at, one alone can be used"
_SEED = 5


@dataclass(frozen=True, slots=True)
class ProofContext:
    """A small run, that opens as often as proofs need a fresh one."""

    run: Run
    family: Family
    processor: Processor
    """In the ids of `vocabulary`."""
    rows: tuple[Row, ...]
    """The first usable rows of data.train, two of them as one chat, and one without its image."""
    samples: tuple[Sample, ...]
    """In the ids of `vocabulary`."""
    vocabulary: Vocabulary
    encoded: tuple[Processor, tuple[Sample, ...]] = field(repr=False)
    """Processor and samples as the run has them."""
    bare: nn.Module
    """The model as it is built, before anything is frozen or put into it.

    Never computed with: `model` gives copies.
    """
    folder: Path
    asked_batch: int
    """The recipe's data.global_batch_size."""
    packs_not: str
    """Why rows of this family cannot be packed; empty where they can."""
    changes: tuple[str, ...]
    """What is smaller than in the recipe, in words."""

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of each row."""
        return tuple(len(sample.input_ids) for sample in self.samples)

    @property
    def packs(self) -> bool:
        """Whether rows of this family can be packed."""
        return not self.packs_not

    @property
    def packing(self) -> dict[str, Any]:
        """The settings `data` that pack all rows into one."""
        return {"packing": "token_budget", "micro_batch_tokens": sum(self.lengths)}

    @property
    def supervised(self) -> int:
        """N, of all rows together."""
        return sum(sample.supervised for sample in self.samples)

    def as_encoded(self) -> "ProofContext":
        """The same, with processor and samples in the tokenizer's own ids.

        No model here can read them.
        """
        processor, samples = self.encoded
        return replace(self, processor=processor, samples=samples)

    def model(self, run: Run | None = None) -> nn.Module:
        """The model that is trained: frozen parts, adapters that are not 0."""
        model = prepare_model(run or self.run, copy.deepcopy(self.bare))
        random = torch.Generator().manual_seed(_SEED)
        for name, parameter in model.named_parameters():
            if ".lora_B." in name:  # of new adapters B is 0, and A has no gradient
                torch.nn.init.normal_(parameter, std=0.02, generator=random)
        return model

    def open(
        self,
        ranks: Ranks | None = None,
        *,
        own_engine: bool = False,
        run: Run | None = None,
        **data: Any,
    ) -> tuple[Session, Progress]:
        """A run that is about to take its first step.

        Args:
            own_engine: the recipe's engine, which several ranks need; else the bare model.
            data: settings `data`, in the place of those here.
        """
        base = run or self.run
        made = base.model_copy(update={"data": base.data.model_copy(update=data)})
        if not own_engine:
            made = made.model_copy(update={"engine": schema.Ddp(kind="ddp")})
        rows = EncodedRows(
            Rows((), [InMemoryRows(self.rows)]),
            self.processor,
            made.data,
            dict(enumerate(self.samples)),
        )
        ledger = Ledger.of(RowAudit.of(*numbered) for numbered in enumerate(self.samples))
        session = Session.open(
            made,
            {"train": rows},
            self.model(made),
            ranks or Ranks(),
            ledgers={"train": ledger},
            folder=RunFolder(self.folder),
            total_steps=4,
        )
        return session, Progress.of(len(self.rows))

    def batch(self, session: Session, rows: Sequence[int], *, packed: bool = False) -> Batch:
        """One micro-batch of these rows, as the run makes it."""
        return session.rows["train"][MicroBatch(tuple(rows), packed=packed)]

    def with_images(self) -> list[int]:
        """Rows that have one."""
        seen = not {"pixel_values", "image_grid_thw"} & set(self.run.data.drop_model_inputs)
        return [place for place, sample in enumerate(self.samples) if sample.images and seen]

    def without_images(self) -> list[int]:
        """Rows that have none."""
        return [place for place in range(len(self.samples)) if place not in self.with_images()]


def build_proof_context(asked: Run, folder: Path, *, full_size: bool = False) -> ProofContext:
    """Find rows and build the model. Nothing is written outside `folder`.

    Args:
        full_size: the recipe's own model, with the weights that it begins with.

    Raises:
        Findings: of the model's folder, of rows that cannot be read at all, or `no-rows`.
        NotProvable: where the recipe is fine, and no row of it can be computed with here.
    """
    run, changes = _smaller(asked, full_size=full_size)
    rows = Rows(asked.data.train)
    first = [read(rows, index) for index in range(min(len(rows), LOOKED_AT))]
    known = load_family(run.model.family)
    processor = new_processor(
        asked.model,
        run.data.image,
        [text for row in first if row for text in row.texts()],
        run.data.video,
    )
    picked, samples, said = select_rows(rows, processor, run, asked)
    changes += said
    run = run.model_copy(
        update={
            "data": run.data.model_copy(
                update={"global_batch_size": PROCESSES * len(picked), "workers": 0}
            )
        }
    )
    words = vocabulary(processor, samples, whole=full_size)
    if (whole := len(processor.tokenizer)) != len(words):
        changes += (f"a vocabulary of {whole} tokens → the {len(words)} that these rows use",)
    encoded = (processor, samples)
    processor, samples = (
        words.processor(processor),
        tuple(words.sample(sample) for sample in samples),
    )
    config = model_config(run.model, processor, len(words))
    if asked.model.path is not None and not full_size:
        keep_flags(config, asked.model)
    config.save_pretrained(folder)
    bare = build_model(run.model, processor, folder, run.run.seed)
    changes += _without_dropout(bare)
    packs_not = _packs_not(run, sum(len(sample.input_ids) for sample in samples))
    # the recipe's own rows are short enough, and these are not
    if packs_not and run.data.packing != "none":
        changes += (
            (
                "data.packing token_budget → none: the rows here, packed, are longer than the"
                " model's window"
            ),
        )
        run = run.model_copy(
            update={
                "data": run.data.model_copy(update={"packing": "none", "micro_batch_tokens": None})
            }
        )
    return ProofContext(
        run,
        known,
        processor,
        picked,
        samples,
        words,
        encoded,
        bare,
        folder,
        asked.data.global_batch_size,
        packs_not,
        changes,
    )


def _without_dropout(model: nn.Module) -> tuple[str, ...]:
    """Turns off what draws at random:

    another draw is another number, however it is computed. What that was, in words.
    """
    drawn = set()
    for module in model.modules():
        # transformers' attention has a rate of its own, and hands it to the function that computes.
        for name in (
            ("p",)
            if isinstance(module, nn.modules.dropout._DropoutNd)
            else ("attention_dropout", "dropout")
        ):
            rate = getattr(module, name, 0)
            if isinstance(rate, float) and rate:
                drawn.add(
                    f"{'dropout' if name == 'p' else name} {rate:g} of the model → 0, as"
                    " lora.dropout is: each draw is another number"
                )
                setattr(module, name, 0.0)
    return tuple(sorted(drawn))


def _packs_not(run: Run, tokens: int) -> str:
    """Args: tokens: of all rows, which proofs pack into one."""
    data = run.data.model_copy(update={"packing": "token_budget", "micro_batch_tokens": tokens})
    packed = run.model_copy(update={"data": data, "engine": schema.Ddp(kind="ddp")})
    return next((finding.message for finding in packing_not_built.check(packed, Origins({}))), "")


def _smaller(asked: Run, *, full_size: bool) -> tuple[Run, tuple[str, ...]]:
    small = shrink_run(asked)
    run, changes = small.run, list(small.changes)
    if full_size:
        run = run.model_copy(update={"model": asked.model, "lora": asked.lora})
        changes = [change for change in changes if change.startswith(("launch.", "engine."))]
    if asked.model.dtype != "float32":
        changes.append(
            f"model.dtype {asked.model.dtype} → float32, in which a wrong number is told from a"
            " rounded one"
        )
        run = run.model_copy(update={"model": run.model.model_copy(update={"dtype": "float32"})})
    bounds = _bounds(run)
    for name in ("min_pixels", "max_pixels"):
        if (before := getattr(run.data.image, name)) != (after := getattr(bounds, name)):
            changes.append(f"data.image.{name} {before or 'of the model'} → {after}")
    clips = _video_bounds(run)
    for name in ("min_pixels", "max_pixels", "max_frames"):
        if (before := getattr(run.data.video, name)) != (after := getattr(clips, name)):
            changes.append(f"data.video.{name} {before or 'of the model'} → {after}")
    run = run.model_copy(
        update={"data": run.data.model_copy(update={"image": bounds, "video": clips})}
    )
    if run.lora is not None and run.lora.dropout:
        changes.append(
            f"lora.dropout {run.lora.dropout} → 0: what is drawn at random is another with each"
            " number of micro-batches"
        )
        run = run.model_copy(update={"lora": run.lora.model_copy(update={"dropout": 0.0})})
    optim = _seen_in_a_step(run.optim, changes)
    train = run.train.model_copy(update={"steps": 4, "epochs": None})
    return run.model_copy(update={"optim": optim, "train": train}), tuple(changes)


def _seen_in_a_step(asked: schema.Optim, changes: list[str]) -> schema.Optim:
    """Rates that float32 shows in each parameter that is updated. AdamW's first step is lr · g /
    (|g| + eps), which is lr where |g| is far above eps. So those of parts are within a factor of 10
    of the others', and neither eps nor clipping makes steps small.
    """
    groups = {}
    for name in ("vision", "projector", "language"):
        part: schema.Part = getattr(asked.groups, name)
        if part.lr is not None:
            factor = part.lr / asked.lr
            seen = min(max(factor, 1 / FACTOR), FACTOR)
            if seen != factor:
                changes.append(
                    f"optim.groups.{name}.lr {factor:g} → {seen:g} of optim.lr, which one step"
                    " shows"
                )
            groups[name] = part.model_copy(update={"lr": RATE * seen})
    update: dict[str, Any] = {
        "lr": RATE,
        "warmup_steps": 0,
        "schedule": "constant",
        "groups": asked.groups.model_copy(update=groups),
    }
    if asked.eps > EPS:
        changes.append(f"optim.eps {asked.eps:g} → {EPS:g}, beside which one step is seen")
        update["eps"] = EPS
    if asked.clip_norm is not None and asked.clip_norm < CLIP:
        changes.append(f"optim.clip_norm {asked.clip_norm:g} → {CLIP:g}, at which one step is seen")
        update["clip_norm"] = CLIP
    return asked.model_copy(update=update)


def _bounds(run: Run) -> schema.Image:
    """Images of four tokens at least, so that their positions are not those of text, and of not too
    many.
    """
    token, asked = FAMILIES[run.model.family].patches.pixels_per_token, run.data.image
    least = min(max(asked.min_pixels or 0, FEWEST * token), MOST * token)
    return asked.model_copy(
        update={
            "min_pixels": least,
            "max_pixels": max(least, min(asked.max_pixels or MOST * token, MOST * token)),
        }
    )


def _video_bounds(run: Run) -> schema.Video:
    """The same of videos: of each frame, or of all together; and of few frames."""
    facts = FAMILIES[run.model.family]
    frames = facts.patches.temporal_patch_size if facts.video.bounds_are_total else 1
    image = _bounds(
        run.model_copy(update={"data": run.data.model_copy(update={"image": schema.Image()})})
    )
    assert image.min_pixels is not None
    assert image.max_pixels is not None
    low, high = image.min_pixels * frames, image.max_pixels * frames
    least = min(max(run.data.video.min_pixels or 0, low), high)
    most = max(least, min(run.data.video.max_pixels or high, high))
    frames = min(run.data.video.max_frames or FRAMES, FRAMES)
    return run.data.video.model_copy(
        update={"min_pixels": least, "max_pixels": most, "max_frames": frames}
    )
