"""Read every example of another trainer's repository, and count what is found, by rule.

python scripts/foreign_examples.py --from llamafactory FOLDER [--show]

FOLDER is a checkout of their examples, or of one part. A file that does not train with `--from`'s
trainer is not counted as read. An error on a file that its own authors run is a false one, unless
that file is wrong: `--show` prints each with its place. Ends with status 1 where there are errors.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

from vtool.config.load import examine_foreign
from vtool.diagnostics import Findings

ENDS = (".yaml", ".yml", ".sh", ".py", ".md")
"""Ends of recipes, and of texts that show how one is started: the first command is read."""
NOT_THEIRS = ("unknown-recipe", "recipe-of-another-trainer")
"""Rules that say that a file is no recipe of this trainer's supervised fine-tuning."""


def main(words: list[str] | None = None) -> int:
    """Count the findings of a folder, and return 1 where there is an error."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--from", dest="trainer", required=True, help="as validate-config takes it")
    parser.add_argument("--show", action="store_true", help="print each error and warning")
    parser.add_argument("folder", type=Path)
    given = parser.parse_args(words)
    files = [given.folder] if given.folder.is_file() else sorted(given.folder.rglob("*"))
    found: Counter[tuple[str, str]] = Counter()
    read = others = clean = 0
    for path in files:
        if path.suffix not in ENDS or not path.is_file():
            continue
        try:
            findings = examine_foreign(path, trainer=given.trainer, trusted=False).findings
        except Findings as refused:
            findings = refused.diagnostics
            if all(one.rule in NOT_THEIRS for one in findings):
                others += 1
                continue
        read += 1
        clean += all(one.severity == "note" for one in findings)
        found.update((one.severity, one.rule) for one in findings)
        for one in findings if given.show else ():
            if one.severity != "note":
                place = one.origin.line if one.origin else "?"
                print(f"{path}:{place}: {one.severity}[{one.rule}] {one.message}")
    for (severity, rule), count in sorted(found.items()):
        print(f"{count:6} {severity:8} {rule}")
    errors = sum(count for (severity, _), count in found.items() if severity == "error")
    print(f"{read} read ({clean} without error or warning), {others} of something else")
    print(f"{errors} errors")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
