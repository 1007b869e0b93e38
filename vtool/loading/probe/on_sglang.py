"""SGLang's classes at tiny size on a CPU: no GPU, no engine."""

import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from . import twin
from .audit import text_of
from .mend import Mender
from .sources import Owned, ReusableBuffer
from .state import MARKS, compare, mark, snapshot
from .subject import Named, NotRun, Subject

ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "SGLANG_USE_CPU_ENGINE": "0"}
FIELDS = {"language_only": False, "encoder_only": False}
"""What SGLang sets on a config from its own arguments."""


class Marked(ReusableBuffer):
    """As SGLang's Run:ai loader gives tensors: a buffer that is used again, each tensor with the mark by which classes may know it."""

    def __iter__(self) -> Iterator[Named]:
        from sglang.srt.model_loader.weight_utils import RUNAI_STREAMER_TENSOR_ATTR as MARK

        for name, tensor in super().__iter__():
            setattr(tensor, MARK, True)
            setattr(tensor.untyped_storage(), MARK, True)  # views do not inherit the first
            yield name, tensor


def prepare() -> Mapping[str, str]:
    """Import SGLang once, before any fork; its version."""
    os.environ.update(ENVIRONMENT)
    import sglang
    import sglang.srt.models.registry

    return {"name": "sglang", "version": sglang.__version__}


def names() -> list[str]:
    """Every architecture of the registry that could be imported here."""
    from sglang.srt.models.registry import ModelRegistry

    return list(ModelRegistry.models)


def subject(name: str, folder: Path, progress: Callable[[str], None]) -> Subject:
    """An architecture at tiny size, with the checkpoint of transformers' twin.

    Raises:
        NotRun: why there is none.
    """
    from sglang.srt.models.registry import ModelRegistry

    if name not in ModelRegistry.models:
        raise NotRun(f"SGLang has registered no `{name}`, or it cannot be imported here")
    found = ModelRegistry.models[name]
    said = twin.entry(name)
    like = said.get("like") or (name if twin.known(name) else None)
    if like is None:
        raise NotRun(f"transformers has no class `{name}` to make a tiny checkpoint with")
    mender = Mender(twin.TABLE["fields"], ())
    progress("tiny twin")
    checkpoint = mender.run(lambda: twin.save_twin(like, said, folder, name))
    progress("construction")
    _start(folder)

    def make() -> Any:
        import transformers

        torch.manual_seed(0)
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        try:
            config = transformers.AutoConfig.from_pretrained(folder)
            for field, value in FIELDS.items():
                setattr(config, field, value)
            return found(config=config).eval()
        finally:
            torch.set_default_dtype(before)

    mender.run(make)
    method = inspect.unwrap(found.load_weights)
    about = {
        "class": f"{found.__module__}.{found.__name__}",
        "file": inspect.getsourcefile(method),
        "line": inspect.getsourcelines(method)[1],
        "like": like,
        "own_twin": like == name,
        "replaced": mender.replaced,
        "fields": mender.added,
    }
    return Subject(
        make=make,
        checkpoint=checkpoint,
        load=lambda model, weights: model.load_weights(weights),
        origin="twin",
        code=(os.path.dirname(sys.modules["sglang"].__file__ or ""),),
        about={key: value for key, value in about.items() if value},
        paths=_drive,
    )


def _drive(subject: Subject) -> dict[str, str]:
    """SGLang's two ways of handing over tensors that do not stay: marked, as its Run:ai loader does, and as weight updates do."""
    found = {}
    for path, source in (("load_format=runai_streamer", Marked), ("model.load_weights", ReusableBuffer)):
        try:
            expected, seen = (_loaded(subject, made) for made in (Owned(subject.checkpoint), source(subject.checkpoint, 1)))
            found[path] = "unprotected" if compare(expected, seen) else "protected"
        except Exception as error:
            found[path] = f"not run: {text_of(error)}"
    return found


def _loaded(subject: Subject, source: Owned) -> Any:
    model = subject.make()
    mark(model, MARKS[0])
    subject.load(model, source)
    return snapshot(model)


def _start(folder: Path) -> None:
    """What SGLang's layers ask of the process that they are made in: its arguments, and groups of one rank."""
    import sglang.srt.runtime_context as context
    import sglang.srt.server_args as arguments
    from sglang.srt.distributed import init_distributed_environment, initialize_model_parallel

    given = arguments.ServerArgs(
        model_path=str(folder),
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
    init_distributed_environment(world_size=1, rank=0, local_rank=0, distributed_init_method=meeting, backend="gloo")
    initialize_model_parallel()
    fields = [name for name in context._parallel_fields() if name.endswith(("_rank", "_size"))]
    for name in fields:
        context.get_parallel().override_permanently(**{name: 0 if name.endswith("_rank") else 1})
    try:
        from sglang.srt.layers.dp_attention import initialize_dp_attention

        initialize_dp_attention(given)
    except Exception as error:
        print(f"initialize_dp_attention: {type(error).__name__}: {error}")  # classes that ask for it say so themselves
