"""A JSON schema of recipes, for editors, in draft 07, which the YAML language server reads.

A recipe is a part of the settings: the rest comes from its defaults list. So nothing is required
here, a union's settings are all allowed where its tag may stand in another file, and `???` and
`${…}` stand in for any value. The rest is an error that no composition could put right.
"""

import inspect
from typing import Any

from vtool.config.schema import RECIPE_KINDS, Settings
from vtool.config.schema.formats import FORMATS
from vtool.config.settings import Setting, docstrings

Schema = dict[str, Any]

_DEFAULTS: Schema = {
    "description": (
        "What the recipe is composed of, in order: a recipe to extend, `/GROUP: FILE` for a file of"
        " configs/, `override /GROUP: FILE` in the place of another, `_self_` for the recipe's own"
        " settings."
    ),
    "type": "array",
    "items": {
        "anyOf": [
            {"type": "string"},
            {
                "type": "object",
                "minProperties": 1,
                "maxProperties": 1,
                "additionalProperties": {
                    "anyOf": [
                        {"type": "string"},
                        {"type": "null"},
                        {"type": "array", "items": {"type": "string"}},
                    ]
                },
            },
        ]
    },
}
_REFERENCE_TEXT: Schema = {
    "type": "string",
    "pattern": r"\$\{|^\?\?\?$",
    "description": "Left open, or a reference to another setting.",
}
_ROWS_FILE: Schema = {
    "type": "string",
    "minLength": 1,
    "description": "A file or a folder of rows, whose layout is detected.",
}
_REFERENCE: Schema = {"$ref": "#/definitions/open"}


def recipe_schema() -> Schema:
    """Return the JSON schema of recipe files of every kind."""
    definitions = {"open": _REFERENCE_TEXT}
    kinds = {
        kind: _object((schema,), definitions, whole=False) for kind, schema in RECIPE_KINDS.items()
    }
    for kind, schema in kinds.items():
        schema["properties"] = {"defaults": _DEFAULTS, **schema["properties"]}
        definitions[f"kind_{kind}"] = schema
    refs = {kind: {"$ref": f"#/definitions/kind_{kind}"} for kind in kinds}
    branch: Schema = {"anyOf": list(refs.values())}  # one that extends another has that one's kind
    for kind, ref in refs.items():
        branch = {
            "if": {"required": ["kind"], "properties": {"kind": {"const": kind}}},
            "then": ref,
            "else": branch,
        }
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "A recipe of vtool",
        "type": "object",
        **branch,
        "definitions": dict(sorted(definitions.items())),
    }


def _object(
    owners: tuple[type[Settings], ...], definitions: dict[str, Schema], whole: bool
) -> Schema:
    """Return the schema of a group: of classes that a tag tells apart, with the settings of all.

    Args:
        whole: whether it stands in one place, as an entry of a list does, so that what must be
            given must be given here.
    """
    properties: dict[str, list[Schema]] = {}
    for owner in owners:
        plain = owner.model_json_schema(mode="validation")
        docs = docstrings(owner)
        for name, field in owner.model_fields.items():
            schema = _field(Setting(name, owner, field), plain["properties"][name], definitions)
            if text := docs.get(name):
                schema = {"description": " ".join(text.split()), **schema}
            if (
                not field.is_required()
                and "default" in plain["properties"][name]
                and not isinstance(field.default, Settings)
            ):
                schema["default"] = plain["properties"][name]["default"]
            found = properties.setdefault(name, [])
            if schema not in found:
                found.append(schema)
    docs_of_all = [inspect.cleandoc(owner.__doc__ or "") for owner in owners]
    if len(owners) > 1:
        first = (" ".join(text.partition("\n\n")[0].split()).rstrip(".") for text in docs_of_all)
        description = "; or ".join(first) + "."
    else:
        description = " ".join(docs_of_all[0].split())
    required = [name for name, field in owners[0].model_fields.items() if field.is_required()]
    return {
        "type": "object",
        "description": description,
        "properties": {name: _merged(found) for name, found in properties.items()},
        "additionalProperties": False,
        **({"required": required} if whole else {}),
    }


def _merged(found: list[Schema]) -> Schema:
    """Merge the schemas of a setting that several classes have: what any of them takes is valid."""
    if len(found) == 1:
        return found[0]
    options = [option for schema in found for option in schema["anyOf"]]
    words = [word for option in options for word in option.get("enum", ())]
    rest = [
        option
        for number, option in enumerate(options)
        if "enum" not in option and option not in options[:number]
    ]
    return {
        "description": found[0].get("description", ""),
        "anyOf": [*([{"enum": words}] if words else []), *rest],
    }


def _field(setting: Setting, plain: Schema, definitions: dict[str, Schema]) -> Schema:
    """Return pydantic's schema of a setting, with groups by reference and stand-ins for values."""
    groups = setting.groups
    if groups and plain.get("type") != "array":
        key = "_or_".join(group.__name__ for group in groups)
        definitions[key] = _object(groups, definitions, whole=False)
        null = [{"type": "null"}] if {"type": "null"} in plain.get("anyOf", ()) else []
        return {"anyOf": [{"$ref": f"#/definitions/{key}"}, *null, _REFERENCE]}
    if groups:
        entries = []
        for group in groups:
            definitions[group.__name__] = _object((group,), definitions, whole=True)
            entries.append({"$ref": f"#/definitions/{group.__name__}"})
        bounds = {key: plain[key] for key in ("minItems", "maxItems") if key in plain}
        file = [_ROWS_FILE] if groups == FORMATS else []
        return {
            "anyOf": [
                {"type": "array", "items": {"anyOf": [*entries, *file, _REFERENCE]}, **bounds},
                *file,
                _REFERENCE,
            ]
        }
    cleaned = _clean(plain)
    cleaned.pop("default", None)
    options = cleaned.pop("anyOf", None) or [cleaned]
    text = any(option.get("type") == "string" and "enum" not in option for option in options)
    return {"anyOf": options if text else [*options, _REFERENCE]}


def _clean(schema: Any) -> Any:
    """Return pydantic's schema as draft 07 writes it: no titles, tuples as `items`."""
    if isinstance(schema, list):
        return [_clean(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _clean(value) for key, value in schema.items() if key != "title"}
    if "prefixItems" in made:
        made["items"] = made.pop("prefixItems")
    if "const" in made:
        made["enum"] = [made.pop("const")]
        made.pop("type", None)
    return made
