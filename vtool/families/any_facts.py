"""Facts about any image-text-to-text model of transformers, without importing it."""

import ast
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from vtool.families.facts import FamilyFacts, PatchSizes, VideoDefaults

_FILE = Path("models", "auto", "modeling_auto.py")
_TABLE = "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES"


@cache
def transformers_types() -> Mapping[str, str]:
    """Return transformers' image-text-to-text classes by `model_type`; none where it is absent."""
    found = find_spec("transformers")
    if found is None or found.origin is None:
        return {}
    try:
        tree = ast.parse((Path(found.origin).parent / _FILE).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return {}
    for line in tree.body:
        targets = line.targets if isinstance(line, ast.Assign) else []
        if any(isinstance(one, ast.Name) and one.id == _TABLE for one in targets):
            pairs = next(one for one in ast.walk(line) if isinstance(one, ast.List))
            return {str(kind): str(name) for kind, name in ast.literal_eval(pairs)}
    return {}


@cache
def any_facts(name: str) -> FamilyFacts:
    """Return the facts of a model type that are known beforehand: the name of its class."""
    return FamilyFacts(
        name=name,
        implementation="vtool.families.any_family:AnyFamily",
        class_prefix="",
        own_class=transformers_types().get(name),
        processor="",
        patches=PatchSizes(1, 1, 1),
        video=VideoDefaults(1, 1),
        is_learnt=True,
        linear_layers={},
        sizes={},
        token_fields={},
    )
