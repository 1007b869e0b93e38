"""The rules of a folder in which no facts can be read."""

from vtool.diagnostics import Rule

NOT_FACTS = Rule(
    name="not-a-folder-of-facts",
    code="VT991",
    summary="The folder has no facts of a watched run, or facts that this vtool cannot read.",
    why="Nothing can be concluded, and nothing is: it is no pass.",
    bad="vtool watch --read runs/",
    good="vtool watch --read watch-20260101-120000",
    fix="Name the folder that vtool watch printed.",
)
NOTHING_READ = Rule(
    name="nothing-read",
    code="VT992",
    summary="The command trained nothing that could be read, so nothing is concluded.",
    why="A watch that saw nothing would look like one that found nothing.",
    bad="vtool watch -- python -I train.py",
    good="vtool watch -- python train.py",
    fix=(
        "Read which of these it was: no Python of the command trained with torch; its environment"
        " leaves out PYTHONPATH (python -I, sudo, a container: --print-env); it ended before its"
        " first step; its model has no language head."
    ),
    severity="note",
)
