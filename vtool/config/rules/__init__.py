"""Cross-field rules VT2xx: what no single setting is wrong about. Each is a pure function of the run."""

from collections.abc import Callable, Iterator

from vtool.config.rules import data, model, training
from vtool.config.schema import Run
from vtool.diagnostics import Diagnostic, Origin

RULES = (*training.RULES, *data.RULES, *model.RULES)


def check(run: Run, origin: Callable[[str], Origin | None]) -> Iterator[Diagnostic]:
    """Apply every rule; `origin` tells where a dotted setting comes from."""
    for rule in RULES:
        yield from rule(run, origin)
