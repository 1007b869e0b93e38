"""Helpers that the test of each family asks for its facts."""

from vtool.config.load import examine
from vtool.families import FAMILIES
from vtool.families.family import load_family
from vtool.models.video import video_processor


def frames_shown(name: str) -> list[int]:
    """Return which frames are shown of a clip of 3 seconds, 10 frames each, at 2 a second."""
    return video_processor(load_family(name), {}).sample(30, 10.0)


def text_of_four_frames(name: str) -> str:
    """Return the text in the place of a video of four frames, a third of a second apart."""
    family = load_family(name)
    return family.video_text(family.facts.token_names, [0, 1, 2, 3], 3.0, 2)


def components(name: str, *modules: str) -> list[str]:
    """Return the components of modules of the tower."""
    return [load_family(name).component(f"model.visual.{module}.weight") for module in modules]


def layers_named_in_help(name: str) -> str:
    """Return the help for a linear layer that the family does not have."""
    overrides = (f"model.family={name}", "lora={targets: [nothing_like_it]}")
    (finding,) = examine("digits", overrides).findings
    assert finding.rule == "lora-target"
    return str(finding.help)


def refused_by_rules(name: str) -> list[str]:
    """Return which of packing and engine=megatron the rules refuse for the family."""
    given = {
        "megatron": ("digits_megatron", "launch.nproc=2"),
        "packing": ("digits", "data.packing=token_budget", "data.micro_batch_tokens=400"),
    }
    assert name in FAMILIES
    return [
        what
        for what, (recipe, *more) in given.items()
        if "not-built-on-engine"
        in {one.rule for one in examine(recipe, [f"model.family={name}", *more]).findings}
    ]
