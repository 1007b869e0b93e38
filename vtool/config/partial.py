"""The settings of a recipe that has findings: what is valid is there, the rest raises `NotValid`.

So a rule runs wherever all that it reads is valid, and no default stands in for a broken value.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, cast

from pydantic import TypeAdapter
from pydantic.fields import FieldInfo

from vtool.config.origins import Key
from vtool.config.schema import Settings
from vtool.config.settings import group_class

_HOLE = object()


def partial(
    schema: type[Settings],
    values: Mapping[str, Any],
    broken: Collection[Key],
    doubted: Collection[Key] = (),
    strange: Collection[Key] = (),
) -> Settings:
    """Return the settings without those that have no valid value.

    Args:
        broken: places of values with a finding, or that are not known.
        doubted: places that an unknown key may have been meant for, which count where nothing is
            written; of a group, all in it.
        strange: places of unknown keys.
    """
    return _Builder(frozenset(broken), frozenset(doubted), frozenset(strange)).group(
        schema, values, ()
    )


def without_setting(settings: Settings, name: str) -> Settings:
    """Return settings in which one, by its dotted name, raises `NotValid`."""
    first, _, rest = name.partition(".")
    if rest:
        inner = getattr(settings, first)
        changed: Any = (
            tuple(
                without_setting(entry, rest.partition(".")[2])
                if str(number) == rest.partition(".")[0]
                else entry
                for number, entry in enumerate(inner)
            )
            if isinstance(inner, tuple)
            else without_setting(inner, rest)
        )
        return settings.model_copy(update={first: changed})
    copy = settings.model_copy()
    copy.__dict__.pop(first)
    return copy


@dataclass(frozen=True, slots=True)
class _Builder:
    broken: frozenset[Key]
    doubted: frozenset[Key]
    strange: frozenset[Key]

    def group(self, schema: type[Settings], values: Mapping[str, Any], place: Key) -> Settings:
        """Return the valid settings of a group, at a place where some are not."""
        found = {
            name: value
            for name, field in schema.model_fields.items()
            if (value := self.setting(field, values, name, (*place, name))) is not _HOLE
        }
        settings = schema.model_construct(**found)
        for name in schema.model_fields.keys() - found.keys():
            settings.__dict__.pop(name, None)  # pydantic's default
        return settings

    def setting(self, field: FieldInfo, values: Mapping[str, Any], name: str, place: Key) -> Any:
        """Return the valid value of a setting, or what is valid in a group."""
        written = name in values
        doubtful = any(place[: len(each)] == each for each in self.doubted)
        if place in self.broken or (doubtful and not written):
            return _HOLE
        inside = (*self.broken, *self.doubted, *self.strange)
        if not doubtful and not any(each[: len(place)] == place for each in inside):
            return self.whole(field, values, name)
        given = values.get(name)
        schema = group_class(field.annotation, given if isinstance(given, dict) else {})
        if schema is None or (written and not isinstance(given, dict)):
            # a list, or a value, of which something is broken, or which an unknown key is near
            deeper = any(each[: len(place)] == place for each in (*self.broken, *self.strange))
            return _HOLE if deeper or not written else self.whole(field, values, name)
        if not written and not isinstance(field.default, Settings):
            return _HOLE
        return self.group(schema, given or {}, place)

    @staticmethod
    def whole(field: FieldInfo, values: Mapping[str, Any], name: str) -> Any:
        if name not in values:
            return _HOLE if field.is_required() else field.get_default(call_default_factory=True)
        kind = cast(Any, field.annotation)
        # true and false of model.gradient_checkpointing are read by what is in the metadata
        annotated = Annotated[kind, *field.metadata] if field.metadata else kind
        adapter: TypeAdapter[Any] = TypeAdapter(cast(Any, annotated))
        return adapter.validate_json(json.dumps(values[name], default=repr))
