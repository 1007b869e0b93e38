"""Environments that tests make with pip, and commands that run in them, away from the checkout."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ROOT / "constraints.txt"
LONGEST = 1800.0
"""Seconds of one command: an installation over a slow network."""


def build(folder: Path) -> tuple[Path, Path]:
    """Build the sdist and the wheel into a folder, as `make dist` does."""
    checked(sys.executable, "-m", "hatchling", "build", "-d", str(folder), cwd=ROOT)
    (sdist,), (wheel,) = folder.glob("vtool-*.tar.gz"), folder.glob("vtool-*.whl")
    return sdist, wheel


def make_environment(folder: Path, over: Path | None = None, like: str = sys.executable) -> Path:
    """Make a virtual environment, and return its interpreter.

    Args:
        folder: where it goes.
        over: an interpreter of another environment, whose packages are there too, and are not
            written to: pip takes them for installed.
        like: another Python to make it of.
    """
    checked(like if over is None else str(over), "-m", "venv", str(folder))
    python = folder / "bin/python"
    if over is not None:
        below, own = (site(each) for each in (over, python))
        # the `.pth` files that lie there are read too, which a plain line would not do
        line = f"import site; site.addsitedir({str(below)!r})\n"
        (own / "below.pth").write_text(line)
    return python


def site(python: Path) -> Path:
    """Return the folder of packages of an environment."""
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return Path(checked(str(python), "-c", ask).strip())


def pip_install(python: Path, *what: str) -> None:
    """Install into an environment what is not there already."""
    checked(str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *what)


def checked(*command: str, cwd: Path | None = None) -> str:
    """Run a command to its end, and return what it wrote; fail with its last lines."""
    done = run(*command, cwd=cwd)
    output = (done.stdout + done.stderr).splitlines()[-30:]
    assert done.returncode == 0, "\n".join([" ".join(command), *output])
    return done.stdout


def run(*command: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command, without this environment's own packages on the path."""
    own = {"PYTHONPATH", "PYTHONHOME", "PYTEST_CURRENT_TEST"}
    environment = {name: value for name, value in os.environ.items() if name not in own}
    return subprocess.run(
        command,
        cwd=cwd,
        env={**environment, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=LONGEST,
    )
