"""All settings, read off the schema: for messages, suggestions and `vtool explain`."""

import ast
import inspect
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic.fields import FieldInfo

from vtool.config.schema import Run, Settings
from vtool.config.schema.base import Arrival, OtherWords
from vtool.diagnostics.near_miss import one_of

_WORDS: dict[Any, str] = {bool: "true or false", int: "an integer", float: "a number", str: "text"}
_BOUNDS: dict[Any, str] = {
    Gt: "above {0.gt}",
    Ge: "of at least {0.ge}",
    Lt: "below {0.lt}",
    Le: "of at most {0.le}",
    MinLen: "that is not empty",  # no setting asks for more than one
}


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting, or a group of them."""

    name: str
    """The dotted name. Settings of a list's entries have the list's name: `data.train.format`."""
    owner: type[Settings]
    field: FieldInfo

    @property
    def leaf(self) -> str:
        """The last part of its name."""
        return self.name.rpartition(".")[2]

    @property
    def required(self) -> bool:
        """True if it must be given. A run's name need not: it is the recipe's."""
        return self.field.is_required() and self.name not in ("run", "run.name")

    @property
    def groups(self) -> tuple[type[Settings], ...]:
        """The classes of the settings in it.

        One for a group, several for a union, none for a plain value.
        """
        return tuple(_classes(self.field.annotation))

    @property
    def arrival(self) -> Arrival | None:
        """The proof that it arrives, given by its field or else by its group."""
        return arrival_of(self.owner, self.field)

    @property
    def takes(self) -> str:
        """The values that it takes, in words."""
        return takes(self.field.annotation, self.field.metadata)

    @property
    def doc(self) -> str:
        """The schema's text below the field; for a group without one, its class's docstring."""
        own = docstrings(self.owner).get(self.leaf, "")
        return own or next((inspect.cleandoc(group.__doc__ or "") for group in self.groups), "")


_REFUSED = frozenset(
    f"data.{split}.{leaf}" for split in ("validation", "test") for leaf in ("weight", "repeat")
)
"""Settings that an entry has in one place and is refused in another (`mixture-conflict`)."""


def all_settings(owner: type[Settings] = Run, prefix: str = "") -> Iterator[Setting]:
    """Yield every setting and group, in the order of the schema."""
    return iter(_settings_of(owner, prefix))


@cache
def _settings_of(owner: type[Settings], prefix: str) -> tuple[Setting, ...]:
    found: list[Setting] = []
    for name, field in owner.model_fields.items():
        setting = Setting(f"{prefix}{name}", owner, field)
        found.append(setting)
        for group in setting.groups:
            found += _settings_of(group, f"{setting.name}.")
    return tuple(setting for setting in found if setting.name not in _REFUSED)


def arrival_of(owner: type[Settings], field: FieldInfo) -> Arrival | None:
    """Return how a setting is known to arrive: what its field says, or else its group."""
    return next((each for each in field.metadata if isinstance(each, Arrival)), owner.arrival)


def arrivals() -> dict[str, Arrival | None]:
    """Return, for every setting of a run, how it is known to arrive."""
    return {setting.name: setting.arrival for setting in all_settings() if not setting.groups}


@dataclass(frozen=True, slots=True)
class Spot:
    """A place in the schema that an error of pydantic's names."""

    keys: tuple[str, ...]
    """The keys as the user writes them, without the tags of unions that pydantic adds."""
    owners: tuple[type[Settings], ...]
    """The class that has, or lacks, the last key; several where a union's tag does not say which.
    """
    annotation: Any
    """The type that is wanted there; `None` for an unknown key."""
    metadata: Sequence[Any]
    members: tuple[type[Settings], ...] = ()
    """All members of the union that the owner is one of."""
    root: type[Settings] = Run
    """The schema of the whole recipe."""

    @property
    def name(self) -> str:
        """The setting's name, dotted."""
        return ".".join(self.keys)


def find_spot(place: Sequence[str | int], root: type[Settings] = Run) -> Spot:
    """Follow a place of pydantic's through the schema."""
    spot = Spot((), (), root, ())
    for part in place:
        spot = _step(spot, part)
    return replace(spot, root=root)


def _step(spot: Spot, part: str | int) -> Spot:
    annotation = _bare(spot.annotation)
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        # The part is a union's tag, which nobody has written as a key.
        members = tuple(_classes(annotation))
        if not members:  # a number or a word: the part is the kind of value that was tried
            return spot
        chosen = next((member for member in members if part in tuple(_tags(member))), None)
        return Spot(spot.keys, members, chosen, (), members)
    keys = (*spot.keys, str(part))
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        field = annotation.model_fields.get(str(part))
        return Spot(
            keys,
            (annotation,),
            field and field.annotation,
            field.metadata if field else (),
            spot.members,
        )
    arguments = typing.get_args(annotation)
    if isinstance(part, int) and arguments:
        entry = (
            arguments[0]
            if arguments[-1] is Ellipsis
            else arguments[part]
            if part < len(arguments)
            else None
        )
        return Spot(keys, spot.owners, entry, ())
    return Spot(keys, spot.owners, None, ())


