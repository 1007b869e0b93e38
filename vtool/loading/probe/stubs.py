"""The one table of what is stubbed in vLLM and SGLang, and the installer that works by it.

Constructors ask for GPUs, kernels and packages that a build for CPUs lacks. What is missing shows
as an exception; the entry whose pattern matches its text is installed, and the constructor runs
again. Nothing that is replaced runs while weights are loaded, and `load_weights` never is; what a
load raises installs nothing.

Further replacements are outside the table: to construct (`vllm_kernels`, `sglang_kernels`,
`vllm_host`, `constants`), for speed (`vllm_host`, `twin`), for the forward pass of a loaded object
(`vllm_forward`, `sglang_forward`), for processes (`vllm_setup`, `sglang_host`), and around a load
to measure it (`sglang_paths`, `vllm_paths`, `transformers_host`, `threads`). CONTRIBUTING.md says
what each replaces; none takes the place of code that copies a tensor.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from . import sglang_stubs, vllm_stubs
from .errors import error_text
from .field_guesses import guess_field, value_in_words

MOST_ATTEMPTS = 60
T = TypeVar("T")


@dataclass(frozen=True)
class Stub:
    """A part of a framework that is replaced when an exception asks for it."""

    framework: Literal["vllm", "sglang"]
    version: str
    """The framework's newest version in which the exception was seen."""
    replaces: str
    """The thing that is replaced, for a report; the pattern's groups fill the braces."""
    pattern: str
    """A regular expression for the exception: `Type: message (file.py:line)`, in one line."""
    install: Callable[..., None]
    """Makes the replacement, given the pattern's groups."""
    why: str
    """The reason why it is missing, and why a load does not need it."""
    needed_by: str
    """An architecture of that version that cannot be made without it."""
    writes_files: bool = False
    """True if `install` is first given the folder of the class, and the configs read from it."""


_VLLM, _OLD_VLLM, _SGLANG = "0.32.0", "0.20.1", "0.5.23"
STUBS: tuple[Stub, ...] = (
    Stub(
        "vllm",
        _OLD_VLLM,
        "transformers' {0}",
        r"cannot import name '(\w+)' from '(transformers\.[\w.]+)'",
        vllm_stubs.replace_absent_class,
        "the installed transformers no longer has a class that a module of models imports",
        "PixtralForConditionalGeneration",
    ),
    Stub(
        "vllm",
        _OLD_VLLM,
        "the kernel {0}",
        r"'_OpNamespace' '_C' object has no attribute '(\w+)'",
        vllm_stubs.replace_compiled_kernel,
        "layers look a compiled kernel up when they are made, and call it in a forward pass",
        "GPT2LMHeadModel",
    ),
    Stub(
        "vllm",
        _OLD_VLLM,
        "latent attention",
        r"MLA is not supported on CPU",
        vllm_stubs.replace_latent_attention,
        "0.20 has no latent attention for CPUs; Triton's is made without being compiled",
        "DeepseekV2ForCausalLM",
    ),
    Stub(
        "vllm",
        _VLLM,
        "vLLM's check of the config's class",
        r"Assertion failed",
        vllm_stubs.rename_config_for_checks,
        "vLLM completes configs of classes that only the hub has: ours are given their names",
        "NomicBertModel",
    ),
    Stub(
        "vllm",
        _VLLM,
        "sparse attention",
        r"Sparse Attention is not supported on CPU",
        vllm_stubs.replace_sparse_attention,
        "dense attention has the same weights",
        "DeepseekV32ForCausalLM",
    ),
    Stub(
        "vllm",
        _VLLM,
        "kernels of experts without a gate",
        r"is_act_and_mul=False is supported only",
        vllm_stubs.allow_experts_without_gate,
        "a constructor asks for CUDA; the weights of experts are the same anywhere",
        "NemotronHForCausalLM",
    ),
    Stub(
        "vllm",
        _VLLM,
        "kernels of experts",
        r"No \w+ MoE backend supports",
        vllm_stubs.allow_expert_kernels,
        "a constructor chooses the kernel that would multiply the experts' weights",
        "NemotronHForCausalLM",
    ),
    Stub(
        "vllm",
        _VLLM,
        "the package {0}",
        r"No module named '(torchaudio|cutlass|cuda|quack)(?=[.'])",
        vllm_stubs.install_empty_package,
        "it reads sound, or multiplies on a GPU: imported by a module of models, never called",
        "FunASRForConditionalGeneration",
    ),
    Stub(
        "vllm",
        _VLLM,
        "the package {0}",
        r"(vllm\.vllm_flash_attn) requires the CUDA",
        vllm_stubs.install_empty_package,
        "flash attention needs CUDA, and runs in a forward pass only",
        "Dots3NoteForCausalLM",
    ),
    Stub(
        "vllm",
        _VLLM,
        "attention's argument {0}",
        r"CPUAttentionBackendImpl.__init__\(\) got an unexpected keyword argument '(\w+)'",
        vllm_stubs.drop_attention_argument,
        "attention for CPUs does not know the argument; it says what is computed, not loaded",
        "Rnj1ForCausalLM",
    ),
    Stub(
        "vllm",
        _VLLM,
        "attention's support of {0}",
        r"(use_\w+) is not supported by backend CPU_ATTN",
        vllm_stubs.allow_attention_feature,
        "attention for CPUs lacks a feature that has no weights",
        "Step1ForCausalLM",
    ),
    Stub(
        "vllm",
        _VLLM,
        "{1}'s {0}",
        r"cannot import name '(\w+)' from '(vllm\.v1\.attention\.[\w.]+)'",
        vllm_stubs.replace_absent,
        "a function of attention that only a build for GPUs has",
        "Dots3NoteForCausalLM",
    ),
    Stub(
        "vllm",
        _VLLM,
        "a GPU's {0}",
        r"(?:torch\.cuda\.|dummy base class )(Stream|Event)",
        partial(vllm_stubs.replace_absent, module="torch.cuda"),
        "streams and events are kept for a forward pass",
        "InklingForConditionalGeneration",
    ),
    Stub(
        "vllm",
        _VLLM,
        "attention of the vision tower",
        r"(?:does not support|Backend) AttentionBackendEnum",
        vllm_stubs.replace_vision_attention,
        "flash attention of images, which only GPUs have",
        "OpenPanguVLForConditionalGeneration",
    ),
    Stub(
        "vllm",
        _VLLM,
        "the second model runner",
        r"Model Runner V1 does not support|requires the V2 model runner",
        vllm_stubs.choose_second_runner,
        "the runner comes after loading; constructors only ask which was chosen",
        "LongcatFlashNgramForCausalLM",
    ),
    Stub(
        "vllm",
        _VLLM,
        "triton's allocator",
        r"has no attribute 'set_allocator'",
        vllm_stubs.replace_triton_allocator,
        "builds for CPUs have a stand-in for triton, without its allocator",
        "OlmoHybridForCausalLM",
    ),
    Stub(
        "vllm",
        _VLLM,
        "a tokenizer",
        r"KeyError: '<image>'|Can't load image processor|skip_tokenizer_init|Failed to load the"
        r" processor|has no attribute '(?:get_vocab|vocab)'",
        vllm_stubs.provide_tokenizer,
        "a tiny model has no tokenizer; some constructors look tokens up",
        "TransformersMultiModalForCausalLM",
        writes_files=True,
    ),
    Stub(
        "sglang",
        _SGLANG,
        "CUDA's streams, and what it says of the device",
        r"Torch not compiled with CUDA enabled|No CUDA GPUs|Found no NVIDIA driver|requires CUDA"
        r" support",
        sglang_stubs.replace_cuda,
        "constructors ask about the GPU, and keep streams and events for a forward pass",
        "MuseSparkForConditionalGeneration",
    ),
    Stub(
        "sglang",
        _SGLANG,
        "the rotary embedding for CPUs",
        r"^AssertionError: .*\(factory\.py:\d+\)",
        sglang_stubs.replace_rotary_embedding,
        "the one for CPUs knows one kind only; none has weights",
        "DeepseekV2ForCausalLM",
    ),
    Stub(
        "sglang",
        _SGLANG,
        "SGLang's choice of a device",
        r"No accelerator \(CUDA",
        sglang_stubs.choose_cpu,
        "`get_device()` names a GPU, or raises",
        "MiniCPMV",
    ),
)
"""Every replacement, in the order in which they are tried."""


