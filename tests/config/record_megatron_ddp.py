"""Writes down which fields `DistributedDataParallelConfig` has in each release of megatron-core.
Nothing of it is imported or run.

python -m tests.config.record_megatron_ddp > vtool/config/megatron_ddp_fields.json

Fetches the wheel of each release that pip lists, 30 in all of about 2 MiB, for whichever Python it
was built.
"""

import json
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from packaging.version import Version

from vtool.config.megatron_versions import DDP_CONFIG_FILE, fields_in

PYTHONS = ("3.13", "3.12", "3.11", "3.10", "3.9")


def pip(*arguments: str) -> str:
    command = [sys.executable, "-m", "pip", *arguments, "--disable-pip-version-check"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def releases() -> list[str]:
    """Return the releases that some Python can install, the oldest first."""
    found: set[str] = set()
    for python in PYTHONS:
        listed = re.search(
            r"Available versions: (.*)",
            pip("index", "versions", "megatron-core", "--python-version", python),
        )
        found |= set(listed[1].split(", ")) if listed else set()
    return sorted(found, key=Version)


def fields_of(release: str) -> list[str] | None:
    """The fields in one release; None where it has no such class, or no wheel."""
    with tempfile.TemporaryDirectory() as folder:
        for python in PYTHONS:
            pip(
                "download",
                f"megatron-core=={release}",
                "--no-deps",
                "--only-binary=:all:",
                "--python-version",
                python,
                "--dest",
                folder,
            )
            if wheel := next(Path(folder).glob("*.whl"), None):
                with zipfile.ZipFile(wheel) as opened:
                    return (
                        list(fields_in(opened.read(DDP_CONFIG_FILE)))
                        if DDP_CONFIG_FILE in opened.namelist()
                        else None
                    )
    print(f"{release} has no wheel", file=sys.stderr)
    return None


def table() -> dict[str, object]:
    """The releases that were read, and of each field the first and the last of them that has it."""
    by_release = {
        release: fields for release in releases() if (fields := fields_of(release)) is not None
    }
    names = dict.fromkeys(name for fields in by_release.values() for name in fields)
    found = {}
    for name in sorted(names):
        having = [number for number, fields in enumerate(by_release.values()) if name in fields]
        assert having == list(range(having[0], having[-1] + 1)), (
            f"{name} came, went and came back: two versions do not suffice"
        )
        found[name] = [list(by_release)[having[0]], list(by_release)[having[-1]]]
    return {"releases": list(by_release), "fields": found}


if __name__ == "__main__":
    print(json.dumps(table(), indent=1))
