"""The processor files of a model's folder, beside its family's classes and beside each other.

vtool processes by its family's classes. transformers' Auto classes, and servers with them, take
what the files name.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from vtool.diagnostics import Diagnostic
from vtool.families.facts import FamilyFacts
from vtool.families.family import Family
from vtool.model_folder import PROCESSOR_FILES, TOKENIZER_CONFIG, ModelFolder
from vtool.models.video import VideoProcessor, video_processor
from vtool.words import first_line

_OF_THE_TOWER = ("image_mean", "image_std", "patch_size", "temporal_patch_size", "merge_size")
_OF_IMAGES = (
    *("size", "do_resize", "resample", "do_rescale", "rescale_factor", "do_normalize"),
    *("do_convert_rgb", *_OF_THE_TOWER),
)
_AUTO_IMAGES, _AUTO_VIDEOS = "AutoImageProcessor", "AutoVideoProcessor"
_Settings = Mapping[str, Any]


def processor_notes(
    folder: ModelFolder,
    facts: FamilyFacts,
    images: Callable[..., Any],
    videos: Callable[[_Settings], VideoProcessor],
) -> Iterator[Diagnostic]:
    """Yield the findings about the processor files of a folder, whose processor can be loaded.

    Args:
        folder: the model's.
        facts: of its family.
        images: the family's class of image processors.
        videos: makes the family's video processor of settings.
    """
    yield from _odd_classes(folder, facts)

    def of_images(given: _Settings) -> _Settings:
        return _of_images(images, given)

    def of_videos(given: _Settings) -> _Settings:
        return videos(given).as_json()

    yield from _differing(folder, folder.image_settings, of_images)
    yield from _differing(folder, folder.video_settings, of_videos)
    image = of_images(folder.image_processor or {})
    both = folder.settings(PROCESSOR_FILES[1]) or {}
    if "image_processor" not in both:  # what stands beside that key is read by nobody
        flat = {name: both[name] for name in _OF_IMAGES if name in both}
        if found := _differences({name: image[name] for name in flat}, flat):
            used, other = PROCESSOR_FILES
            yield _differ(folder, f"{used}, which counts, and {other} have {found}", other)
    for file, given in [*folder.video_settings.items()][:1]:
        said = {name for name in _OF_THE_TOWER if given.get(name) is not None}
        if found := _differences(
            {name: image[name] for name in said}, {name: given[name] for name in said}
        ):
            message = f"{folder.path}: for images and for videos ({file}), there are {found}"
            help = "one tower is given both: take them from the published folder"
            yield Diagnostic("processor-files-differ", message, help, parameter="model.path")


def _of_images(images: Callable[..., Any], given: _Settings) -> _Settings:
    own = images(**given).to_dict()
    return {name: own.get(name) for name in _OF_IMAGES}


def differing_pixels(one: ModelFolder, other: ModelFolder, family: Family) -> str:
    """Return the settings of images and videos in which two folders differ; "" for none.

    A folder without any, as an adapter's from elsewhere, differs in none.
    """
    images = family.image_processor_class("pil")
    found = []
    if one.image_processor is not None and other.image_processor is not None:
        both = [_of_images(images, each.image_processor or {}) for each in (one, other)]
        found.append(_differences(*both))
    if one.video_settings:
        both = [video_processor(family, each.video_processor).as_json() for each in (one, other)]
        found.append(_differences(*both))
    return ", ".join(filter(None, found))


def _odd_classes(folder: ModelFolder, facts: FamilyFacts) -> Iterator[Diagnostic]:
    import transformers

    whole = {
        name: folder.settings(name) or {} for name in (*PROCESSOR_FILES[::-1], TOKENIZER_CONFIG)
    }
    for key, files, own, auto in (
        ("processor_class", whole, facts.processor, "AutoProcessor"),
        ("image_processor_type", folder.image_settings, facts.image_processor, _AUTO_IMAGES),
        ("video_processor_type", folder.video_settings, facts.video_processor, _AUTO_VIDEOS),
    ):
        named = ((file, given[key]) for file, given in files.items() if given.get(key) is not None)
        file, name = next(named, ("", own))
        plain = str(name).removesuffix("Fast")
        if plain.removesuffix("Pil") == own:
            continue
        taken = "knows no such class, and gives no processor"
        if plain in dir(transformers):
            taken = "takes that class, and what it makes is not what was trained on"
        yield Diagnostic(
            "processor-class-differs",
            f"{folder.path}: {file} has {key} {name!r:.80}, and the model's class is {own}, which"
            f" vtool takes; transformers' {auto} {taken}",
            f"write {own} there; the export has it",
            parameter="model.path",
        )


def _differing(
    folder: ModelFolder, files: Mapping[str, _Settings], read: Callable[[_Settings], _Settings]
) -> Iterator[Diagnostic]:
    """Yield a warning where two files give settings of the same processor that differ."""
    if len(files) < 2:
        return
    (used, one), (other, two) = files.items()
    try:
        found = _differences(read(one), read(two))
    except (TypeError, ValueError, KeyError) as error:
        found = f"settings that cannot be read in {other} ({first_line(error)})"
    if found:
        yield _differ(folder, f"{used}, which counts, and {other} have {found}", other)


def _differ(folder: ModelFolder, what: str, other: str) -> Diagnostic:
    help = f"take out of {other} what is not meant, or write the same into both"
    message = f"{folder.path}: {what}"
    return Diagnostic("processor-files-differ", message, help, parameter="model.path")


def _differences(one: _Settings, two: _Settings) -> str:
    pairs = {name: (_plain(one[name]), _plain(two.get(name))) for name in sorted(one)}
    return ", ".join(
        f"{name} {first} and {second}" for name, (first, second) in pairs.items() if first != second
    )


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: each for name, each in sorted(value.items()) if each is not None}
    return [*value] if isinstance(value, list | tuple) else value
