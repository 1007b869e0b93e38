"""ms-swift's bounds of images and videos, which variables of its process give.

Read in `compat_qwen_vl_utils` and `patch_qwen_vl_utils` of ms-swift 4.6.0: qwen-vl-utils bounds
images in tokens. ms-swift makes these from the variables in pixels, where none in tokens are given.
"""

import json
import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from vtool.config.foreign.theirs import ForeignFile
from vtool.config.foreign.word import NO_COUNTERPART
from vtool.diagnostics import Diagnostic
from vtool.diagnostics.near_miss import did_you_mean
from vtool.families import FAMILIES
from vtool.families.facts import FamilyFacts

if TYPE_CHECKING:
    from vtool.config.foreign.hf_translation import Translation
    from vtool.config.foreign.hf_traps import TheirSettings

_PAIRS = {
    "MAX_PIXELS": ("IMAGE_MAX_TOKEN_NUM", "data.image.max_pixels"),
    "MIN_PIXELS": ("IMAGE_MIN_TOKEN_NUM", "data.image.min_pixels"),
    "VIDEO_MAX_PIXELS": ("VIDEO_MAX_TOKEN_NUM", "data.video.max_pixels"),
    "VIDEO_MIN_PIXELS": ("VIDEO_MIN_TOKEN_NUM", "data.video.min_pixels"),
}
"""By the variable in pixels: the one in tokens, which goes before it, and our setting."""
BOUND_VARIABLES = frozenset(_PAIRS) | {tokens for tokens, _ in _PAIRS.values()}
_FRAMES = {"FPS": "data.video.fps", "FPS_MAX_FRAMES": "data.video.max_frames"}
SWIFT_VARIABLES = BOUND_VARIABLES | _FRAMES.keys()
"""Variables whose numbers are taken over."""
_READ = (
    *sorted(SWIFT_VARIABLES),
    *("FPS_MIN_FRAMES", "FRAME_FACTOR", "VIDEO_TOTAL_PIXELS", "NPROC_PER_NODE"),
    *("NFRAMES", "NUM_FRAMES", "MAX_NUM_FRAMES", "VLLM_NUM_FRAMES", "STACK_FRAMES"),
)
"""Variables of pixels, tokens, frames and processes that ms-swift reads."""
_OF_THEIR_KIND = re.compile(r"PIXEL|TOKEN|FPS|FRAME|N_?PROC")


def meant_variable(name: str) -> list[str]:
    """Return the variable that a name which ms-swift does not read is near to, if any."""
    if name in _READ or not _OF_THEIR_KIND.search(name):
        return []
    plain = name.removeprefix("IMAGE_")
    return [plain] if plain in _READ else get_close_matches(name, _READ, 1, 0.75)


def with_model_arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with the variables that `model_kwargs` sets, which go before the others."""
    set_here = _model_arguments(given)
    return dict(given) | {name: set_here[name] for name in SWIFT_VARIABLES & set_here.keys()}


def _model_arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that `model_kwargs` sets, by the names of their variables."""
    arguments = given.get("model_kwargs")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            arguments = None
    arguments = arguments if isinstance(arguments, Mapping) else {}
    return {str(name).upper(): value for name, value in arguments.items()}


def find_lost_variables(given: Mapping[str, Any], theirs: ForeignFile) -> Iterator[Diagnostic]:
    """Yield findings about variables that `model_kwargs` overrides or misspells.

    Args:
        given: the settings without those of `model_kwargs`.
    """
    for name, value in _model_arguments(given).items():
        if meant := meant_variable(name):
            message = f"model_kwargs has {name.lower()}, which ms-swift does not read"
            help = did_you_mean([one.lower() for one in meant])
            yield theirs.find("setting-without-reader", "model_kwargs", message, help)
        elif name in SWIFT_VARIABLES and name in theirs.places and given[name] != value:
            yield theirs.find(
                "setting-without-reader",
                name,
                f"{name} is {given[name]}, but model_kwargs sets {value}: it alone is read",
                "leave one of them out",
            )


