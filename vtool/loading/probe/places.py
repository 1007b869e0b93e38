"""The place of a tensor: which parameter waits for one that was never read."""


def belongs(tensor: str, size: int, parameter: str, waiting: int) -> bool:
    """Return True if a tensor that is not read belongs into a parameter that is not written.

    Beside a prefix that one of them lacks, a module may have been put between (`experts.bias`,
    `experts.routed.bias`), or one name of the path be another (`mlp.fc1.weight`,
    `mlp.linear_fc1.weight`), or both be of one module (`experts.gate_up_proj`,
    `experts.w13_weight`); then all of the parameter has to wait for all of the tensor, and
    numbers of layers and experts are never taken for one another.

    Args:
        size: the tensor's elements.
        waiting: the parameter's elements.
    """
    if waiting < size:
        return False
    one, other = tensor.split("."), parameter.split(".")
    short, long = sorted((one, other), key=len)
    if long[-len(short) :] == short:
        return True
    return waiting == size and (
        _inserted(short, long) or _renamed(one, other) or _of_one_module(one, other)
    )


def _inserted(short: list[str], long: list[str]) -> bool:
    """Return True if `long` ends with the path `short` and one module more in its midst."""
    if len(short) < 3 or _numbers(short) != _numbers(long):
        return False
    tail = long[-len(short) - 1 :]
    return any(tail[:at] + tail[at + 1 :] == short for at in range(1, len(tail)))


def _renamed(one: list[str], other: list[str]) -> bool:
    """Return True if one name of the path is another, and contains it or is contained in it."""
    length = min(len(one), len(other))
    if length < 3 or _numbers(one) != _numbers(other):
        return False
    unlike = [
        (left, right)
        for left, right in zip(one[-length:], other[-length:], strict=True)
        if left != right
    ]
    if len(unlike) != 1 or one[-1] != other[-1]:
        return False
    (left, right) = unlike[0]
    return left.endswith(f"_{right}") or right.endswith(f"_{left}")


def _of_one_module(one: list[str], other: list[str]) -> bool:
    """Return True if both are of one module, under other names: `gate_up_proj`, `w13_weight`."""
    short, long = sorted((one[:-1], other[:-1]), key=len)
    if {one[-1], other[-1]} <= {"weight", "bias"} or len(short) < 2:
        return False
    return long[-len(short) :] == short or _inserted(short, long)


def _numbers(path: list[str]) -> list[str]:
    return [part for part in path if part.isdigit()]
