"""Finds weights that are all zero: what a write has left out, or never trained."""

import re
from collections.abc import Iterator, Mapping

import numpy as np

from vtool.diagnostics import Diagnostic
from vtool.loading.checkpoint.about_file import about_file
from vtool.loading.checkpoint.headers import Header, Tensor

_WEIGHTS = re.compile(
    r"(.*\.)?(lm_head|embed_out|embed_tokens|wte|word_embeddings|tok_embeddings)\.weight"
    r"|(model\.)?output\.weight"
)
_LORA_B = re.compile(r".+\.lora_(embedding_)?B(\.[^.]+)??(\.weight)?")
_CHUNK = 1 << 20
_FEW = 4
"""Fewer matrices of zeros say nothing: blocks that are added may begin with two each."""


def all_zero(headers: Mapping[str, Header]) -> Iterator[Diagnostic]:
    """Yield an error for a head, embedding or most matrices of zeros; a warning for an adapter."""
    lora: list[tuple[Header, Tensor]] = []
    matrices: list[tuple[Header, Tensor, bool]] = []
    nonzero = False
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
            elif _LORA_B.fullmatch(tensor.name) and not nonzero:
                nonzero = not _is_zero(header, tensor)
                lora.append((header, tensor))
            elif tensor.name.endswith(".weight") and len(tensor.shape) > 1:
                matrices.append((header, tensor, _is_zero(header, tensor)))
    zeros = [(header, tensor) for header, tensor, is_zero in matrices if is_zero]
    if len(zeros) >= _FEW and 2 * len(zeros) > len(matrices):
        header, tensor = zeros[0]
        message = (
            f"{len(zeros)} of {len(matrices)} matrices are all zero, the first of them"
            f" `{tensor.name}` in {header.file.name}"
        )
        names = tuple(tensor.name for _, tensor in zeros)
        yield about_file(header.file, "all-zero-weight", message, tensors=names)
    if lora and not nonzero:
        header, _ = lora[0]
        message = f"each lora_B of {header.file.name} is all zero: the adapter changes nothing"
        names = tuple(tensor.name for _, tensor in lora)
        yield about_file(header.file, "all-zero-weight", message, tensors=names, severity="warning")


def _is_zero(header: Header, tensor: Tensor) -> bool:
    """Return True if every byte is zero; where one is not, little more than that is read."""
    try:
        data = np.memmap(header.file, np.uint8, "r", tensor.start, (tensor.end - tensor.start,))
        return not any(data[at : at + _CHUNK].any() for at in range(0, len(data), _CHUNK))
    except (OSError, ValueError):  # a file that cannot be read is a finding of its own
        return False
