"""The most that a recipe may be: far above any real one.

What is larger is a finding, and is found before work is spent on it, in anybody's recipe: some of
it would end the process. What references lead to is not known before: the kernel limits that.
"""

MOST_BYTES = 500_000
"""Bytes of one file."""
MOST_VALUES = 4_000
"""Values and keys of one file, those of an alias each time. The largest shipped recipe has 100."""
DEEPEST = 30
"""Groups and lists inside each other; the settings are 5 deep."""
MOST_DIGITS = 100
"""Characters of an integer."""
MOST_FILES = 64
"""Entries of all defaults lists of a recipe."""
MOST_REFERENCES_IN_DEFAULTS = 16
"""References in all defaults lists of a recipe. Two in each of thirty entries make 2³⁰."""
LONGEST_REFERENCE = 2_000
"""Characters of a text with a reference."""
MOST_REFERENCE_TEXT = 40_000
"""Characters of all texts with references in one file."""
FEW_REFERENCES = 12
"""References that are followed at once: they can make no more than 81 of one."""
SECONDS = 5.0
"""Processor time in which a stranger's recipe is composed, and many references are followed."""
MOST_ANSWER = 4_000_000
"""Bytes of a recipe that such a process has composed."""
LONGEST_OVERRIDE = 20_000
"""Characters of one KEY=VALUE."""
MOST_FINDINGS = 100
"""Findings of the schema that are reported one by one."""
