"""The diagnosis of a machine: rows for a reader, findings, and the rules that were checked."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from vtool.config.environment import npu
from vtool.config.environment.machine import Machine, read_machine
from vtool.config.environment.packages import RELEASE_RULES
from vtool.config.environment.variables import check_variables
from vtool.config.schema import LoadCheck, Run
from vtool.diagnostics import Diagnostic
from vtool.diagnostics.result import Result
from vtool.doctor.frameworks import FrameworkVersions, ask_interpreter, frameworks_needed
from vtool.doctor.installations import installation_problems, release_problems
from vtool.doctor.interpreter import paths_of
from vtool.doctor.packages import RequiredPackage, distribution_version, package_problems, packages
from vtool.doctor.recipe import Needs
from vtool.doctor.script import Script, script_of
from vtool.doctor.silent_bugs import SilentBugs, examine_packages
from vtool.doctor.table import (
    TableRow,
    engine_rows,
    framework_rows,
    machine_rows,
    package_rows,
    torch_rows,
)
from vtool.doctor.torch_answer import TorchAnswer, ask_torch, not_imported

_ALWAYS = (
    "package-missing",
    "version-mismatch",
    *RELEASE_RULES,
    "package-twice",
    "torch-does-not-import",
    "two-accelerators",
    "cann-not-found",
    *npu.VARIABLE_RULES,
)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The diagnosis of a machine, or of what one recipe needs of it."""

    rows: tuple[TableRow, ...]
    findings: tuple[Diagnostic, ...]
    checks: dict[str, str]
    reasons: dict[str, str] = field(default_factory=dict)
    bugs: SilentBugs | None = None
    """None where the interpreter that a recipe names is of no use."""

    def result(self, subject: str) -> Result:
        """Return the result, as every command prints it.

        `details.machine` has the rows by section and name.
        """
        details: dict[str, dict[str, Any]] = {
            rule: {"reason": reason} for rule, reason in self.reasons.items()
        }
        machine: dict[str, dict[str, Any]] = {}
        for row in self.rows:
            machine.setdefault(row.section, {})[row.name] = {"state": row.state} | (
                {"note": row.note} if row.note else {}
            )
        if self.bugs is not None:
            details["known-silent-bug"] = details.get("known-silent-bug", {}) | self.bugs.details
        errors = any(finding.severity == "error" for finding in self.findings)
        # alone, what is not known of a package is not known of the subject
        looked = bool(self.rows) or self.bugs is None or self.bugs.whole
        return Result(
            subject,
            "unsafe" if errors else "clean" if looked else "not-run",
            self.checks,
            self.findings,
            {**details, "machine": machine} if machine else details,
        )


def diagnose(needs: Needs | None = None) -> Diagnosis:
    """Examine this machine.

    Args:
        needs: those of a recipe. Without one, all that vtool can use is examined, and only a lack
            of what it cannot do without is an error.
    """
    machine = read_machine(os.environ)
    known = packages()
    run = needs.run if needs else None
    load_check = needs.load_check if needs else None
    answer = (
        ask_torch() if machine.torch is not None and (needs is None or run is not None) else None
    )
    interpreter = ask_interpreter(load_check) if needs is None or load_check is not None else None
    needed = list(_once(package for package in known or () if _is_needed(package, needs)))
    found = [
        *(needs.findings if needs else ()),
        *package_problems(needed),
        *installation_problems(),
        *release_problems(needs),
        *_of_torch(machine, answer),
        *_of_npu(machine, answer, needs),
    ]
    if run is not None:
        found += _of_device(run, machine, answer)
    if load_check is not None and interpreter is not None:
        found += _of_frameworks(load_check, interpreter)
    rows = (
        *machine_rows(machine),
        *torch_rows(machine, answer),
        *engine_rows(answer, needs),
        *package_rows(needed),
        *framework_rows(interpreter),
    )
    bugs = _silent_bugs(needs, interpreter)
    reasons = _not_run(machine, known, answer, needs)
    if bugs is not None:
        found += bugs.findings
        reasons |= bugs.reasons
    failed = {finding.rule for finding in found if finding.severity == "error"}
    checks = {
        rule: "failed" if rule in failed else "not-run" if rule in reasons else "passed"
        for rule in dict.fromkeys(
            (
                *_ALWAYS,
                *(bugs.checks if bugs else ()),
                *(needs.asked if needs else ()),
                *(finding.rule for finding in found),
            )
        )
    }
    missed = {rule: reason for rule, reason in reasons.items() if checks.get(rule) == "not-run"}
    return Diagnosis(rows, tuple(found), checks, missed, bugs)


def advise(python: str | None, script: Script | None) -> Diagnosis:
    """Examine an interpreter for known silent bugs alone.

    Args:
        python: its file; None for the one that runs this.
        script: the settings with which its packages are used.

    Raises:
        Findings: `unusable-interpreter`, fatal.
    """
    bugs = examine_packages(paths_of(python), script)
    return Diagnosis((), bugs.findings, bugs.checks, bugs.reasons, bugs)


def _silent_bugs(needs: Needs | None, interpreter: FrameworkVersions | None) -> SilentBugs | None:
    """Examine the interpreter that would run it; of a load_check, the one with the framework."""
    if needs is None or needs.load_check is None:
        return examine_packages(paths_of(None), script_of(needs) if needs else None)
    if interpreter is None or interpreter.error:
        return None
    return examine_packages(paths_of(interpreter.python), script_of(needs))


