"""Releases of megatron-core and the fields of their `DistributedDataParallelConfig`.

The installed release is read as text, from its one file: importing it would import torch.
"""

import ast
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from vtool.config.environment.machine import find_distribution

DDP_CONFIG_FILE = "megatron/core/distributed/distributed_data_parallel_config.py"
_CLASS = "DistributedDataParallelConfig"
_TABLE = Path(__file__).with_name("megatron_ddp_fields.json")


@dataclass(frozen=True, slots=True)
class InstalledMegatron:
    """The megatron-core that a run would use."""

    version: str
    fields: frozenset[str]


@dataclass(frozen=True, slots=True)
class MegatronReleases:
    """All releases, as tests/config/record_megatron_ddp.py has recorded them."""

    releases: tuple[str, ...]
    """The oldest first."""
    fields: Mapping[str, tuple[str, str]]
    """By field, the first and the last release that have it."""

    def history(self, field: str) -> str | None:
        """Return in words which releases have a field; None where none ever had it."""
        if field not in self.fields:
            return None
        first, last = self.fields[field]
        came = f"came with megatron-core {first}"
        if last == self.releases[-1]:
            return f"{came}, and {last}, the newest that is known here, has it"
        return f"{came}, and went with {self.releases[self.releases.index(last) + 1]}"


def of_another_release(field: str) -> str | None:
    """Return advice about an unknown field that another release has; None where none has it."""
    if (history := releases().history(field)) is None:
        return None
    here = (
        f"installed is {there.version}"
        if (there := installed_megatron())
        else "engine=megatron is built for another release"
    )
    return f"`{field}` {history}; {here}"


@cache
def releases() -> MegatronReleases:
    """Return the table of all releases."""
    table = json.loads(_TABLE.read_text(encoding="utf-8"))
    return MegatronReleases(
        tuple(table["releases"]),
        {name: (first, last) for name, (first, last) in table["fields"].items()},
    )


def installed_megatron(path: Sequence[str] | None = None) -> InstalledMegatron | None:
    """Return the installed megatron-core; None where there is none whose file can be read.

    Args:
        path: the folders to look in, as `sys.path` has them.
    """
    distribution = find_distribution("megatron-core", path)
    if distribution is None:
        return None
    try:
        source = Path(str(distribution.locate_file(DDP_CONFIG_FILE))).read_bytes()
        return InstalledMegatron(distribution.version, frozenset(fields_in(source)))
    except (OSError, SyntaxError, ValueError):
        return None


def fields_in(source: bytes) -> Iterator[str]:
    """Yield the fields of `DistributedDataParallelConfig` in a file's text, in their order."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and node.name == _CLASS:
            yield from (
                entry.target.id
                for entry in node.body
                if isinstance(entry, ast.AnnAssign) and isinstance(entry.target, ast.Name)
            )
