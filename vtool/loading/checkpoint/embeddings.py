"""Findings about the embedding and the head: a tied head that is another, rows that are zero."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from vtool.diagnostics import Diagnostic
from vtool.faint_rows import as_numbers, faint_rows, row_sizes
from vtool.loading.checkpoint.about_file import about_file
from vtool.loading.checkpoint.dtypes import Bytes
from vtool.loading.checkpoint.headers import Header, Tensor
from vtool.loading.words import listed
from vtool.model_folder import MODEL_CONFIG, TOKENIZER, ModelFolder

_TIED, _ZERO = "tied-head-differs", "zero-embedding-row"
_EMBEDDING = re.compile(r"(.*\.)?(embed_tokens|wte|word_embeddings|tok_embeddings)\.weight")
_HEAD = re.compile(r"(.*\.)?(lm_head|embed_out)\.weight|(model\.)?output\.weight")
_OTHERS = re.compile(
    r"vis|audio|talker|codec|code_pred|mtp|draft|encoder|\.layers\.", re.IGNORECASE
)
"""Embeddings and heads beside those of the language model."""
_TEXT_CONFIGS = ("text_config", "llm_config", "language_config", "text", "decoder")
_PLACEHOLDER = re.compile(r"(image|img|video|audio|vision).*_(token_)?(id|index)")
_IN_RESERVE = re.compile(
    r"[<\[].*(reserved|unused|extra|dummy|control|special_\d|placeholder|pad).*[>\]]", re.IGNORECASE
)
_FLAG = "tie_word_embeddings"
_FLOATS = ("F64", "F32", "F16", "BF16")
_SHOWN = 8
_CHUNK = 1 << 24
_Found = tuple[Header, Tensor]


def audit_embeddings(
    folder: Path, headers: Mapping[str, Header], config: Mapping[str, Any]
) -> tuple[list[Diagnostic], dict[str, str], dict[str, str]]:
    """Return findings about a folder's embedding and head.

    Returns:
        Findings; what was measured, and why a rule was not checked, by rule.
    """
    embedding, head = _only(headers, _EMBEDDING), _only(headers, _HEAD)
    measured: dict[str, str] = {}
    reasons: dict[str, str] = {}
    found = list(_tied(folder, embedding, head, config, measured, reasons))
    if embedding is None:
        measured[_ZERO] = "no tensor is named as the embedding of one language model"
        return found, measured, reasons
    sizes = row_sizes(_bytes(embedding), embedding[1].dtype, embedding[1].shape[0])
    if sizes is None:
        reasons[_ZERO] = f"`{embedding[1].name}` is {embedding[1].dtype}"
        return found, measured, reasons
    measured[_ZERO] = f"{len(sizes):,} rows of `{embedding[1].name}`"
    if rows := faint_rows(sizes):
        tokens = _tokens(folder)
        if tokens is None:
            reasons[_ZERO] = (
                f"{len(rows):,} rows are zero, and no tokenizer.json says which are used"
            )
        else:
            found += _zero(embedding, rows, tokens, _exempt(config), measured)
    return found, measured, reasons


def _only(headers: Mapping[str, Header], names: re.Pattern[str]) -> _Found | None:
    """Return the one matrix of such a name that lies in its file as a whole."""
    found = [
        (header, tensor)
        for header in headers.values()
        for tensor in header.tensors
        if names.fullmatch(tensor.name)
        and not _OTHERS.search(tensor.name)
        and len(tensor.shape) == 2
        and tensor.start < tensor.end <= header.size
    ]
    return found[0] if len(found) == 1 else None


def _bytes(found: _Found) -> Bytes:
    header, tensor = found
    return np.memmap(header.file, np.uint8, "r", tensor.start, (tensor.end - tensor.start,))


def _flags(config: Mapping[str, Any]) -> dict[str, bool]:
    """Return each place of a config that says whether the head is the embedding."""
    parts: list[tuple[str, Any]] = [("", config)]
    thinker = config.get("thinker_config")
    for name in _TEXT_CONFIGS:
        parts += [(f"{name}.", config.get(name))]
        if isinstance(thinker, dict):
            parts += [(f"thinker_config.{name}.", thinker.get(name))]
    return {
        f"{name}{_FLAG}": part[_FLAG]
        for name, part in parts
        if isinstance(part, dict) and isinstance(part.get(_FLAG), bool)
    }


def _tied(
    folder: Path,
    embedding: _Found | None,
    head: _Found | None,
    config: Mapping[str, Any],
    measured: dict[str, str],
    reasons: dict[str, str],
) -> Iterator[Diagnostic]:
    """Yield findings where a config ties the head, and the folder has another one."""
    flags = _flags(config)
    ties = [name for name, value in flags.items() if value]
    apart = [name for name, value in flags.items() if not value]
    measured[_TIED] = ", ".join(f"{name} {str(value).lower()}" for name, value in flags.items())
    if not flags:
        measured[_TIED] = f"config.json has no {_FLAG}"
    file = folder / MODEL_CONFIG
    if ties and apart and embedding and head is None:
        message = (
            f"{listed(ties)} is true and {listed(apart)} false, and there is no head: loaders that"
            " go by the second make one anew"
        )
        yield about_file(file, _TIED, message, severity="note")
    if not ties or embedding is None or head is None:
        return
    one, other = embedding[1], head[1]
    if one.dtype not in _FLOATS or other.dtype not in _FLOATS:
        reasons[_TIED] = f"the head is {other.dtype}, and the embedding {one.dtype}"
        return
    seen = f"{list(other.shape)}" if one.shape != other.shape else _differences(embedding, head)
    if seen:
        also = f", though {listed(apart)} is false" if apart else ""
        yield about_file(
            file,
            _TIED,
            f"{listed(ties)} is true{also}, and `{other.name}` is another matrix than `{one.name}`:"
            f" {seen}; loaders that go by it compute with the embedding",
            parameter=ties[0],
            tensors=(other.name, one.name),
        )


def _differences(embedding: _Found, head: _Found) -> str:
    """Return in how many rows the two differ; empty where they are one matrix."""
    one, other, rows = _bytes(embedding), _bytes(head), embedding[1].shape[0]
    wide, width = len(one) // rows, len(other) // rows
    step, different = max(1, _CHUNK // max(wide, 1)), 0
    for begin in range(0, rows, step):
        end = min(rows, begin + step)
        a = as_numbers(one[begin * wide : end * wide], embedding[1].dtype)
        b = as_numbers(other[begin * width : end * width], head[1].dtype)
        apart = (a != b) & ~(np.isnan(a) & np.isnan(b))
        different += int(apart.reshape(end - begin, -1).any(1).sum())
    return f"{different:,} of {rows:,} rows differ" if different else ""


def _zero(
    embedding: _Found,
    rows: list[int],
    tokens: Mapping[int, str],
    exempt: set[int],
    measured: dict[str, str],
) -> Iterator[Diagnostic]:
    """Yield findings about rows of zeros that the tokenizer has a token for."""
    used = [row for row in rows if row in tokens and row not in exempt]
    measured[_ZERO] += f", {len(rows):,} of them zero, {len(used):,} of these of a text's token"
    spare = [row for row in used if _IN_RESERVE.fullmatch(tokens[row])]
    header, tensor = embedding
    for severity, found, what in (
        ("warning", [row for row in used if row not in spare], "the tokenizer's tokens"),
        ("note", spare, "tokens that are kept in reserve"),
    ):
        if not found:
            continue
        named = [f"{row} ({tokens[row]!r})" for row in found]
        yield about_file(
            header.file,
            _ZERO,
            f"rows of `{tensor.name}` that are zero are of {what}: {len(found)} of"
            f" {len(tokens):,}, {listed(named, _SHOWN)}",
            parameter=tensor.name,
            tensors=(tensor.name,),
            severity=severity,
        )


def _tokens(folder: Path) -> dict[int, str] | None:
    """Return the tokenizer's tokens by id; None without a tokenizer.json that can be read."""
    try:
        content = ModelFolder(folder).read(TOKENIZER)
        vocabulary = content["model"]["vocab"]
        pairs = (
            vocabulary.items()
            if isinstance(vocabulary, dict)
            else ((entry[0], row) for row, entry in enumerate(vocabulary))
        )
        found = {int(row): str(token) for token, row in pairs}
        for entry in content.get("added_tokens") or ():
            found[int(entry["id"])] = str(entry["content"])
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        return None
    return found


def _exempt(config: Mapping[str, Any]) -> set[int]:
    """Return ids whose rows may be zero: of padding, and of places that pictures take."""
    parts = [config, *(config.get(name) for name in (*_TEXT_CONFIGS, "thinker_config"))]
    found: set[int] = set()
    for part in parts:
        if isinstance(part, dict):
            ends = part.get("eos_token_id")
            ends = ends if isinstance(ends, list) else [ends]
            found |= {
                value
                for key, value in part.items()
                if isinstance(value, int)
                and ((key == "pad_token_id" and value not in ends) or _PLACEHOLDER.fullmatch(key))
            }
    return found
