"""BLEU, by sacrebleu."""

from collections.abc import Sequence

from vtool.evaluation.metrics.metric import Metric, Whole

_RESAMPLES = 1000


def score(answer: str, reference: str) -> float:
    """Return the sentence BLEU of sacrebleu, 0 to 100, with its exponential smoothing."""
    from sacrebleu.metrics.bleu import BLEU

    value: float = BLEU(effective_order=True).sentence_score(answer, [reference]).score
    return value


def whole(answers: Sequence[str], references: Sequence[str]) -> Whole:
    """Return the corpus BLEU of sacrebleu: Papineni et al. 2002; Post 2018, arXiv 1804.08771.

    Its interval is the percentile bootstrap over rows, with sacrebleu's own tokens.
    """
    import numpy as np
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU()
    value = metric.corpus_score(list(answers), [list(references)]).score
    pairs = list(zip(answers, references, strict=True))
    generator = np.random.default_rng(0)
    statistics = np.array(
        [
            [one.sys_len, one.ref_len, *one.counts, *one.totals]
            for one in (metric.corpus_score([a], [[r]]) for a, r in pairs)
        ]
    )
    resampled = []
    for _ in range(_RESAMPLES):
        sums = statistics[generator.integers(0, len(pairs), len(pairs))].sum(0).tolist()
        resampled.append(
            BLEU.compute_bleu(
                correct=sums[2:6], total=sums[6:10], sys_len=sums[0], ref_len=sums[1]
            ).score
        )
    low, high = np.quantile(resampled, (0.025, 0.975)).tolist()
    return Whole(value, low, high)


METRIC = Metric("bleu", "corpus BLEU, 0 to 100", score, whole=whole, needs=("sacrebleu", "metrics"))
