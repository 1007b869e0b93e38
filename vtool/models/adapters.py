"""Low-rank adapters (LoRA, arXiv 2106.09685) by peft: add, name, merge, write and read them."""

import json
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from vtool.config.schema import Freeze, Lora, trained_components
from vtool.diagnostics import Diagnostic, Findings
from vtool.families.family import Family
from vtool.families.linear_layers import is_inside, select_layers
from vtool.hub.cache import find_cached_model
from vtool.hub.names import hub_name
from vtool.model_folder import MODEL_CONFIG, ModelFolder
from vtool.models.nf4 import NF4_RECORD, import_bitsandbytes, missing_bitsandbytes, record
from vtool.models.on_meta import stand_ins
from vtool.words import first_line

Adapter = Literal["merged", "none", "only"]
"""The weights to take of a model with adapters: with these merged in, without, or these alone."""
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX, _SAVED = "base_model.model.", "lora.modules_to_save"
_IN_NF4 = {"base_quantization": "nf4"}


def freeze_components(model: nn.Module, family: Family, freeze: Freeze) -> None:
    """Turn the gradients of frozen components off, before an engine wraps the model.

    An engine reduces and shards what is trained.
    """
    trained = trained_components(freeze)
    for name, parameter in model.named_parameters():
        is_reached = name not in family.unreached(model)
        parameter.requires_grad_(is_reached and family.component(name) in trained)


def add_adapters(
    model: nn.Module,
    family: Family,
    freeze: Freeze,
    settings: Lora,
    seed: int,
    weights: Mapping[str, Tensor] | None = None,
) -> None:
    """Add adapters to a model, in place, and freeze everything else, before an engine wraps it.

    A is drawn from the seed, B is 0, so that the model computes what it did.

    Args:
        weights: by the model's names, of parameters on the meta device. Adapters are on the CPU,
            and so are copies of modules that are trained whole.

    Raises:
        Findings: `lora-target`, where a name in `lora.targets` matches nothing, or nothing is left.
    """
    peft = import_peft()
    components = trained_components(freeze)
    names = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
        and family.component(name) in components
        and f"{name}.weight" not in family.unreached(model)
    ]
    names = [
        name
        for name in names
        if model.get_submodule(name) is not model.get_output_embeddings()  # type: ignore[operator]
    ]
    whole = _modules_to_save(model, family, components, settings)
    missing = [target for target in settings.targets or () if not select_layers(names, (target,))]
    targets = [
        name
        for name in select_layers(names, settings.targets, settings.exclude)
        if name not in whole and not is_inside(name, whole)
    ]
    if missing or not targets:
        what = f"lora.targets has {', '.join(missing)}, which" if missing else "lora names"
        message = f"{what} no linear layer of this model that is trained"
        raise Findings(Diagnostic("lora-target", message, parameter="lora.targets"))
    with stand_ins(model):
        torch.manual_seed(seed)
        peft.inject_adapter_in_model(_peft_config(settings, targets, whole), model)
    if weights:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if ".modules_to_save." in name:
                    parameter.copy_(weights[saved_name(name).removeprefix(_PREFIX)])


