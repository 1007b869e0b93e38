"""Check that every rank has built the same model.

Each builds its own, from a folder that may be on its machine's own disk. FSDP2 and Megatron-core
keep each rank's share of each rank's own weights, so that those of two folders would be mixed
silently. DDP sends rank 0's weights to all, but not its config. Ranks that see the same files
on one machine digest them together, each its part; where all do, nothing is digested.
"""

import json
import os
import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
import xxhash
from torch import Tensor, nn

from vtool.diagnostics import Diagnostic, Findings
from vtool.engines.ranks import Ranks, SharedFindings
from vtool.model_folder import MODEL_CONFIG
from vtool.models.mapped_weights import MappedWeights

T = TypeVar("T")

# Of a config, what says where it is from, not what the model computes.
ORIGIN = ("_name_or_path", "transformers_version")


def on_every_rank(ranks: Ranks, work: Callable[[], T]) -> T:
    """Run `work` on every rank, and return each rank's own result.

    Raises:
        SharedFindings: what any rank's raised as `Findings`, on every rank: none waits for one that
            has ended.
    """
    result: list[T] = []
    own: tuple[Diagnostic, ...] = ()
    fatal = False
    try:
        result.append(work())
    except Findings as findings:
        own, fatal = tuple(findings.diagnostics), findings.fatal
        if ranks.world == 1:
            raise
    share_findings(ranks, own, fatal=fatal)
    return result[0]


def share_findings(ranks: Ranks, own: Sequence[Diagnostic], *, fatal: bool = False) -> None:
    """Raise the findings of all ranks on each of them: each once, with the ranks that have it.

    Raises:
        SharedFindings: those that there are.
    """
    found: dict[Diagnostic, list[int]] = {}
    everyone = ranks.all_gather_objects((tuple(own), fatal))
    for rank, (findings, _) in enumerate(everyone):
        for finding in findings:
            found.setdefault(finding, []).append(rank)
    if found:
        raise SharedFindings(
            [
                finding
                if len(of) == ranks.world
                else replace(finding, message=f"{name_ranks(of)}: {finding.message}")
                for finding, of in found.items()
            ],
            fatal=any(fatal for _, fatal in everyone),
        )


def check_same_model(model: nn.Module, ranks: Ranks, weights: MappedWeights) -> None:
    """Check every rank's weights, to the bit, and config against rank 0's.

    The model is on the CPU, before an engine has it.

    Args:
        weights: of its parameters on the meta device, if any.

    Raises:
        SharedFindings: `ranks-differ`.
    """
    if ranks.world == 1:
        return
    known = (
        _files_of(weights.files) if weights.tensors else weights_digest(model.named_parameters())
    )
    seen = ranks.all_gather_objects((known, _config_digest(model)))
    digests = [each for each, _ in seen]
    if weights.tensors and any(each != digests[0] for each in digests):
        # in each group of ranks that see the same files, one has the digest of each tensor
        members = [rank for rank, each in enumerate(digests) if each == known]
        names = sorted(weights.tensors)[members.index(ranks.rank) :: len(members)]
        parts = {name: weights_digest([(name, weights.tensors[name])]) for name in names}
        everyone = ranks.all_gather_objects(parts)
        digests = [
            {
                name: digest
                for rank, part in enumerate(everyone)
                if digests[rank] == own
                for name, digest in part.items()
            }
            for own in digests
        ]
    findings = []
    for what, of_ranks in (("weights", digests), (MODEL_CONFIG, [config for _, config in seen])):
        if others := [rank for rank, each in enumerate(of_ranks) if each != of_ranks[0]]:
            findings.append(
                Diagnostic(
                    "ranks-differ",
                    f"{name_ranks(others)} built the model of other {what} than rank 0",
                    parameter="model.path",
                )
            )
    if findings:
        raise SharedFindings(findings)


def _files_of(files: Sequence[Path]) -> tuple[Any, ...]:
    """Return by what the same files on the same machine are known."""
    found = [file.stat() for file in files]
    try:
        machine = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        machine = f"{platform.node()} {os.getpid()}"  # then each rank is by itself
    return (
        machine,
        *((each.st_dev, each.st_ino, each.st_size, each.st_mtime_ns) for each in found),
    )


def name_ranks(ranks: Sequence[int]) -> str:
    """Return `rank 1`, or `ranks 1, 2`."""
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def weights_digest(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Return the XXH3 of tensors' names, shapes, dtypes and bytes.

    About as fast as memory is read: 6 to 16 GB/s on one core, 2 to 5 s for the 28 GB of 7 billion.
    """
    total = xxhash.xxh3_128()
    for name, tensor in tensors:
        total.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        total.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def _config_digest(model: Any) -> str:
    settings = {key: value for key, value in model.config.to_dict().items() if key not in ORIGIN}
    return xxhash.xxh3_128_hexdigest(json.dumps(settings, sort_keys=True, default=str).encode())
