"""The command of vLLM's server, with all that it needs to answer as vtool does (docs/serving.md).

Pure functions of what the folders say.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from vtool.diagnostics import Diagnostic, Findings
from vtool.families import FAMILIES
from vtool.model_folder import TEMPLATE, ModelFolder
from vtool.models.backends import recorded_backend
from vtool.serving.vllm import VLLM

_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The values that `--max-lora-rank` takes."""
_CPU_HEADS = frozenset((32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512))
"""The features of a head that vLLM's attention on a CPU takes."""
_CACHE = "VLLM_CPU_KVCACHE_SPACE"
_MOST_CACHE = 8
"""GiB; above, vLLM takes the share of the memory that it takes by default."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model to serve."""

    name: str
    """The name that requests have for it."""
    folder: Path
    """A whole model."""
    config: Mapping[str, Any]
    """The content of its config.json."""
    adapter: Path | None = None
    rank: int = 0
    """The adapter's rank."""

    @property
    def text(self) -> Mapping[str, Any]:
        """The settings of its language model; old folders have one level."""
        return self.config.get("text_config") or self.config


@dataclass(frozen=True, slots=True)
class Address:
    """The place where a server listens."""

    host: str
    port: int

    @property
    def url(self) -> str:
        """The address for a client on this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host, self.host)
        return f"http://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """A command, and the variables that it is given in addition to the environment."""

    words: tuple[str, ...]
    variables: Mapping[str, str]

    def __str__(self) -> str:
        return shlex.join(
            [*(f"{name}={value}" for name, value in self.variables.items()), *self.words]
        )


def serve_command(
    model: ServedModel,
    vllm: VLLM,
    address: Address,
    environment: Mapping[str, str],
    *,
    dtype: str | None = None,
    compile: bool = False,
    more: Sequence[str] = (),
) -> ServerCommand:
    """Return the command that serves a model.

    Args:
        model: what is served.
        vllm: its environment.
        address: where to listen.
        environment: the variables that are set: the size of a cache that is chosen there stays.
        dtype: to compute in; None: that of the weights.
        compile: let vLLM compile the model, which starts later and answers faster.
        more: further arguments of vLLM's.

    Raises:
        Findings: `not-servable`; fatal.
    """
    dtype = dtype or str(model.config.get("dtype") or model.config.get("torch_dtype") or "float32")
    if vllm.on_cpu:
        check_on_cpu(model, dtype)
    name = model.name if model.adapter is None else f"{model.name}-base"
    words = [
        vllm.python,
        "-m",
        "vllm.entrypoints.openai.api_server",  # `vllm serve` does not start from the CPU wheel
        *("--model", str(model.folder)),
        *("--served-model-name", name),
        *("--host", address.host),
        *("--port", str(address.port)),
        *("--dtype", dtype),
        *("--generation-config", "vllm"),
        *_processor_arguments(model),
        *_template_arguments(model),
        *("--chat-template-content-format", "openai"),
        *([] if compile else ["--enforce-eager"]),
    ]
    if model.adapter is not None:
        words += ["--enable-lora", "--enable-tower-connector-lora"]
        words += ["--max-lora-rank", str(next(rank for rank in _RANKS if rank >= model.rank))]
        words += ["--lora-modules", f"{model.name}={model.adapter}"]
    variables = {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    if vllm.on_cpu and _CACHE not in environment and (cache := cache_size(model, dtype)):
        variables[_CACHE] = str(cache)
    return ServerCommand((*words, *more), variables)


def _processor_arguments(model: ServedModel) -> tuple[str, ...]:
    """Return the argument for the backend of images that the model was trained with, if known."""
    folders = [model.folder] if model.adapter is None else [model.adapter, model.folder]
    backend = next(filter(None, map(recorded_backend, folders)), None)
    if backend is None:
        return ()
    return ("--mm-processor-kwargs", json.dumps({"use_fast": backend == "torchvision"}))


def _template_arguments(model: ServedModel) -> tuple[str, ...]:
    """Return the argument for an adapter's chat template, where its base has another.

    vLLM takes the base's, without the arguments that the adapter was trained with.
    """
    if model.adapter is None:
        return ()
    own, base = (ModelFolder(one).templates for one in (model.adapter, model.folder))
    if own.get(TEMPLATE) in (None, next(iter(base.values()), None)):
        return ()
    return ("--chat-template", str(model.adapter / TEMPLATE))


def check_on_cpu(model: ServedModel, dtype: str) -> None:
    """Refuse what vLLM starts on a CPU and cannot run there.

    Raises:
        Findings: `not-servable`; fatal.
    """
    size = _head_size(model.text)
    facts = FAMILIES.get(str(model.config.get("model_type")))
    if facts is not None and facts.recurrent:
        if dtype != "bfloat16" or size == 32:
            message = (
                "vLLM's linear attention on a CPU takes bfloat16 alone, and no heads of 32"
                f" features; here it is {dtype} with heads of {size}"
            )
            raise _not_servable(message, None if size == 32 else "--dtype bfloat16")
    elif size is not None and size not in _CPU_HEADS:
        message = (
            f"{model.folder}: heads of {size} features; vLLM's attention on a CPU takes"
            f" {', '.join(map(str, sorted(_CPU_HEADS)))}"
        )
        raise _not_servable(message)


def largest_rank() -> int:
    """Return the largest rank of an adapter that vLLM applies without merging it."""
    return _RANKS[-1]


def cache_size(model: ServedModel, dtype: str) -> int | None:
    """Return the GiB that the keys and values of one chat of the longest length take.

    None where the config does not say, or where it is much.
    """
    text, size = model.text, _head_size(model.text)
    try:
        heads = int(text.get("num_key_value_heads") or text["num_attention_heads"])
        tokens, layers = int(text["max_position_embeddings"]), int(text["num_hidden_layers"])
    except (KeyError, TypeError, ValueError):
        return None
    if size is None:
        return None
    needed = 2 * layers * heads * size * tokens * (4 if dtype == "float32" else 2)
    gib = max(1, ceil(needed / 2**30))
    return gib if gib <= _MOST_CACHE else None


def _head_size(text: Mapping[str, Any]) -> int | None:
    try:
        return int(text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"])
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return None


def _not_servable(message: str, help: str | None = None) -> Findings:
    return Findings(Diagnostic("not-servable", message, help), fatal=True)


def curl_example(model: ServedModel, address: Address, question: str, image: Path | None) -> str:
    """Return a command that asks the server about an image.

    The image goes through a pipe: a single argument may have 128 KiB.
    """
    text = {"type": "text", "text": question}
    url = {"type": "image_url", "image_url": {"url": "data:image/png;base64,IMAGE"}}
    request = {
        "model": model.name,
        "temperature": 0,
        "max_tokens": 64,
        "messages": [{"role": "user", "content": [url, text] if image else [text]}],
    }
    before, there, after = json.dumps(request, ensure_ascii=False).partition("IMAGE")
    encoded = [f'"$(base64 -w0 {shlex.quote(str(image))})"', shlex.quote(after)] if there else []
    parts = " ".join([shlex.quote(before), *encoded])
    return (
        f"printf %s {parts} | curl -s {address.url}/v1/chat/completions"
        " -H 'Content-Type: application/json' -d @-"
    )
