"""The audit of one checkpoint folder: every header, the index, and every value."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vtool.diagnostics import Diagnostic, Origin, rules_folder
from vtool.diagnostics.result import Result, Verdict
from vtool.loading.checkpoint.duplicates import find_duplicates
from vtool.loading.checkpoint.files import (
    Files,
    is_weights,
    list_folder,
    not_safetensors,
    outside_link,
)
from vtool.loading.checkpoint.finite import NonFinite, scan
from vtool.loading.checkpoint.headers import Header, Tensor, read_header
from vtool.loading.checkpoint.index import (
    Index,
    compare_with_headers,
    read_index,
    shards_without_index,
)

RULES = tuple(rule.name for rule in rules_folder.RULES)
_OF_FOLDERS = ("index-mismatch", "missing-shard", "duplicate-tensor", "no-config")
_OF_HEADERS = (
    "truncated-file",
    "bad-header",
    "index-mismatch",
    "missing-shard",
    "duplicate-tensor",
    "nonfinite-value",
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
        finding = Diagnostic(
            "unreadable-weights",
            f"{path} cannot be read: {error.strerror}",
            origin=Origin(str(path)),
        )
        return _result(path, [finding], (), {}, {})
    headers, found = _headers(path, files)
    findings += found
    scanned = scan(list(headers.values()), threads=threads, digest=digest)
    findings += map(_nonfinite, scanned.nonfinite)
    findings += [
        Diagnostic(
            "unreadable-weights",
            f"{file.name} cannot be read to its end: {why}",
            origin=Origin(str(file)),
        )
        for file, why in scanned.unreadable.items()
    ]
    measured: dict[str, dict[str, Any]] = {}
    if digest:
        sizes = {header.file: header.size for header in headers.values()}
        digests = {
            file.name: {"bytes": sizes[file], "xxh3_128": text}
            for file, text in scanned.digests.items()
        }
        measured["truncated-file"] = {"measured": digests}
    if headers:
        tensors, size = (
            sum(len(header.tensors) for header in headers.values()),
            sum(header.size for header in headers.values()),
        )
        measured["nonfinite-value"] = {
            "measured": f"{tensors} tensors in {len(headers)} files, {size} bytes"
        }
    not_run = _not_run(path, files, headers)
    if scanned.unreadable:
        not_run.setdefault("nonfinite-value", "a file cannot be read to its end")
    return _result(path, findings, tuple(headers.values()), not_run, measured)


def _not_run(path: Path, files: Files, headers: Mapping[str, Header]) -> dict[str, str]:
    """Return the rules that were not, or not fully, checked, and why."""
    reasons = (
        {}
        if path.is_dir()
        else dict.fromkeys(_OF_FOLDERS, "one file was asked for, not its folder")
    )
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
        return Files((path,), None), outside_link(path, path.parent)
    if path.name.endswith(".index.json"):
        message = f"{path.name} is an index; its shards are audited with their folder"
        return Files((), None), [
            Diagnostic(
                "no-weights", message, f"name the folder: {path.parent}", origin=Origin(str(path))
            )
        ]
    if not path.exists():
        return Files((), None), [
            Diagnostic("no-weights", f"there is no {path}", origin=Origin(str(path)))
        ]
    return Files((), None), [not_safetensors(path)]


def _headers(path: Path, files: Files) -> tuple[dict[str, Header], list[Diagnostic]]:
    """Return the headers by file name, and findings about them, the index and the whole set."""
    folder = path if path.is_dir() else path.parent
    index, findings = read_index(files.index) if files.index else (None, [])
    below = [
        folder / name
        for name in (index.shards if index else ())
        if "/" in name and (folder / name).is_file()
    ]
    headers, unusable = {}, []
    for file in (*files.safetensors, *below):
        name = file.relative_to(folder).as_posix()
        if file.is_symlink() and not file.exists():
            if not (index and name in index.shards):
                findings.append(
                    Diagnostic(
                        "missing-shard", f"{name} is a link to nothing", origin=Origin(str(file))
                    )
                )
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
) -> list[Diagnostic]:
    findings = []
    if index:
        findings += compare_with_headers(index, headers, unusable)
    elif not files.index:
        findings += shards_without_index(folder, [file.name for file in files.safetensors])
    weights = [header for header in headers.values() if is_weights(header.file)]
    findings += find_duplicates(weights, frozenset(index.shards) if index else None)
    if (
        headers
        and not unusable
        and not any(header.tensors for header in weights)
        and all(header.whole for header in weights)
    ):
        findings.append(
            Diagnostic(
                "no-weights", "the safetensors files hold no tensor", origin=Origin(str(folder))
            )
        )
    return findings


def _nonfinite(found: NonFinite) -> Diagnostic:
    tensor = found.tensor
    counts = [
        f"{count:,} {word}"
        for count, word in ((found.nans, "NaN"), (found.infinities, "infinite"))
        if count
    ]
    what = (
        f"{' and '.join(counts)} of {math.prod(tensor.shape):,} values, the first at"
        f" {_index_of(tensor, found.first)}"
    )
    # Attention masks that are saved with the weights hold -inf where nothing is attended to, and
    # mean it.
    mask = not found.nans and "mask" in tensor.name.rpartition(".")[2]
    return Diagnostic(
        "nonfinite-value",
        f"`{tensor.name}` in {found.file.name}: {what}"
        + (", as an attention mask may have" if mask else ""),
        origin=Origin(str(found.file)),
        parameter=tensor.name,
        tensors=(tensor.name,),
        expected="finite values",
        seen=" and ".join(counts),
        severity="note" if mask else None,
    )


def _index_of(tensor: Tensor, flat: int) -> list[int]:
    """Return the index of an element, one number a dimension, from its place in the flat tensor."""
    place = []
    for length in reversed(tensor.shape):
        flat, position = divmod(flat, length)
        place.append(position)
    return place[::-1]


def _result(
    path: Path,
    findings: list[Diagnostic],
    headers: Sequence[Header],
    not_run: Mapping[str, str],
    measured: Mapping[str, Mapping[str, Any]],
) -> Result:
    """Return the result.

    Args:
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
    reasons = {
        rule: {"reason": not_run[rule]} for rule, state in checks.items() if state == "not-run"
    }
    details = {
        rule: {**measured.get(rule, {}), **reasons.get(rule, {})}
        for rule in RULES
        if rule in measured or rule in reasons
    }
    verdict: Verdict = "not-run" if nothing else "unsafe" if failed else "clean"
    return Result(str(path), verdict, checks, tuple(findings), details)
