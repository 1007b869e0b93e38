"""The audit of one checkpoint folder: every header, the index, and every value."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vtool.diagnostics import Diagnostic, rules_folder
from vtool.diagnostics.result import Result, Verdict
from vtool.loading.checkpoint.about_file import about_file
from vtool.loading.checkpoint.adapters import audit_adapter
from vtool.loading.checkpoint.duplicates import find_duplicates
from vtool.loading.checkpoint.embeddings import audit_embeddings
from vtool.loading.checkpoint.files import (
    Files,
    is_file,
    is_weights,
    list_folder,
    not_safetensors,
    outside_link,
    read_config,
)
from vtool.loading.checkpoint.finite import NonFinite, scan
from vtool.loading.checkpoint.headers import Header, read_header
from vtool.loading.checkpoint.index import (
    Index,
    compare_with_headers,
    read_index,
    shards_without_index,
)
from vtool.loading.checkpoint.scales import missing_scales
from vtool.loading.checkpoint.unquantised import unquantised
from vtool.loading.checkpoint.zeros import all_zero

OF_CLASS = "weights-not-of-class"
"""The rule of a folder that transformers is asked for, which this audit does without."""
RULES = tuple(rule.name for rule in rules_folder.RULES if rule.name != OF_CLASS)
_OF_FOLDERS = (
    "index-mismatch",
    "missing-shard",
    "duplicate-tensor",
    "no-config",
    "adapter-mismatch",
    "missing-scale",
    "tied-head-differs",
    "zero-embedding-row",
)
_OF_HEADERS = (
    "truncated-file",
    "bad-header",
    "index-mismatch",
    "missing-shard",
    "duplicate-tensor",
    "nonfinite-value",
    "missing-scale",
    "all-zero-weight",
    "tied-head-differs",
    "zero-embedding-row",
)


def audit_folder(path: Path, *, digest: bool = False, threads: int = 2) -> Result:
    """Audit a checkpoint folder, or one .safetensors file, and return all findings at once.

    Nothing is opened but safetensors files and their index.

    Args:
        digest: also digest every file (xxh3-128, as `xxhsum -H2` prints it), into `details`.
        threads: how many read and test the files.

    Returns:
        A result with a check for every rule of `vtool.diagnostics.rules_folder`: `not-run` where
        what it would look at is not there or cannot be read. The verdict is `not-run` where there
        was nothing to check at all.
    """
    try:
        if path.is_dir():
            files, findings = list_folder(path)
        else:
            files, findings = _single(path)
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror}"
        return _result(path, [about_file(path, "unreadable-weights", message)], (), {}, {})
    headers, found = _headers(path, files)
    findings += found
    findings += all_zero(headers)
    compared, about, why_not = None, dict[str, str](), dict[str, str]()
    if path.is_dir():
        config = read_config(path)
        findings += missing_scales(path, headers, config)
        findings += unquantised(path, headers, config)
        found, compared = audit_adapter(path, headers)
        findings += found
        found, about, why_not = audit_embeddings(path, headers, config)
        findings += found
    scanned = scan(list(headers.values()), threads=threads, digest=digest)
    findings += map(_nonfinite, scanned.nonfinite)
    findings += [
        about_file(file, "unreadable-weights", f"{file.name} cannot be read to its end: {why}")
        for file, why in scanned.unreadable.items()
    ]
    measured: dict[str, Any] = {**about, **({"adapter-mismatch": compared} if compared else {})}
    sizes = {header.file: header.size for header in headers.values()}
    if digest:
        measured["truncated-file"] = {
            file.name: {"bytes": sizes[file], "xxh3_128": text}
            for file, text in scanned.digests.items()
        }
    if headers:
        tensors = sum(len(header.tensors) for header in headers.values())
        measured["nonfinite-value"] = (
            f"{tensors} tensors in {len(headers)} files, {sum(sizes.values())} bytes"
        )
    not_run = why_not | _not_run(path, files, headers)
    if scanned.unreadable:
        not_run.setdefault("nonfinite-value", "a file cannot be read to its end")
    return _result(path, findings, tuple(headers.values()), not_run, measured)


def _not_run(path: Path, files: Files, headers: Mapping[str, Header]) -> dict[str, str]:
    """Return the rules that were not, or not fully, checked, and why."""
    of_folders = () if path.is_dir() else _OF_FOLDERS
    reasons = dict.fromkeys(of_folders, "one file was asked for, not its folder")
    if not headers:
        return reasons | dict.fromkeys(
            _OF_HEADERS, "there is no safetensors file whose header can be read"
        )
    if len(headers) < len(files.safetensors):
        return dict.fromkeys(_OF_HEADERS, "a file's header cannot be read") | reasons
    if not all(header.whole for header in headers.values()):
        reasons["nonfinite-value"] = "some tensors are cut off, or their header contradicts itself"
    return reasons


def _single(path: Path) -> tuple[Files, list[Diagnostic]]:
    if path.name.endswith(".safetensors") and (path.exists() or path.is_symlink()):
        return Files((path,), None), [*outside_link(path, path.parent)]
    if path.name.endswith(".index.json"):
        message = f"{path.name} is an index; its shards are audited with their folder"
        finding = about_file(path, "no-weights", message, f"name the folder: {path.parent}")
    elif not path.exists():
        finding = about_file(path, "no-weights", f"there is no {path}")
    else:
        finding = not_safetensors(path)
    return Files((), None), [finding]


def _headers(path: Path, files: Files) -> tuple[dict[str, Header], list[Diagnostic]]:
    """Return the headers by file name, and findings about them, the index and the whole set."""
    folder = path if path.is_dir() else path.parent
    index, findings = read_index(files.index) if files.index else (None, [])
    below = [
        folder / name
        for name in (index.shards if index else ())
        if "/" in name and is_file(folder / name)
    ]
    for file in below:
        findings += outside_link(file, folder)
    headers, unusable = {}, []
    for file in (*files.safetensors, *below):
        name = file.relative_to(folder).as_posix()
        if file.is_symlink() and not file.exists():
            if not (index and name in index.shards):
                findings.append(about_file(file, "missing-shard", f"{name} is a link to nothing"))
            continue
        header, found = read_header(file)
        findings += found
        if header is None:
            unusable.append(name)
        else:
            headers[name] = header
    if path.is_dir():
        findings += _compare_files(folder, index, files, headers, unusable)
    return headers, findings


def _compare_files(
    folder: Path,
    index: Index | None,
    files: Files,
    headers: dict[str, Header],
    unusable: Sequence[str],
) -> Iterator[Diagnostic]:
    if index:
        yield from compare_with_headers(index, headers, unusable)
    elif not files.index:
        yield from shards_without_index(folder, [file.name for file in files.safetensors])
    weights = [header for header in headers.values() if is_weights(header.file)]
    yield from find_duplicates(weights, frozenset(index.shards) if index else None)
    if (
        headers
        and not unusable
        and not any(header.tensors for header in weights)
        and all(header.whole for header in weights)
    ):
        yield about_file(folder, "no-weights", "the safetensors files hold no tensor")


def _nonfinite(found: NonFinite) -> Diagnostic:
    tensor, counts = found.tensor, {"NaN": found.nans, "infinite": found.infinities}
    seen = " and ".join(f"{count:,} {word}" for word, count in counts.items() if count)
    # numpy takes no more dimensions
    known = len(tensor.shape) <= 32
    place = list(map(int, np.unravel_index(found.first, tensor.shape))) if known else found.first
    # Attention masks that are saved with the weights hold -inf where nothing is attended to, and
    # mean it.
    mask = not found.nans and "mask" in tensor.name.rpartition(".")[2]
    return about_file(
        found.file,
        "nonfinite-value",
        f"`{tensor.name}` in {found.file.name}: {seen} of {math.prod(tensor.shape):,} values, the"
        f" first at {place}{', as an attention mask may have' if mask else ''}",
        parameter=tensor.name,
        tensors=(tensor.name,),
        expected="finite values",
        seen=seen,
        severity="note" if mask else None,
    )


def _result(
    path: Path,
    findings: list[Diagnostic],
    headers: Sequence[Header],
    not_run: Mapping[str, str],
    measured: Mapping[str, Any],
) -> Result:
    """Return the result.

    Args:
        measured: for rules, what was measured.
        not_run: the rules that were not, or not fully, checked, and why. A rule with an error has
            failed all the same.
    """
    failed = {finding.rule for finding in findings if finding.severity == "error"}
    nothing = not headers and failed <= {"no-weights", "unreadable-weights"}
    if nothing:
        not_run = dict.fromkeys(RULES, "there was nothing to check")
    checks = {
        rule: "failed" if rule in failed else "not-run" if rule in not_run else "passed"
        for rule in RULES
    }
    details = {
        rule: ({"measured": measured[rule]} if rule in measured else {})
        | ({"reason": not_run[rule]} if state == "not-run" else {})
        for rule, state in checks.items()
        if rule in measured or state == "not-run"
    }
    verdict: Verdict = "not-run" if nothing else "unsafe" if failed else "clean"
    return Result(str(path), verdict, checks, tuple(findings), details)
