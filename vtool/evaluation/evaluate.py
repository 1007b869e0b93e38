"""The evaluation of a split: NLL (Σ over tokens / Σ tokens) and exact match of greedy answers.

Both also of each source; and the tokens that are the likeliest ones behind those before them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vtool.config.schema import Evaluation
from vtool.data.collate import collate_prompts
from vtool.data.loader import EncodedRows, MicroBatch
from vtool.data.loss import scores_by_row
from vtool.diagnostics import Diagnostic
from vtool.diagnostics.progress import tick
from vtool.engines.contract import Engine
from vtool.engines.ranks import Ranks
from vtool.evaluation.metrics import exact
from vtool.models.generate import answer_greedily


@dataclass(frozen=True, slots=True)
class RowAnswer:
    """The model's greedy answer to one row's last turn."""

    index: int
    reference: str
    answer: str

    @property
    def correct(self) -> bool:
        """True if the answer is exactly the reference, but for spaces around it."""
        return exact.score(self.answer, self.reference) == 1


@dataclass(frozen=True, slots=True)
class SourceScores:
    """The scores of one source."""

    nll: float
    token_accuracy: float
    exact_match: float
    samples: int


@dataclass(frozen=True, slots=True)
class Scores:
    """A split's scores, over all ranks."""

    nll: float
    """Nats per supervised token."""
    exact_match: float
    samples: int
    answers: tuple[RowAnswer, ...]
    token_accuracy: float = math.nan
    """The part of the supervised tokens that the model finds the likeliest."""
    by_source: Mapping[str, SourceScores] = field(default_factory=dict)
    """The scores of each source with rows, by its name; none where there is one source."""

    def as_metrics(self, split: str) -> dict[str, float]:
        """Return the scores as numbers by their names in metrics.jsonl."""
        metrics: dict[str, float] = {
            f"{split}_nll": self.nll,
            f"{split}_token_accuracy": self.token_accuracy,
            f"{split}_exact_match": self.exact_match,
            f"{split}_samples": self.samples,
        }
        for name, scores in self.by_source.items():
            metrics |= {f"{split}_{key}/{name}": each for key, each in asdict(scores).items()}
        return metrics

    def findings(self, split: str) -> list[Diagnostic]:
        """Return the problems of these scores; none of them ends a run."""
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


def evaluate_rows(
    engine: Engine, rows: EncodedRows, kept: Sequence[int], settings: Evaluation
) -> Scores:
    """Score the kept rows of a split, each rank its share."""
    ranks = engine.data
    own = kept[ranks.rank :: ranks.world]
    prompts = chunks(own, asked_at_once(engine.module, rows, settings.batch_size))
    with engine.evaluating(), torch.no_grad():
        answers: list[RowAnswer] = []
        for chunk in prompts:
            answers += _answers(engine, rows, chunk, settings, ranks)
            tick(len(answers), len(own), "rows")
        sums = score_tokens(engine, rows, kept, settings.batch_size)
    answers_of_all = sorted(
        (answer for share in ranks.all_gather_objects(answers) for answer in share),
        key=lambda answer: answer.index,
    )
    assert len(answers_of_all) == len(kept), "each row is answered once"
    right = np.array([answer.correct for answer in answers_of_all])
    of = rows.rows.sources_of(np.array([answer.index for answer in answers_of_all], np.int64))
    nll, accuracy = _means(sums.sum(0))
    by_source = {}
    for number, name in enumerate(rows.rows.names if len(rows.rows.names) > 1 else ()):
        own = right[of == number]
        if len(own):
            by_source[name] = SourceScores(*_means(sums[number]), float(own.mean()), len(own))
    return Scores(nll, float(right.mean()), len(right), tuple(answers_of_all), accuracy, by_source)


def asked_at_once(model: Any, rows: EncodedRows, batch_size: int) -> int:
    """Return the rows that can be asked in one batch.

    Padding is on the left of a prompt, and without a mask, or with one that is not looked at, the
    model would read it.
    """
    masked = "attention_mask" not in rows.settings.drop_model_inputs and getattr(
        model, "heeds_masks", True
    )
    return batch_size if masked else 1


def mean_nll(engine: Engine, rows: EncodedRows, kept: Sequence[int], batch_size: int) -> float:
    """Compute the NLL per supervised token of these rows, in nats, each rank its share.

    The engine is evaluating, and nothing has a gradient.
    """
    nll, _ = _means(score_tokens(engine, rows, kept, batch_size).sum(0))
    return nll


def score_tokens(
    engine: Engine, rows: EncodedRows, kept: Sequence[int], batch_size: int
) -> NDArray[np.float64]:
    """Return, of each source, ΣNLL, its supervised tokens and those that are found: [sources, 3].

    The engine is evaluating, and nothing has a gradient.
    """
    ranks = engine.data
    own = kept[ranks.rank :: ranks.world]
    sums = np.zeros((max(1, len(rows.rows.readers)), 3))
    for chunk in chunks(own, batch_size):
        of = rows.rows.sources_of(np.array(chunk, np.int64))
        np.add.at(sums, of, _scores(engine, rows, chunk, ranks))
    gathered = ranks.all_gather(sums.flatten().tolist())
    total: NDArray[np.float64] = np.array(gathered).sum(0).reshape(sums.shape)
    return total


def _means(sums: NDArray[Any]) -> tuple[float, float]:
    """Return NLL and accuracy a token."""
    nll, tokens, right = sums.tolist()
    return (nll / tokens, right / tokens) if tokens else (math.nan, math.nan)


def chunks(rows: Sequence[int], size: int) -> list[tuple[int, ...]]:
    """Return rows in groups of that many, the last one perhaps smaller."""
    return [tuple(rows[start : start + size]) for start in range(0, len(rows), size)]


def _scores(
    engine: Engine, rows: EncodedRows, chunk: tuple[int, ...], ranks: Ranks
) -> NDArray[np.float64]:
    """Return ΣNLL, supervised tokens and those that are found of each row: [rows, 3]."""
    batch = rows[MicroBatch(chunk)].to(ranks.device)
    with engine.autocast():
        scores = scores_by_row(engine.module, batch)
    # float64 is on the CPU: not every device has it
    return torch.stack([each.cpu().double() for each in scores], dim=1).numpy()


def _answers(
    engine: Engine, rows: EncodedRows, chunk: tuple[int, ...], settings: Evaluation, ranks: Ranks
) -> list[RowAnswer]:
    processor = rows.processor
    prompts = [rows.prompt(index) for index in chunk]
    collated = collate_prompts(prompts, processor, rows.settings.drop_model_inputs)
    inputs = {name: tensor.to(ranks.device) for name, tensor in collated.items()}
    with engine.autocast():
        texts = answer_greedily(engine.module, processor, inputs, settings.generate.max_new_tokens)
    return [
        RowAnswer(prompt.index, prompt.reference, text)
        for prompt, text in zip(prompts, texts, strict=True)
    ]