def put_bounds(the: "Translation") -> None:
    """Put the bounds in force into our settings, in pixels."""
    theirs, family = the.theirs, _family(the.theirs.values)
    for name, ours in _FRAMES.items() if family and _reads(family) else ():
        if name in theirs.given:
            the.put(ours, name, _whole if ours.endswith("frames") else _rate)
    for pixels, (tokens, ours) in _PAIRS.items():
        word = tokens if _number(theirs.given, tokens) is not None else pixels
        number = _number(theirs.given, word)
        if number is None or not _reads(family):
            continue
        if family is None:
            if word == pixels:
                _tighten(the, ours, number, word)
            continue
        if ours.startswith("data.video") and family.video.bounds_are_total:
            continue  # theirs are of each frame, ours of all: no counterpart
        size = family.patches.pixels_per_token
        count = number if word == tokens else number // size
        theirs.judged |= {pixels, tokens}
        if _tighten(the, ours, count * size, word):
            if word == tokens:
                theirs.scales[ours] = size
            the.notes.append(f"{word}={number} is {count} tokens of {size} pixels: {ours}")


def _tighten(the: "Translation", ours: str, value: int, word: str) -> bool:
    """Put a bound, unless a setting that is applied as well is tighter; return whether it is."""
    _, group, name = ours.split(".")
    before = the.theirs.values.get("data", {}).get(group, {}).get(name)
    if isinstance(before, int) and name == "max_pixels" and before <= value:
        return False
    the.theirs.put(ours, value, word)
    return True


def find_unread_bounds(look: "TheirSettings") -> Iterator[Diagnostic]:
    """Yield a finding for each bound that ms-swift does not read, or that a row has no room for."""
    family = _family(look.theirs.values)
    given = look.theirs.given
    tokens_alone = [tokens for tokens, _ in _PAIRS.values() if _number(given, tokens) is not None]
    if family is None and tokens_alone:
        yield look.at(
            "no-counterpart",
            tokens_alone[0],
            f"{', '.join(tokens_alone)}: of how many pixels a token of this model is, is not known"
            " here: no bound of images is taken over",
            "set data.image.max_pixels in the recipe that it becomes",
        )
    for pixels, (tokens, ours) in _PAIRS.items():
        number, count = (_number(look.theirs.given, name) for name in (pixels, tokens))
        for name, value in ((pixels, number), (tokens, count)):
            if value is not None and not _reads(family):
                yield look.at(
                    "setting-without-reader",
                    name,
                    f"{name} is set, but ms-swift reads it for models of Qwen's alone",
                    f"set max_pixels in its place: --{name.lower()}"
                    if name == "MAX_PIXELS"
                    else "leave it out",
                )
        if family is None or (number is None and count is None) or not _reads(family):
            continue
        size = family.patches.pixels_per_token
        if number is not None and count is not None and number // size != count:
            yield look.at(
                "setting-without-reader",
                pixels,
                f"{pixels} is {number}, but it is not read where {tokens} is set: that is {count},"
                f" which is {count * size} pixels of {family.name}",
                "leave one of them out",
            )
        most = count if count is not None else (number or 0) // size
        longest = look.trainer.longest(look.theirs.given)
        of_frames = ours == "data.video.max_pixels" and family.video.bounds_are_total
        if of_frames and longest is not None and most >= longest:
            name = tokens if count is not None else pixels
            yield look.at(
                "image-longer-than-row",
                name,
                f"{look.trainer.length_word} is {longest}, but with {name}={look[name]} two frames"
                f" of a video can have up to {most} tokens",
                f"set {tokens} below {longest}, or raise {look.trainer.length_word}",
            )


def _family(values: Mapping[str, Any]) -> FamilyFacts | None:
    return FAMILIES.get(values.get("model", {}).get("family"))


def _reads(family: FamilyFacts | None) -> bool:
    """Return whether the variables act on a model; of an unknown one, it is assumed."""
    return family is None or family.name.startswith("qwen")


def _number(given: Mapping[str, Any], name: str) -> int | None:
    try:
        return int(given.get(name))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None


def _whole(value: Any) -> Any:
    number = _number({"": value}, "")
    return NO_COUNTERPART if number is None or number < 2 else number


def _rate(value: Any) -> Any:
    try:
        return float(value) if float(value) > 0 else NO_COUNTERPART
    except (TypeError, ValueError):
        return NO_COUNTERPART
