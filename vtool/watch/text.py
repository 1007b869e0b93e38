"""A few lines before the findings: what was watched."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from vtool.diagnostics.printable import printable_line
from vtool.diagnostics.result import Result
from vtool.watch.reading import UNENDED

_MOST, _REPEATS = 160, 4


def describe_results(results: Sequence[Result]) -> Iterator[str]:
    """Yield lines about each model: what it is, what was read, and what it learnt first."""
    for result in results:
        seen = result.details.get("watch")
        if not seen:
            continue
        model = seen["model"]
        ranks = f" on {seen['ranks']} ranks" if seen["ranks"] > 1 else ""
        number = f" {seen['number']}" if len(results) > 1 else ""
        passes, steps = seen["micro_batches"], seen["steps"]
        yield printable_line(
            f"watched: {model.get('class', 'a model')}{number},"
            f" {model.get('optimizer', 'an optimizer')}{ranks}: {seen['tokens']} learnt tokens read"
            f" in {passes} micro-batch{'' if passes == 1 else 'es'}"
            f" of {steps} step{'' if steps == 1 else 's'}"
        )
        if seen["damaged"]:
            yield f"  lines of the facts that are damaged, and were left out: {seen['damaged']}"
        if seen["unended"]:
            yield (
                f"  the facts of {seen['unended']} of {seen['processes']} processes have no end:"
                f" {UNENDED}"
            )
        if missing := seen.get("unlooked"):
            reason = result.details[missing[0]]["reason"]
            yield printable_line(f"  not everything was looked at: {', '.join(missing)} ({reason})")
        for row in seen["rows"][:1]:
            if text := _row(row["tokens"]):
                yield "  the first row, ⟦what is learnt⟧ between brackets:"
                yield f"    {printable_line(text)}"


def _row(tokens: Sequence[dict[str, object]]) -> str:
    """Return the text of a row, with long parts cut in the middle, and repeats counted."""
    text = ""
    for learnt, part in groupby(tokens, key=lambda token: token["weight"] is not None):
        inner = counted = ""
        for word, times in groupby(str(token["text"]) for token in part):
            count = sum(1 for _ in times)
            blank = " " if counted and word and not word[0].isspace() else ""
            counted = f"{word.rstrip(' ')} x {count}" if word.strip() and count >= _REPEATS else ""
            inner += blank + (counted or word * count)
        if len(inner) > _MOST:
            inner = f"{inner[: _MOST // 2]} … {inner[-_MOST // 2 :]}"
        text += f"⟦{inner}⟧" if learnt else inner
    text = text.replace("\n", "⏎")
    return text if len(text) <= 4 * _MOST else f"{text[: 4 * _MOST]} …"
