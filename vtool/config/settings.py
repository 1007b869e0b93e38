"""What settings there are: read off the schema, for suggestions and for `vtool explain`."""

import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from vtool.config.schema import Run


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting, or a group of them."""

    name: str
    type: str
    default: str
    description: str
    is_group: bool


def all_settings() -> Iterator[Setting]:
    """Every setting by its dotted name; an entry of a list as `[]`."""
    yield from _walk(Run, "")


def names_at(keys: tuple[str | int, ...]) -> list[str]:
    """The settings of the group at a place that pydantic names; the tag of a union picks its member."""
    models: list[type[BaseModel]] = [Run]
    for key in keys:
        if isinstance(key, int):
            continue
        tagged = [model for model in models if any(key in typing.get_args(field.annotation) for field in model.model_fields.values())]
        inside = [model for found in models if key in found.model_fields for model in _models(found.model_fields[key])]
        models = inside or tagged or []
    return [name for model in models for name in model.model_fields]


def _walk(model: type[BaseModel], prefix: str) -> Iterator[Setting]:
    for name, field in model.model_fields.items():
        inner = _models(field)
        listed = "tuple" in str(field.annotation) and bool(inner)
        yield Setting(f"{prefix}{name}", _type(field), _default(field), (field.description or _docstring(inner)).strip(), bool(inner))
        for one in inner:
            yield from _walk(one, f"{prefix}{name}{'[]' if listed else ''}.")


def _models(field: FieldInfo) -> list[type[BaseModel]]:
    return list(_classes(field.annotation))


def _classes(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from _classes(argument)


def _docstring(models: list[type[BaseModel]]) -> str:
    return next((model.__doc__.splitlines()[0] for model in models if model.__doc__), "")


def _type(field: FieldInfo) -> str:
    annotation = field.annotation
    if models := _models(field):
        return "one of " + ", ".join(model.__name__ for model in models) if len(models) > 1 else "a group of settings"
    text = str(annotation).replace("typing.", "").replace("NoneType", "null").replace("None", "null")
    return annotation.__name__ if isinstance(annotation, type) else text


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "none: it must be given"
    if isinstance(field.default, BaseModel):
        return "the defaults of its settings"
    return "null" if field.default is None else str(list(field.default) if isinstance(field.default, tuple) else field.default)
