"""The weights of a folder, by names and shapes, beside those of the class that its config names.

transformers' own loader is asked, on the meta device: it knows older names, and reads no values.
"""

import re
from collections.abc import Collection, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from vtool.diagnostics import Diagnostic
from vtool.diagnostics.diagnostic import Origin
from vtool.families.images import beyond_any_model
from vtool.model_folder import MODEL_CONFIG
from vtool.words import first_line

RULE = "weights-not-of-class"
_SHOWN = 4


class _NotCompared(Exception):
    """The class cannot be asked here; the text says why."""


def work(task: str, folder: Path, rank: int) -> tuple[list[Diagnostic], str, bool]:
    """Compare a folder with its class, in a process of its own.

    Returns:
        Findings; what was compared; False where it could not be, which the text then says.
    """
    path = Path(task)
    try:
        kind, count, report = _report(path)
    except _NotCompared as why:
        return [], str(why), False
    words = f"{count} weights of {kind}, by name and shape"
    return list(_findings(path, kind, report)), words, True


def _report(path: Path) -> tuple[str, int, dict[str, Any]]:
    """Return the class, the number of its weights, and what its loader says of the folder's."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if beyond := beyond_any_model(path):
        raise _NotCompared(beyond)
    where = {"local_files_only": True, "trust_remote_code": False}
    try:
        config = transformers.AutoConfig.from_pretrained(path, **where)
        if getattr(config, "quantization_config", None):  # other names and shapes, by its method
            raise _NotCompared("its weights are quantized")
        named = str(next(iter(config.architectures or ()), ""))
        kind = getattr(transformers, named, None)
        if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):
            version = transformers.__version__
            raise _NotCompared(
                f"transformers {version} has no class {named}"
                if named
                else "config.json names no class (architectures)"
            )
        loader: Any = kind
        model, report = loader.from_pretrained(
            path,
            config=config,
            device_map="meta",
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            **where,
        )
    except _NotCompared:
        raise
    except Exception as error:  # a config says anything; a quantized folder needs its own packages
        raise _NotCompared(f"transformers does not load it: {first_line(error)}") from error
    return named, sum(1 for _ in model.parameters()), report


def _findings(path: Path, kind: str, report: dict[str, Any]) -> Iterator[Diagnostic]:
    missing, strange = (sorted(report.get(key, ())) for key in ("missing_keys", "unexpected_keys"))
    shapes = sorted(report.get("mismatched_keys", ()), key=str)
    said = []
    if missing:
        what = (
            "are not there, and begin with random values"
            if len(missing) > 1
            else ("is not there, and begins with random values")
        )
        said.append(f"{len(missing)} {what}: {_listed(missing)}")
    if shapes:
        told = [f"{name} {[*own]}, by the class {[*wanted]}" for name, own, wanted in shapes]
        said.append(f"{len(shapes)} of another shape: {_listed(told)}")
    if strange:
        said.append(f"{len(strange)} that nothing reads: {_listed(strange)}")
    if not said:
        return
    whole = not missing and not shapes
    yield Diagnostic(
        RULE,
        f"{path.name}: of the weights of {kind}, {'; '.join(said)}",
        _help(missing, strange),
        origin=Origin(str(path / MODEL_CONFIG)),
        parameter=missing[0] if missing else None,
        severity="note" if whole else None,
    )


def _listed(names: Collection[str]) -> str:
    shown = ", ".join(list(names)[:_SHOWN])
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown


def _help(missing: list[str], strange: list[str]) -> str | None:
    """Return the name that a tensor may have been meant to have."""
    for name in strange:
        layer = re.findall(r"\d+", name)
        alike = [other for other in missing if re.findall(r"\d+", other) == layer]
        if near := get_close_matches(name, alike, 1, 0.8):
            return f"`{name}` may be meant for `{near[0]}`: rename it, or save the folder again"
    return None
