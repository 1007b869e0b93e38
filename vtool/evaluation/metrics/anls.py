"""ANLS: how few edits turn an answer into its reference."""

from vtool.evaluation.metrics.metric import Metric

_THRESHOLD = 0.5


def edits(first: str, second: str) -> int:
    """Return the Levenshtein distance (1966) of two texts, in characters."""
    row = list(range(len(second) + 1))
    for place, character in enumerate(first, 1):
        before, row[0] = row[0], place
        for at, other in enumerate(second, 1):
            before, row[at] = (
                row[at],
                min(row[at] + 1, row[at - 1] + 1, before + (character != other)),
            )
    return row[-1]


def score(answer: str, reference: str) -> float:
    """Return 1 − the normalized Levenshtein distance, and 0 where that is 0.5 or more.

    Biten et al. 2019, arXiv 1905.13648 (ST-VQA), with one reference; case and repeated spaces do
    not count.
    """
    given, wanted = (" ".join(text.lower().split()) for text in (answer, reference))
    longest = max(len(given), len(wanted))
    distance = edits(given, wanted) / longest if longest else 0.0
    return 1 - distance if distance < _THRESHOLD else 0.0


METRIC = Metric("anls", "nearness to the reference in edits, 0 below a half", score)