def _once(packages: Iterable[RequiredPackage]) -> Iterator[RequiredPackage]:
    """Yield each requirement once: several extras bring the same one along."""
    seen = set()
    for package in packages:
        if str(package.requirement).partition(";")[0] not in seen:
            seen.add(str(package.requirement).partition(";")[0])
            yield package


def _is_needed(package: RequiredPackage, needs: Needs | None) -> bool:
    if needs is None:
        # an extra that is there has to fit
        return package.extra is None or package.version is not None
    if needs.load_check is not None:
        return package.name in (
            "numpy",
            "xxhash",
            "pyyaml",
            "pydantic",
        )
    if package.extra is None:
        return True
    return package.extra in needs.extras and package.name not in needs.without


def _of_torch(machine: Machine, answer: TorchAnswer | None) -> Iterator[Diagnostic]:
    if answer is not None and answer.error is not None:
        yield not_imported(answer, machine.torch_npu, not machine.cann.problems)
    if answer is not None and answer.torchvision_error is not None:
        yield Diagnostic(
            "processor-backend-missing",
            f"torchvision is installed and does not import: {answer.torchvision_error};"
            " transformers imports no image processor beside it",
            "install the build that fits this torch, or uninstall torchvision",
            "torchvision",
        )


def _of_npu(
    machine: Machine, answer: TorchAnswer | None, needs: Needs | None
) -> Iterator[Diagnostic]:
    """Yield the problems of torch_npu and of Ascend's variables.

    A package that works is not reported, however it is set up.
    """
    works = answer is not None and answer.error is None and answer.npu_error is None
    for finding in npu.check_packages(machine):
        if not (works and finding.rule in ("cann-not-found", "two-accelerators")):
            yield finding
    run = needs.run if needs else None
    if run is not None and needs is not None and needs.sound and run.device.kind == "npu":
        yield from npu.check_settings(run, needs.origins, machine)
    yield from check_variables(machine.environment, npus=machine.npus, cores=machine.cores)


def _of_device(run: Run, machine: Machine, answer: TorchAnswer | None) -> Iterator[Diagnostic]:
    kind, wanted = run.device.kind, run.launch.nproc or 1
    if (
        answer is None
        or answer.error is not None
        or kind not in ("cuda", "npu")
        or (kind == "npu" and machine.torch_npu is None)
    ):
        return
    there = len(answer.cuda if kind == "cuda" else answer.npu)
    if there >= wanted:
        return
    message = (
        f"launch.nproc is {wanted}, device.kind is {kind}, and torch sees {there} devices of that"
        " kind"
    )
    if kind == "npu" and answer.npu_error is not None:
        message += f": {answer.npu_error}"
    built = machine.torch.accelerator if machine.torch else None
    help = "run it on a machine that has them, or lower launch.nproc"
    if kind == "cuda" and built != "cuda":
        help = "this build of torch has no CUDA: pip install torch, from the index for your CUDA"
    yield Diagnostic(
        "device-missing", message, help, "device.kind", expected=str(wanted), seen=str(there)
    )


def _of_frameworks(settings: LoadCheck, interpreter: FrameworkVersions) -> Iterator[Diagnostic]:
    if interpreter.error:
        yield Diagnostic("unusable-interpreter", interpreter.error, parameter="python")
        return
    for name in frameworks_needed(settings):
        if name not in interpreter.versions:
            how = "`make vllm-env` builds an interpreter that has it, python=EXE names another"
            # their sources are left out
            severity = "warning" if name in ("Run:ai streamer", "fastsafetensors") else "error"
            yield Diagnostic(
                "extra-not-installed",
                f"{interpreter.python} has no {name}",
                how,
                "python",
                severity=severity,  # type: ignore[arg-type]
            )


def _not_run(
    machine: Machine,
    known: Sequence[RequiredPackage] | None,
    answer: TorchAnswer | None,
    needs: Needs | None,
) -> dict[str, str]:
    reasons: dict[str, str] = {}
    if needs is not None and needs.run is not None and not needs.sound:
        reasons |= dict.fromkeys(
            npu.NPU_ONLY_RULES,
            "the recipe leaves something open, or has findings: vtool validate-config",
        )
    if known is None:
        reasons |= dict.fromkeys(
            ("package-missing", "extra-not-installed"),
            "vtool itself is not installed, and so has no metadata",
        )
    if distribution_version("transformers") is None:
        reasons |= dict.fromkeys(RELEASE_RULES, "transformers is not installed")
    if machine.torch_npu is None:
        reasons |= dict.fromkeys(
            ("two-accelerators", "cann-not-found"), "torch_npu is not installed"
        )
    if answer is None:
        why = "the recipe does not say what it needs"
        if machine.torch is None:
            why = "torch is not installed"
        elif needs is not None and needs.load_check is not None:
            why = "the recipe needs torch in the other interpreter only"
        reasons |= dict.fromkeys(("torch-does-not-import", "device-missing"), why)
    elif answer.error is not None:
        reasons["device-missing"] = "torch does not import"
    elif (
        needs is not None
        and needs.run is not None
        and needs.run.device.kind == "npu"
        and machine.torch_npu is None
    ):
        reasons["device-missing"] = "torch_npu is not installed"
    return reasons
