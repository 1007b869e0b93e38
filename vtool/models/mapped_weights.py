"""The weights of a Hugging Face folder, mapped into memory: what is not looked into is not read.

transformers' own loader says which tensor of the files is which weight: it knows the names and the
layouts that weights have in files. It is handed tensors that stay as they are saved, in a mapped
file, so that it moves names and no bytes. A rank then cuts its share out of each, and that alone is
read from the disk. What has to be joined of several tensors is joined in memory, on every rank.
"""

import pickle
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from vtool.diagnostics import Diagnostic, Findings
from vtool.families.family import load_family
from vtool.families.quantization import QUANTIZED_HELP, quantized_already
from vtool.model_folder import INDEX, WHOLE, ModelFolder
from vtool.models.on_meta import parameters_on_meta
from vtool.words import first_line

_PICKLED = ("pytorch_model.bin", "pytorch_model-*-of-*.bin")
_SHOWN = 3
# What a tool that rounds a vocabulary up changes, by the ends of names.
_EMBEDDING = "embed_tokens.weight"
_VOCABULARY = (_EMBEDDING, "lm_head.weight")
_CODES = ("I8", "U8", "int8", "uint8")
"""The dtypes of quantized weights' codes, which transformers would cast."""
_PLAIN = re.compile("B?F(16|32|64)|b?float(16|32|64)")
"""The dtypes of a weight that is not quantized, as safetensors and torch name them."""


@dataclass(frozen=True, slots=True)
class MappedWeights:
    """Whole tensors by the model's names, read where they are looked into, and their files."""

    tensors: Mapping[str, Tensor]
    """In the dtypes of the files. One that has several names, such as a tied head, is there once.
    """
    files: tuple[Path, ...]


