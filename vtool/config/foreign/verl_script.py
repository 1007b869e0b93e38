"""The settings that a shell script gives verl's SFT trainer, as overrides of Hydra's."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vtool.config.foreign.hf_script import PROCESSES_VARIABLE, asked_processes, code_lines
from vtool.config.foreign.known_words import known_words
from vtool.config.foreign.launch_options import AskedProcesses, read_launch_options
from vtool.config.foreign.shell import UNKNOWN, ScriptPlaces, ShellWord, read_commands, read_text
from vtool.config.foreign.theirs import ForeignFile
from vtool.config.foreign.verl_settings import UNREAD, is_known_to_verl, verl_names
from vtool.config.foreign.word import is_whole
from vtool.config.origins import ValuePosition
from vtool.config.resources import shown_path
from vtool.diagnostics import Diagnostic, Findings

_TRAINERS = ("sft_trainer", "sft_trainer_ray", "fsdp_sft_trainer")
_GROUPS = ("model", "engine", "optim", "profiler")
_LEAST = 3
"""Settings of verl's that say of a command whose first word is not known whose it is."""


@dataclass(slots=True)
class VerlScript:
    """The settings of a script, by dotted name."""

    given: dict[str, Any] = field(default_factory=dict)
    """None where a variable or a command gives the value."""
    places: dict[str, ValuePosition] = field(default_factory=dict)
    choices: dict[str, str] = field(default_factory=dict)
    """By group of Hydra's: the file that is chosen, where that is known."""
    added: set[str] = field(default_factory=set)
    """Names that `+` adds to verl's own."""
    plain: set[str] = field(default_factory=set)
    """Names without a sign, which Hydra refuses where verl has no such setting."""
    appended: set[str] = field(default_factory=set)
    """Names behind one `+`, which Hydra refuses where there is a value already."""
    again: set[str] = field(default_factory=set)
    """Names that are appended twice."""
    notes: list[str] = field(default_factory=list)
    ranks: AskedProcesses | None = None
    """The processes that the launcher starts; None where that is not said."""
    by_ray: bool = False
    """True where Ray starts them, as many as the settings of `trainer` say."""


def find_refused_overrides(script: VerlScript) -> Iterator[Diagnostic]:
    """Yield findings about names whose sign Hydra refuses: tried with Hydra 1.3."""
    known = known_words("verl")
    for name, place in script.places.items():
        group = name.partition(".")[0]
        choice = f"{group}={script.choices.get(group)}"
        fields = known.choices.get(choice, known.fields)
        if name in UNREAD or (choice not in known.choices and group in ("engine", "optim")):
            continue  # of a plug-in, or chosen by a variable
        there = fields.get(name)
        has_value = there not in (None, {}) and "${" not in str(there)
        if name in script.again or (name in script.appended and has_value):
            yield Diagnostic(
                "refused-there",
                f"+{name}: there is a value already, and Hydra does not append to it",
                f"write {name}=…",
                name,
                place.key,
            )
        elif name in script.plain and name not in fields and script.given[name] is not None:
            if group == "hydra" or not is_known_to_verl(name, fields):
                continue
            yield Diagnostic(
                "refused-there",
                f"{name}: verl has the group without this name, and Hydra does not add it",
                f"write +{name}=…",
                name,
                place.key,
            )


def read_verl_script(path: Path) -> VerlScript:
    """Read a script that starts verl's SFT trainer. Nothing of it is run.

    Raises:
        Findings: `unreadable-file`, `unknown-recipe`, fatal.
    """
    name, text = shown_path(path), read_text(path)
    commands = list(read_commands(text))
    found = next((words for words in map(_at_trainer, commands) if words is not None), None)
    if found is None:
        other = next((word for command in commands for word in command if _is_other(word)), None)
        what = (
            f"starts `{other.text}`, another of verl's programs"
            if other
            else (
                "does not start verl's SFT trainer, `python -m verl.trainer.sft_trainer`, in a way"
                " that can be read without running it"
            )
        )
        raise _refused(
            "unknown-recipe",
            f"{name} {what}",
            "give a script that starts verl.trainer.sft_trainer, or the YAML that Hydra writes to"
            " outputs/…/.hydra/config.yaml",
        )
    read = VerlScript(choices={"engine": "fsdp", "optim": "fsdp"})  # verl's own defaults
    places = ScriptPlaces(name, text)
    before, (start, *words) = found
    for word in words:
        _read_word(word, places.of(word), read)
    lines = code_lines(text, places.of((words or [start])[-1]).value.line or 0)
    read.by_ray = _last(start) == "sft_trainer_ray"
    read.ranks = asked_processes(lines, places, read_launch_options(before), read.places)
    return read


