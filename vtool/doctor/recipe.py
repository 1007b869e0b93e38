"""The needs of one recipe.

It need not be complete: doctor does not ask where the model and the rows are. Where the rows are
there, or their names say what they are, it asks for what reads them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vtool.config.compose import compose_recipe
from vtool.config.environment.npu import NPU_ONLY_RULES
from vtool.config.origins import Origins
from vtool.config.schema import LoadCheck, Megatron, Run
from vtool.config.validate import validate
from vtool.data.containers.files import needs_pyarrow
from vtool.diagnostics import Diagnostic

_LOOKED_AT = ("engine", "device", "launch")
"""The groups that say what a machine must have."""


@dataclass(frozen=True, slots=True)
class Needs:
    """The needs of a recipe, read off its settings."""

    run: Run | None
    """The run of an sft recipe. Groups that have findings are at their defaults, or absent."""
    load_check: LoadCheck | None
    origins: Origins
    findings: tuple[Diagnostic, ...]
    """Findings about the groups that doctor checks; the others are for validate-config."""
    sound: bool
    """True where the model's and the data's settings are valid too."""
    extras: tuple[str, ...]
    """Extras of vtool, such as `megatron`."""
    without: tuple[str, ...]
    """Packages that vtool depends on and this recipe does not use."""
    asked: tuple[str, ...]
    """Rules that are checked besides those of every machine."""


def _has_columns(run: Run) -> bool:
    """Return whether rows are read by pyarrow, as far as can be seen without reading them."""
    paths = [
        path
        for entries in run.data.splits.values()
        for entry in entries
        for path in entry.files().values()
    ]
    return any(needs_pyarrow(Path(path)) for path in paths if path)


def needs_of(recipe: str, overrides: Sequence[str] = ()) -> Needs:
    """Compose a recipe, and return what it needs.

    Raises:
        Findings: `fatal`, where it cannot be read.
    """
    composed = compose_recipe(recipe, overrides)
    checked = validate(composed)
    own = tuple(
        finding
        for finding in (*composed.findings, *checked.findings)
        if str(finding.parameter).partition(".")[0] in (*_LOOKED_AT, "kind")
    )
    if isinstance(checked.run, LoadCheck):
        return Needs(
            None,
            checked.run,
            composed.origins,
            checked.findings,
            not checked.findings,
            (),
            (),
            ("extra-not-installed",),
        )
    run = checked.run
    assert isinstance(run, Run)
    if own:
        return Needs(None, None, composed.origins, own, False, (), (), ())
    wanted = {
        "train": True,
        "megatron": isinstance(run.engine, Megatron),
        "mbridge": isinstance(run.engine, Megatron) and run.engine.bridge == "mbridge",
        "npu": run.device.kind == "npu",
        "data": "data" in checked.sound and _has_columns(run),
        "qlora": "lora" in checked.sound and run.lora is not None and run.lora.base_dtype == "nf4",
    }
    extras = tuple(name for name, needed in wanted.items() if needed)
    of_extras = ("extra-not-installed", "device-missing")
    return Needs(
        run=run,
        load_check=None,
        origins=composed.origins,
        findings=(),
        sound={"model", "data"} <= checked.sound,
        extras=extras,
        without=("peft",) if "lora" in checked.sound and run.lora is None else (),
        asked=(
            *(of_extras if extras or run.device.kind == "cuda" else ()),
            *(NPU_ONLY_RULES if run.device.kind == "npu" else ()),
        ),
    )
