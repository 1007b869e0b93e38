"""Checks folders and classes, with one probe for each framework; yields results as they come."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType

from vtool.config.schema import LoadCheck
from vtool.config.schema.load_check import Subjects
from vtool.diagnostics import Diagnostic, Findings
from vtool.diagnostics.result import Result
from vtool.diagnostics.rules_loading import CLASS_RULES, FRAMEWORK_CLASS_RULES
from vtool.loading.folders import HOST, Folder, audit_files
from vtool.loading.probe.checks import BY_RULE
from vtool.loading.probe.facts import Finished, ProbeRequest, Ready, Unusable
from vtool.loading.subjects import (
    CLASS_FRAMEWORKS,
    FOLDER_HOST,
    NamedSubject,
    fits_nothing,
    no_subject,
    parse_subject,
    unknown_name,
)
from vtool.loading.verdict import judge
from vtool.loading.worker import framework_interpreter, probe_events, unusable

ANY = Subjects().match
OF_GIT = "name a commit of the git checkout that the interpreter imports the framework from"


@dataclass(frozen=True, slots=True)
class CheckProgress:
    """One more result, and how far the check has come."""

    done: int
    of: int
    result: Result
    seconds: float | None = None
    """Time that the subject's process took, where it had one."""


def asked_checks(settings: LoadCheck) -> tuple[str, ...]:
    """Return the rules that are asked of every class."""
    return settings.checks or CLASS_RULES