def put_processes(theirs: ForeignFile, script: VerlScript) -> None:
    """Take over how many processes start: torchrun says it, or to Ray the settings themselves."""
    ranks, name = script.ranks, PROCESSES_VARIABLE
    if script.by_ray:
        name = "trainer.n_gpus_per_node"
        each, nodes = theirs.take(name, 8), theirs.take("trainer.nnodes", 1)
        ranks = AskedProcesses(each * nodes, nodes) if is_whole(each) and is_whole(nodes) else None
    if ranks is None:
        return
    theirs.put("launch.nproc", max(1, ranks.all // ranks.nodes), name)
    if ranks.nodes > 1:
        script.notes.append(f"It is for {ranks.nodes} machines: start it on each, by torchrun")


def _refused(rule: str, message: str, help: str | None = None) -> Findings:
    return Findings(Diagnostic(rule, message, help), fatal=True)


def _last(word: ShellWord) -> str:
    return word.text.removesuffix(".py").rpartition("/")[2].rpartition(".")[2]


def _is_other(word: ShellWord) -> bool:
    return word.text.startswith("verl.") and "=" not in word.text


def _at_trainer(command: list[ShellWord]) -> tuple[list[ShellWord], list[ShellWord]] | None:
    """Return the words before the trainer's module or file, and that with the rest.

    None for another command.
    """
    for at, word in enumerate(command):
        if "=" not in word.text and _last(word) in _TRAINERS:
            return command[:at], command[at:]
    if not command or UNKNOWN not in command[0].text:
        return None
    names = [word.text.partition("=")[0].lstrip("+") for word in command if "=" in word.text]
    return ([], command) if sum(name in verl_names() for name in names) >= _LEAST else None


def _read_word(word: ShellWord, place: ValuePosition, read: VerlScript) -> None:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    text = word.text
    if text.startswith("--config"):
        option, _, value = text.partition("=")
        if option in ("--config-path", "--config-dir") or value.removesuffix(".yaml") not in (
            "sft_trainer_engine",
            "sft_trainer",
        ):
            raise _refused(
                "unknown-recipe",
                f"{place.value.file} starts verl with a configuration of yours: `{text}`",
                "give the YAML that Hydra writes to outputs/…/.hydra/config.yaml",
            )
        return
    key, equals, value = text.partition("=")
    if not equals or UNKNOWN in key:
        if UNKNOWN in text:
            read.notes.append(f"Line {place.value.line} passes more to verl, which was not read")
        return
    name, _, _ = key.lstrip("+~").partition("@")
    if key.startswith("~"):
        return
    if name in _GROUPS:
        read.choices.pop(name, None)
        if UNKNOWN not in value:
            read.choices[name] = value
        return
    if UNKNOWN in value:
        parsed: Any = None
    else:
        try:
            parsed = _plain(OverridesParser.create().parse_override(f"{name}={value}").value())
        except (HydraException, ValueError, RecursionError):
            parsed = value
    _read_sign(key, name, parsed, read)
    for one, inner in _leaves(name, parsed):
        read.given[one], read.places[one] = inner, place
        read.plain |= {one} if key == name else set()


def _read_sign(key: str, name: str, value: Any, read: VerlScript) -> None:
    """Keep the names that `+` adds. Hydra merges a list or a group into an older one."""
    if key.startswith("+"):
        if not key.startswith("++") and not isinstance(value, list | dict):
            read.again |= {name} & read.added
            read.appended.add(name)
        read.added.add(name)


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves(f"{name}.{key}", inner)
    else:
        yield name, value


def _plain(value: Any) -> Any:
    """Return a value of Hydra's as one of YAML's; one that refers to another is None."""
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, Mapping):
        return {str(_plain(key)): _plain(one) for key, one in value.items()}
    if isinstance(value, int | float) or value is None:
        return value
    text = str(getattr(value, "text", value))
    return None if "${" in text else text
