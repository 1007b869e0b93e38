"""The table of rules as a page: `vtool explain --all`, and docs/rules.md."""

import textwrap
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
    "9": "Other trainers, watched",
}
_HEAD = """# Rules

Every finding has a rule, with a name and a code that do not change. `vtool explain NAME` shows one;
this page is `vtool explain --all`. An error makes a command exit with 1, a warning or a note does
not.
"""


def as_markdown() -> str:
    """Return every rule with its texts, by class and code."""
    return "\n".join([_HEAD, *_sections()])


def _sections() -> Iterator[str]:
    ordered = sorted(RULES.values(), key=lambda rule: rule.code)
    for digit, title in _CLASSES.items():
        yield f"## VT{digit}xx: {title}\n"
        yield from (_section(rule) for rule in ordered if rule.code[2] == digit)


def _section(rule: Rule) -> str:
    return f"""### {rule.code} {rule.name}

{_wrapped(f"{rule.summary} {rule.why}")}

- severity: {rule.severity}
- bad: {_code(rule.bad)}
- good: {_code(rule.good)}
{_wrapped(f"- what to do: {rule.fix}", indent="  ")}
"""


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(
        text, 100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _code(text: str) -> str:
    return f"`` {text} ``" if "`" in text else f"`{text}`"