class StubInstaller:
    """Runs the steps that make a class, and gives what an exception says is missing.

    Args:
        framework: the entries of `STUBS` that may be installed; None: none of them.
        fields: values of config fields that may be missing; None: no config is given a field.
        folder: where entries that write files write; None: these are not installed.
        stubs: the table.
    """

    def __init__(
        self,
        framework: str | None,
        fields: Mapping[str, Any] | None,
        folder: Path | None = None,
        stubs: tuple[Stub, ...] = STUBS,
    ) -> None:
        self.fields, self.folder = fields, folder
        self.stubs = [
            stub
            for stub in stubs
            if stub.framework == framework and (folder is not None or not stub.writes_files)
        ]
        self.configs: list[Any] = []
        """The framework's configs that were read from the folder."""
        self.replaced: list[str] = []
        self.added_fields: dict[str, Any] = {}

    def run(self, step: Callable[[], T]) -> T:
        """Return the step's result, once nothing is missing that can be given.

        Raises:
            Exception: what the step raises, where nothing known is missing.
        """
        for _ in range(MOST_ATTEMPTS):
            try:
                return step()
            except Exception as error:
                if not (self.add_field(error) or self._install(error)):
                    raise
        return step()

    def run_load(self, load: Callable[[], T]) -> T:
        """Run a load, again while a field of a config is missing, and return its value unchanged.

        Raises:
            Exception: what the load raises for another reason.
        """
        for _ in range(MOST_ATTEMPTS):
            try:
                return load()
            except Exception as error:
                if not self.add_field(error):
                    raise
        return load()

    def add_field(self, error: Exception) -> bool:
        """Give a config's class the field that was asked of an object of it."""
        if self.fields is None or not isinstance(error, AttributeError) or not error.name:
            return False
        owner = type(error.obj)
        bases = {base.__name__ for base in owner.__mro__}
        key = f"{owner.__name__}.{error.name}"
        if not bases & {"PretrainedConfig", "PreTrainedConfig"} or key in self.added_fields:
            return False
        value = self.fields[key] if key in self.fields else guess_field(error.name, self.fields)
        self.added_fields[key] = value_in_words(value)
        setattr(owner, error.name, value)
        return True

    def _install(self, error: Exception) -> bool:
        """Install the first stub that the exception asks for and that is not installed yet."""
        text = error_text(error, most=None)
        for stub in self.stubs:
            match = re.search(stub.pattern, text)
            if match and (named := stub.replaces.format(*match.groups())) not in self.replaced:
                files = (self.folder, self.configs) if stub.writes_files else ()
                stub.install(*files, *match.groups())
                self.replaced.append(named)
                return True
        return False
