"""The reach of a finding: which of a framework's own loaders hand over tensors that do not last."""

from vtool.diagnostics.diagnostic import Severity
from vtool.loading.probe.facts import SubjectFacts


def paths_in_state(facts: SubjectFacts, state: str) -> list[str]:
    """Return the framework's own ways of loading that are `protected`, or `unprotected`."""
    return [path for path, found in facts.paths.items() if found == state]


def reach_severity(facts: SubjectFacts) -> Severity:
    """Return an error, unless every path of the framework keeps or copies its tensors."""
    unprotected = paths_in_state(facts, "unprotected")
    return "error" if unprotected or not paths_in_state(facts, "protected") else "warning"


def reach_text(facts: SubjectFacts) -> str:
    """Return the end of a message: by which paths tensors that do not stay reach the class."""
    protected = paths_in_state(facts, "protected")
    if reachable := paths_in_state(facts, "unprotected"):
        copies = f", with one by {', '.join(protected)}" if protected else ""
        return f"; reached without a copy by {', '.join(reachable)}{copies}"
    return f"; it relies on the loader's copies ({', '.join(protected)})" if protected else ""
