"""Releases of the packages that vtool runs with: what was tested, what differs, what is broken.

All that depends on a release of another package is here, with its release, and goes when
the range in pyproject.toml has moved past it. Nothing is imported but the standard library: the
version of a package is read from the name of its folder in site-packages, which takes 0.2 ms.
"""

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Tested:
    """The releases of a package with which the tests were run, the first and the last one."""

    oldest: str
    newest: str


TESTED = {
    "transformers": Tested("5.5.4", "5.23.0"),
    "torch": Tested("2.11.0", "2.13.0"),
    "peft": Tested("0.18.0", "0.21.2"),
    "tokenizers": Tested("0.22.1", "0.23.3"),
    "safetensors": Tested("0.8.0", "0.8.0"),
}
"""By package. The releases between the ends are only resolved, not run."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A defect of a release of transformers, and what cannot be done with it."""

    below: str
    """The first release without it."""
    what: str
    """The message, behind the release's name."""
    families: tuple[str, ...] = ()
    """The model families that cannot be trained; empty: none can."""


BROKEN = (
    Broken(
        "5.5.0",
        "has no image processors that work without torchvision",
    ),
    Broken(
        "5.5.4",
        "puts the tokens behind an image at positions of a video's frames (transformers#45325)",
        ("qwen2_5_vl",),
    ),
)
"""Defects of transformers, each refused by a proof of `vtool verify`, or by an import."""


@dataclass(frozen=True, slots=True)
class InstalledPackage:
    """A package that is installed, as its folder in site-packages says it."""

    name: str
    version: str
    about: Path
    """The folder NAME-VERSION.dist-info."""


def find_installed(
    names: Sequence[str], path: Sequence[str] | None = None
) -> list[InstalledPackage]:
    """Return every installation of some packages, in the order in which Python looks for them.

    Args:
        names: those of the distributions.
        path: the folders to look in, as `sys.path` has them, which is the default.
    """
    wanted = {_folder_name(name): name for name in names}
    found = []
    for folder in dict.fromkeys(sys.path if path is None else path):
        with _entries(folder or ".") as entries:
            abouts = sorted(entry.name for entry in entries if entry.name.endswith(".dist-info"))
        for about in abouts:
            stem, _, version = about.removesuffix(".dist-info").partition("-")
            if name := wanted.get(_folder_name(stem)):
                found.append(InstalledPackage(name, version, Path(folder, about)))
    return found


def installed_versions(names: Sequence[str], path: Sequence[str] | None = None) -> dict[str, str]:
    """Return the versions of those packages that would be imported, in the order of the names."""
    first: dict[str, str] = {}
    for one in find_installed(names, path):
        first.setdefault(one.name, one.version)
    return {name: first[name] for name in names if name in first}


def installed_version(name: str, path: Sequence[str] | None = None) -> str | None:
    """Return the version of the package that would be imported, None where there is none."""
    return installed_versions([name], path).get(name)


def release(version: str) -> tuple[int, ...]:
    """Return a version's numbers: `2.13.0+cpu` is (2, 13, 0)."""
    found = re.match(r"\d+(\.\d+)*", version)
    numbers = tuple(map(int, found[0].split("."))) if found else ()
    return numbers + (0,) * (3 - len(numbers))


def is_development(version: str) -> bool:
    """Check whether a version is of a branch, and not of a release: `5.24.0.dev0`, `2.14.0a1`."""
    return re.fullmatch(r"\d+(\.\d+)*(\.post\d+)?", version.partition("+")[0]) is None


def why_untested(name: str, version: str) -> str | None:
    """Return why a version is not among the tested ones, None where it is."""
    tested = TESTED[name]
    if is_development(version):
        return "is no release"
    if release(version) < release(tested.oldest):
        return "is older than all that vtool was tested with"
    # what patches a release changes nothing that tests are for
    if release(version)[:2] > release(tested.newest)[:2]:
        return "is newer than all that vtool was tested with"
    return None


def defects_of(version: str, family: str) -> Iterator[Broken]:
    """Yield the defects of a release of transformers that a family meets."""
    for one in BROKEN:
        if release(version) < release(one.below) and family in (one.families or (family,)):
            yield one


def tested_range(name: str) -> str:
    """Return the tested releases, as a message says them."""
    tested = TESTED[name]
    return (
        tested.newest if tested.oldest == tested.newest else f"{tested.oldest} to {tested.newest}"
    )


def pip_range(name: str) -> str:
    """Return the tested releases, as pip takes them."""
    tested = TESTED[name]
    major, minor, *_ = release(tested.newest)
    return f"'{name}>={tested.oldest},<{major}.{minor + 1}'"