def choices(annotation: Any) -> tuple[str, ...]:
    """Return the words that a setting takes, or the tags of a union."""
    return tuple(dict.fromkeys(_choices(annotation)))


def takes(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    """Return the values of a type, in words."""
    if typing.get_origin(annotation) is typing.Annotated:
        field = next(
            (each for each in annotation.__metadata__ if isinstance(each, FieldInfo)), None
        )
        return takes(
            typing.get_args(annotation)[0],
            [*metadata, *(field.metadata if field else annotation.__metadata__)],
        )
    return _takes(_bare(annotation), metadata) + (", or null" if nullable(annotation) else "")


def _takes(annotation: Any, metadata: Sequence[Any]) -> str:
    if typing.get_origin(annotation) is typing.Literal:
        more = [each.text for each in metadata if isinstance(each, OtherWords)]
        return ", or ".join([one_of(typing.get_args(annotation)), *more])
    if typing.get_origin(annotation) is tuple:
        entries = typing.get_args(annotation)
        if entries[-1] is Ellipsis:
            return f"a list{_bounds(metadata)}, each entry {takes(entries[0])}"
        return f"a list of {len(entries)}, each {takes(entries[0])}"
    if typing.get_origin(annotation) is dict or list(_classes(annotation)):
        free = typing.get_origin(annotation) is dict
        return "a mapping of names to values" if free else "a group of settings"
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return ", or ".join(takes(each, metadata) for each in typing.get_args(annotation))
    return _WORDS.get(annotation, str(annotation)) + _bounds(metadata)


def _bounds(metadata: Sequence[Any]) -> str:
    bounds = [_BOUNDS[type(each)].format(each) for each in metadata if type(each) in _BOUNDS]
    return f" {' and '.join(bounds)}" if bounds else ""


def _bare(annotation: Any) -> Any:
    """Return a type without `Annotated` and without `| None`."""
    while typing.get_origin(annotation) is typing.Annotated:
        annotation = typing.get_args(annotation)[0]
    if nullable(annotation):
        rest = [each for each in typing.get_args(annotation) if each is not type(None)]
        return _bare(rest[0]) if len(rest) == 1 else typing.Union[tuple(rest)]  # noqa: UP007  (built from a list)
    return annotation


def nullable(annotation: Any) -> bool:
    """Return True if a setting may be null."""
    return type(None) in typing.get_args(annotation)


def group_class(annotation: Any, values: Mapping[str, Any]) -> type[Settings] | None:
    """Return the class of a group with these values; None where it is no group, or is not known."""
    annotation = _bare(annotation)
    if isinstance(annotation, type):
        return annotation if issubclass(annotation, Settings) else None
    if (
        not isinstance(annotation, types.UnionType)
        and typing.get_origin(annotation) is not typing.Union
    ):
        return None
    return next(
        (
            each
            for each in _classes(annotation)
            if set(_tags(each)) & set(map(str, values.values()))
        ),
        None,
    )


def _classes(annotation: Any) -> Iterator[type[Settings]]:
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from _classes(argument)


def _choices(annotation: Any) -> Iterator[str]:
    annotation = _bare(annotation)
    if typing.get_origin(annotation) is typing.Literal:
        yield from map(str, typing.get_args(annotation))
    else:
        for member in _classes(annotation):
            yield from _tags(member)


def _tags(member: type[Settings]) -> Iterator[str]:
    """Yield the words that pick this member of a union: its setting with a single choice."""
    for field in member.model_fields.values():
        if (
            typing.get_origin(field.annotation) is typing.Literal
            and len(typing.get_args(field.annotation)) == 1
        ):
            yield from map(str, typing.get_args(field.annotation))


def docstrings(owner: type[Settings]) -> dict[str, str]:
    """Return the docstring of each field, inherited fields included.

    Read from the source, and only when asked for: pydantic would do it at every start.
    """
    groups = [each for each in owner.__mro__ if issubclass(each, Settings) and each is not Settings]
    found: dict[str, str] = {}
    for group in reversed(groups):
        found |= _own_docstrings(group)
    described = ((name, field.description) for name, field in owner.model_fields.items())
    return found | {name: text for name, text in described if text}


@cache
def _own_docstrings(owner: type[Settings]) -> dict[str, str]:
    try:
        body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
    except OSError:  # a class that a function made has no text: its fields describe themselves
        return {}
    assert isinstance(body, ast.ClassDef)
    found = {}
    for before, after in zip(body.body, body.body[1:], strict=False):
        match before, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(
                value=ast.Constant(value=str(text))
            ):
                found[name] = inspect.cleandoc(text)
    return found
