"""The evaluation of a split: NLL (Σ over tokens / Σ tokens) and exact match of greedy answers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from vtool.config.schema import Evaluation
from vtool.data.collate import collate_prompts
from vtool.data.loader import EncodedRows, MicroBatch
from vtool.data.loss import summed_nll
from vtool.diagnostics import Diagnostic
from vtool.engines.contract import Engine
from vtool.engines.ranks import Ranks
from vtool.models.generate import answer_greedily


@dataclass(frozen=True, slots=True)
class Answer:
    """The model's greedy answer to one row's last turn."""

    index: int
    reference: str
    answer: str

    @property
    def correct(self) -> bool:
        return self.answer.strip() == self.reference.strip()


@dataclass(frozen=True, slots=True)
class Scores:
    """A split's scores, over all ranks."""

    nll: float
    """Nats per supervised token."""
    exact_match: float
    samples: int
    answers: tuple[Answer, ...]

    def findings(self, split: str) -> list[Diagnostic]:
        """Return what is wrong with these scores; none of it ends a run."""
        if math.isfinite(self.nll):
            return []
        message = f"the NLL of data.{split}, {self.samples} rows, is {self.nll}"
        return [
            Diagnostic(
                "nonfinite-loss",
                message,
                help="look at those rows, and at what is left of them: vtool verify RECIPE",
            )
        ]


def evaluate(
    engine: Engine, rows: EncodedRows, kept: Sequence[int], settings: Evaluation
) -> Scores:
    """Score the kept rows of a split, each rank its share."""
    ranks = engine.data
    own = kept[ranks.rank :: ranks.world]
    # Padding is on the left of a prompt, and without a mask, or with one that is not looked at, the
    # model would read it.
    masked = "attention_mask" not in rows.settings.drop_model_inputs and getattr(
        engine.module, "heeds_masks", True
    )
    prompts = _chunks(own, settings.batch_size if masked else 1)
    with engine.evaluating(), torch.no_grad():
        answers = [
            answer for chunk in prompts for answer in _answers(engine, rows, chunk, settings, ranks)
        ]
        nll = mean_nll(engine, rows, kept, settings.batch_size)
    answers_of_all = sorted(
        (answer for share in ranks.all_gather_objects(answers) for answer in share),
        key=lambda answer: answer.index,
    )
    assert len(answers_of_all) == len(kept), "each row is answered once"
    correct = sum(answer.correct for answer in answers_of_all)
    return Scores(nll, correct / len(answers_of_all), len(answers_of_all), tuple(answers_of_all))


def mean_nll(engine: Engine, rows: EncodedRows, kept: Sequence[int], batch_size: int) -> float:
    """Nats per supervised token of these rows, each rank its share.

    The engine is evaluating, and nothing has a gradient.
    """
    ranks = engine.data
    own = kept[ranks.rank :: ranks.world]
    totals = [_nll(engine, rows, chunk, ranks) for chunk in _chunks(own, batch_size)]
    gathered = ranks.all_gather(
        [sum(nll for nll, _ in totals), sum(tokens for _, tokens in totals)]
    )
    nll, tokens = (sum(column) for column in zip(*gathered, strict=True))
    return nll / tokens if tokens else math.nan


def _chunks(rows: Sequence[int], size: int) -> list[tuple[int, ...]]:
    return [tuple(rows[start : start + size]) for start in range(0, len(rows), size)]


def _nll(
    engine: Engine, rows: EncodedRows, chunk: tuple[int, ...], ranks: Ranks
) -> tuple[float, int]:
    batch = rows[MicroBatch(chunk)].to(ranks.device)
    with engine.autocast():
        return summed_nll(engine.module, batch).item(), batch.supervised


def _answers(
    engine: Engine, rows: EncodedRows, chunk: tuple[int, ...], settings: Evaluation, ranks: Ranks
) -> list[Answer]:
    processor = rows.processor
    prompts = [rows.prompt(index) for index in chunk]
    collated = collate_prompts(prompts, processor, rows.settings.drop_model_inputs)
    inputs = {name: tensor.to(ranks.device) for name, tensor in collated.items()}
    with engine.autocast():
        texts = answer_greedily(engine.module, processor, inputs, settings.generate.max_new_tokens)
    return [
        Answer(prompt.index, prompt.reference, text)
        for prompt, text in zip(prompts, texts, strict=True)
    ]
