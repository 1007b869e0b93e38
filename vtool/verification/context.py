"""The small run that proofs are made on.

It has the recipe's model at its tiny size, on the CPU in float32, and the first rows of its data.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vtool.config import schema
from vtool.config.origins import Origins
from vtool.config.rules.engine import packing_not_built
from vtool.config.schema import Run
from vtool.data.audit import Ledger
from vtool.data.collate import Batch
from vtool.data.encode import Prompt, Sample
from vtool.data.loader import EncodedRows, MicroBatch
from vtool.data.row import Row
from vtool.data.row_audits import RowAudit, RowAudits
from vtool.data.sources import Rows, open_split
from vtool.data.turns import prepare_rows
from vtool.data.vocabulary import beyond_vocabulary
from vtool.diagnostics import Findings
from vtool.engines.ranks import Ranks
from vtool.families import family_facts
from vtool.families.family import Family, load_family
from vtool.models.build import build_model, model_config
from vtool.models.processor import Processor, new_processor
from vtool.processes import MOST_PROCESSES
from vtool.training.model_and_engine import prepare_model
from vtool.training.run_folder import RunFolder
from vtool.training.session import Progress, Session
from vtool.verification.begun import with_config_of_begun, with_weights_of_begun
from vtool.verification.proof_settings import choose_proof_settings, update_section
from vtool.verification.reference import Reference
from vtool.verification.select_rows import LOOKED_AT, InMemoryRows, read_row, select_rows
from vtool.verification.small_session import keep_flags
from vtool.verification.vocabulary import Vocabulary, choose_vocabulary

_SEED = 5


@dataclass(frozen=True)
class ProofContext:
    """A small run, which opens as often as proofs need a fresh one."""

    run: Run
    family: Family
    processor: Processor
    """With the ids of `vocabulary`."""
    rows: tuple[Row, ...]
    """The first usable rows of data.train, two of them as one chat, and one without its image."""
    samples: tuple[Sample, ...]
    """The rows in the ids of `vocabulary`."""
    vocabulary: Vocabulary
    encoded: tuple[Processor, tuple[Sample, ...]] = field(repr=False)
    """Processor and samples in the tokenizer's own ids."""
    bare: nn.Module
    """The model as it is built, before anything is frozen or added.

    Never computed with: `model` gives copies.
    """
    folder: Path
    asked_batch: int
    """The recipe's data.global_batch_size."""
    no_packing: str
    """The reason why rows of this family cannot be packed; empty where they can."""
    changes: tuple[str, ...]
    """Differences from the recipe, in words."""
    ranks: Ranks = field(default_factory=Ranks)
    """Several ranks compute on the recipe's engine, and one on the bare model."""

    @cached_property
    def reference(self) -> Reference:
        """Gradients and logits to compare with."""
        return Reference(self)

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of the processor."""
        return self.processor.tokenizer

    @property
    def lengths(self) -> tuple[int, ...]:
        """The number of tokens of each row."""
        return tuple(len(sample.input_ids) for sample in self.samples)

    @property
    def can_pack(self) -> bool:
        """True where rows of this family can be packed."""
        return not self.no_packing

    @property
    def packing(self) -> dict[str, Any]:
        """Settings of `data` that pack all rows into one."""
        return {"packing": "token_budget", "micro_batch_tokens": sum(self.lengths)}

    @property
    def supervised(self) -> int:
        """N, the number of supervised tokens of all rows."""
        return sum(sample.supervised for sample in self.samples)

    def as_encoded(self) -> "ProofContext":
        """Return a context with processor and samples in the tokenizer's own ids.

        The model here cannot read them.
        """
        processor, samples = self.encoded
        return replace(self, processor=processor, samples=samples)

    def model(self, run: Run | None = None) -> nn.Module:
        """Return a copy of the model that is trained: frozen parts, and adapters that are not 0."""
        model = prepare_model(run or self.run, copy.deepcopy(self.bare))
        random = torch.Generator().manual_seed(_SEED)
        for name, parameter in model.named_parameters():
            if ".lora_B." in name:  # B of a new adapter is 0, and A then has no gradient
                torch.nn.init.normal_(parameter, std=0.02, generator=random)
        return model

    def open(self, *, run: Run | None = None, **data: Any) -> tuple[Session, Progress]:
        """Open a run that is about to take its first step, on `ranks`.

        Args:
            run: in place of the context's own.
            data: settings of `data` that replace the run's.
        """
        run = update_section(run or self.run, "data", **data)
        if self.ranks.world == 1:
            run = run.model_copy(update={"engine": schema.Ddp(kind="ddp")})
        rows = EncodedRows(
            Rows((), [InMemoryRows(self.rows)]),
            self.processor,
            run.data,
            dict(enumerate(self.samples)),
            prompts={
                place: Prompt(one.index, one.input_ids, one.visuals, "")
                for place, one in enumerate(self.samples)
            },
        )
        return Session.open(
            run,
            {"train": rows},
            self.model(run),
            self.ranks,
            ledgers={
                "train": Ledger.of(
                    RowAudits.of(map(RowAudit.of, range(len(self.rows)), self.samples))
                )
            },
            folder=RunFolder(self.folder),
        ), Progress.of(len(self.rows))

    def batch(self, session: Session, rows: Sequence[int], *, packed: bool = False) -> Batch:
        """Return one micro-batch of these rows, as the run makes it."""
        return session.rows["train"][MicroBatch(tuple(rows), packed=packed)]

    def rows_with_images(self) -> list[int]:
        """Return the places of rows whose images the model is given."""
        dropped = {"pixel_values", "image_grid_thw"} & set(self.run.data.drop_model_inputs)
        return [place for place, sample in enumerate(self.samples) if sample.images and not dropped]

    def rows_without_images(self) -> list[int]:
        """Return the places of the other rows."""
        return [place for place in range(len(self.rows)) if place not in self.rows_with_images()]


def build_proof_context(
    recipe_run: Run, folder: Path, ranks: Ranks | None = None, *, full_size: bool = False
) -> ProofContext:
    """Select rows and build the model. Nothing is written outside `folder`.

    Args:
        full_size: keep the recipe's own model, with the weights that it begins with.

    Raises:
        Findings: of the model's folder, of `train.from`, of rows that cannot be read at all, or
            `no-rows`.
        NotProvable: where the recipe is fine, and no row of it can be computed with here.
    """
    begun = (with_weights_of_begun if full_size else with_config_of_begun)(recipe_run)
    if full_size:
        recipe_run = begun
    run, changes = choose_proof_settings(recipe_run, full_size=full_size)
    source = open_split(recipe_run.data, "train")
    first = [read_row(source, index) for index in range(min(len(source), LOOKED_AT))]
    texts = [text for row in first if row for text in row.texts()]
    processor = new_processor(
        recipe_run.model, run.data.image, texts, run.data.video, recipe_run.data
    )
    prepare_rows(source, processor, recipe_run.data)
    rows, samples, selection = select_rows(source, processor, run, recipe_run)
    changes += selection
    if beyond := beyond_vocabulary("data.train", processor, samples):
        raise Findings(beyond)
    run = update_section(run, "data", global_batch_size=MOST_PROCESSES * len(rows), workers=0)
    vocabulary = choose_vocabulary(
        processor, samples, whole=full_size or processor.whole is not None
    )
    if (whole := len(processor.tokenizer)) > len(vocabulary):
        changes += (f"a vocabulary of {whole} tokens → the {len(vocabulary)} that these rows use",)
    encoded = (processor, samples)
    processor = vocabulary.convert_processor(processor)
    samples = tuple(map(vocabulary.convert_sample, samples))
    config = model_config(run.model, processor, len(vocabulary))
    if begun.model.path is not None and not full_size and processor.whole is None:
        keep_flags(config, begun.model)
    config.save_pretrained(folder)
    bare = build_model(run.model, processor, folder, run.run.seed)
    changes += _turn_dropout_off(bare)
    tokens = sum(len(sample.input_ids) for sample in samples)
    no_packing = _why_not_packed(run, tokens, ranks or Ranks())
    # The recipe's own rows may be short enough where those here, packed all together, are not.
    if no_packing and run.data.packing != "none":
        changes += (
            "data.packing token_budget → none: the rows here, packed, are longer than the model's"
            " window",
        )
        run = update_section(run, "data", packing="none", micro_batch_tokens=None)
    return ProofContext(
        run=run,
        family=load_family(run.model.family),
        processor=processor,
        rows=rows,
        samples=samples,
        vocabulary=vocabulary,
        encoded=encoded,
        bare=bare,
        folder=folder,
        asked_batch=recipe_run.data.global_batch_size,
        no_packing=no_packing,
        changes=changes,
        ranks=ranks or Ranks(),
    )


def _turn_dropout_off(model: nn.Module) -> tuple[str, ...]:
    """Set every rate of dropout to 0, since each draw is another number; return the changes."""
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


def _why_not_packed(run: Run, tokens: int, ranks: Ranks) -> str:
    """Return why rows of so many tokens cannot be packed into one; nothing where they can.

    Args:
        ranks: several ones compute on the recipe's engine.
    """
    if run.data.packing == "none" and family_facts(run.model.family).is_learnt:
        return f"data.packing is none: of a {run.model.family} it is proved where it is asked for"
    packed = update_section(run, "data", packing="token_budget", micro_batch_tokens=tokens)
    if ranks.world == 1:
        packed = packed.model_copy(update={"engine": schema.Ddp(kind="ddp")})
    return next((finding.message for finding in packing_not_built.check(packed, Origins({}))), "")
