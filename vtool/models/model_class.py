"""The class that a run's model is built of: transformers' own, or one of the user's modeling file.

Such a file is imported, and so run: it is named in a recipe or on the command line, and never
looked for in a model's or a run's folder. Its class need not derive from transformers': a copy of
the family's modeling file, edited, does not. What is asked of it is tried on a tiny model. Its
weights must be those of the family's class, by name and shape, so that folders are read and written
by that one, which alone knows the names that weights have in files; and whatever opens an export
finds an ordinary model of the family.
"""

import hashlib
import importlib.util
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import xxhash
from torch import Tensor, nn

from vtool.contents import read_small_json, small_file
from vtool.diagnostics import Diagnostic, Findings, Origin
from vtool.families.family import Family, load_family
from vtool.families.modeling_file import SETTING, check_modeling_file, split_modeling
from vtool.families.tokens import TokenIds
from vtool.words import first_line

RULE = "model-class-does-not-fit"
MODELING_RECORD = "modeling.json"
"""The file in a run's folder that records where its class is from."""
# Of the tiny model on which a class is tried.
_IDS, _VOCABULARY = TokenIds(image=1, video=2, vision_start=3, vision_end=4, end=5, pad=6), 16


def model_class(family_name: str, modeling: str | None = None) -> Any:
    """Return the class to build, which derives from transformers' `PreTrainedModel`.

    Args:
        family_name: a name of `FAMILIES`.
        modeling: `model.modeling`; a relative path is one from the working folder.

    Raises:
        Findings: `not-a-model-class`, `model-class-does-not-fit`.
    """
    known = load_family(family_name)
    if modeling is None:
        return known.model_class()
    file, name = split_modeling(modeling)
    if found := check_modeling_file(modeling):
        raise Findings(found)
    module = _imported(file.resolve(), known.model_class().__module__.rpartition(".")[0])
    made = getattr(module, name, None)
    _check(made, known, file)
    return made


def class_of(module: nn.Module) -> type:
    """Return the class that a module was built of.

    FSDP2 gives it one of its own, derived from that and from one of torch's.
    """
    return next(one for one in type(module).__mro__ if not one.__module__.startswith("torch."))


def describe_modeling(modeling: str) -> dict[str, str]:
    """Return the run's record of the class: its file, its name, and the file's digest."""
    file, name = split_modeling(modeling)
    return {
        "file": str(file.resolve()),
        "class": name,
        "sha256": hashlib.sha256(small_file(file)).hexdigest(),
    }


