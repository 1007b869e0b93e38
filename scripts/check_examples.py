"""Check real recipes of another trainer, and say which ones have errors.

    python scripts/check_examples.py TRAINER FOLDER

FOLDER has the examples of its repository, at a release whose settings vtool knows. Every file that
is no recipe of the trainer's SFT is said as that, and is not counted.
"""

import sys
from collections import Counter
from pathlib import Path

from vtool.config.load import examine_foreign
from vtool.diagnostics import Findings

_ENDS = {".sh", ".yaml", ".yml"}


def check(trainer: str, folder: Path) -> int:
    """Print a line for each file, and the errors in it; return how many files have any."""
    read, failed, rules = 0, 0, Counter[str]()
    for path in sorted(one for one in folder.rglob("*") if one.suffix in _ENDS):
        name = path.relative_to(folder)
        try:
            found = examine_foreign(path, trainer=trainer).findings
        except Findings as findings:
            print(f"not read  {name}: {findings.diagnostics[0].message}")
            continue
        read += 1
        errors = [one for one in found if one.severity == "error"]
        rules.update(one.rule for one in found)
        failed += bool(errors)
        print(f"{'errors' if errors else 'clean':9} {name}")
        for one in errors:
            print(f"          {one.rule}: {one.message}")
    print(f"{read} read, {failed} with errors; {dict(rules)}")
    return failed


if __name__ == "__main__":
    raise SystemExit(1 if check(sys.argv[1], Path(sys.argv[2])) else 0)
