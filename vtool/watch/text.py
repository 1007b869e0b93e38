"""A few lines before the findings: what was watched."""

from collections.abc import Iterator, Sequence

from vtool.diagnostics.printable import printable_line
from vtool.diagnostics.result import Result

_MOST = 240


def describe(results: Sequence[Result]) -> Iterator[str]:
    """Yield lines about each model: what it is, what was read, and what it learnt first."""
    for result in results:
        seen = result.details.get("watch")
        if not seen:
            continue
        model = seen["model"]
        ranks = f" on {seen['ranks']} ranks" if seen["ranks"] > 1 else ""
        yield printable_line(
            f"watched: {model.get('class', 'a model')}, {model.get('optimizer', 'an optimizer')}"
            f"{ranks}: {seen['tokens']} learnt tokens read in {seen['micro_batches']} micro-batches"
            f" of {seen['steps']} steps"
        )
        if seen["damaged"]:
            yield f"  {seen['damaged']} lines of the facts are damaged, and were left out"
        for row in seen["rows"][:1]:
            if text := _row(row["tokens"]):
                yield "  the first row, ⟦what is learnt⟧ between brackets:"
                yield f"    {printable_line(text)}"


def _row(tokens: Sequence[dict[str, object]]) -> str:
    text, inside = "", False
    for token in tokens:
        learnt = token["weight"] is not None
        text += ("⟦" if learnt else "⟧") if learnt != inside else ""
        inside = learnt
        text += str(token["text"])
    text += "⟧" if inside else ""
    text = text.replace("\n", "⏎")
    return text if len(text) <= _MOST else f"{text[: _MOST // 2]} … {text[-_MOST // 2 :]}"
