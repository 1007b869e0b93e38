"""A case: two releases of a project, and what vtool must say of each."""

import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from vtool.diagnostics.table import RULES

CASES = Path(__file__).parent / "cases"
REPOSITORIES = {
    "accelerate": "huggingface/accelerate",
    "llamafactory": "hiyouga/LLaMA-Factory",
    "mcore": "NVIDIA/Megatron-LM",
    "peft": "huggingface/peft",
    "sglang": "sgl-project/sglang",
    "swift": "modelscope/ms-swift",
    "transformers": "huggingface/transformers",
    "trl": "huggingface/trl",
    "verl": "verl-project/verl",
    "vllm": "vllm-project/vllm",
}
SCRIPT_LINES = 40

_NAME = r"[a-z0-9][a-z0-9._-]*"
Wheel = Annotated[str, Field(pattern=rf"^{_NAME}(==[0-9][a-z0-9.]*|@[0-9a-f]{{7,40}})$")]
"""A requirement of one version, such as `transformers==4.45.2`, or a commit: `verl@204b3e351`."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Wheels(_Strict):
    """The wheels of each side, with what they need next to them, in the versions that fit."""

    unsafe: tuple[Wheel, ...]
    clean: tuple[Wheel, ...] = ()
    """Empty for what is open: there is no release without it."""
    both: tuple[Wheel, ...] = ()
    installed: tuple[str, ...] = ()
    """Packages of vtool's own environment that both sides use as they are there."""
    over: Literal["", "vllm"] = ""
    """The wheels and packages below both sides: vLLM's environment, or torch and little more."""

    def of(self, side: str) -> tuple[str, ...]:
        """Return the wheels of one side."""
        return (*(self.unsafe if side == "unsafe" else self.clean), *self.both)


class Case(_Strict):
    """A defect of a release, with the command that reports it."""

    name: str
    """The file's name: `PROJECT-NUMBER[-word]`."""
    project: str
    number: int
    """The number of the issue or the pull request."""
    thread: str = ""
    """The address where upstream describes it, if the number is of no issue there."""
    defect: str
    kind: Literal["command", "public-api"]
    """`command`: it watches what a user runs; `public-api`: a function is called alone."""
    wheels: Wheels
    script: str = ""
    """The script that a user would have run, where there is one: a file in the case's folder."""
    command: str
    """The command; {python} is that of the side, {script} the script, {NAME} a wheel's folder."""
    rule: str
    """The rule that has to report the unsafe side."""
    observable: str
    """A check of the finding without vtool."""
    remark: str = ""

    @property
    def is_open(self) -> bool:
        """Return whether no release is without the defect."""
        return not self.wheels.clean

    def lacks(self, checkouts: Sequence[str]) -> bool:
        """Return whether a side is a commit of a project of which no repository is given."""
        wheels = (wheel for side in self.sides for wheel in self.wheels.of(side))
        return any("@" in wheel and name_of(wheel) not in checkouts for wheel in wheels)

    @property
    def sides(self) -> tuple[str, ...]:
        """The sides that are run."""
        return ("unsafe",) if self.is_open else ("unsafe", "clean")

    @property
    def url(self) -> str:
        """The issue or the pull request, or what else upstream has."""
        return (
            self.thread or f"https://github.com/{REPOSITORIES[self.project]}/issues/{self.number}"
        )

    @property
    def fail_on(self) -> str:
        """The least severe finding that counts, as the command says."""
        words = shlex.split(self.command)
        return words[words.index("--fail-on") + 1] if "--fail-on" in words else "error"

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if not (self.name + "-").startswith(f"{self.project}-{self.number}-"):
            raise ValueError(f"{self.name} is to be called {self.project}-{self.number}[-word]")
        if self.project not in REPOSITORIES:
            raise ValueError(
                f"the repository of {self.project} is not known to timemachine/case.py"
            )
        if self.rule not in RULES:
            raise ValueError(f"vtool has no rule {self.rule}")
        if shlex.split(self.command)[0] not in ("vtool", "python"):
            raise ValueError("the command is one of vtool, or a script of python")
        names = {
            "python",
            "script",
            *(name_of(wheel) for wheel in self.wheels.of("unsafe")),
        }
        for name in re.findall(r"{(\w[\w-]*)}", self.command):
            if name not in names:
                raise ValueError(f"{{{name}}} of the command is none of {', '.join(sorted(names))}")
        if "{script}" in self.command and not (CASES / self.script).is_file():
            raise ValueError(f"there is no {self.script or 'script'} beside it")
        if self.script and len(_lines(self.script)) > SCRIPT_LINES:
            raise ValueError(f"{self.script} has more than {SCRIPT_LINES} lines")
        return self


def name_of(wheel: str) -> str:
    """Return the package of a requirement."""
    return re.split("==|@", wheel)[0]


def _lines(script: str) -> list[str]:
    return (CASES / script).read_text("utf-8").splitlines()


def read_case(file: Path) -> Case:
    """Read a case from its file.

    Raises:
        ValueError: for a file that is no case, with everything that is wrong with it.
    """
    try:
        given = yaml.safe_load(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"{file}: {error}") from error
    if not isinstance(given, dict):
        raise ValueError(f"{file}: is no mapping")
    try:
        return Case(**{"name": file.stem, **given})
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, one['loc'])) or 'case'}: {one['msg']}" for one in error.errors()
        ]
        raise ValueError(f"{file}: {'; '.join(problems)}") from error


def read_cases(names: Iterable[str] = (), folder: Path = CASES) -> list[Case]:
    """Read the cases of these names, or all; a name may be the beginning of several.

    Raises:
        ValueError: for a name that no case has, and for a file that is no case.
    """
    files = sorted(folder.glob("*.yaml"))
    chosen = [file for file in files if file.stem.startswith(tuple(names))] if names else files
    for name in names:
        if not any(file.stem.startswith(name) for file in files):
            known = ", ".join(file.stem for file in files)
            raise ValueError(f"there is no case {name}; there are {known}")
    return [read_case(file) for file in chosen]
