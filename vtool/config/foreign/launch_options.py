"""The options of a launcher before a trainer: accelerate's, torchrun's and DeepSpeed's.

Read in accelerate 1.15 (`commands/launch.py`, `utils/launch.py`) and in transformers 5.23.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from vtool.config.foreign.shell import UNKNOWN, ShellWord

_LAUNCHERS = ("accelerate", "torchrun", "deepspeed")
_FLAGS = ("cpu", "use_cpu", "multi_gpu", "tpu", "use_deepspeed", "use_fsdp", "m", "module")
_ONE_OF = ("cpu", "multi_gpu", "tpu", "use_deepspeed", "use_fsdp")
_OF_DEEPSPEED = {
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "gradient_clipping": "max_grad_norm",
}
"""Options of accelerate's that its own DeepSpeed alone reads, and the trainer's word for each."""


class AskedProcesses(NamedTuple):
    """The processes that a script asks for."""

    all: int
    nodes: int


class _Problem(NamedTuple):
    rule: str
    option: str
    message: str
    help: str
    word: ShellWord


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """A launcher, and its options with their words."""

    launcher: str | None
    options: Mapping[str, tuple[Any, ShellWord]]

    @property
    def counts_all(self) -> bool:
        """Check whether the number of processes is that of all machines."""
        return self.launcher == "accelerate"

    def processes(self) -> tuple[int, ShellWord] | None:
        """Return the processes that are asked for, where that is a number."""
        names = {"accelerate": "num_processes", "deepspeed": "num_gpus"}
        if self.launcher == "deepspeed" and (include := self.options.get("include")):
            _, _, slots = str(include[0]).partition(":")
            return (slots.count(",") + 1, include[1]) if slots and "@" not in slots else None
        return self._number(names.get(self.launcher or "", "nproc_per_node"))

    def nodes(self) -> int | None:
        """Return the machines that are asked for."""
        names = {"accelerate": "num_machines", "deepspeed": "num_nodes"}
        found = self._number(names.get(self.launcher or "", "nnodes"))
        return found[0] if found else None

    def settings(self, given: Mapping[str, Any]) -> Iterator[tuple[str, Any, ShellWord]]:
        """Yield settings that the launcher makes, where the recipe says nothing of them."""
        if self.launcher != "accelerate":
            return
        for name in ("cpu", "use_cpu"):
            if name in self.options and "use_cpu" not in given:
                yield "use_cpu", True, self.options[name][1]
        if "use_deepspeed" in self.options and "deepspeed" not in given:
            file, stage = (self.options.get(one) for one in ("deepspeed_config_file", "zero_stage"))
            if file:
                yield "deepspeed", *file
            elif stage and stage[0].isdecimal():
                yield "deepspeed", {"zero_optimization": {"stage": int(stage[0])}}, stage[1]
        if "use_fsdp" in self.options and "fsdp" not in given:
            yield "fsdp", "full_shard", self.options["use_fsdp"][1]

    def find(self, given: Mapping[str, Any], trainer: str) -> Iterator[_Problem]:
        """Yield mistakes in the options, by themselves and beside the recipe."""
        if self.launcher == "deepspeed":
            both = [name for name in ("num_gpus", "num_nodes") if name in self.options]
            narrowed = [name for name in ("include", "exclude") if name in self.options]
            if both and narrowed:
                yield self._problem(
                    "refused-there",
                    both[0],
                    f"--{both[0]} and --{narrowed[0]} are both given: DeepSpeed's launcher refuses"
                    " it",
                    "leave one of them out",
                )
        if self.launcher == "accelerate":
            yield from self._of_accelerate(given, trainer)

    def _of_accelerate(self, given: Mapping[str, Any], trainer: str) -> Iterator[_Problem]:
        kinds = [name for name in _ONE_OF if name in self.options]
        if len(kinds) > 1:
            yield self._problem(
                "refused-there",
                kinds[1],
                f"--{kinds[0]} and --{kinds[1]} are both given: accelerate takes one of them",
                "leave one of them out",
            )
        count = self._number("num_processes")
        if "multi_gpu" in self.options and count and count[0] < 2:
            yield self._problem(
                "refused-there",
                "num_processes",
                f"--multi_gpu with --num_processes {count[0]}: accelerate refuses it",
                "leave --multi_gpu out",
            )
        precision = str(self.options.get("mixed_precision", ("",))[0])
        wanted = next((kind for kind in ("bf16", "fp16") if given.get(kind) is True), None)
        if wanted is None and trainer == "trl" and not {"bf16", "fp16"} & given.keys():
            wanted = "bf16"  # its default
        if wanted and precision in ("no", "fp16", "bf16", "fp8") and precision != wanted:
            yield self._problem(
                "setting-without-reader",
                "mixed_precision",
                f"--mixed_precision is {precision}, but the trainer's own {wanted} goes before it",
                f"set {wanted} to false in the trainer's settings, or leave it out",
            )
        for option, word in _OF_DEEPSPEED.items():
            found = self.options.get(option)
            if found is None or "use_deepspeed" in self.options or given.get(word, 1) is None:
                continue
            number = _as_number(found[0])
            if number is not None and number != _as_number(given.get(word, 1)):
                yield self._problem(
                    "setting-without-reader",
                    option,
                    f"--{option} {found[0]} stands before the trainer's file: without DeepSpeed of"
                    f" accelerate's own nothing reads it, and {word} is {given.get(word, 1)}",
                    f"write --{word} {found[0]} behind it",
                )

    def _problem(self, rule: str, option: str, message: str, help: str) -> _Problem:
        return _Problem(rule, option, message, help, self.options[option][1])

    def _number(self, name: str) -> tuple[int, ShellWord] | None:
        value, word = self.options.get(name, ("", None))
        if word is None or not str(value).isdecimal() or int(value) < 1:
            return None
        return int(value), word


def read_launch_options(before: Sequence[ShellWord]) -> LaunchOptions:
    """Return the options before a trainer's file or command."""
    names = [word.text.rpartition("/")[2] for word in before]
    launcher = next((name for name in names if name in _LAUNCHERS), None)
    if launcher is None and any("torch.distributed" in name for name in names):
        launcher = "torchrun"
    options: dict[str, tuple[Any, ShellWord]] = {}
    last: str | None = None
    for word in before:
        if word.text.startswith("-"):
            name, equals, value = word.text.lstrip("-").partition("=")
            name = name.replace("-", "_")
            options[name] = (value if equals else "", word)
            last = None if equals or name in _FLAGS else name
        elif last is not None:
            options[last] = ("" if UNKNOWN in word.text else word.text, options[last][1])
            last = None
    return LaunchOptions(launcher, options)


def _as_number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
