"""Rules about what is trained: frozen parts, and adapters."""

from collections.abc import Iterator, Mapping, Sequence

from vtool.config.origins import Origins
from vtool.config.rules.rule import settings_rule
from vtool.config.schema import Run, trained_components
from vtool.diagnostics import Diagnostic, Rule
from vtool.diagnostics.near_miss import did_you_mean, near
from vtool.families import family_facts
from vtool.families.linear_layers import ends_in, select_layers

_EMBEDDINGS = ("lm_head", "model.language_model.embed_tokens")


def _problem(
    setting: str, target: str, layers: Mapping[str, tuple[str, ...]], components: Sequence[str]
) -> tuple[str, str] | None:
    """Return the message and help about a wrong name in `setting`; None where it is right."""
    named = [component for component, names in layers.items() if select_layers(names, (target,))]
    if not named:
        ends = sorted({_end(name) for names in layers.values() for name in names})
        return (
            f"{setting} has {target}, which no linear layer's name ends in",
            did_you_mean(near(target, ends))
            or f"name some of {', '.join(ends)}, or more of a layer's name",
        )
    if setting == "lora.targets" and not set(named) & set(components):
        return (
            f"lora.targets has {target}, which is in what model.freeze says is not trained:"
            f" {', '.join(named)}",
            f"leave it out, or set model.freeze.{named[0]}=false",
        )
    return None


def _unknown_module(
    module: str, layers: Mapping[str, tuple[str, ...]], components: Sequence[str]
) -> tuple[str, str] | None:
    """Return the message and help about a wrong name in `lora.modules_to_save`; None if right."""
    known = {name: component for component, names in layers.items() for name in _modules(names)}
    known |= dict.fromkeys(_EMBEDDINGS, "language")
    named = {component for name, component in known.items() if ends_in(name, module)}
    if not named:
        ends = sorted({name.rpartition(".")[2] for name in known} - {"N"})
        return (
            f"lora.modules_to_save has {module}, which no module's name ends in",
            did_you_mean(near(module, ends)) or f"name one of {', '.join(ends)}",
        )
    if not named & set(components):
        frozen = ", ".join(sorted(named))
        return (
            f"lora.modules_to_save has {module}, which is in what model.freeze says is not"
            f" trained: {frozen}",
            f"leave it out, or set model.freeze.{sorted(named)[0]}=false",
        )
    return None


def _modules(layers: Sequence[str]) -> Iterator[str]:
    """Yield the names of linear layers, and of every module that they are in."""
    for layer in layers:
        parts = layer.split(".")
        yield from (".".join(parts[:count]) for count in range(1, len(parts) + 1))


def _end(name: str) -> str:
    """Return the shortest end of a layer's name that distinguishes it: numbers alone do not."""
    words = name.split(".")
    return ".".join(words[-3:] if words[-1].isdigit() else words[-1:])


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
)
def nothing_to_train(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that model.freeze leaves a part of the model to train."""
    if not trained_components(run.model.freeze):
        yield Diagnostic(
            "nothing-to-train",
            "model.freeze names all parts of the model: nothing is left to train",
            "leave one of them out",
            "model.freeze",
            origins.near("model.freeze.language"),
        )


@settings_rule(
    Rule(
        name="lora-target",
        code="VT214",
        summary=(
            "A name in lora.targets or lora.exclude is the end of no linear layer's name, one in"
            " lora.modules_to_save of no module's, or no layer is left that gets an adapter."
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
            " merger.mlp.0 and merger.mlp.2. The head and the embedding get no adapter:"
            " lora.modules_to_save trains them whole, where they are not tied."
        ),
    ),
)
def lora_target(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that each name in `lora` ends a layer's or module's name, and some layer is adapted."""
    components = trained_components(run.model.freeze)
    if run.lora is None or not components:
        return
    if family_facts(run.model.family).is_learnt:
        return  # peft says which layers it has, once the model is there
    layers = family_facts(run.model.family).linear_layers
    trained = [name for component in components for name in layers[component]]
    given = (("lora.targets", run.lora.targets or ()), ("lora.exclude", run.lora.exclude))
    found = False
    for setting, names in given:
        for number, target in enumerate(names):
            if problem := _problem(setting, target, layers, components):
                found = True
                name = f"{setting}.{number}"
                yield Diagnostic("lora-target", *problem, name, origins.near(name), seen=target)
    for number, module in enumerate(run.lora.modules_to_save):
        if problem := _unknown_module(module, layers, components):
            name = f"lora.modules_to_save.{number}"
            yield Diagnostic("lora-target", *problem, name, origins.near(name), seen=module)
    if not found and not select_layers(trained, run.lora.targets, run.lora.exclude):
        yield Diagnostic(
            "lora-target",
            (
                "lora.exclude takes away every linear layer that lora.targets names: there is no"
                " adapter to train"
            ),
            "leave some of it out",
            "lora.exclude",
            origins.near("lora.exclude"),
        )
