"""The fields of a JSON object that are those of the reference."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from vtool.evaluation.metrics.json_text import parsed
from vtool.evaluation.metrics.metric import Metric


def fields(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path and the value, as JSON, of everything in a value that holds nothing else."""
    if isinstance(value, dict) and value:
        for name, own in value.items():
            yield from fields(own, f"{path}/{str(name).replace('~', '~0').replace('/', '~1')}")
    elif isinstance(value, list) and value:
        for place, own in enumerate(value):
            yield from fields(own, f"{path}/{place}")
    else:
        # 1 and 1.0 are one number, and JSON's true is none
        number = isinstance(value, float) and value.is_integer()
        yield path, json.dumps(int(value) if number else value)


def score(answer: str, reference: str) -> float:
    """Return the fields that are equal in both, over those that either of them has.

    It is the Jaccard index (1901) of (path, value). An answer that is no JSON has no field.
    """
    given, wanted = parsed(answer), parsed(reference)
    if not isinstance(given, dict | list):
        return 0.0
    found, asked = set(fields(given)), set(fields(wanted))
    return len(found & asked) / len({path for path, _ in found | asked})


def _fits(references: Sequence[str]) -> bool:
    return all(isinstance(parsed(reference), dict) for reference in references)


def _refuses(reference: str) -> bool:
    return not isinstance(parsed(reference), dict | list)


METRIC = Metric("json", "fields equal to the reference's", score, fits=_fits, refuses=_refuses)