def enable_checkpointing(model: Any, kept: Iterable[Any] = ()) -> None:
    """Let a model of transformers recompute its activations in the backward pass.

    transformers 5.23 has renamed the method; the older name ends with 6.

    Args:
        kept: its blocks that keep theirs.
    """
    name = "activation_checkpointing_enable"
    enable = getattr(model, name, None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})
    for block in kept:
        block.gradient_checkpointing = False


def without_buffer_sync(parallel: Callable[..., Any]) -> dict[str, bool]:
    """Return the argument by which DistributedDataParallel leaves buffers alone in each forward.

    Args:
        parallel: the class. `broadcast_buffers` is deprecated since torch 2.13.
    """
    new = "forward_sync_buffers" in signature(parallel).parameters
    return {"forward_sync_buffers" if new else "broadcast_buffers": False}


def fsdp_groups(part: Any) -> list[Any]:
    """Return the groups of parameters of a module that FSDP2 shards; torch 2.11 has one at most."""
    state = part._get_fsdp_state()
    if hasattr(state, "_fsdp_param_groups"):
        return list(state._fsdp_param_groups)
    return [group for group in (state._fsdp_param_group,) if group is not None]


def forget_forward_order(root: Any, parts: Iterable[Any]) -> None:
    """Forget the order of the last forward passes, by which FSDP2 would gather ahead in a backward.

    Args:
        root: the whole module.
        parts: all that FSDP2 shards by itself, the whole module too.
    """
    if hasattr(root, "reset_iter_state"):
        root.reset_iter_state()
        return
    # torch 2.11 has no function for it
    root._get_fsdp_state()._comm_ctx.post_forward_order.clear()
    for part in parts:
        for group in fsdp_groups(part):
            group._post_forward_indices.clear()


def takes_tower_index() -> bool:
    """Return whether a vision tower takes what it reads off the sizes of its images.

    transformers 5.23 does, by arguments whose names begin with `image_` and `video_`. An older one
    would hand these on to its blocks.
    """
    from importlib import import_module

    try:
        module = import_module("transformers.vision_utils")
    except ImportError:
        return False
    generic = import_module("transformers.utils.generic")
    return hasattr(module, "get_vision_attention_seqlens") and hasattr(
        generic, "accepts_precomputed_kwargs"
    )


def features_by_image(output: Any) -> list[Sequence[Any]]:
    """Return the features of DeepStack in an output of the tower, for each level by image.

    Before transformers 5.18 a level is one tensor of all images.
    """
    sizes = [len(one) for one in output.pooler_output]
    levels = output.deepstack_features
    return [each.split(sizes) if hasattr(each, "split") else each for each in levels]


def pass_features(
    module: Any,
    given: Mapping[str, Any],
    outputs: Mapping[str, Any],
    join: Callable[[tuple[Any, ...]], Any],
) -> dict[str, Any]:
    """Return the arguments of a forward pass to which the tower's features are handed.

    transformers 5.18 and newer take them as an argument. Older ones would pass it by without a
    word, and get them from the methods that they ask, until `reset_features` is called.

    Args:
        module: transformers' model without its head.
        given: the arguments, with pixels.
        outputs: those of `get_image_features` for `image` and for `video`.
        join: makes one tensor of several.
    """
    if "mm_encoder_outputs" in signature(type(module).forward).parameters:
        rest = {name: value for name, value in given.items() if not name.startswith("pixel_values")}
        return {**rest, "mm_encoder_outputs": dict(outputs)}
    for kind, output in outputs.items():
        if levels := getattr(output, "deepstack_features", None):
            output.deepstack_features = [join(tuple(level)) for level in levels]
        vars(module)[f"get_{kind}_features"] = partial(_answer, output)
    return dict(given)


def reset_features(module: Any) -> None:
    """Let a model compute features itself again."""
    for kind in ("image", "video"):
        vars(module).pop(f"get_{kind}_features", None)


def _answer(output: Any, *_: Any, **__: Any) -> Any:
    return output


def _folder_name(name: str) -> str:
    return re.sub(r"[-_.]+", "_", name).lower()


def _entries(folder: str) -> "os._ScandirIterator[str] | _Nothing":
    try:
        return os.scandir(folder)
    except OSError:  # a zip file, or a folder that is not there
        return _Nothing()


class _Nothing:
    """A folder without entries."""

    def __enter__(self) -> Iterator[os.DirEntry[str]]:
        return iter(())

    def __exit__(self, *_: object) -> None:
        """Close nothing."""
