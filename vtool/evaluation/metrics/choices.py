"""Accuracy over a set of choices: which of them an answer names, or that it names none."""

from collections import Counter
from collections.abc import Sequence

from vtool.evaluation.metrics.metric import Metric

ACCURACY = "accuracy"
_MOST = 26
"""The most distinct references that are taken for choices where --choices does not name them."""
_ROWS_EACH = 3
"""The rows that each of them must have, on average."""
_LONGEST = 40
_AROUND = " \t\n.:;,!()[]\"'`*"


def normal(text: str) -> str:
    """Return a choice's text as choices are compared: no case, no punctuation around it."""
    return text.strip(_AROUND).casefold()


def choice_of(answer: str, choices: Sequence[str]) -> str | None:
    """Return the choice that an answer is; None where it is none of them.

    A choice as it is written comes before one that is the same but for case and punctuation.
    """
    stripped = answer.strip()
    if stripped in choices:
        return stripped
    return next((choice for choice in choices if normal(choice) == normal(answer)), None)


def accuracy(choices: Sequence[str]) -> Metric:
    """Return the metric of these choices."""

    def score(answer: str, reference: str) -> float:
        chosen = choice_of(answer, choices)
        return float(chosen is not None and chosen == choice_of(reference, choices))

    def refuses(reference: str) -> bool:
        return choice_of(reference, choices) is None

    return Metric(
        ACCURACY,
        f"the answer is the reference's choice of {len(choices)}",
        score,
        proportion=True,
        refuses=refuses,
    )


def found_in(references: Sequence[str]) -> tuple[str, ...]:
    """Return the choices that references are surely of; none where that is not certain.

    They are few, short, and each comes several times on average.
    """
    counted = Counter(reference.strip() for reference in references)
    few = 2 <= len(counted) <= _MOST and len(references) >= _ROWS_EACH * len(counted)
    short = all(0 < len(choice) <= _LONGEST and "\n" not in choice for choice in counted)
    apart = len({normal(choice) for choice in counted}) == len(counted)
    return tuple(sorted(counted)) if few and short and apart else ()
