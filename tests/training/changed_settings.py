"""Runs with another value of one setting, to be compared with the objects of the first."""

from typing import Any

from vtool.config.schema import Run


def change_setting(run: Run, name: str) -> Run | None:
    """Return the run with another value of a setting, where it has the setting and a value."""
    *groups, leaf = name.split(".")
    owners: list[Any] = [run]
    for group in groups:
        following = getattr(owners[-1], group, None)
        following = following[0] if isinstance(following, tuple) and following else following
        if following is None or following == ():
            return None
        owners.append(following)
    value = getattr(owners[-1], leaf, None)
    match value:
        case None:
            return None
        case bool():
            changed: Any = not value
        case int() | float():
            changed = value * 2 + 1
        case str():
            changed = {"cosine": "linear", "linear": "constant", "constant": "cosine"}.get(
                value, value + "x"
            )
            changed = {"float32": "bfloat16", "bfloat16": "float32"}.get(value, changed)
        case tuple():
            changed = tuple(each + "x" if isinstance(each, str) else each / 2 for each in value)
            changed = ("k_proj",) if groups == ["lora"] else changed
    made = owners[-1].model_copy(update={leaf: changed})
    for group, owner in zip(reversed(groups), reversed(owners[:-1]), strict=True):
        before = getattr(owner, group)
        made = owner.model_copy(
            update={group: (made, *before[1:]) if isinstance(before, tuple) else made}
        )
    return made  # type: ignore[no-any-return]


def replace_setting(run: Run, name: str, value: Any) -> Run:
    """Return the run with this value of a setting."""
    groups = name.split(".")
    owners: list[Any] = [run]
    for group in groups[:-1]:
        owners.append(getattr(owners[-1], group))
    made: Any = value
    for group, owner in zip(reversed(groups), reversed(owners), strict=True):
        made = owner.model_copy(update={group: made})
    return made  # type: ignore[no-any-return]
