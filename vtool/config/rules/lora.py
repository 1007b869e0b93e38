"""Rules about what is trained: frozen parts, and adapters."""

from collections.abc import Iterator

from vtool.config.lora import LINEAR, chosen, names_it, trained_parts
from vtool.config.origins import Origins
from vtool.config.rules.rule import settings_rule
from vtool.config.schema import Run
from vtool.diagnostics import Diagnostic, Rule
from vtool.diagnostics.near_miss import did_you_mean, near


def _end(name: str) -> str:
    """The shortest end of a layer's name that says what it is: numbers alone do not."""
    parts = name.split(".")
    return ".".join(parts[-3:] if parts[-1].isdigit() else parts[-1:])


@settings_rule(
    Rule(
        name="nothing-to-train",
        code="VT213",
        summary="model.freeze names every part of the model.",
        why="The run would cost its time, and change nothing.",
        bad="'model.freeze={vision: true, projector: true, language: true}'",
        good="'model.freeze={vision: true, projector: true}'",
        fix="Leave out the part that is to learn.",
    ),
    groups=("model",),
)
def nothing_to_train(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Something is left that can learn."""
    if not trained_parts(run.model.freeze):
        message = "model.freeze names all parts of the model: nothing is left to train"
        yield Diagnostic(
            "nothing-to-train",
            message,
            "leave one of them out",
            "model.freeze",
            origins.near("model.freeze.language"),
        )


@settings_rule(
    Rule(
        name="lora-target",
        code="VT214",
        summary=(
            "A name in lora.targets or lora.exclude is the end of no linear layer's name, or no"
            " layer is left that gets an adapter."
        ),
        why=(
            "The layers that were meant would be left as they are, and the run would look like one"
            " that learns badly."
        ),
        bad="'lora={targets: [query_proj]}'",
        good="'lora={targets: [q_proj, v_proj]}'",
        fix=(
            "Name the ends of linear layers' names: q_proj, k_proj, v_proj, o_proj, gate_proj,"
            " up_proj, down_proj; in the tower attn.qkv and attn.proj; in the projector"
            " merger.mlp.0 and merger.mlp.2. The head and the embedding get no adapter."
        ),
    ),
    groups=("model", "lora"),
)
def lora_target(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Each name in lora.targets and lora.exclude names a linear layer, and some layer gets an
    adapter.
    """
    parts = trained_parts(run.model.freeze)
    if run.lora is None or not parts:
        return
    everywhere = [name for names in LINEAR[run.model.family].values() for name in names]
    trained = [name for part in parts for name in LINEAR[run.model.family][part]]
    found = False
    for setting, given in (
        ("lora.targets", run.lora.targets or ()),
        ("lora.exclude", run.lora.exclude),
    ):
        for number, target in enumerate(given):
            problem = None
            if not any(names_it(target, name) for name in everywhere):
                problem = f"{setting} has {target}, which no linear layer's name ends in"
                ends = sorted({_end(name) for name in everywhere})
                help = (
                    did_you_mean(near(target, ends))
                    or f"name some of {', '.join(ends)}, or more of a layer's name"
                )
            elif setting == "lora.targets" and not any(names_it(target, name) for name in trained):
                frozen = [
                    part
                    for part, names in LINEAR[run.model.family].items()
                    if any(names_it(target, name) for name in names)
                ]
                problem = (
                    f"lora.targets has {target}, which is in what model.freeze says is not trained:"
                    f" {', '.join(frozen)}"
                )
                help = f"leave it out, or set model.freeze.{frozen[0]}=false"
            if problem:
                found = True
                yield Diagnostic(
                    "lora-target",
                    problem,
                    help,
                    f"{setting}.{number}",
                    origins.near(f"{setting}.{number}"),
                    seen=target,
                )
    if not found and not chosen(trained, run.lora):
        message = (
            "lora.exclude takes away every linear layer that lora.targets names: there is no"
            " adapter to train"
        )
        yield Diagnostic(
            "lora-target",
            message,
            "leave some of it out",
            "lora.exclude",
            origins.near("lora.exclude"),
        )
