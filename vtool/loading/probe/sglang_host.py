"""SGLang's classes at tiny size on a CPU: no GPU, no engine."""

import gc
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from . import sglang_config, twin
from .audit import text_of
from .sglang_names import found_by_trying
from .sglang_paths import drive
from .sglang_stubs import STUBS, StubInstaller
from .state import MARKS, mark, marked, named_parameters
from .subject import NotRun, Subject

ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "SGLANG_USE_CPU_ENGINE": "0"}


def prepare(several: bool) -> Mapping[str, str]:
    """Import SGLang once, before any fork; its version."""
    os.environ.update(ENVIRONMENT)
    import sglang
    import sglang.srt.models.registry
    import sglang.srt.utils.hf_transformers.common

    if several:
        twin.warm()
    return {"name": "sglang", "version": sglang.__version__}


def names() -> list[str]:
    """Every architecture of the registry that could be imported here."""
    from sglang.srt.models.registry import ModelRegistry

    return list(ModelRegistry.models)


def subject(name: str, folder: Path, progress: Callable[[str], None]) -> Subject:
    """An architecture at tiny size: with the checkpoint of transformers' twin, else with one whose
    names the class has shown to take.

    Raises:
        NotRun: why there is none.
    """
    from sglang.srt.models.registry import ModelRegistry

    if name not in ModelRegistry.models:
        raise NotRun(f"SGLang has registered no `{name}`, or it cannot be imported here")
    found = ModelRegistry.models[name]
    progress("SGLang's arguments")
    start(folder)
    mender = StubInstaller(twin.TABLE["fields"] | sglang_config.TABLE["fields"], STUBS)
    why: list[str] = []
    made: list[Callable[[], Any]] = []
    checkpoint: Mapping[str, Tensor] | None = None
    like: str | None = None
    for number, template in enumerate(sglang_config.templates(name, found)):
        home = folder / f"template{number}"
        home.mkdir()
        words = (
            f"transformers' {template.like}" if template.like else template.config_class.__name__
        )
        try:
            progress(f"tiny twin of {words}")
            tensors: Mapping[str, Tensor] | None = sglang_config.write(template, home, name, mender)
            make = _maker(found, home)
            progress(f"construction with {words}")
            model = mender.run(make)
            made.append(make)
            if tensors is not None:
                tensors, left = _best_names(make, tensors, mender)
                if left <= len(named_parameters(model)) // 2:
                    checkpoint, like = tensors, template.like
                    break
                why.append(f"with {words}: {_said_of(make, tensors, left)}")
        except Exception as error:
            why.append(f"with {words}: {text_of(error)}")
        if made and template.like is None:
            break
    if not made:
        raise NotRun(f"construction: {why[0]}")
    origin: Literal["twin", "discovered"] = "twin"
    if checkpoint is None:
        progress("names")
        make = made[0]
        origin, checkpoint = "discovered", found_by_trying(make, why, progress)
    method = inspect.unwrap(found.load_weights)
    about = {
        "class": f"{found.__module__}.{found.__name__}",
        "file": inspect.getsourcefile(method),
        "line": inspect.getsourcelines(method)[1],
        "like": like,
        "own_twin": like == name,
        "replaced": mender.replaced,
        "fields": mender.added,
        "no_twin": "; ".join(why) if origin == "discovered" else None,
    }
    return Subject(
        make=make,
        checkpoint=checkpoint,
        load=lambda model, weights: model.load_weights(weights),
        origin=origin,
        code=(os.path.dirname(sys.modules["sglang"].__file__ or ""),),
        about={key: value for key, value in about.items() if value},
        paths=drive,
    )


def _maker(found: Any, folder: Path) -> Callable[[], Any]:
    def make() -> Any:
        gc.collect()  # the model before this one refers to itself
        torch.manual_seed(0)
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        try:
            return found(config=sglang_config.read(folder)).eval()
        finally:
            torch.set_default_dtype(before)

    return make


def _best_names(
    make: Callable[[], Any], checkpoint: Mapping[str, Tensor], mender: StubInstaller
) -> tuple[Mapping[str, Tensor], float]:
    """The checkpoint, under the names that the class loads whole, and how many parameters are never
    written.

    transformers saves some that are not those of the hub's files.
    """
    best, fewest = checkpoint, _never_written(make, checkpoint, mender)
    for rules in (*twin.TABLE["renamings"], *sglang_config.TABLE["renamings"]):
        if not fewest:
            break
        tried = twin.renamed(checkpoint, rules)
        if (
            list(tried) != list(checkpoint)
            and (left := _never_written(make, tried, mender)) < fewest
        ):
            best, fewest = tried, left
    return best, fewest


def _never_written(
    make: Callable[[], Any], checkpoint: Mapping[str, Tensor], mender: StubInstaller
) -> float:
    """How many parameters a load leaves as they were; infinitely many where it raises."""

    def load() -> Any:
        model = make()
        mark(model, MARKS[0])
        model.load_weights((name, tensor.clone()) for name, tensor in checkpoint.items())
        return model

    try:
        model = mender.run(load)
    except Exception:
        return float("inf")
    return sum(bool(marked(tensor, MARKS[0]).all()) for tensor in named_parameters(model).values())


def _said_of(make: Callable[[], Any], checkpoint: Mapping[str, Tensor], left: float) -> str:
    """Why a twin's checkpoint will not do."""
    if left != float("inf"):
        return f"{left:.0f} parameters are not written"
    try:
        make().load_weights((name, tensor.clone()) for name, tensor in checkpoint.items())
    except Exception as error:
        return f"it does not load: {text_of(error)}"
    return "it does not load"


def start(folder: Path) -> None:
    """What SGLang's layers ask of the process that they are made in: its arguments, and groups of
    one rank.

    The arguments are those of a plain Llama: SGLang checks them against the architecture, that the
    engine may run it on this device, which is not asked here.
    """
    import sglang.srt.runtime_context as context
    import sglang.srt.server_args as arguments
    import transformers
    from sglang.srt.distributed import init_distributed_environment, initialize_model_parallel

    plain = folder / "plain"
    twin.tiny_config(transformers.LlamaConfig, {}).save_pretrained(plain)
    twin.write_config(plain, {}, "LlamaForCausalLM")
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
    fields = [
        name
        for name in context._parallel_fields()
        if name.endswith(("_rank", "_size")) and name != "moe_dense_tp_size"
    ]
    for name in fields:
        context.get_parallel().override_permanently(**{name: 0 if name.endswith("_rank") else 1})
    try:
        from sglang.srt.layers.dp_attention import initialize_dp_attention

        initialize_dp_attention(given)
    except Exception as error:
        # classes that ask for it say so themselves
        print(f"initialize_dp_attention: {type(error).__name__}: {error}")
