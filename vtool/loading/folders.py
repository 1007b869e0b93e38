"""A checkpoint folder as a subject: its files, and vLLM's class that will load them."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vtool.config.schema import LoadCheck
from vtool.diagnostics import Diagnostic
from vtool.diagnostics.result import Result, Verdict
from vtool.loading.checkpoint.adapters import (
    RULE,
    is_adapter_folder,
    read_adapter_config,
)
from vtool.loading.checkpoint.audit import OF_CLASS, audit_folder
from vtool.loading.worker import framework_interpreter
from vtool.model_folder import MODEL_CONFIG
from vtool.processes import Ended, run_processes

HOST = "vllm"
"""The framework whose class is checked."""
LOADABLE_WITH = (
    "nonfinite-value",
    "duplicate-tensor",
    "tied-head-differs",
    "weights-not-of-class",
)
"""Rules that may fail for a folder whose tensors can still be loaded."""
_NO_CONFIG = "without a config.json nothing says which class will load it"
FRAMEWORK_MIB = 500
_MODELS = 8.5
"""The memory that the check of a class takes, as a multiple of the weights, besides the framework.

Measured with vLLM 0.32 and Llamas of 40 to 830 MiB: 7.3 to 8.4 times in bfloat16, and 4.6 in
float32, which vLLM serves in bfloat16.
"""
MIB_A_SECOND = 50
"""The slowest rate to read a folder that is loaded by parts; limits.seconds applies as well."""
_HELP = {
    "load-failed": (
        "compare config.json, names and shapes with those of a model that the class does load; both"
        " are of one save"
    )
}


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder whose files have been audited."""

    result: Result
    why_not: str | None
    """The reason why the class that will load it cannot be checked; None where it can."""
    has_class: bool = True
    """False for a single file, of which a class is not asked."""
    seconds: float | None = None
    """The time of a class that is asked by headers and part by part; else None, and it is loaded
    whole.
    """

    def with_class(self, of_class: Result) -> Result:
        """Return one result of both, whose subject is what the user typed."""
        files = self.result
        reason = next(
            (str(detail["reason"]) for detail in of_class.details.values() if "reason" in detail),
            None,
        )
        details: dict[str, Mapping[str, Any]] = dict(of_class.details)
        judged = "passed" in of_class.checks.values()  # all but the values of some tensors
        if of_class.verdict in ("failed", "not-run") and not judged:
            why = "the class does not load it" if of_class.verdict == "failed" else reason
            details |= {rule: {"reason": why} for rule in of_class.checks}
        verdict: Verdict = files.verdict
        if of_class.verdict in ("unsafe", "failed") and verdict != "unsafe":
            verdict = of_class.verdict
        elif verdict == "clean" and any(one.severity == "error" for one in of_class.findings):
            verdict = "failed"  # its class was to be checked, and could not be
        elif verdict == "clean" and of_class.verdict == "not-run" and self.has_class:
            verdict = "not-run"  # healthy files say nothing of what a class makes of them
        return replace(
            files,
            verdict=verdict,
            checks={**files.checks, **of_class.checks},
            findings=(
                *files.findings,
                *(replace(one, help=one.help or _HELP.get(one.rule)) for one in of_class.findings),
            ),
            details={
                **files.details,
                **details,
                "subject": {**files.details.get("subject", {}), **details.get("subject", {})},
            },
        )

    def without_class(
        self, rules: Sequence[str], reason: str, findings: Sequence[Diagnostic] = ()
    ) -> Result:
        """Return the files' result, with the checks of a class not run."""
        return self.with_class(
            Result(
                self.result.subject,
                "not-run",
                dict.fromkeys(rules, "not-run"),
                tuple(findings),
                {rule: {"reason": reason} for rule in rules},
            )
        )


def audit_files(subject: str, path: Path, settings: LoadCheck, *, digest: bool) -> Folder:
    """Audit the files of a folder, and find out whether its class can be checked.

    Args:
        subject: what the user typed.
        path: a folder, or one file.
    """
    result = audit_folder(path, digest=digest, threads=2)
    result = replace(result, subject=subject)
    if result.checks.get(RULE) == "passed" and read_adapter_config(path):
        result = _with_landing(result, path)
    result = _with_names(result, path)
    if Path(subject) != path:  # a recipe
        result = replace(result, details={"subject": {"folder": str(path)}, **result.details})
    why_not = _why_not(path, result, settings)
    seconds = None
    if why_not is None and FRAMEWORK_MIB + _MODELS * (size := _mib(path)) > (
        settings.limits.memory_mib
    ):
        seconds = settings.limits.seconds + size / MIB_A_SECOND
    return Folder(result, why_not, path.is_dir(), seconds)


