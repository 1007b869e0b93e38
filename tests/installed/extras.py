"""The extras of pyproject.toml, each asked of pip without installing anything: `make extras`.

Of wheels only the metadata is fetched. A set that cannot be installed exits with 1.
"""

import subprocess
import sys
import tomllib

from tests.installed.environments import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = tuple(name for name in PROJECT["optional-dependencies"] if name not in ("dev", "bench"))


def resolve(extra: str) -> str | None:
    """Return why pip finds no set of versions for an extra, None where it finds one."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet"]
    # torch as it is here: every other release brings CUDA along
    command += ["--disable-pip-version-check", "--use-feature=fast-deps"]
    done = subprocess.run(
        [*command, f"{ROOT}[{extra}]"], capture_output=True, text=True, check=False
    )
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    return (errors or ["ERROR: it said nothing"])[0] if done.returncode else None


def main() -> int:
    failed = 0
    for extra in EXTRAS:
        why = resolve(extra)
        failed += why is not None
        print(f"vtool[{extra}]: {why or 'can be installed'}", flush=True)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
