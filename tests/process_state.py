"""State of the process that a test may change and must not leave to the next one."""

import os
import random
import signal
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Not SIGCHLD, which torch's data loader takes for good, nor SIGALRM, which pytest-timeout has."""
IGNORED_VARIABLES = frozenset({"PYTEST_CURRENT_TEST", "COLUMNS", "LINES"})
LIBRARY_VARIABLES = frozenset(
    {
        # torch's inductor, its search for a compiler, and its launcher
        "TORCHINDUCTOR_CACHE_DIR",
        "KMP_DUPLICATE_LIB_OK",
        "TORCHELASTIC_SIGNALS_TO_HANDLE",
        # datasets and transformers
        "TF_CPP_MIN_LOG_LEVEL",
        "TOKENIZERS_PARALLELISM",
        # wandb, at import and with its service
        "WANDB_ERROR_REPORTING",
        "WANDB_SERVICE",
        # megatron-core, as it builds a model
        "NVTE_FLASH_ATTN",
        "NVTE_FUSED_ATTN",
        "NVTE_UNFUSED_ATTN",
    }
)
"""Variables that libraries set for themselves: removed after a test, but none of its leaks."""


@dataclass(frozen=True, slots=True)
class TorchState:
    """The state that torch and transformers hold for the whole process."""

    threads: int
    dtype: Any
    deterministic: tuple[bool, bool]
    """Deterministic algorithms are used; others are only warned of."""
    gradients: bool
    """Operations are recorded for a gradient."""
    device: Any
    """The device on which tensors are made by default."""
    attention: Mapping[str, Any]
    """Attention and mask functions registered with transformers, by table and name."""


@dataclass(frozen=True, slots=True)
class ProcessState:
    """A snapshot of the process. Torch's part is None as long as torch is not imported."""

    torch: TorchState | None
    environment: Mapping[str, str]
    directory: str
    handlers: Mapping[int, Any]
    modules: Mapping[str, Any]


def snapshot() -> ProcessState:
    """Return the state of the process as it is now."""
    return ProcessState(
        _torch_state(),
        {name: value for name, value in os.environ.items() if name not in IGNORED_VARIABLES},
        os.getcwd(),
        {number: signal.getsignal(number) for number in SIGNALS},
        dict(sys.modules),
    )


def differences(before: ProcessState, after: ProcessState) -> list[str]:
    """Return the differences between two snapshots, a line each."""
    found = [*_torch_differences(before.torch, after.torch)]
    for name in sorted(before.environment.keys() | after.environment.keys()):
        old, new = before.environment.get(name), after.environment.get(name)
        if old != new and not (old is None and name in LIBRARY_VARIABLES):
            found.append(f"environment variable {name}: {old!r} → {new!r}")
    if before.directory != after.directory:
        found.append(f"working directory: {before.directory} → {after.directory}")
    for number, handler in before.handlers.items():
        if after.handlers[number] != handler:
            found.append(f"handler of {signal.Signals(number).name}: {after.handlers[number]}")
    return [*found, *_module_differences(before.modules, after.modules)]


def _torch_differences(before: TorchState | None, after: TorchState | None) -> Iterator[str]:
    if after is None:
        return
    if before is not None:
        for name in ("threads", "dtype", "deterministic", "gradients", "device"):
            old, new = getattr(before, name), getattr(after, name)
            if old != new:
                yield f"torch's {name}: {old} → {new}"
    known = before.attention if before else {}
    if known == after.attention:  # of most tests
        return
    for name in known.keys() - after.attention.keys():
        yield f"transformers' attention function {name} was removed"
    for name, function in after.attention.items():
        if known.get(name, function) is not function:
            yield f"transformers' attention function {name} was replaced"
        elif name not in known and _of_a_test(name, function):
            yield f"attention function {name} was registered with transformers"


def _module_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    if before == after:  # of most tests, and a thousandth of the time of looking at each
        return
    for name, module in before.items():
        if not _is_same(module, after.get(name)):
            yield f"sys.modules[{name!r}] was {'replaced' if name in after else 'removed'}"
    for name in after.keys() - before.keys():
        if _stands_in(name, after[name]):
            yield f"sys.modules[{name!r}] is a stand-in: {after[name]!r}"


