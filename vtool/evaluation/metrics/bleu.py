"""BLEU, by sacrebleu."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vtool.evaluation.metrics.metric import Metric, Whole


def score(answer: str, reference: str) -> float:
    """Return the sentence BLEU of sacrebleu, 0 to 100, with its exponential smoothing."""
    from sacrebleu.metrics.bleu import BLEU

    value: float = BLEU(effective_order=True).sentence_score(answer, [reference]).score
    return value


def _rows(answers: Sequence[str], references: Sequence[str]) -> NDArray[np.float64]:
    """Return lengths, matches and n-grams of each row, by sacrebleu's own tokens: [rows, 10]."""
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU()
    found = [
        metric.corpus_score([answer], [[reference]])
        for answer, reference in zip(answers, references, strict=True)
    ]
    return np.array(
        [[one.sys_len, one.ref_len, *one.counts, *one.totals] for one in found], np.float64
    )


def _of(sums: NDArray[np.float64]) -> float:
    """Return the corpus BLEU of sacrebleu: Papineni et al. 2002; Post 2018, arXiv 1804.08771.

    Smoothed as `sacrebleu.corpus_bleu` smooths: where no 4-gram matches, it is not 0.
    """
    from sacrebleu.metrics.bleu import BLEU

    answer, reference, *grams = (int(one) for one in sums.tolist())
    made = BLEU.compute_bleu(
        correct=grams[:4],
        total=grams[4:],
        sys_len=answer,
        ref_len=reference,
        smooth_method="exp",
    )
    value: float = made.score
    return value


def _remark(sums: NDArray[np.float64]) -> str | None:
    """Return the reason for a BLEU of 0, where no answer has four words in a row."""
    if sums[-1] > 0:
        return None
    return "no answer has four words in a row, which BLEU counts: it is 0 whatever they say"


METRIC = Metric(
    "bleu",
    "corpus BLEU, 0 to 100",
    score,
    whole=Whole(_rows, _of, _remark),
    needs=("sacrebleu", "metrics"),
)
