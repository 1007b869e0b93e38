"""docs/trainer-sweep.md, made from what a sweep has seen."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from timemachine.sweep.results import RESULTS, Trained, read_file, read_results

PAGE = Path(__file__).parents[2] / "docs/trainer-sweep.md"
BEGIN = "<!-- The tables: made by `python -m timemachine.sweep`. -->"
END = "<!-- End of the tables. -->"


def page(results: Path = RESULTS) -> str:
    """Return the text of the page, with its tables made again."""
    before, rest = PAGE.read_text("utf-8").split(BEGIN)
    _, after = rest.split(END)
    versions = read_file(results).get("versions", {})
    return f"{before}{BEGIN}\n\n{tables(read_results(results)['classes'], versions)}\n{END}{after}"


def tables(classes: Mapping[str, Trained], versions: Mapping[str, str]) -> str:
    """Return a table of each outcome."""
    groups = {
        "Trained wrongly": [name for name, one in classes.items() if one.is_wrong],
        "Trained as they should be": [
            name for name, one in classes.items() if one.state == "ran" and not one.is_wrong
        ],
        "Not run": [name for name, one in classes.items() if one.state != "ran"],
    }
    wrong, right, left = groups.values()
    lines = [
        f"transformers {versions.get('transformers', '?')}, torch {versions.get('torch', '?')}:"
        f" of {len(classes)} classes {len(wrong)} are trained wrongly, {len(right)} are not,\n"
        f"and {len(left)} could not be run."
    ]
    for title, names in groups.items():
        if names:
            lines += ["", f"### {title}", "", *_table(names, classes)]
    return "\n".join(lines) + "\n"


def _table(names: list[str], classes: Mapping[str, Trained]) -> Iterator[str]:
    if classes[names[0]].state != "ran":
        yield "| class | why |"
        yield "|---|---|"
        for name in names:
            reason = classes[name].reason.replace("|", "\\|")
            yield f"| {name} | {classes[name].state}: {reason} |"
        return
    yield "| class | gradient | vtool watch |"
    yield "|---|---|---|"
    for name in names:
        one = classes[name]
        rules = ", ".join(f"`{rule}`" for rule in one.rules)
        says = rules or ("nothing" if one.read else "not run")
        yield f"| {name} | × {one.times:.3f} | {says} |"