def restore(state: ProcessState, *, numerics_only: bool = False) -> None:
    """Put the process back into a state.

    Args:
        numerics_only: leave environment, directory, handlers and modules as they are, because a
            fixture that is still active may have changed them on purpose.
    """
    _restore_torch(state.torch)
    if numerics_only:
        return
    for name in os.environ.keys() - state.environment.keys() - IGNORED_VARIABLES:
        del os.environ[name]
    os.environ.update(state.environment)
    os.chdir(state.directory)
    for number, handler in state.handlers.items():
        if handler is not None and signal.getsignal(number) is not handler:
            signal.signal(number, handler)
    # a copy is made in one piece, while making a list may collect garbage that imports modules
    modules = dict(sys.modules)
    if modules == state.modules:
        return
    for name in modules.keys() - state.modules.keys():
        if _stands_in(name, modules[name]):
            del sys.modules[name]
    sys.modules.update(
        (name, module)
        for name, module in state.modules.items()
        if not _is_same(module, modules.get(name))
    )


def seed(number: int) -> None:
    """Seed the generators of the process, so that no test draws what another one left."""
    random.seed(number)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(number)
    if torch := _imported_torch():
        torch.default_generator.manual_seed(number)


def end_process_group() -> None:
    """End torch's default process group where there is one, and megatron-core's groups in it."""
    import torch.distributed as dist

    if not dist.is_initialized():
        return
    if state := sys.modules.get("megatron.core.parallel_state"):
        state.destroy_model_parallel()
    dist.destroy_process_group()


def _is_same(before: Any, after: Any) -> bool:
    """Return whether an entry of `sys.modules` is the same module, or was read from the same file.

    transformers takes its own entry anew in the course of its imports (`direct_transformers_import`
    in transformers 5.23).
    """
    if before is after:
        return True
    file = getattr(before, "__file__", None)
    return file is not None and file == getattr(after, "__file__", None)


def _stands_in(name: str, module: object) -> bool:
    """Return whether an entry of `sys.modules` was put there by hand.

    Modules that an extension makes for itself have no spec either; their package has one, or their
    name begins with an underscore.
    """
    package = name.partition(".")[0]
    if not isinstance(module, ModuleType):
        return True
    spec = getattr(sys.modules.get(package, module), "__spec__", None)
    return spec is None and not name.startswith("_")


def _imported_torch() -> Any:
    """Return torch if it has been imported whole."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and hasattr(torch, "default_generator") else None


def _attention_tables() -> dict[str, dict[str, Any]]:
    modeling = sys.modules.get("transformers.modeling_utils")
    masking = sys.modules.get("transformers.masking_utils")
    tables = {}
    if hasattr(modeling, "ALL_ATTENTION_FUNCTIONS"):
        tables["attention"] = modeling.ALL_ATTENTION_FUNCTIONS._global_mapping
    if hasattr(masking, "ALL_MASK_ATTENTION_FUNCTIONS"):
        tables["mask"] = masking.ALL_MASK_ATTENTION_FUNCTIONS._global_mapping
    return tables


def _torch_state() -> TorchState | None:
    torch = _imported_torch()
    if torch is None:
        return None
    functions = {
        f"{table}:{name}": function
        for table, mapping in _attention_tables().items()
        for name, function in mapping.items()
    }
    deterministic = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    return TorchState(
        threads=torch.get_num_threads(),
        dtype=torch.get_default_dtype(),
        deterministic=deterministic,
        gradients=torch.is_grad_enabled(),
        device=torch.get_default_device(),
        attention=functions,
    )


def _restore_torch(state: TorchState | None) -> None:
    torch = _imported_torch()
    if torch is None:
        return
    threads = state.threads if state else 1
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    if state is None:
        _restore_attention({})
        return
    if torch.get_default_dtype() != state.dtype:
        torch.set_default_dtype(state.dtype)
    now = _torch_state()
    if now.deterministic != state.deterministic:
        torch.use_deterministic_algorithms(state.deterministic[0], warn_only=state.deterministic[1])
    if now.gradients != state.gradients:
        torch.set_grad_enabled(state.gradients)
    if now.device != state.device:  # None takes torch's own handling of a default device away
        torch.set_default_device(None if state.device.type == "cpu" else state.device)
    if now.attention != state.attention:
        _restore_attention(state.attention)


def _restore_attention(before: Mapping[str, Any]) -> None:
    for table, mapping in _attention_tables().items():
        for name, function in list(mapping.items()):
            if f"{table}:{name}" not in before and _of_a_test(name, function):
                del mapping[name]
        known = (name.partition(":") for name in before)
        mapping.update((name, before[f"{of}:{name}"]) for of, _, name in known if of == table)


def _of_a_test(name: str, function: object) -> bool:
    """Return whether an attention function that was not there before was put there by a test.

    transformers has its own from its import on, and vtool registers its functions for good.
    """
    return "vtool" not in name and not getattr(function, "__module__", "").startswith(
        "transformers."
    )
