"""Tables of what was trained: parameters by part of the model, tokens by kind."""

from typing import Any

from vtool.report.run_files import RunFiles, number_in
from vtool.report.words import in_words, percent

_PARTS = {
    "vision": "Vision tower",
    "projector": "Projector",
    "language": "Language model",
    "head": "Head",
}
TextLine = tuple[str, tuple[str, ...]]


def component_lines(run: RunFiles) -> list[TextLine]:
    """Return each component's parameters, their share, and which are trained; none unknown."""
    found = (run.result or {}).get("parts")
    parts: dict[str, Any] = found if isinstance(found, dict) else {}
    counts = {
        name: (number_in(part, "parameters") or 0, number_in(part, "trained") or 0)
        for name, part in parts.items()
        if isinstance(part, dict)
    }
    whole = sum(count for count, _ in counts.values())
    if not whole:
        return []
    lines = [
        (
            _PARTS.get(name, str(name)),
            (in_words(count), percent(count / whole), _trained(name, count, trained)),
        )
        for name, (count, trained) in counts.items()
    ]
    trained = sum(trained for _, trained in counts.values())
    return [*lines, ("All", (in_words(whole), "", _trained("", whole, trained)))]


def _trained(name: str, count: float, trained: float) -> str:
    if not count:
        return "shares the embeddings" if name == "head" else "—"
    if trained == count:
        return "trained"
    return "frozen" if not trained else f"{in_words(trained)} trained ({percent(trained / count)})"


def token_lines(run: RunFiles) -> list[TextLine]:
    """Return how many tokens of each kind the steps had, and their share; none unknown."""
    steps = [
        (step.tokens, step.supervised_tokens, step.visual_tokens, step.padding_tokens)
        for step in run.steps
    ]
    known = [tuple(count for count in step if count is not None) for step in steps]
    if not steps or any(len(step) < 4 for step in known):
        return []  # of an older vtool, or damaged
    tokens, learnt, visual, padding = (sum(column) for column in zip(*known, strict=True))
    kinds = {
        "Text, learnt": learnt,
        "Text, read as context": tokens - visual - learnt,
        "Images and videos": visual,
        "Padding": padding,
    }
    whole = tokens + padding
    if not whole:
        return []
    lines = [(kind, (in_words(count), percent(count / whole))) for kind, count in kinds.items()]
    return [*lines, ("All", (in_words(whole), ""))]
