"""`make zoo`: every defect, and whether the check that is to catch it does. With `--page`, docs/zoo.md."""

import os
import sys

from tests.zoo.zoo import AREAS, LOOKS, ask, ask_with, code, figures, is_caught, page, said


def main() -> int:
    alarms = []
    for look in LOOKS:
        if findings := ask(look):
            alarms.append(f"false alarm of {look}: {said(findings)}")
    caught = missed = 0
    for area, defects in AREAS.items():
        print(f"\n{area}")
        for defect in defects:
            found = ask_with(defect)
            right = is_caught(defect, found)
            caught, missed = caught + right, missed + (not right)
            by = f"{defect.caught_by} {code(defect)}" if right else f"MISSED: {said(found)}"
            print(f"  {defect.name:<26} {defect.upstream:<26} {by}", flush=True)
    print("", *alarms, *figures(caught, len(alarms)), sep="\n", flush=True)
    return 1 if missed or alarms else 0


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if "--page" in sys.argv[1:]:
        print(page(), end="")
    else:
        sys.exit(main())
