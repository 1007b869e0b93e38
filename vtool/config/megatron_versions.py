"""Which release of megatron-core has which field of `DistributedDataParallelConfig`: the installed
one, and all that have been.

Nothing of megatron-core is imported, not even its package, which would import torch: its one file
is read as text.
"""

import ast
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FILE = "megatron/core/distributed/distributed_data_parallel_config.py"
_CLASS = "DistributedDataParallelConfig"
_TABLE = Path(__file__).with_name("megatron_ddp_fields.json")


@dataclass(frozen=True, slots=True)
class Installed:
    """The megatron-core that a run would use."""

    version: str
    fields: frozenset[str]


@dataclass(frozen=True, slots=True)
class Releases:
    """What tests/config/record_megatron_ddp.py has written down."""

    releases: tuple[str, ...]
    """The oldest first."""
    fields: Mapping[str, tuple[str, str]]
    """Of each field, the first and the last release that has it."""

    def history(self, field: str) -> str | None:
        """Which releases have a field, in words; None of what no release has had."""
        if field not in self.fields:
            return None
        first, last = self.fields[field]
        came = f"came with megatron-core {first}"
        if last == self.releases[-1]:
            return f"{came}, and {last}, the newest that is known here, has it"
        return f"{came}, and went with {self.releases[self.releases.index(last) + 1]}"


def of_another_release(field: str) -> str | None:
    """What to say of a field that is not known:

    that other releases have it; None where none does.
    """
    if (history := releases().history(field)) is None:
        return None
    there = installed()
    return f"`{field}` {history}; {f'installed is {there.version}' if there else 'engine=megatron is built for another release'}"


@cache
def releases() -> Releases:
    """The table of all releases."""
    table = json.loads(_TABLE.read_text(encoding="utf-8"))
    return Releases(
        tuple(table["releases"]),
        {name: (first, last) for name, (first, last) in table["fields"].items()},
    )


def installed(path: Sequence[str] | None = None) -> Installed | None:
    """The installed megatron-core; None where there is none, or none whose file can be found and
    read.

    Args:
        path: the folders to look in, as `sys.path` has them.
    """
    from importlib import metadata  # 10 ms, which recipes of other engines need not wait for

    found = metadata.distributions(
        name="megatron-core", path=list(sys.path if path is None else path)
    )
    distribution = next(iter(found), None)
    if distribution is None:
        return None
    try:
        source = Path(str(distribution.locate_file(FILE))).read_bytes()
        return Installed(distribution.version, frozenset(fields_in(source)))
    except (OSError, SyntaxError, ValueError):
        return None


def fields_in(source: bytes) -> Iterator[str]:
    """The fields of the class, in their order."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and node.name == _CLASS:
            yield from (
                entry.target.id
                for entry in node.body
                if isinstance(entry, ast.AnnAssign) and isinstance(entry.target, ast.Name)
            )
