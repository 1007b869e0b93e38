"""Findings about a folder with a LoRA adapter, as PEFT saves it: from headers and configs alone."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vtool.contents import small_file
from vtool.diagnostics import Diagnostic
from vtool.diagnostics.diagnostic import Severity
from vtool.loading.checkpoint import strict_json
from vtool.loading.checkpoint.about_file import about_file
from vtool.loading.checkpoint.headers import Header, Tensor
from vtool.loading.words import listed
from vtool.model_folder import MODEL_CONFIG

_CONFIG = "adapter_config.json"
RULE = "adapter-mismatch"
_PART = re.compile(r"(?P<module>.+)\.lora_(embedding_)?(?P<part>[AB])(\.[^.]+)??(\.weight)?")
_LARGEST = 16 * 2**20


@dataclass(slots=True)
class _Module:
    """The two matrices of a module that is adapted."""

    name: str
    parts: dict[str, Tensor] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        """The size that both matrices share, as A has it."""
        return self.parts["A"].shape[0]


def is_adapter_folder(folder: Path) -> bool:
    """Return True if a folder holds an adapter, and no model of its own."""
    return (folder / _CONFIG).is_file() and not (folder / MODEL_CONFIG).is_file()


def read_adapter_config(folder: Path) -> Mapping[str, Any]:
    """Return the folder's adapter_config.json; empty where it cannot be read."""
    try:
        content, _ = strict_json.parse_strict_json(small_file(folder / _CONFIG, _LARGEST))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def audit_adapter(
    folder: Path, headers: Mapping[str, Header]
) -> tuple[list[Diagnostic], str | None]:
    """Return findings about an adapter, and what was compared; None where there is none."""
    adapters = {name: one for name, one in headers.items() if name.startswith("adapter")}
    tensors = [tensor for header in adapters.values() for tensor in header.tensors]
    modules = _modules(tensors)
    if not modules and not (folder / _CONFIG).is_file():
        return [], None

    def finding(message: str, severity: Severity | None = None, **more: Any) -> Diagnostic:
        return about_file(folder / _CONFIG, RULE, message, severity=severity, **more)

    if not (folder / _CONFIG).is_file():
        message = f"the folder has {len(modules)} adapted modules, and no {_CONFIG}"
        return [finding(message)], f"{len(modules)} modules"
    config = read_adapter_config(folder)
    if not config:
        return [finding(f"{_CONFIG} cannot be read as a JSON object")], f"{len(modules)} modules"
    kind = config.get("peft_type", "LORA" if modules else None)
    if kind != "LORA" or not adapters:
        return [], f"not compared: no LoRA in an adapter_model.safetensors (peft_type {kind})"
    found = [
        *_pairs(modules, finding),
        *_ranks(modules, config, finding),
        *_targets(modules, config, finding),
    ]
    if not config.get("base_model_name_or_path"):
        message = f"{_CONFIG} names no base_model_name_or_path: any base of that shape would do"
        found.append(finding(message, "warning"))
    return found, f"{len(modules)} modules"


def _modules(tensors: Sequence[Tensor]) -> list[_Module]:
    found: dict[str, _Module] = {}
    for tensor in tensors:
        if match := _PART.fullmatch(tensor.name):
            module = found.setdefault(match["module"], _Module(match["module"]))
            module.parts[match["part"]] = tensor
    return list(found.values())


def _pairs(modules: Sequence[_Module], finding: Any) -> Iterator[Diagnostic]:
    """Yield findings about modules of which one matrix is there, and not the other."""
    if not modules:
        yield finding("no tensor of the adapter is one of LoRA: it changes nothing")
    for part, other in ("AB", "BA"):
        alone = [module for module in modules if set(module.parts) == {part}]
        if alone:
            names = tuple(module.parts[part].name for module in alone)
            message = (
                f"{len(alone)} of {len(modules)} modules have lora_{part} and no lora_{other}:"
                f" {listed([module.name for module in alone])}; loaders leave it at what it was"
            )
            yield finding(message, tensors=names)


def _ranks(
    modules: Sequence[_Module], config: Mapping[str, Any], finding: Any
) -> Iterator[Diagnostic]:
    """Yield findings about ranks that are not the config's, and about alpha."""
    alpha = config.get("lora_alpha")
    if not isinstance(alpha, int | float) or isinstance(alpha, bool):
        yield finding(f"{_CONFIG} says no lora_alpha, by which the adapter is scaled")
    elif alpha == 0:
        yield finding(f"{_CONFIG} has lora_alpha 0: the adapter is multiplied by nothing")
    wrong = []
    for module in modules:
        if set(module.parts) != {"A", "B"} or not all(one.shape for one in module.parts.values()):
            continue
        b = module.parts["B"].shape
        of_b = b[1] if len(b) > 1 else 0
        asked = _pattern(config.get("rank_pattern"), module.name, config.get("r"))
        fits = module.rank == asked or (
            # of experts that are one parameter, all are stacked
            config.get("target_parameters")
            and isinstance(asked, int)
            and asked
            and module.rank % asked == 0
        )
        if of_b != module.rank or not fits:
            wrong.append((module, of_b, asked))
    if wrong:
        module, of_b, asked = wrong[0]
        message = (
            f"the rank of {len(wrong)} of {len(modules)} modules is not that of {_CONFIG}:"
            f" {listed([one.name for one, _, _ in wrong])}"
        )
        seen = f"lora_A has rank {module.rank}, lora_B {of_b}"
        names = tuple(part.name for one, _, _ in wrong for part in one.parts.values())
        yield finding(message, expected=f"r = {asked}", seen=seen, tensors=names)


def _pattern(patterns: Any, name: str, default: Any) -> Any:
    """Return the value of the first pattern that a module's name ends with, as PEFT does."""
    for pattern, value in patterns.items() if isinstance(patterns, Mapping) else ():
        try:
            if re.match(rf"(.*\.)?({pattern})$", name):
                return value
        except re.error:
            continue
    return default


def _targets(
    modules: Sequence[_Module], config: Mapping[str, Any], finding: Any
) -> Iterator[Diagnostic]:
    """Yield findings about modules that are no targets, and targets without modules."""
    targets = config.get("target_modules")
    if not isinstance(targets, list) or config.get("target_parameters"):
        return  # a pattern, or "all-linear"

    def is_of(module: _Module, target: object) -> bool:
        return f".{module.name}".endswith(f".{target}")

    dropped = [one for one in modules if not any(is_of(one, target) for target in targets)]
    if dropped and targets:
        message = (
            f"{len(dropped)} of {len(modules)} modules are no target of {_CONFIG}, and PEFT leaves"
            f" them out: {listed([module.name for module in dropped])}"
        )
        names = tuple(part.name for module in dropped for part in module.parts.values())
        yield finding(message, tensors=names)
    absent = [str(one) for one in targets if not any(is_of(module, one) for module in modules)]
    if absent and modules:
        message = f"no module of the adapter is of {listed(absent)}, which {_CONFIG} names"
        yield finding(message, "warning")
