"""The table of rules as a page: `vtool explain --all`, and docs/rules.md."""

from collections.abc import Iterator

from vtool.diagnostics.rule import Rule
from vtool.diagnostics.table import RULES

_CLASSES = {
    "0": "A recipe cannot be read",
    "1": "Settings, one by one",
    "2": "Settings that contradict each other",
    "3": "Settings that have not arrived",
    "4": "Weights that do not land",
    "5": "The machine",
    "6": "Rows",
    "7": "Numbers",
    "8": "Runs",
}
_HEAD = """# Rules

Every finding has a rule, with a name and a code that do not change. `vtool explain NAME` shows one; this page is `vtool explain --all`.
An error makes a command exit with 1, a warning or a note does not.
"""


def as_markdown() -> str:
    """All rules, by what they are about."""
    return "\n".join([_HEAD, *_sections()])


def _sections() -> Iterator[str]:
    ordered = sorted(RULES.values(), key=lambda rule: rule.code)
    for digit, title in _CLASSES.items():
        rules = [rule for rule in ordered if rule.code[2] == digit]
        if rules:
            yield f"## VT{digit}xx: {title}\n"
            yield from (_section(rule) for rule in rules)


def _section(rule: Rule) -> str:
    lines = (
        f"### {rule.code} {rule.name}",
        "",
        f"{rule.summary} {rule.why}",
        "",
        f"- severity: {rule.severity}",
        f"- bad: {_code(rule.bad)}",
        f"- good: {_code(rule.good)}",
        f"- what to do: {rule.fix}",
        "",
    )
    return "\n".join(lines)


def _code(text: str) -> str:
    fence = "``" if "`" in text else "`"
    return f"{fence} {text} {fence}" if len(fence) > 1 else f"`{text}`"
