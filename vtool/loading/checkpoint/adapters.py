"""Findings about a folder with a LoRA adapter, as PEFT saves it: from headers and configs alone."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vtool.diagnostics import Diagnostic
from vtool.diagnostics.diagnostic import Severity
from vtool.loading.checkpoint import strict_json
from vtool.loading.checkpoint.about_file import about_file
from vtool.loading.checkpoint.headers import Header, Tensor, read_header
from vtool.loading.words import listed

_CONFIG = "adapter_config.json"
RULE = "adapter-mismatch"
_PART = re.compile(
    r"(?P<module>.+)\.lora_(?P<kind>embedding_)?(?P<part>[AB])(\.[^.]+)??(\.weight)?"
)
_PREFIX = "base_model.model."
_CHOOSE_LAYERS = ("layers_to_transform", "layers_pattern", "exclude_modules", "target_parameters")
"""Settings of PEFT by which some layers have no matrices on purpose."""
_LARGEST = 16 * 2**20


@dataclass(slots=True)
class _Module:
    """The two matrices of a module that is adapted."""

    name: str
    parts: dict[str, Tensor] = field(default_factory=dict)
    embedding: bool = False

    @property
    def rank(self) -> int:
        """The size that both matrices share, as A has it."""
        return self.parts["A"].shape[0]


def is_adapter_folder(folder: Path) -> bool:
    """Return True if a folder holds an adapter, and no model of its own."""
    return (folder / _CONFIG).is_file() and not (folder / "config.json").is_file()


def read_adapter_config(folder: Path) -> Mapping[str, Any]:
    """Return the folder's adapter_config.json; empty where it cannot be read."""
    try:
        if (folder / _CONFIG).stat().st_size > _LARGEST:
            return {}
        content, _ = strict_json.parse_strict_json((folder / _CONFIG).read_bytes())
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
    against_base, base = _base(modules, config, finding)
    return [*found, *against_base], f"{len(modules)} modules; {base}"


def _modules(tensors: Sequence[Tensor]) -> list[_Module]:
    found: dict[str, _Module] = {}
    for tensor in tensors:
        if match := _PART.fullmatch(tensor.name):
            module = found.setdefault(match["module"], _Module(match["module"]))
            module.parts[match["part"]] = tensor
            module.embedding = bool(match["kind"])
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
            config.get("target_parameters") and isinstance(asked, int) and module.rank % asked == 0
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
    for pattern, value in (patterns or {}).items():
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


def _base(
    modules: Sequence[_Module], config: Mapping[str, Any], finding: Any
) -> tuple[list[Diagnostic], str]:
    """Return findings about modules that do not fit the base, and what was compared."""
    name = config.get("base_model_name_or_path")
    if not isinstance(name, str) or not name:
        message = f"{_CONFIG} names no base_model_name_or_path: any base of that shape would do"
        return [finding(message, "warning")], "not compared with a base: none is named"
    files = sorted(Path(name).glob("*.safetensors")) if os.path.isdir(name) else []
    headers = [header for file in files if (header := read_header(file)[0]) is not None]
    if not headers:
        return [], f"not compared with its base, {name}: no folder here with safetensors"
    shapes = {tensor.name: tensor.shape for header in headers for tensor in header.tensors}
    by_tail: dict[str, list[str]] = {}
    for one in shapes:
        by_tail.setdefault(_tail(one), []).append(one)
    kinds = {_kind(tail) for tail in by_tail}
    beyond, unlike, compared = [], [], []
    for module in modules:
        path = f"{module.name.removeprefix(_PREFIX)}.weight"
        there = [path] if path in shapes else by_tail.get(_tail(path), [])
        if not there and _kind(_tail(path)) in kinds:
            beyond.append(module)
        if len(there) != 1:
            continue
        compared.append(there[0])
        if not _fits(module, shapes[there[0]]):
            unlike.append((module, shapes[there[0]]))
    found = []
    if beyond or (modules and not compared):
        lost = beyond or modules
        message = f"the base {name} has no {listed([module.name for module in lost])}"
        found.append(finding(f"{message}: the adapter is for another base"))
    if unlike:
        module, shape = unlike[0]
        names = listed([one.name for one, _ in unlike])
        message = f"the base {name} has other sizes for {names}: the adapter is for another base"
        seen = " and ".join(
            f"lora_{part} {list(tensor.shape)}" for part, tensor in sorted(module.parts.items())
        )
        found.append(finding(message, expected=f"for {list(shape)}", seen=seen))
    if not found:
        found += _gaps(modules, config, shapes, compared, finding)
    return found, f"{len(compared)} of {len(modules)} modules compared with {name}"


def _gaps(
    modules: Sequence[_Module],
    config: Mapping[str, Any],
    shapes: Mapping[str, Sequence[int]],
    compared: Sequence[str],
    finding: Any,
) -> Iterator[Diagnostic]:
    """Yield a warning about modules of the base that are targets and adapted in other layers only.

    PEFT adapts, and saves, every module whose name ends with a target; what a file lacks it makes
    again, which changes nothing of the base. A part that no module was compared with, such as a
    tower whose layers are named as those of the language model, is not reported.

    Args:
        shapes: of each tensor of the base.
        compared: the base's tensors that the adapter's modules are for.
    """
    targets = config.get("target_modules")
    if not isinstance(targets, list) or any(config.get(name) for name in _CHOOSE_LAYERS):
        return
    adapted = {_tail(module.name.removeprefix(_PREFIX)) for module in modules}
    kinds = {_kind(one) for one in compared}
    names = [name.removesuffix(".weight") for name in shapes if _kind(name) in kinds]
    absent = [
        name
        for name in names
        if _tail(name) not in adapted
        and any(f".{name}".endswith(f".{target}") for target in targets)
    ]
    if absent:
        message = (
            f"the adapter has no matrices for targets of {_CONFIG} that the base has, and has them"
            f" of other layers: {listed(absent)}; those modules"
            " stay what they were"
        )
        yield finding(message, "warning")


def _tail(name: str) -> str:
    """Return a name from its layers on: what comes before differs between library and hub."""
    before, found, after = f".{name}".partition(".layers.")
    return f"{found}{after}" if found else before


def _kind(name: str) -> str:
    return re.sub(r"\d+", "#", name)


def _fits(module: _Module, shape: tuple[int, ...]) -> bool:
    """Return True unless a matrix has another size than the base's; some are kept transposed."""
    if len(shape) != 2 or set(module.parts) != {"A", "B"}:
        return True
    size = (module.parts["B"].shape[0], module.parts["A"].shape[-1])
    return tuple(sorted(size)) == tuple(sorted(shape))