class _AsSaved:
    """A tensor that transformers' loader is given, and that it can neither cast nor move."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def __getitem__(self, _: Any) -> "_AsSaved":
        return self

    def to(self, *_: Any, **__: Any) -> Tensor:
        return self._tensor


def weight_files(folder: Path) -> tuple[Path, ...]:
    """Return the safetensors files of a folder's weights, as transformers chooses them.

    They are none where weights are in another format.

    Raises:
        Findings: `model-does-not-load`, of a file that the index names and that is not there, of
            what is no file, or of an index that transformers does not open.
    """
    if (folder / WHOLE).exists():
        return _no_pipes((folder / WHOLE,))
    index = folder / INDEX
    if not index.exists():
        return ()
    try:
        files = tuple(folder / name for name in ModelFolder(folder).shards)
        content = ModelFolder(folder).read(INDEX)
    except (OSError, ValueError) as error:
        raise does_not_load(f"{index} cannot be read: {first_line(error)}") from error
    if not isinstance(content.get("metadata"), dict):
        message = f"{index} has no `metadata`, without which transformers opens none of its files"
        raise does_not_load(message, 'add "metadata": {} to it')
    if missing := [file.name for file in files if not file.exists()]:
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        message = f"{index} names {', '.join(missing[:_SHOWN])}{more}, not in that folder"
        raise does_not_load(message, "copy the model's folder again, with every file")
    return _no_pipes(files)


def _no_pipes(files: tuple[Path, ...]) -> tuple[Path, ...]:
    if strange := [file for file in files if not file.is_file()]:
        raise does_not_load(f"{strange[0]} is no file")
    return files


def pickled_files(folder: Path) -> tuple[Path, ...]:
    """Return the files of weights that torch.save wrote, which transformers reads where no others.

    They are one, or several that an index names.

    Raises:
        Findings: `model-does-not-load`, of what is no file.
    """
    named = (sorted(folder.glob(pattern)) for pattern in _PICKLED)
    return _no_pipes(tuple(next((files for files in named if files), ())))


def map_folder(folder: Path, family_name: str, how: Mapping[str, Any]) -> MappedWeights | None:
    """Map the weights of a folder, every one of them accounted for.

    Args:
        folder: the model's.
        family_name: a name of `FAMILIES`.
        how: arguments of transformers' constructors.

    Returns:
        None, where its weights are not in safetensors files, which alone can be mapped.

    Raises:
        Findings: `model-does-not-load`.
    """
    from transformers import AutoConfig

    if not (files := weight_files(folder)):
        return None
    check_numbers(folder, files, family_name)
    check_one_save(files)
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        saved = {name: _AsSaved(tensor) for name, tensor in _read(files)}
        model, report = (
            load_family(family_name)
            .model_class()
            .from_pretrained(
                None,
                config=config,
                state_dict=saved,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # reported below, each with its shapes
                **how,
            )
        )
    except Findings:
        raise
    except Exception as error:  # the loader raises whatever its reader of a broken file raises
        raise not_loaded(folder, files, error) from error
    check_report(folder, report)
    check_ties(folder, model)
    kept = model.state_dict().keys()
    named = (*model.named_parameters(), *(one for one in model.named_buffers() if one[0] in kept))
    return MappedWeights({name: tensor.detach() for name, tensor in named}, files)


def check_numbers(folder: Path, files: Iterable[Path], family_name: str) -> None:
    """Check that weights are saved as numbers, which a quantizer's codes are not.

    Codes would be taken for numbers: their scales are in no file. Nor is the folder one of those
    whose config.json says how it is quantized.

    Raises:
        Findings: `model-does-not-load`.
    """
    if quantized := quantized_already(ModelFolder(folder).config):
        raise does_not_load(f"{folder} is {quantized}", QUANTIZED_HELP)
    for file in files:
        try:
            dtypes = {name: dtype for name, dtype, _ in _headers(file)}
        except Exception:  # its loader says what is wrong with it
            continue
        other = {name: dtype for name, dtype in dtypes.items() if not _PLAIN.fullmatch(dtype)}
        if other and (weights := _without_buffers(other, folder, family_name)):
            raise _no_numbers(file, weights)


def left_out(folder: Path, family_name: str) -> tuple[str, ...]:
    """Return the weights of a folder that transformers' class leaves out on purpose.

    As the layers that predict several tokens (`mtp.…`): they are not trained, nor exported.
    """
    kind = load_family(family_name).model_class()
    ignored = tuple(kind._keys_to_ignore_on_load_unexpected or ())
    names: list[str] = []
    for file in weight_files(folder) if ignored else ():
        with suppress(OSError, SafetensorError):  # its loader says what is wrong with it
            names += (name for name, _, _ in _headers(file))
    return tuple(name for name in sorted(names) if any(re.search(one, name) for one in ignored))


def check_one_save(files: Sequence[Path]) -> None:
    """Check that no weight has other values in one safetensors file than in another.

    transformers takes one of them, whatever the index says.

    Raises:
        Findings: `model-does-not-load`.
    """
    seen: dict[str, Path] = {}
    for file in files if len(files) > 1 else ():
        with suppress(OSError, SafetensorError):  # its loader says what is wrong with it
            for name, _, _ in _headers(file):
                first = seen.setdefault(name, file)
                if first != file and not torch.equal(_tensor(first, name), _tensor(file, name)):
                    raise does_not_load(
                        f"{file} has {name} with other values than {first}: they are of two saves",
                        "copy the model's folder again, with every file, into an empty one",
                    )


def _tensor(file: Path, name: str) -> Tensor:
    opened: Any = safe_open(file, "pt")
    tensor: Tensor = opened.get_tensor(name)
    return tensor


def _no_numbers(file: Path, weights: Mapping[str, str]) -> Findings:
    """Return the finding of weights, by name, that are saved in such dtypes."""
    first, dtype = next(iter(weights.items()))
    alike = [one for one in weights.values() if one == dtype or {one, dtype} <= set(_CODES)]
    if dtype in _CODES:
        return does_not_load(
            f"{file} has {len(alike)} tensors of eight-bit integers, such as {first}: codes of a"
            " quantized weight, which would be taken for its numbers",
            "name the folder that it was quantized from",
        )
    return does_not_load(
        f"{file} has {len(alike)} tensors of dtype {dtype}, such as {first}: a weight"
        " that was saved in this dtype is not what it was",
        "name the folder that it was made from, with weights in float32, bfloat16 or float16",
    )


def _without_buffers(saved: Mapping[str, str], folder: Path, family_name: str) -> Mapping[str, str]:
    """Return tensors without those of buffers, which may well be integers in the model."""
    from transformers import AutoConfig

    made = load_family(family_name).model_class()
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        with parameters_on_meta():
            model = made._from_config(config)
    except Exception:  # the loader, which comes after this, says what is wrong with it
        return saved
    buffers = {_end(name) for name, one in model.named_buffers() if not one.is_floating_point()}
    ignored = tuple(model._keys_to_ignore_on_load_unexpected or ())
    return {
        name: dtype
        for name, dtype in saved.items()
        if _end(name) not in buffers and not any(re.search(one, name) for one in ignored)
    }


def _end(name: str) -> str:
    """Return the part of a name that is the same in files and in the model."""
    return ".".join(name.split(".")[-2:])


def not_loaded(folder: Path, files: Iterable[Path], error: Exception) -> Findings:
    """Return the finding of what the loader raised, or of the shapes that made it raise.

    Before it tells shapes, it compares a tied head that is saved too with the embedding, and of a
    tensor in another shape it has no values.
    """
    from transformers import AutoConfig

    with suppress(Exception):  # of a file that cannot be read, the loader has said so
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        text = config.get_text_config()
        wanted = [text.vocab_size, text.hidden_size]
        shapes = {name: shape for file in files for name, _, shape in _headers(file)}
        mismatched = [
            (name, shape, wanted)
            for name, shape in shapes.items()
            if name.endswith(_VOCABULARY) and shape != wanted
        ]
        try:
            check_report(folder, {"mismatched_keys": mismatched})
        except Findings as found:
            return found
    if isinstance(error, pickle.UnpicklingError) or "weights_only" in str(error):
        # torch's own text says first how to run the code all the same
        named = re.search(r"(?:GLOBAL|global:?) ([\w.]+)", str(error))
        what = f"{named[1]}, for one" if named else "which weights do not need"
        return does_not_load(
            f"{folder}: a .bin file is a pickle that asks for code ({what}), which is not run",
            "get the model as safetensors, from its authors",
        )
    return does_not_load(f"{folder}: {first_line(error)}")


def _headers(file: Path) -> Iterator[tuple[str, str, list[int]]]:
    """Yield name, dtype and shape of each tensor of a file, of which no weight is read."""
    if file.suffix == ".bin":
        for name, tensor in torch.load(file, map_location="meta", weights_only=True).items():
            yield name, str(tensor.dtype).removeprefix("torch."), [*tensor.shape]
        return
    opened: Any = safe_open(file, "pt")
    for name in opened.keys():  # noqa: SIM118 - it is no dict
        one = opened.get_slice(name)
        yield name, one.get_dtype(), one.get_shape()


def _read(files: tuple[Path, ...]) -> Iterator[tuple[str, Tensor]]:
    for file in files:
        opened: Any = safe_open(file, "pt")
        for name in opened.keys():  # noqa: SIM118 - it is no dict
            yield name, opened.get_slice(name)[...]


def check_report(folder: Path, report: Mapping[str, Any]) -> None:
    """Check what transformers' loader says of a folder: it has exactly the model's weights.

    Raises:
        Findings: `model-does-not-load`.
    """
    said = []
    for kind in ("missing_keys", "mismatched_keys", "unexpected_keys"):
        if found := sorted(report.get(kind, ()), key=str):
            listed = ", ".join(_describe_key(one) for one in found[:_SHOWN])
            said.append(f"{len(found)} {kind.replace('_', ' ')}: {listed}")
    if not said:
        return
    raise does_not_load(
        f"{folder} does not hold exactly this model's weights. {'; '.join(said)}",
        _help_of_rows([one for one in report.get("mismatched_keys", ()) if len(one) == 3]),
    )


def _help_of_rows(mismatched: Iterable[tuple[str, Any, Any]]) -> str | None:
    """Return the help of a vocabulary that has other rows than config.json says."""
    rows = {
        name.endswith(_EMBEDDING): (own[0], wanted[0])
        for name, own, wanted in mismatched
        if name.endswith(_VOCABULARY) and own[1:] == wanted[1:]
    }
    if not rows:
        return None
    own, wanted = rows.get(True) or rows[False]
    choices, padded = [], own > wanted
    if padded:
        choices.append(f"take the rows beyond {wanted} away")
    if True in rows:  # else the embedding is as config.json says
        choices.append(f"set vocab_size={own} in its config.json, in text_config where it has one")
    opening = f"its vocabulary is padded to {own} rows: " if padded else ""
    return opening + ", or ".join(choices) or None


def _describe_key(key: Any) -> str:
    if isinstance(key, str):
        return key
    name, own, wanted = key
    return f"{name} is {[*own]}, and by config.json {[*wanted]}"


def check_ties(folder: Path, model: nn.Module) -> None:
    """Check that weights which are one, by the config, have not been saved as two.

    transformers warns of two, and trains both.

    Raises:
        Findings: `model-does-not-load`.
    """
    if _is_tied(model):
        return
    made: Any = type(model)
    with parameters_on_meta():
        by_config = made._from_config(model.config)
    if _is_tied(by_config):
        raise does_not_load(
            f"{folder} has a head and an embedding of different values, and its config.json says"
            " that they are one (tie_word_embeddings)",
            "set tie_word_embeddings=false in its config.json, in text_config too, if it has a head"
            " of its own; else save it again with one of them",
        )


def _is_tied(model: Any) -> bool:
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    return head is None or head.weight is embedding.weight


def does_not_load(message: str, help: str | None = None) -> Findings:
    """Return the finding of a model's folder that cannot be loaded."""
    return Findings(Diagnostic("model-does-not-load", message, help, parameter="model.path"))
