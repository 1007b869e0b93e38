"""The sources of a run's rows: what each has, what it gave to training, and how it scores."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vtool.report.run_files import RunFiles, number_in
from vtool.report.words import in_words, percent


@dataclass(frozen=True, slots=True)
class Table:
    """A table: a head, and rows of a name in two parts and values."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, str, tuple[str, ...]], ...]


def source_counts(run: RunFiles) -> Table | None:
    """Return the rows of each source, and what it gave to training; None where no split has two."""
    ledger = (run.result or {}).get("ledger")
    trained = ledger.get("sources") if isinstance(ledger, dict) else None
    samples = number_in(ledger, "samples") if isinstance(ledger, dict) else None
    rows = []
    for split, content in run.data.items():
        for source in _sources(content):
            name = str(source.get("name", "—"))
            gave = trained.get(name) if split == "train" and isinstance(trained, dict) else None
            rows.append((split, name, (*_counted(source), *_given(gave, samples))))
    several = any(len(_sources(content)) > 1 for content in run.data.values())
    head = ("Rows", "Kept", "Dropped", "Beyond limit", "Tokens")
    given = ("An epoch", "Samples", "Of all", "Distinct rows", "Tokens trained on")
    return Table((*head, *given), tuple(rows)) if several else None


def _sources(content: Any) -> list[Mapping[str, Any]]:
    found = content.get("sources") if isinstance(content, dict) else None
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _counted(source: Mapping[str, Any]) -> Iterator[str]:
    for key in ("rows", "kept", "dropped", "limited", "tokens"):
        yield in_words(number_in(source, key))


def _given(gave: Any, samples: float | None) -> tuple[str, ...]:
    """Return the cells on a source's part in training; nothing for rows that are not trained on."""
    if not isinstance(gave, dict):
        return ("",) * 5
    own = number_in(gave, "samples")
    share = own / samples if own is not None and samples else None
    return (
        _part(gave),
        in_words(own),
        percent(share),
        in_words(number_in(gave, "distinct")),
        in_words(number_in(gave, "tokens")),
    )


def _part(gave: Mapping[str, Any]) -> str:
    weight, repeat = number_in(gave, "weight"), number_in(gave, "repeat")
    if weight is not None:
        return f"weight {in_words(weight)}"
    return "each row once" if repeat is None else f"each row {in_words(repeat)} times"


def source_scores(run: RunFiles) -> Table | None:
    """Return the scores of each source, of the last evaluation and of the test; None without."""
    rows = []
    if run.evaluations:
        last = run.evaluations[-1]
        whole = (last.samples, last.nll, last.token_accuracy, last.exact_match)
        rows += _scores("validation", whole, last.sources)
    result = run.result or {}
    test = result.get("test_sources")
    keys = ("test_samples", "test_nll", "test_token_accuracy", "test_exact_match")
    rows += _scores(
        "test",
        tuple(number_in(result, key) for key in keys),
        {str(name): each for name, each in test.items() if isinstance(each, dict)}
        if isinstance(test, dict)
        else {},
    )
    head = ("Rows", "NLL", "Token accuracy", "Exact match")
    return Table(head, tuple(rows)) if rows else None


def _scores(
    split: str, whole: tuple[float | None, ...], sources: Mapping[str, Mapping[str, Any]]
) -> list[tuple[str, str, tuple[str, ...]]]:
    """Return a line for all rows of a split, and one for each source; none without sources."""
    if not sources:
        return []
    keys = ("samples", "nll", "token_accuracy", "exact_match")
    own = {name: tuple(number_in(each, key) for key in keys) for name, each in sources.items()}
    return [
        (split, name, (in_words(count), in_words(nll), percent(tokens), percent(matched)))
        for name, (count, nll, tokens, matched) in {"all": whole, **own}.items()
    ]


def source_sums(run: RunFiles) -> list[str]:
    """Return where the counts of sources do not add up to those of all rows."""
    found = []
    for split, content in run.data.items():
        for key in ("rows", "kept", "tokens"):
            parts = [number_in(each, key) for each in _sources(content)]
            whole = number_in(content, key)
            if parts and whole is not None and sum(part or 0 for part in parts) != whole:
                found.append(f"data.json: the {key} of the sources of {split} do not add up.")
    ledger = (run.result or {}).get("ledger")
    sources = ledger.get("sources") if isinstance(ledger, dict) else None
    if isinstance(ledger, dict) and isinstance(sources, dict) and sources:
        given = [
            number_in(each, "samples") or 0 for each in sources.values() if isinstance(each, dict)
        ]
        if sum(given) != number_in(ledger, "samples"):
            found.append("result.json: the samples of the sources do not add up.")
    return found
