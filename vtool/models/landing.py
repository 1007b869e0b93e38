"""Judges an adapter by what peft loads of it into the class of its base.

Names and shapes alone: the base has no weights here, and its parameters are on the meta device.
What peft finds no module for, it leaves out with a warning at most; what a file lacks, it makes
anew, which changes nothing. The base answers then, and nothing is raised.
"""

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from vtool.contents import read_small_json
from vtool.diagnostics import Diagnostic, Findings
from vtool.diagnostics.diagnostic import Origin
from vtool.families.images import beyond_any_model
from vtool.models.adapters import CONFIG, WEIGHTS, base_of_adapter, import_peft
from vtool.words import first_line

RULE = "adapter-mismatch"
_OTHER_HEADS = ("SEQ_CLS", "TOKEN_CLS", "QUESTION_ANS")
"""Tasks whose class has another head than the base's config says, of unknown size."""
_SHOWN = 3
_MATRIX = re.compile(r"\.lora_(embedding_)?(?P<part>[AB])(\.|$)")
_DIGITS = re.compile(r"\d+")
_PART = re.compile(
    r"\.(lora_(embedding_)?[AB]|lora_magnitude_vector|weight|bias)(\..*)?$|\.modules_to_save\..*$"
)


class NotJudged(Exception):
    """The base's class cannot be asked here; the text says why."""


@dataclass(frozen=True, slots=True)
class Landing:
    """The tensors of an adapter that peft loads into the class of its base, and the others."""

    folder: Path
    base: Path
    kind: str
    """The name of the class."""
    tensors: int
    """All tensors of the adapter."""
    strangers: tuple[str, ...] = ()
    """Modules that tensors of the adapter are for, and that the class does not have."""
    lost: int = 0
    """Tensors of strangers."""
    anew: tuple[str, ...] = ()
    """Modules that peft adapts without any matrices of the file, where the file has strangers, or
    matrices of the same module in other layers.
    """
    refused: str | None = None
    """The reason why peft raises."""
    cancelled: bool = False
    """True if each lora_A is zero, and lora_B is not: no training ends so."""
    idle: bool = False
    """True if it adds nothing: one of the two matrices of each module is zero."""

    def in_words(self) -> str:
        """Return how much is loaded, and into which class."""
        taken = 0 if self.refused else self.tensors - self.lost
        return f"peft loads {taken} of {self.tensors} tensors into {self.kind} of {self.base}"

    def findings(self) -> list[Diagnostic]:
        """Return the errors because of which nothing may be computed with the adapter."""
        what, help = "", None
        if self.refused:
            what = f"peft does not load it into {self.kind} of {self.base}: {self.refused}"
        elif self.strangers:
            also = f" and makes those of {_listed(self.anew)} anew," if self.anew else ""
            end = "the base answers" if self.lost == self.tensors else "there the base answers"
            what = (
                f"{self.in_words()}, which has no {_listed(self.strangers)}: peft leaves these out,"
                f"{also} and {end}"
            )
            help = _renamed(self.strangers, self.anew)
        elif self.anew:
            what = (
                f"the adapter has no matrices for targets of {CONFIG} that {self.kind} of"
                f" {self.base} has, and has them of other layers: {_listed(self.anew)}; those"
                " modules stay what they were"
            )
        elif self.cancelled:
            what = "each lora_A is all zero, and lora_B is not: the adapter changes nothing"
        if not what:
            return []
        return [Diagnostic(RULE, what, help, origin=Origin(str(self.folder / CONFIG), None))]


def check_landing(folder: Path, base: Path) -> Landing:
    """Return the landing of an adapter all of which is loaded.

    Raises:
        Findings: `adapter-mismatch`; `model-does-not-load`, where that cannot be found out.
    """
    try:
        landing = judge_landing(folder, base)
    except NotJudged as why:
        raise Findings(Diagnostic("model-does-not-load", f"{folder}: {why}")) from why
    if found := landing.findings():
        raise Findings(found)
    return landing