def frozen_linears(model: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """Yield the parameters that `lora.base_dtype` is of: names, and where each of them is.

    They are those of linear layers that are not trained, but for the head. Where copies are trained
    whole, nothing is computed with the originals.
    """
    head = model.get_output_embeddings()  # type: ignore[operator]
    for path, module in model.named_modules():
        if isinstance(module, nn.Linear) and module is not head and "original_module" not in path:
            for name, parameter in module.named_parameters(recurse=False):
                if not parameter.requires_grad:
                    yield f"{path}.{name}", module, name


def narrow_base(model: nn.Module) -> None:
    """Keep the frozen linear layers of a model with adapters in bfloat16, in place.

    Autocast would round them to it in each forward pass. It comes after adapters are added: peft
    would begin these in the dtype of the layers.
    """
    for _, module, name in list(frozen_linears(model)):
        narrow = module._parameters[name].detach().bfloat16()  # type: ignore[union-attr]
        module._parameters[name] = nn.Parameter(narrow, requires_grad=False)


def _modules_to_save(
    model: nn.Module, family: Family, components: Sequence[str], settings: Lora
) -> list[str]:
    """Return the names of the modules that are trained whole, the outermost alone.

    Raises:
        Findings: `lora-target`.
    """
    named = dict(model.named_modules())
    found: list[str] = []
    for asked in settings.modules_to_save:
        names = [
            name
            for name in select_layers(named, (asked,))
            if family.component(name) in components and any(True for _ in named[name].parameters())
        ]
        if not names:
            _refuse(f"{_SAVED} has {asked}, which no module of this model that is trained is")
        found += names
    found = [name for name in dict.fromkeys(found) if not is_inside(name, found)]
    everything = list(model.named_parameters(remove_duplicate=False))
    for name in found:
        own = {id(parameter) for parameter in named[name].parameters()}
        if tied := [
            other
            for other, parameter in everything
            if id(parameter) in own and not other.startswith(f"{name}.")
        ]:
            _refuse(
                f"{_SAVED} has {name}, whose weight is {tied[0]} too (tie_word_embeddings): one of"
                " them would be trained, and the export has one for both"
            )
    return found


def _refuse(message: str) -> NoReturn:
    raise Findings(Diagnostic("lora-target", message, parameter=_SAVED))


def add_saved_adapter(model: nn.Module, folder: Path) -> None:
    """Add the adapter of a folder in peft's format to a model, in place.

    Raises:
        Findings: `model-does-not-load`, where it is not whole, or of another model.
    """
    peft = import_peft()
    try:
        with warnings.catch_warnings():
            # of names that peft has for what transformers has renamed
            warnings.simplefilter("ignore", FutureWarning)
            peft.PeftModel.from_pretrained(model, str(folder), local_files_only=True)
    except Exception as error:  # whatever its readers of JSON and of tensors raise
        raise Findings(
            Diagnostic("model-does-not-load", f"{folder}: {first_line(error)}")
        ) from error


def base_of_adapter(folder: Path) -> Path:
    """Return the folder of the weights that an adapter is for.

    It is the one that the adapter names, or, of a run that has been moved, `base` next to it, or
    the model of that name in the hub's cache.

    Raises:
        Findings: `model-does-not-load`.
    """
    try:
        named = Path(str(ModelFolder(folder).read(CONFIG)["base_model_name_or_path"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        message = f"{folder / CONFIG} cannot be read: {type(error).__name__} {error}"
        raise Findings(Diagnostic("model-does-not-load", message)) from error
    moved = folder.parent / "base"
    for base in (named, moved):
        if (base / MODEL_CONFIG).exists():
            return base
    if (model := hub_name(str(named))) is not None:
        try:
            return find_cached_model(model).folder
        except Findings:  # the message below names the base, whatever the cache lacks of it
            pass
    raise Findings(
        Diagnostic("model-does-not-load", f"{folder} is an adapter for {named}, which is not there")
    )


def write_adapter(settings: Lora, tensors: Mapping[str, Tensor], base: Path, folder: Path) -> None:
    """Write an adapter in peft's format into a folder that exists.

    Args:
        tensors: by the names of `saved_name`.
        settings: of the adapter.
        base: the folder of the weights that it is for.
        folder: where to write.
    """
    end = ".lora_A.weight"
    targets = sorted(
        name.removeprefix(_PREFIX).removesuffix(end) for name in tensors if name.endswith(end)
    )
    # peft takes every module whose name ends so: only a whole name is one module's
    whole = sorted(
        {name.removeprefix(_PREFIX).rpartition(".")[0] for name in tensors if ".lora_" not in name}
    )
    config = _peft_config(settings, targets, whole).to_dict() | {
        "base_model_name_or_path": str(base.resolve()),
        "inference_mode": True,
    }
    if settings.base_dtype == "nf4":
        # a field that peft opens, and that says how its base is made
        config["auto_mapping"] = _IN_NF4
        (folder / NF4_RECORD).write_text(record(whole))
    # peft keeps names as a set, and the order of a set is another in each process.
    plain = {
        key: sorted(value) if isinstance(value, set) else value for key, value in config.items()
    }
    (folder / CONFIG).write_text(json.dumps(plain, indent=2, sort_keys=True, default=str) + "\n")
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()},
        folder / WEIGHTS,
        # one entry: safetensors writes several in an order that is another each time
        metadata={"format": "pt"},
    )


def is_for_nf4(folder: Path) -> bool:
    """Return whether an adapter's folder says that its base was in NF4: by a file, or its config's.

    The file may be left behind where a folder is copied for a server.
    """
    mapping = (ModelFolder(folder).settings(CONFIG) or {}).get("auto_mapping")
    return (folder / NF4_RECORD).exists() or mapping == _IN_NF4


def has_adapters(model: nn.Module) -> bool:
    """Return whether a model has adapters."""
    return hasattr(model, "peft_config")


def adapter_scale(model: Any) -> float:
    """Return the factor of B · A in a model with adapters."""
    config = model.peft_config["default"]
    return float(config.lora_alpha / (math.sqrt(config.r) if config.use_rslora else config.r))


def saved_name(name: str) -> str:
    """Return the name in files of a parameter of a model with adapters.

    It is transformers' own; of an adapter's parameter, peft's.
    """
    if ".lora_magnitude_vector." in name:
        return _PREFIX + name.removesuffix(".default.weight")
    if ".lora_A." in name or ".lora_B." in name:
        return _PREFIX + name.replace(".default.", ".")
    if ".modules_to_save." in name:
        return _PREFIX + name.replace(".modules_to_save.default.", ".")
    return name.replace(".base_layer.", ".").replace(".original_module.", ".")


def is_adapter_name(name: str) -> bool:
    """Return whether a name in files is an adapter's."""
    return name.startswith(_PREFIX)


def adapter_names(name: str) -> tuple[str, str]:
    """Return the names of the A and the B that belong to a weight, if it has an adapter."""
    stem = _PREFIX + name.removesuffix(".weight")
    return f"{stem}.lora_A.weight", f"{stem}.lora_B.weight"


def merge_adapter(weight: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    """Return weight [out, in] + scale · b [out, r] · a [r, in]."""
    return weight.detach() + scale * (b @ a).to(weight.dtype)


def adapter_parts(name: str) -> tuple[str, ...]:
    """Return the names of everything that an adapter may have for a weight.

    A, B and the lengths of the rows; or the weight itself, of a module that is trained whole.
    """
    stem = _PREFIX + name.removesuffix(".weight")
    return (*adapter_names(name), f"{stem}.lora_magnitude_vector", _PREFIX + name)


def merge_parts(name: str, weight: Tensor, parts: Mapping[str, Tensor], scale: float) -> Tensor:
    """Return a weight with what an adapter has for it, by the names of `adapter_parts`."""
    a, b, lengths, whole = adapter_parts(name)
    if whole in parts:
        return parts[whole].detach().to(weight.dtype)
    if a not in parts:
        return weight
    merged = merge_adapter(weight, parts[a], parts[b], scale)
    if lengths not in parts:
        return merged
    wide = merged.float()
    factor: Tensor = parts[lengths].detach().float() / torch.linalg.norm(wide, dim=1)
    return (factor[:, None] * wide).to(weight.dtype)


def merge_adapters(
    weights: Mapping[str, Tensor], adapter: Mapping[str, Tensor], scale: float
) -> Iterator[tuple[str, Tensor]]:
    """Yield whole weights by transformers' names, each with its adapter merged in."""
    left = set(adapter)
    for name, weight in weights.items():
        left -= set(adapter_parts(name))
        yield name, merge_parts(name, weight, adapter, scale)
    assert not left, f"adapters of no weight: {sorted(left)[:3]}"


def import_peft() -> Any:
    """Import peft, which imports bitsandbytes where it is installed."""
    if missing_bitsandbytes() is None:
        import_bitsandbytes()
    import peft

    return peft


def _peft_config(settings: Lora, targets: list[str], whole: list[str]) -> Any:
    rank = settings.rank
    alpha = settings.scale * (math.sqrt(rank) if settings.rslora else rank)
    alpha = round(alpha, 12)
    return import_peft().LoraConfig(
        r=rank,
        lora_alpha=int(alpha) if alpha.is_integer() else alpha,
        use_rslora=settings.rslora,
        use_dora=settings.dora,
        lora_dropout=settings.dropout,
        target_modules=targets,
        modules_to_save=whole or None,
        bias="none",
    )
