"""Checks classes: one probe for each framework; a `Result` for each subject, as it comes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vtool.config.schema import LoadCheck
from vtool.diagnostics import Diagnostic, Findings
from vtool.diagnostics.result import Result
from vtool.diagnostics.rules_loading import ASKED, RANKED
from vtool.loading.subjects import Named, parse, unknown_name
from vtool.loading.verdict import judge
from vtool.loading.worker import interpreter, probe_events, unusable


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the check of a framework has come."""

    done: int
    of: int
    result: Result
    facts: Mapping[str, Any]
    """What the probe has said of the subject."""


def asked_checks(settings: LoadCheck) -> tuple[str, ...]:
    """The rules that are asked, of those that the sources allow."""
    return settings.checks or ASKED


def check_classes(
    settings: LoadCheck, checkpoint: Path | None = None, announce: Callable[[Mapping[str, Any]], None] = lambda event: None
) -> Iterator[Progress]:
    """Check what the settings name, framework by framework.

    Args:
        checkpoint: a folder whose tensors are loaded into `python:` subjects, instead of their own.
        announce: told once for each framework, when it has been imported.

    Raises:
        Findings: `unknown-subject`, before anything is run, for what is no subject.
    """
    named = [parse(text) for text in settings.subjects.names]
    asks: list[tuple[str, list[Named] | None]] = [
        (host, [subject for subject in named if subject.host == host]) for host in dict.fromkeys(subject.host for subject in named)
    ]
    if settings.subjects.all:
        asks.append((settings.subjects.all, None))
    if not asks:
        raise Findings(Diagnostic("unknown-subject", "nothing is named that could be checked"), fatal=True)
    for host, subjects in asks:
        yield from _on_one_host(settings, host, subjects, checkpoint, announce)


def _on_one_host(
    settings: LoadCheck,
    host: str,
    subjects: Sequence[Named] | None,
    checkpoint: Path | None,
    announce: Callable[[Mapping[str, Any]], None],
) -> Iterator[Progress]:
    python = interpreter(settings.python, host)
    asked = asked_checks(settings)
    if host == "vllm" and not settings.checks:
        asked = (*asked, RANKED)
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
    done, total = 0, len(subjects or ())
    known: list[str] = []
    events = probe_events(python, request)
    try:
        for event in events:
            if event["event"] == "unusable":
                raise Findings(unusable(python, event["reason"]), fatal=True)
            if event["event"] == "ready":
                known, total = event["known"], len(event["subjects"])
                announce(event)
                continue
            if event["event"] != "subject":
                continue
            done += 1
            subject = Named(host, event["subject"])
            if known and subject.name not in known:
                result = Result(str(subject), "not-run", dict.fromkeys(asked, "not-run"), (unknown_name(subject, known),))
            else:
                result = judge(str(subject), event, asked, settings.allow)
            yield Progress(done, total, result, event)
    except Findings as findings:
        # One framework that cannot be had does not keep the others from being checked.
        for name in [f"{host}:*"] if subjects is None else [str(subject) for subject in subjects][done:]:
            done += 1
            yield Progress(done, total, Result(name, "not-run", dict.fromkeys(asked, "not-run"), findings.diagnostics), {})
