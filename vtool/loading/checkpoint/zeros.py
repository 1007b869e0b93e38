"""Finds weights that are all zero: what a write has left out, or never trained."""

import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from vtool.diagnostics import Diagnostic
from vtool.loading.checkpoint.about_file import about_file
from vtool.loading.checkpoint.headers import Header, Tensor
from vtool.words import plural

_WEIGHTS = re.compile(
    r"(.*\.)?(lm_head|embed_out|embed_tokens|wte|word_embeddings|tok_embeddings)\.weight"
    r"|(model\.)?output\.weight"
)
_LORA = re.compile(r".+\.lora_(?P<part>[AB])(\.[^.]+)??(\.weight)?")
_FLOATS = ("F64", "F32", "F16", "BF16")
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
_LAYER = re.compile(r"(.*?(?<![^.])\d+)\.(.*)")
_LAST = re.compile(
    r"(^|\.)(o_proj|out_proj|c_proj|proj|dense|wo|down_proj|fc2|linear_fc2|w2|dense_4h_to_h)\.weight$"
)
"""The matrices with which the two halves of a block end."""
_CHUNK = 1 << 20
_Matrix = tuple[Header, Tensor, bool]
"""A matrix, and whether it is all zero."""
_FEW = 4
"""Fewer matrices of zeros say nothing: blocks that are added may begin with two each."""


def all_zero(headers: Mapping[str, Header]) -> Iterator[Diagnostic]:
    """Yield findings for a head, an embedding or matrices of zeros, or an adapter's A or B."""
    lora: dict[str, list[_Matrix]] = {"A": [], "B": []}
    matrices: list[_Matrix] = []
    for header in headers.values():
        for tensor in header.tensors:
            if tensor.end <= tensor.start or tensor.end > header.size:
                continue
            if _WEIGHTS.fullmatch(tensor.name) and len(tensor.shape) > 1:
                if _is_zero(header, tensor):
                    yield about_file(
                        header.file,
                        "all-zero-weight",
                        f"`{tensor.name}` in {header.file.name}, {list(tensor.shape)}, is all zero",
                        parameter=tensor.name,
                        tensors=(tensor.name,),
                    )
            elif match := _LORA.fullmatch(tensor.name):
                lora[match["part"]].append((header, tensor, _is_zero(header, tensor)))
            elif len(tensor.shape) > 1 and tensor.dtype in _FLOATS and "bias" not in tensor.name:
                matrices.append((header, tensor, _is_zero(header, tensor)))
    alike = [*_unlike_namesakes(matrices)]
    matrices = [one for one in matrices if one[1].name.endswith(".weight")]
    zeros = [(header, tensor) for header, tensor, is_zero in matrices if is_zero]
    if len(zeros) >= _FEW and 2 * len(zeros) > len(matrices):
        header, tensor = zeros[0]
        message = (
            f"{len(zeros)} of {len(matrices)} matrices are all zero, the first of them"
            f" `{tensor.name}` in {header.file.name}"
        )
        names = tuple(tensor.name for _, tensor in zeros)
        yield about_file(header.file, "all-zero-weight", message, tensors=names)
    else:
        yield from alike
    every = [tensor.name for header in headers.values() for tensor in header.tensors]
    yield from _lora(lora, alone=all(map(_LORA.fullmatch, every)))


def _unlike_namesakes(matrices: Sequence[_Matrix]) -> Iterator[Diagnostic]:
    """Yield a warning for each matrix of zeros of which most namesakes in other layers are not.

    A block that was added, and changes nothing yet, has zeros in both of its last matrices.
    """
    by_name: dict[str, list[_Matrix]] = {}
    blocks: dict[str, set[str]] = {}
    for header, tensor, is_zero in matrices:
        if _NUMBER.search(tensor.name):
            by_name.setdefault(_NUMBER.sub("N", tensor.name), []).append((header, tensor, is_zero))
        if is_zero and (within := _LAYER.match(tensor.name)):
            blocks.setdefault(within[1], set()).add(within[2])
    added = {
        block
        for block, zeros in blocks.items()
        if len(zeros) == 2 and all(map(_LAST.search, zeros))
    }
    for found in by_name.values():
        zeros = [(header, tensor) for header, tensor, is_zero in found if is_zero]
        if 2 * len(zeros) > len(found):
            continue
        for header, tensor in zeros:
            within = _LAYER.match(tensor.name)
            if within and within[1] in added:
                continue
            yield about_file(
                header.file,
                "all-zero-weight",
                f"`{tensor.name}` in {header.file.name}, {list(tensor.shape)}, is all zero, unlike"
                f" its namesakes in {plural(len(found) - len(zeros), 'other layer')}",
                "compare it with the same tensor of an earlier checkpoint, or of the published"
                " model",
                parameter=tensor.name,
                tensors=(tensor.name,),
                severity="warning",
            )


def _lora(lora: Mapping[str, list[_Matrix]], alone: bool) -> Iterator[Diagnostic]:
    """Yield a finding for an adapter whose matrices A, or B, are all zero.

    With B of zeros it begins; A of zeros comes from no training.

    Args:
        alone: it has nothing else, such as modules that are trained whole.
    """
    zero = {part for part, found in lora.items() if found and all(one for *_, one in found)}
    for part, what in (
        ("A", "no training ends so, and the adapter changes nothing"),
        ("B", "as before the first step of training, and the adapter changes nothing yet"),
    ):
        if part not in zero or (part == "B" and not alone):
            continue
        header, _, _ = lora[part][0]
        names = tuple(tensor.name for _, tensor, _ in lora[part])
        yield about_file(
            header.file,
            "all-zero-weight",
            f"each lora_{part} of {header.file.name} is all zero: {what}",
            tensors=names,
            severity="error" if part == "A" else "warning",
        )
        return


def _is_zero(header: Header, tensor: Tensor) -> bool:
    """Return True if every byte is zero; where one is not, little more than that is read."""
    try:
        data = np.memmap(header.file, np.uint8, "r", tensor.start, (tensor.end - tensor.start,))
        return not any(data[at : at + _CHUNK].any() for at in range(0, len(data), _CHUNK))
    except (OSError, ValueError):  # a file that cannot be read is a finding of its own
        return False