def _with_landing(result: Result, path: Path) -> Result:
    """Return an adapter's result with what peft would load of it, asked in a process of its own."""
    if read_adapter_config(path).get("base_model_name_or_path"):
        (answer,) = run_processes("vtool.models.landing", str(path), 1, lambda _: False)
        found, words, judged = (
            ([], f"the process that asks peft {answer.how}", False)
            if isinstance(answer, Ended)
            else answer
        )
    else:
        found, words, judged = [], "no base is named", False
    measured = result.details.get(RULE, {}).get("measured", "")
    detail = {"measured": "; ".join(filter(None, (measured, words)))} if judged else {}
    if not judged:
        detail = {"reason": f"not compared with its base: {words}"}
    return replace(
        result,
        verdict="unsafe" if found else result.verdict,
        checks={**result.checks, RULE: "failed" if found else "passed" if judged else "not-run"},
        findings=(*result.findings, *found),
        details={**result.details, RULE: detail},
    )


def _with_names(result: Result, path: Path) -> Result:
    """Return a folder's result with its weights held against transformers' class of it.

    In a process of its own: what reads files here imports no torch.
    """
    found: list[Diagnostic] = []
    if why := _why_no_names(path, result):
        words, judged = why, False
    else:
        (answer,) = run_processes("vtool.models.weights_of_class", str(path), 1, lambda _: False)
        if isinstance(answer, Ended):
            words, judged = f"the process that asks transformers {answer.how}", False
        else:
            found, words, judged = answer
    failed = any(one.severity == "error" for one in found)
    state = "not-run" if not judged else "failed" if failed else "passed"
    return replace(
        result,
        verdict="unsafe" if failed else result.verdict,
        checks={**result.checks, OF_CLASS: state},
        findings=(*result.findings, *found),
        details={**result.details, OF_CLASS: {"measured" if judged else "reason": words}},
    )


def _why_no_names(path: Path, result: Result) -> str | None:
    """Return why a folder's weights are not held against a class; None where they are."""
    wrong = _unloadable(result)
    reasons = {
        "there was nothing to check": result.verdict == "not-run",
        "one file was asked for, not its folder": not path.is_dir(),
        "it is an adapter": is_adapter_folder(path),
        _NO_CONFIG: not (path / MODEL_CONFIG).is_file(),
        f"the files cannot be loaded as they are: {', '.join(wrong)}": bool(wrong),
        "transformers and torch are not installed: pip install 'vtool[train]'": not all(
            map(find_spec, ("transformers", "torch"))
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _unloadable(result: Result) -> list[str]:
    """Return the failed rules that keep a folder from being loaded."""
    return [
        rule
        for rule, state in result.checks.items()
        if state == "failed" and rule not in LOADABLE_WITH
    ]


def _mib(path: Path) -> float:
    """Return the size of a folder's weights."""
    return sum(file.stat().st_size for file in path.glob("*.safetensors")) / 2**20


def _why_not(path: Path, result: Result, settings: LoadCheck) -> str | None:
    if result.verdict == "not-run":
        return "there was nothing to check"
    if not path.is_dir():
        return "one file was asked for, not its folder"
    if wrong := _unloadable(result):
        return f"the files cannot be loaded as they are: {', '.join(wrong)}"
    if is_adapter_folder(path):
        detail = result.details.get(RULE, {})
        landed = detail.get("reason") or detail.get("measured", "not compared with its base")
        return f"it is an adapter, {landed}; no class of {HOST} was asked"
    if not (path / MODEL_CONFIG).is_file():
        return _NO_CONFIG
    return _why_not_here(path, settings)


def _why_not_here(path: Path, settings: LoadCheck) -> str | None:
    """Return why this machine or the settings keep the class from being checked."""
    if (
        settings.python is None
        and framework_interpreter(None, HOST) == sys.executable
        and find_spec(HOST) is None
    ):
        return (
            "this interpreter has no vLLM: `make vllm-env` builds one that has, --python EXE names"
            " another"
        )
    limits = settings.limits
    least = min(limits.memory_mib, limits.parts_mib)
    if least < FRAMEWORK_MIB:
        name = "memory_mib" if limits.memory_mib == least else "parts_mib"
        return (
            f"the weights take {_mib(path):,.0f} MiB; without them the check needs about"
            f" {FRAMEWORK_MIB}, and limits.{name} is {least:,}"
        )
    return None