def judge_landing(folder: Path, base: Path) -> Landing:
    """Load an adapter into the class of its base without the base's weights.

    Raises:
        NotJudged: no class can be made of the base's config, or peft cannot read the adapter's.
    """
    peft = import_peft()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = _adapter_config(peft, folder)
        model = _class_of(base)
        mapping = getattr(model, "_checkpoint_conversion_mapping", {})
        try:
            weights = peft.load_peft_weights(str(folder), device="cpu")
        except Exception as error:  # whatever its reader of a broken file raises
            raise NotJudged(f"{folder / WEIGHTS} cannot be read: {first_line(error)}") from error
        kind = type(model).__name__
        refused: str | None = None
        try:
            adapted = peft.PeftModel(model, config, "default", low_cpu_mem_usage=True)
            result = adapted.load_adapter(
                str(folder),
                "default",
                low_cpu_mem_usage=True,
                key_mapping=mapping,
                torch_device="cpu",
            )
        except NotImplementedError as error:  # torch, of what the meta device has not
            raise NotJudged(f"{kind} without weights: {first_line(error)}") from error
        except (ValueError, RuntimeError, KeyError) as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            refused = lines[1] if len(lines) > 1 else first_line(error)
    if refused is not None:
        return Landing(folder, base, kind, len(weights), refused=refused)
    strangers = _modules(result.unexpected_keys)
    absent = _modules(result.missing_keys)
    if not strangers:
        there = {_DIGITS.sub("#", name) for name in _modules(weights)}
        absent = tuple(name for name in absent if _DIGITS.sub("#", name) in there)
    idle, cancelled = _products(weights)
    return Landing(
        folder,
        base,
        kind,
        len(weights),
        strangers,
        len(result.unexpected_keys),
        absent,
        cancelled=cancelled,
        idle=idle,
    )


def work(task: str, folder: Path, rank: int) -> tuple[list[Diagnostic], str, bool]:
    """Judge the adapter of a folder, in a process of its own.

    Returns:
        Findings; what was compared; False where it could not be, which the text then says.
    """
    adapter = Path(task)
    try:
        landing = judge_landing(adapter, base_of_adapter(adapter))
    except Findings as findings:
        return [], findings.diagnostics[0].message, False
    except NotJudged as why:
        return [], str(why), False
    # zeros are found by their values, with or without a base
    return replace(landing, cancelled=False).findings(), landing.in_words(), True


def _adapter_config(peft: Any, folder: Path) -> Any:
    if not any((folder / name).is_file() for name in (WEIGHTS, "adapter_model.bin")):
        raise NotJudged(f"there is no {WEIGHTS}")
    try:
        written = read_small_json(folder / CONFIG)
        if written.get("megatron_config"):  # a module that peft would import by its name
            raise NotJudged(f"{CONFIG} has a megatron_config")
        config = peft.PeftConfig.from_pretrained(str(folder))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise NotJudged(f"peft cannot read {CONFIG}: {first_line(error)}") from error
    if config.is_prompt_learning or config.task_type in _OTHER_HEADS:
        raise NotJudged(f"it is a {config.peft_type} for {config.task_type}")
    config.inference_mode = True
    return config


def _class_of(base: Path) -> Any:
    """Return a model of the class that the base's config names, on the meta device.

    Raises:
        NotJudged: transformers has none here.
    """
    import transformers

    if beyond := beyond_any_model(base):
        raise NotJudged(beyond)
    try:
        config = transformers.AutoConfig.from_pretrained(
            base, local_files_only=True, trust_remote_code=False
        )
        named = next(iter(config.architectures or ()), "")
        kind = getattr(transformers, named, None)
        with torch.device("meta"):
            if isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel):
                return kind(config)
            return transformers.AutoModelForImageTextToText.from_config(config)
    except Exception as error:  # a config says anything
        message = f"transformers makes no class of {base}: {first_line(error)}"
        raise NotJudged(message) from error


def _adapter_name(name: str) -> str:
    return name.removeprefix("base_model.model.")


def _modules(names: Any) -> tuple[str, ...]:
    """Return the modules that tensors are for, each once."""
    found = (_PART.sub("", _adapter_name(name)) for name in names)
    return tuple(dict.fromkeys(found))


def _products(weights: Any) -> tuple[bool, bool]:
    """Return whether an adapter adds nothing, and whether that is because each A is zero.

    It is idle where a matrix of each module is zero, and there is nothing else. peft begins with
    B of zeros, and with A of an embedding.
    """
    zero: dict[str, dict[str, bool]] = {}
    for name, tensor in weights.items():
        match = _MATRIX.search(name)
        if match is None:
            return False, False
        part = match["part"]
        zero.setdefault(name[: match.start()], {})[part] = not bool(tensor.count_nonzero())
    idle = bool(zero) and all(any(parts.values()) for parts in zero.values())
    embeds = any(".lora_embedding_" in name for name in weights)
    return idle, idle and not embeds and not any(parts.get("B") for parts in zero.values())


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _renamed(strangers: Sequence[str], anew: Sequence[str]) -> str | None:
    """Return help that says which beginning of the names the class has in the place of another."""
    for stranger in strangers:
        for name in anew:
            same = 0
            ends = zip(reversed(stranger.split(".")), reversed(name.split(".")), strict=False)
            for one, other in ends:
                if one != other:
                    break
                same += 1
            if same >= _SHOWN:
                before, after = (".".join(each.split(".")[:-same]) for each in (stranger, name))
                return (
                    f"it was saved from another wrapper: rename `{before}.` to `{after}.` in its"
                    " tensors, or save it from the class of this base"
                )
    return None
