"""Square matrices that a load has transposed: no shape says so."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from .facts import Item


def transposed(
    came_from: Mapping[str, Sequence[str]],
    state: Mapping[str, Tensor],
    checkpoint: Mapping[str, Tensor],
) -> list[Item]:
    """Return an item for each square matrix that is transposed in its parameter.

    None where another matrix, which is not square, is transposed too: the files keep them the other
    way round then, as transformers' Conv1D does, and the loader means it.

    Args:
        came_from: the tensors of the checkpoint that went into each parameter.
        state: each parameter after the load.
    """
    found = []
    for parameter, names in came_from.items():
        held = state.get(parameter)
        if held is None or held.dim() < 2 or not held.is_floating_point():
            continue
        rows = held.flatten(0, -2)  # fused weights and experts lie among each other's rows
        for name in names:
            tensor = checkpoint.get(name)
            if tensor is None or tensor.dim() != 2 or tensor.shape[0] != rows.shape[1]:
                continue
            if _is_among(rows, tensor) or not _is_among(rows, tensor.t()):
                continue
            if tensor.shape[0] != tensor.shape[1]:
                return []
            found.append(Item("transposed", parameter, (name,)))
    return found


def _is_among(rows: Tensor, matrix: Tensor) -> bool:
    """Return whether the rows of a matrix are some rows of another, one behind the other."""
    if matrix.shape[1] != rows.shape[1] or not len(matrix):
        return False
    matrix = matrix.to(rows.dtype)
    places = (rows == matrix[0]).all(1).nonzero().flatten().tolist()
    return any(rows[at : at + len(matrix)].equal(matrix) for at in places)
