"""Rule VT424: the file of known findings."""

from vtool.diagnostics.rule import Rule

RULES = (
    Rule(
        name="unusable-baseline",
        code="VT424",
        summary="The file given as --baseline is no baseline, or cannot be written.",
        why="Taken for empty, it would make every known finding new; taken for complete, none.",
        bad="--baseline config.json",
        good="--baseline known-findings.json, which vtool wrote, or which is not there yet",
        fix=(
            "Name a file that vtool wrote, or one that is not there yet: today's findings are then"
            " recorded in it."
        ),
    ),
)
