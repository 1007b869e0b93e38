"""SGLang's classes at tiny size on a CPU: no GPU, no engine."""

import gc
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor

from . import sglang_config, twin
from .constants import set_constants
from .errors import NotRun, error_text
from .facts import CheckFacts, CheckpointSource
from .host import Host, OnProgress
from .sglang_forward import compare_with_twin
from .sglang_kernels import stand_in_for_kernels
from .sglang_names import discover_names
from .sglang_paths import drive
from .shrink import HIDDEN
from .state import named_parameters
from .stubs import STUBS, Stub, StubInstaller
from .subject import Subject, describe_class

UNSET_SIZES = frozenset(["moe_dense_tp_size", "shared_experts_tp_size"])
"""Sizes of groups that are None where the arguments do not say them."""


class SglangHost(Host):
    """SGLang: every architecture of its registry that can be imported here."""

    name = "sglang"
    environment: ClassVar = {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "SGLANG_USE_CPU_ENGINE": "0",
    }

    def import_framework(self) -> str:
        """Import SGLang and its registry, and return its version."""
        import sglang

        stand_in_for_kernels()
        import sglang.srt.models.registry
        import sglang.srt.utils.hf_transformers_utils

        return str(sglang.__version__)

    def list_subjects(self) -> list[str]:
        """Return every architecture of the registry that could be imported here."""
        from sglang.srt.models.registry import ModelRegistry

        return list(ModelRegistry.models)

    def module_of(self, name: str) -> str | None:
        """Return the module of an architecture's class; see `Host`."""
        from sglang.srt.models.registry import ModelRegistry

        return str(ModelRegistry.models[name].__module__)

    def make_subject(
        self, name: str, folder: Path, progress: OnProgress, stubs: tuple[Stub, ...] = STUBS
    ) -> Subject:
        """Make an architecture at tiny size, with a twin's checkpoint or discovered names.

        Args:
            name, folder, progress: see `Host`.
            stubs: the table of what may be replaced.

        Raises:
            NotRun: why there is none.
        """
        from sglang.srt.models.registry import ModelRegistry

        if name not in ModelRegistry.models:
            raise NotRun(f"SGLang has registered no `{name}`, or it cannot be imported here")
        model_class = ModelRegistry.models[name]
        progress("SGLang's arguments")
        start_sglang(folder)
        entry = sglang_config.sglang_entry(name)
        fields = (
            twin.TWINS["fields"] | sglang_config.SGLANG_TWINS["fields"] | entry.get("fields", {})
        )
        installer = StubInstaller("sglang", fields, stubs=stubs)
        set_constants(sglang_config.sglang_constants(entry.get("constants", {})))
        why: list[str] = []
        makers: list[Callable[[], Any]] = []
        checkpoint: Mapping[str, Tensor] | None = None
        of_twin: dict[str, Any] = {}
        computed: Callable[[Subject], CheckFacts] | None = None
        for number, template in enumerate(sglang_config.templates(name, model_class)):
            home = folder / f"template{number}"
            home.mkdir()
            words = template.words
            try:
                progress(f"tiny twin of {words}")
                tensors: Mapping[str, Tensor] | None
                saved = tensors = sglang_config.write_sglang_config(template, home, name, installer)
                make = _maker(model_class, home)
                progress(f"construction with {words}")
                model = installer.run(make)
                makers.append(make)
                if saved is not None and tensors is not None:
                    tensors, unwritten = twin.choose_names(
                        tensors,
                        (*twin.TWINS["renamings"], *sglang_config.SGLANG_TWINS["renamings"]),
                        partial(twin.count_unwritten, make, run=installer.run_load),
                    )
                    # Files that are certain fit whatever the class makes of them.
                    own = bool(template.entry.get("own")) and unwritten < float("inf")
                    if own or unwritten <= len(named_parameters(model)) // 2:
                        checkpoint, like = tensors, template.like or ""
                        of_twin = twin.about_twin(name, like, model_class, saved, tensors, own)
                        if not {"drop", "extra"} & template.entry.keys():
                            computed = partial(
                                compare_with_twin,
                                make=_maker(model_class, home, torch.float32),
                                class_name=like,
                                folder=home / twin.TWIN_FOLDER,
                                guessed=_is_guessed(installer, template.entry),
                            )
                        break
                    why.append(f"with {words}: {_why_unfit(make, tensors, unwritten)}")
            except Exception as error:
                why.append(f"with {words}: {error_text(error)}")
            if makers and template.like is None:
                break
        if not makers:
            raise NotRun(f"construction: {why[0]}")
        origin: CheckpointSource = "twin"
        if checkpoint is None:
            progress("names")
            make = makers[0]
            origin = "discovered"
            checkpoint = discover_names(make, why, progress, installer.run_load)
        return Subject(
            make=make,
            checkpoint=checkpoint,
            load=lambda model, weights: model.load_weights(weights),
            origin=origin,
            code=(os.path.dirname(sys.modules["sglang"].__file__ or ""),),
            about=describe_class(
                model_class,
                model_class.load_weights,
                **of_twin,
                replaced=tuple(installer.replaced),
                fields=installer.added_fields,
                no_twin="; ".join(why) if origin == "discovered" else None,
            ),
            paths=drive,
            computed=computed,
        )


