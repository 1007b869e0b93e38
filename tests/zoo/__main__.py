"""Run every defect, and print whether its check catches it."""

import os
import sys


def main() -> int:
    from tests.zoo.zoo import AREAS, LOOKS, ask, ask_with, code, figures, is_caught, said

    print(f"of healthy code: {len(LOOKS)} checks", flush=True)
    alarms = [
        f"FALSE ALARM of {look}: {said(findings)}" for look in LOOKS if (findings := ask(look))
    ]
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
    # As `vtool` itself starts: before torch is imported.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    sys.exit(main())