def check_subjects(
    settings: LoadCheck,
    checkpoint: Path | None = None,
    announce: Callable[[Ready], None] = lambda event: None,
    *,
    digest: bool = False,
    typed: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[CheckProgress]:
    """Check what the settings name: the files of folders first, then classes by framework.

    Args:
        checkpoint: a folder whose tensors are loaded into `python:` subjects, instead of their own.
        announce: called for each framework, when it has been imported.
        digest: also digest the files of folders.
        typed: what the user wrote, for a name of the settings that was made from it.

    Raises:
        Findings: before anything is run: `unknown-subject`, for what is no subject;
            `ignored-setting`, for what nothing here would use.
    """
    places: dict[tuple[str, str], NamedSubject] = {}
    for text in settings.subjects.names:
        subject = parse_subject(text, typed.get(text))
        # A folder may be named in two ways, and a recipe's export by itself too: it is one subject.
        places.setdefault((subject.host, _place(subject)), subject)
    named = list(places.values())
    if refused := list(_refused(settings, named, checkpoint, digest)):
        raise Findings(refused, fatal=True)
    folders: dict[str, Folder] = {}
    waiting: dict[str, list[NamedSubject]] = (
        {settings.subjects.all: []} if settings.subjects.all else {}
    )
    done = 0
    for subject in named:
        if subject.host != FOLDER_HOST:
            waiting.setdefault(subject.host, []).append(subject)
            continue
        audit = audit_files(str(subject), Path(subject.name), settings, digest=digest)
        if audit.why_not:
            done += 1
            result = audit.without_class(asked_checks(settings), audit.why_not)
            yield CheckProgress(done, len(named), result)
            continue
        absolute = replace(subject, name=str(Path(subject.name).absolute()))
        folders[absolute.name] = audit
        waiting.setdefault(HOST, []).append(absolute)
    for host, subjects in waiting.items():
        for progress in _on_one_host(settings, host, subjects, folders, checkpoint, announce):
            done += 1
            yield replace(progress, done=done, of=len(named) or max(progress.of, done))


def _place(subject: NamedSubject) -> str:
    """Return a key for a subject: of a folder, the path that it leads to."""
    try:
        return os.path.realpath(subject.name) if subject.host == FOLDER_HOST else subject.name
    except (OSError, ValueError):  # nobody may look at it, or no file can be called so
        return subject.name


def _refused(
    settings: LoadCheck, named: Sequence[NamedSubject], checkpoint: Path | None, digest: bool
) -> Iterator[Diagnostic]:
    """Yield the reasons why nothing is run."""

    def ignored(message: str, help: str, setting: str | None = None) -> Diagnostic:
        return Diagnostic("ignored-setting", message, help, setting, severity="error")

    hosts = {subject.host for subject in named}
    if not named and not settings.subjects.all:
        yield Diagnostic("unknown-subject", "nothing is named that could be checked")
    if named and settings.subjects.all:
        yield Diagnostic("unknown-subject", "either subjects are named, or all of a framework")
    for name, default in (("match", ANY), ("changed_since", None)):
        value = getattr(settings.subjects, name)
        if named and value != default:
            yield ignored(
                f"subjects.{name} is {value}, but the subjects are named",
                "ask for --all of a framework, or leave it out",
                f"subjects.{name}",
            )
    if checkpoint is not None and "python" not in hosts:
        yield ignored(
            "--checkpoint is for python:FILE.py:factory subjects, and none is named",
            "leave it out, or name python:FILE.py:factory",
        )
    if digest and FOLDER_HOST not in hosts:
        yield ignored(
            "--digest is of a folder's files, and none is named", "leave it out, or name a folder"
        )


def _on_one_host(
    settings: LoadCheck,
    host: str,
    subjects: Sequence[NamedSubject],
    folders: Mapping[str, Folder],
    checkpoint: Path | None,
    announce: Callable[[Ready], None],
) -> Iterator[CheckProgress]:
    """Check the subjects of one framework, or all of its classes where none is named.

    `done` and `of` count this framework's alone, and `done` is left to the caller.
    """
    python = framework_interpreter(settings.python, host)
    rules = asked_checks(settings)
    if not settings.checks:
        rules += tuple(rule for rule in FRAMEWORK_CLASS_RULES if host in BY_RULE[rule].hosts)
    request = ProbeRequest(
        host=host,
        subjects=tuple(subject.name for subject in subjects) or None,
        match=settings.subjects.match,
        changed_since=settings.subjects.changed_since,
        checks=rules,
        sources=settings.sources,
        slots=settings.slots,
        formats=settings.formats,
        jobs=settings.jobs,
        seconds=settings.limits.seconds,
        memory=settings.limits.memory_mib * 2**20,
        by_headers={
            subject.name: seconds
            for subject in subjects
            if subject.host == FOLDER_HOST
            and (seconds := folders[subject.name].seconds) is not None
        },
        parts_memory=settings.limits.parts_mib * 2**20,
        checkpoint=os.path.realpath(checkpoint) if checkpoint else None,
    )
    waiting = {subject.name: subject for subject in subjects}
    total = 0
    known: tuple[str, ...] = ()
    try:
        for event in probe_events(python, request):
            if isinstance(event, Unusable):
                raise _cannot(python, event)
            if isinstance(event, Ready):
                known, total = event.known, len(event.subjects)
                fits = any(fnmatchcase(name, settings.subjects.match) for name in known)
                if not total and not (fits and settings.subjects.changed_since):
                    raise fits_nothing(host, settings.subjects.match, known)
                announce(event)
            if not isinstance(event, Finished):
                continue
            subject = waiting.pop(event.subject, None) or NamedSubject(host, event.subject)
            if known and subject.host in CLASS_FRAMEWORKS and subject.name not in known:
                result = _not_run(subject, rules, (unknown_name(subject, known),))
            else:
                cost = {"seconds": event.seconds, "peak_mib": event.peak >> 20}
                result = judge(str(subject), event.facts, rules, settings.allow, cost)
            if subject.host == FOLDER_HOST:
                result = folders[subject.name].with_class(result)
            yield CheckProgress(0, total, result, event.seconds)
    except Findings as findings:
        # One framework that cannot be had does not keep the others from being checked, nor a
        # folder's files.
        for subject in (
            waiting.values() if subjects else [NamedSubject(host, settings.subjects.match)]
        ):
            result = _not_run(subject, rules, findings.diagnostics)
            if subject.host == FOLDER_HOST:
                shown = findings.diagnostics if settings.python else ()
                reason = findings.diagnostics[0].message
                result = folders[subject.name].without_class(rules, reason, shown)
            yield CheckProgress(0, total, result)


def _cannot(python: str, event: Unusable) -> Findings:
    return (
        no_subject(event.reason, OF_GIT) if event.asks_too_much else unusable(python, event.reason)
    )


def _not_run(subject: NamedSubject, rules: Sequence[str], findings: Sequence[Diagnostic]) -> Result:
    return Result(str(subject), "not-run", dict.fromkeys(rules, "not-run"), tuple(findings))