def _is_guessed(installer: StubInstaller, entry: twin.TwinEntry) -> bool:
    """Return whether the class's config says what its twin's does not."""
    return bool(installer.added_fields or {"json", "without"} & entry.keys())


def _maker(
    model_class: Any, folder: Path, config_dtype: torch.dtype | None = None
) -> Callable[[], Any]:
    """Return a function that builds the class of a folder.

    Args:
        config_dtype: the dtype of its config; None: bfloat16, whatever the config has.
    """

    def make() -> Any:
        gc.collect()  # the model before this one refers to itself
        torch.manual_seed(0)
        before = torch.get_default_dtype()
        torch.set_default_dtype(config_dtype or torch.bfloat16)
        try:
            model = model_class(config=sglang_config.read_sglang_config(folder, config_dtype))
            model.eval()  # what it returns may be the part that it is passed on to
            return model
        finally:
            torch.set_default_dtype(before)

    return make


def _why_unfit(make: Callable[[], Any], checkpoint: Mapping[str, Tensor], unwritten: float) -> str:
    """Return why a twin's checkpoint will not do."""
    if unwritten != float("inf"):
        return f"{unwritten:.0f} parameters are not written"
    try:
        make().load_weights((name, tensor.clone()) for name, tensor in checkpoint.items())
    except Exception as error:
        return f"it does not load: {error_text(error)}"
    return "it does not load"


def _be_alone() -> None:
    """Say to releases that keep it by themselves that there is one rank."""
    try:
        import sglang.srt.runtime_context as context
    except ImportError:  # earlier ones ask the groups
        return
    for name in context._parallel_fields():
        if name.endswith(("_rank", "_size")) and name not in UNSET_SIZES:
            alone = 0 if name.endswith("_rank") else 1
            context.get_parallel().override_permanently(**{name: alone})


def start_sglang(folder: Path) -> None:
    """Set what SGLang's layers ask of a process: its arguments, and groups of one rank.

    The arguments are those of a plain Llama: SGLang checks them against the architecture, that the
    engine may run it on this device, which is not asked here.
    """
    import sglang.srt.server_args as arguments
    import transformers
    from sglang.srt.distributed import init_distributed_environment, initialize_model_parallel

    plain = folder / "plain"
    twin.save_config(transformers.LlamaConfig, {}, plain, "LlamaForCausalLM")
    given = arguments.ServerArgs(
        model_path=str(plain),
        device="cpu",
        dtype="bfloat16",
        attention_backend="torch_native",
        skip_tokenizer_init=True,
        load_format="dummy",
    )
    for name in ("set_global_server_args_for_scheduler", "set_global_server_args"):
        if hasattr(arguments, name):
            getattr(arguments, name)(given)
            break
    meeting = f"file://{folder / 'meeting'}"
    init_distributed_environment(
        world_size=1, rank=0, local_rank=0, distributed_init_method=meeting, backend="gloo"
    )
    initialize_model_parallel()
    _be_alone()
    try:
        from sglang.srt.layers.dp_attention import initialize_dp_attention

        sizes = SimpleNamespace(hidden_size=HIDDEN, dtype=torch.bfloat16)  # of buffers
        asked = len(inspect.signature(initialize_dp_attention).parameters)
        initialize_dp_attention(*(given, sizes)[:asked])
    except Exception as error:
        # classes that ask for it say so themselves
        print(f"initialize_dp_attention: {type(error).__name__}: {error}")
