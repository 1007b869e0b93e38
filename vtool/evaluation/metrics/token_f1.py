"""The F1 of tokens: words that answer and reference share."""

import re
import string
from collections import Counter

from vtool.evaluation.metrics.metric import Metric

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def _words(text: str) -> list[str]:
    return _ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split()


def score(answer: str, reference: str) -> float:
    """Return the harmonic mean of precision and recall of words, as SQuAD 1.1 has it.

    Rajpurkar et al. 2016, arXiv 1606.05250: lower case, no punctuation and no English articles.
    Two texts without words are equal; one without has nothing in common with the other.
    """
    given, wanted = _words(answer), _words(reference)
    if not given or not wanted:
        return float(given == wanted)
    shared = sum((Counter(given) & Counter(wanted)).values())
    return 2 * shared / (len(given) + len(wanted))


METRIC = Metric("f1", "words shared with the reference, F1", score)