def recorded_modeling(folder: Path) -> str | None:
    """Return the `model.modeling` that a run's folder records, with the whole path; None: none.

    Raises:
        Findings: `modeling-changed`; `not-a-run`, where the folder brings the file with it: code is
            the user's own, not a folder's.
    """
    record = folder / MODELING_RECORD
    if not record.exists():
        return None
    try:
        kept = read_small_json(record)
        file, modeling = Path(kept["file"]), f"{kept['file']}:{kept['class']}"
        wanted = kept["sha256"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Findings(
            Diagnostic("not-a-run", f"{record} cannot be read: {error}", parameter="run.dir"),
            fatal=True,
        ) from error
    plain = f"for an answer of transformers' own class, name the export: {folder / 'export'}"
    # a run writes whole paths, which a stranger cannot know
    if not file.is_absolute() or file.resolve().is_relative_to(folder.resolve()):
        message = (
            f"{record} names {file}, which comes with the folder, and code of a folder is not run"
        )
        raise Findings(Diagnostic("not-a-run", message, plain, SETTING), fatal=True)
    if not file.is_file() or describe_modeling(modeling)["sha256"] != wanted:
        what = "is not what it was when this run was trained" if file.is_file() else "is not there"
        raise Findings(
            Diagnostic("modeling-changed", f"{file} {what}", f"put it back; {plain}", SETTING),
            fatal=True,
        )
    return modeling


def _imported(file: Path, package: str) -> ModuleType:
    """Import a file, once for each of its contents.

    As a module of transformers' package of the family: so the relative imports of a copy work, and
    transformers initializes its weights as those of its own classes.
    """
    text = small_file(file)
    digest = xxhash.xxh3_64_hexdigest(str(file).encode() + bytes(1) + text)
    name = f"{package}.vtool_{file.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None, "it ends with .py"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    # behind all others: files that lie next to it hide no package
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    try:
        # Not by its loader: compiled code in __pycache__ is taken for that of another text of the
        # same second and size.
        exec(compile(text, str(file), "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise Findings(_raised(file, "importing it", error)) from error
    return module


def _check(made: Any, known: Family, file: Path) -> None:
    """Check a class against the family's own, at tiny size on the CPU: 0.2 s.

    Raises:
        Findings: `model-class-does-not-fit`.
    """
    from transformers import PreTrainedModel

    if not (isinstance(made, type) and issubclass(made, PreTrainedModel)):
        message = (
            f"{getattr(made, '__name__', made)} does not derive from transformers' PreTrainedModel"
        )
        raise _unfit(
            file,
            message,
            f"derive it from {known.model_class().__name__}, or copy transformers' file of that",
        )
    kind: Any = made
    with torch.random.fork_rng(devices=[]):
        own = (
            known.model_class()._from_config(known.random_config("tiny", _VOCABULARY, _IDS)).eval()
        )
        try:
            tiny = kind._from_config(known.random_config("tiny", _VOCABULARY, _IDS)).eval()
        except Exception as error:
            raise Findings(_raised(file, "building it at tiny size", error)) from error
    _check_weights(tiny, own, known, file)
    with torch.no_grad():
        try:
            features, wanted = _images(tiny, known), _images(own, known)
            logits = _logits(tiny, known) if features == wanted else ()
        except Exception as error:
            raise Findings(_raised(file, "computing with it at tiny size", error)) from error
    if features != wanted:
        raise _unfit(
            file,
            f"get_image_features gives {_listed(features)}, in the place of {_listed(wanted)}",
            "unpack it as transformers does",
        )
    if logits != (shape := (1, 4, _VOCABULARY)):
        raise _unfit(
            file,
            f"its forward pass gives logits of {logits}, in the place of {shape}",
            "give them for every token that is asked for",
        )


def _check_weights(tiny: Any, own: Any, known: Family, file: Path) -> None:
    """Check that the weights have the family's names and shapes.

    The tower and the layers are then where the family has them, too.
    """
    there, wanted = (
        {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
        for model in (tiny, own)
    )
    if there == wanted:
        return
    differences = []
    for what, names in (
        ("lacks", [name for name in wanted if name not in there]),
        ("has", [name for name in there if name not in wanted]),
        (
            "has in another shape",
            [name for name in wanted if name in there and there[name] != wanted[name]],
        ),
    ):
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            differences.append(f"{what} {names[0]}{more}")
    message = (
        f"{type(tiny).__name__} {', '.join(differences)}: its weights are not those of"
        f" {known.model_class().__name__}"
    )
    help = (
        "keep their names and shapes, by which folders are read, exported and served; the forward"
        " pass may be any other"
    )
    raise _unfit(file, message, help)


def _images(model: Any, known: Family) -> list[tuple[int, ...]]:
    """Return the shapes of what the tower hands to the language model, of one image."""
    pixels, grid = known.smallest_image(model, torch.device("cpu"))
    features = list(known.features(model.model.get_image_features(pixels, grid, return_dict=True)))
    return [tuple(one.shape) for one in features]


def _logits(model: Any, known: Family) -> tuple[int, ...]:
    """Return the shape of the logits of a row with an image, and generate a token from it.

    For that transformers goes by the forward pass's parameters.
    """
    pixels, grid = known.smallest_image(model, torch.device("cpu"))
    ids = torch.tensor([[_IDS.vision_start, _IDS.image, _IDS.vision_end, 7]])
    given = {
        "attention_mask": torch.ones_like(ids),
        "mm_token_type_ids": (ids == _IDS.image).int(),
        "pixel_values": pixels,
    }
    logits: Tensor = model(input_ids=ids, **given, image_grid_thw=grid, use_cache=False).logits
    model.generate(ids, **given, image_grid_thw=grid, max_new_tokens=1, do_sample=False)
    return tuple(logits.shape)


def _listed(shapes: list[tuple[int, ...]]) -> str:
    return f"{len(shapes)} tensors of {', '.join(map(str, shapes))}"


def _raised(file: Path, doing: str, error: BaseException) -> Diagnostic:
    """Return the finding of an exception, with the innermost line of the file that was running."""
    if isinstance(error, SyntaxError) and error.filename == str(file):
        line = error.lineno
    else:
        lines = [
            frame.lineno
            for frame in traceback.extract_tb(error.__traceback__)
            if os.path.realpath(frame.filename) == str(file)
        ]
        line = lines[-1] if lines else None
    message = (
        f"{file.name}{f':{line}' if line else ''}: {doing} raises {type(error).__name__}:"
        f" {first_line(error)}"
    )
    help = (
        "mend the line"
        if line
        else "let its methods take the parameters, by name, that those of transformers' class take"
    )
    return Diagnostic(RULE, message, help, SETTING, Origin(str(file), line))


def _unfit(file: Path, message: str, help: str) -> Findings:
    return Findings(Diagnostic(RULE, f"{file}: {message}", help, SETTING))
