"""Checks folders, and classes, with one probe for each framework;

a `Result` for each subject, as it comes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from vtool.config.schema import LoadCheck
from vtool.config.schema.load_check import Subjects
from vtool.diagnostics import Diagnostic, Findings
from vtool.diagnostics.result import Result
from vtool.diagnostics.rules_loading import CLASS_RULES, VLLM_CLASS_RULES
from vtool.loading.folders import HOST, Folder, audited
from vtool.loading.subjects import FOLDER, FRAMEWORKS, Named, fits_nothing, parse, unknown_name
from vtool.loading.verdict import judge
from vtool.loading.worker import interpreter, probe_events, unusable

ANY = Subjects().match


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the check of a framework has come."""

    done: int
    of: int
    result: Result
    facts: Mapping[str, Any]
    """What the probe has said of the subject."""


def asked_checks(settings: LoadCheck) -> tuple[str, ...]:
    """The rules that are asked of every class."""
    return settings.checks or CLASS_RULES


def check_subjects(
    settings: LoadCheck,
    checkpoint: Path | None = None,
    announce: Callable[[Mapping[str, Any]], None] = lambda event: None,
    *,
    digest: bool = False,
    typed: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Progress]:
    """Check what the settings name: the files of folders first, then classes, framework by
    framework.

    Args:
        checkpoint: a folder whose tensors are loaded into `python:` subjects, instead of their own.
        announce: told once for each framework, when it has been imported.
        digest: also digest the files of folders.
        typed: what the user wrote, for a name of the settings that was made from it.

    Raises:
        Findings: before anything is run: `unknown-subject`, for what is no subject;
            `ignored-setting`, for what nothing here would use.
    """
    places: dict[tuple[str, str], Named] = {}
    for text in settings.subjects.names:
        subject = parse(text, typed.get(text))
        # A folder may be named in two ways, and a recipe's export by itself too: it is one subject.
        places.setdefault(
            (
                subject.host,
                str(Path(subject.name).resolve()) if subject.host == FOLDER else subject.name,
            ),
            subject,
        )
    named = list(places.values())
    whole = settings.subjects.all
    if refused := list(_refused(settings, named, checkpoint, digest)):
        raise Findings(refused, fatal=True)
    asked = asked_checks(settings)
    folders: dict[str, Folder] = {}
    waiting: dict[str, list[Named]] = {}
    done = 0
    for subject in named:
        if subject.host == FOLDER:
            folder = audited(str(subject), Path(subject.name), settings, digest=digest)
            if folder.why_not:
                done += 1
                yield Progress(done, len(named), folder.without_class(asked, folder.why_not), {})
                continue
            asked_of = replace(subject, name=str(Path(subject.name).absolute()))
            folders[asked_of.name] = folder
            waiting.setdefault(HOST, []).append(asked_of)
        else:
            waiting.setdefault(subject.host, []).append(subject)
    for host, subjects in waiting.items():
        for progress in _on_one_host(settings, host, subjects, folders, checkpoint, announce):
            done += 1
            yield replace(progress, done=done, of=len(named))
    if whole:
        yield from _on_one_host(settings, whole, None, {}, checkpoint, announce)


def _refused(
    settings: LoadCheck, named: Sequence[Named], checkpoint: Path | None, digest: bool
) -> Iterator[Diagnostic]:
    """Why nothing is run."""
    whole = settings.subjects.all
    if not named and not whole:
        yield Diagnostic("unknown-subject", "nothing is named that could be checked")
    if named and whole:
        yield Diagnostic("unknown-subject", "either subjects are named, or all of a framework")
    if named and settings.subjects.match != ANY:
        message = f"subjects.match is {settings.subjects.match}, but the subjects are named"
        yield Diagnostic(
            "ignored-setting",
            message,
            "ask for --all of a framework, or leave it out",
            "subjects.match",
            severity="error",
        )
    if checkpoint is not None and all(subject.host != "python" for subject in named):
        message = "--checkpoint is what python: subjects are loaded from, and none is named"
        yield Diagnostic(
            "ignored-setting",
            message,
            "leave it out, or name python:FILE.py:factory",
            severity="error",
        )
    if digest and all(subject.host != FOLDER for subject in named):
        message = "--digest is of a folder's files, and none is named"
        yield Diagnostic(
            "ignored-setting", message, "leave it out, or name a folder", severity="error"
        )


def _on_one_host(
    settings: LoadCheck,
    host: str,
    subjects: Sequence[Named] | None,
    folders: Mapping[str, Folder],
    checkpoint: Path | None,
    announce: Callable[[Mapping[str, Any]], None],
) -> Iterator[Progress]:
    python = interpreter(settings.python, host)
    asked = asked_checks(settings)
    if host == "vllm" and not settings.checks:
        asked = (*asked, *VLLM_CLASS_RULES)
    request = {
        "host": host,
        "subjects": None if subjects is None else [subject.name for subject in subjects],
        "match": settings.subjects.match,
        "checks": asked,
        "sources": settings.sources,
        "slots": settings.slots,
        "jobs": settings.jobs,
        "seconds": settings.limits.seconds,
        "memory": settings.limits.memory_mib * 2**20,
        "checkpoint": str(checkpoint.resolve()) if checkpoint else None,
    }
    waiting = {subject.name: subject for subject in subjects or ()}
    done, total = 0, len(waiting)
    known: list[str] = []
    try:
        for event in probe_events(python, request):
            if event["event"] == "unusable":
                raise Findings(unusable(python, event["reason"]), fatal=True)
            if event["event"] == "ready":
                known, total = event["known"], len(event["subjects"])
                if subjects is None and not total:
                    raise Findings(fits_nothing(host, settings.subjects.match, known), fatal=True)
                announce(event)
            if event["event"] != "subject":
                continue
            done += 1
            subject = waiting.pop(event["subject"], None) or Named(host, event["subject"])
            if known and subject.host in FRAMEWORKS and subject.name not in known:
                result = Result(
                    str(subject),
                    "not-run",
                    dict.fromkeys(asked, "not-run"),
                    (unknown_name(subject, known),),
                )
            else:
                result = judge(str(subject), event, asked, settings.allow)
            if subject.host == FOLDER:
                result = folders[subject.name].with_class(result)
            yield Progress(done, total, result, event)
    except Findings as findings:
        # One framework that cannot be had does not keep the others from being checked, nor a
        # folder's files.
        for subject in (
            waiting.values() if subjects is not None else [Named(host, settings.subjects.match)]
        ):
            done += 1
            result = Result(
                str(subject), "not-run", dict.fromkeys(asked, "not-run"), findings.diagnostics
            )
            if subject.host == FOLDER:
                told = findings.diagnostics if settings.python else ()
                result = folders[subject.name].without_class(
                    asked, findings.diagnostics[0].message, told
                )
            yield Progress(done, max(total, done), result, {})
