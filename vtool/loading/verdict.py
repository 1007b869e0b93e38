"""What the probe's facts are worth: findings with a severity, and a verdict."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeVar

from vtool.diagnostics import Diagnostic, Origin
from vtool.diagnostics.result import Result, Verdict

Facts = Mapping[str, Any]
Item = Mapping[str, Any]
Severity = Literal["error", "warning", "note"]
K = TypeVar("K", bound=Hashable)
SHOWN = 3
OF_ALL_NAMES = ("unwritten-parameter", "partly-written-parameter", "unconsumed-tensor")
"""Rules that only a whole checkpoint can be held against."""
COMPUTED = (
    "inv_freq",
    "position_ids",
    "num_batches_tracked",
    "masked_bias",
    "attn.bias",
    "rotary_emb.cos_cached",
    "rotary_emb.sin_cached",
)
"""Endings of tensors that old checkpoints hold and that classes compute."""

OF_CACHE = tuple(
    f".attn.{of}_{what}" for of in ("k", "v", "q", "prob") for what in ("scale", "zero_point")
)
"""Endings of parameters that vLLM gives values of its own where the checkpoint has none
(layers/quantization/kv_cache.py).
"""

ASIDE = frozenset({"pooler", "mtp"})
"""Parts of checkpoints that classes leave out on purpose:

BERT's pooler where only embeddings are served, layers for drafting.
"""


def judge(subject: str, facts: Facts, asked: Sequence[str], allow: Sequence[str] = ()) -> Result:
    """A subject's result.

    Args:
        facts: what the probe says of it: `status`, `checks`, `paths`, and of a `twin` or
            `discovered` checkpoint, `origin`.
        allow: patterns of parameters and tensors that may be left unwritten or unread.
    """
    if facts["status"] != "judged":
        return _without_verdict(subject, facts, asked)
    checks: dict[str, str] = {}
    details: dict[str, dict[str, Any]] = {"subject": _subject(facts)}
    findings: list[Diagnostic] = []
    for rule in asked:
        check = facts["checks"].get(
            rule, {"reason": "the sources do not include the one that it needs"}
        )
        if facts["origin"] == "discovered" and rule in OF_ALL_NAMES:
            check = {
                "reason": (
                    "the checkpoint's names were found by trying them on the class, and say nothing"
                    " of others"
                )
            }
        if "reason" in check:
            checks[rule] = "not-run"
            details[rule] = {"reason": check["reason"]}
            continue
        about = {**facts, "paths": check["paths"]} if "paths" in check else facts
        found = _JUDGES[rule](
            rule, [item for item in check["items"] if not _allowed(rule, item, allow)], about
        )
        findings += found
        worst = {finding.severity for finding in found}
        checks[rule] = "failed" if worst & {"error", "warning"} else "passed"
        if detail := _detail(rule, check, about):
            details[rule] = detail
    findings = [
        replace(finding, message=f"{subject}: {finding.message}{_shards_of(finding, facts)}")
        for finding in findings
    ]
    judged: Verdict = (
        "unsafe" if any(finding.severity == "error" for finding in findings) else "clean"
    )
    verdict: Verdict = judged if set(checks.values()) & {"passed", "failed"} else "not-run"
    return Result(subject, verdict, checks, tuple(findings), details)


def _without_verdict(subject: str, facts: Facts, asked: Sequence[str]) -> Result:
    reason = str(facts["reason"])
    details = {asked[0]: {"reason": reason}}
    checks = dict.fromkeys(asked, "not-run")
    if facts["status"] == "not-run":
        return Result(subject, "not-run", checks, (), details)
    return Result(
        subject, "failed", checks, (Diagnostic("load-failed", f"{subject}: {reason}"),), details
    )


def _subject(facts: Facts) -> dict[str, Any]:
    """What has been judged: whose checkpoint went into which class, and what was put in the place
    of parts that do not run on a CPU.

    `fields_guessed` are those that the config lacked, with the values they were given; `no_twin`
    says why there is none; `took` is the time and the largest resident memory of the process.
    """
    about = facts["about"]
    checkpoint = {
        "given": (
            "random values under its own parameters' names"
            if about.get("own_names")
            else "the user's own"
        ),
        "twin": (
            f"of transformers' {about.get('like')} at tiny size"
            if about.get("like")
            else "of the class itself at tiny size"
        ),
        "discovered": "names that the class was found to take",
    }
    said = {
        "class": about.get("class"),
        "checkpoint": checkpoint[facts["origin"]],
        "parts_replaced": about.get("replaced", []),
    }
    more = {
        "dtype": about.get("dtype"),
        "fields_guessed": about.get("fields"),
        "no_twin": about.get("no_twin"),
    }
    took = {"seconds": facts["seconds"], "peak_mib": facts["peak"] >> 20} if "peak" in facts else {}
    return (
        said
        | {key: value for key, value in more.items() if value}
        | ({"took": took} if took else {})
    )


def _allowed(rule: str, item: Item, allow: Sequence[str]) -> bool:
    """Whether it is one of those that may be left unwritten or unread, and that is what was found
    of it.
    """
    if item.get("how", rule) not in OF_ALL_NAMES:
        return False
    names = [item["parameter"]] if item.get("parameter") else item.get("tensors") or []
    return bool(names) and all(
        any(fnmatchcase(name, pattern) for pattern in allow) for name in names
    )


def _detail(rule: str, check: Mapping[str, Any], facts: Facts) -> dict[str, Any]:
    measured = dict(check.get("measured") or {})
    detail: dict[str, Any] = {}
    if rule in ("stale-reference", "stale-after-processing", "quantised-load") and check["items"]:
        if rule == "stale-reference":
            detail["smallest_safe_slots"] = measured.pop("smallest_safe_slots", None)
        detail["reachable_via"] = _paths(facts, "unprotected")
        detail["protected_by"] = _paths(facts, "protected")
        detail["paths_not_run"] = {
            path: state
            for path, state in facts["paths"].items()
            if state not in ("unprotected", "protected")
        }
    detail["measured"] = measured
    detail["parameters"] = [item["parameter"] for item in check["items"] if item.get("parameter")]
    return {key: value for key, value in detail.items() if value}


def _paths(facts: Facts, state: str) -> list[str]:
    return [path for path, found in facts["paths"].items() if found == state]


def _stale(rule: str, items: Sequence[Item], facts: Facts) -> list[Diagnostic]:
    if not items:
        return []
    found = []
    for source, group in _by(
        [item for item in items if "source" in item], lambda item: str(item["source"])
    ).items():
        message = (
            f"read by {source}, {_several('tensor', group)} {'have' if len(group) > 1 else 'has'}"
            f" other values: {_names(group)}"
        )
        found.append(
            _finding(rule, f"{message}{_way(facts)}", group, _reach(facts), _own_line(facts))
        )
    items = [item for item in items if "source" not in item]
    if not items:
        return found
    measured = facts["checks"][rule]["measured"]
    safe = measured["smallest_safe_slots"]
    needs = (
        f"it needs {safe} of {measured['tensors']} tensors to stay valid"
        if safe
        else "no number of buffers is enough"
    )
    if safe and safe > measured["tensors"]:
        needs = f"it needs all {measured['tensors']} tensors to stay valid, and one request more"
    for line, group in _by(
        items, lambda item: (str(item.get("file") or ""), item.get("line"))
    ).items():
        what = (
            _raises(group[0])
            or f"{_several('parameter', group)} {'hold' if len(group) > 1 else 'holds'} bytes of what came later"
        )
        message = f"{what}: {_names(group)}; {needs}{_way(facts)}"
        found.append(
            _finding(
                rule, message, group, _reach(facts), Origin(*line) if line[0] else _own_line(facts)
            )
        )
    return found


def _exhausted(rule: str, items: Sequence[Item], facts: Facts) -> list[Diagnostic]:
    if not items:
        return []
    left = items[0]["tensors"]
    measured = facts["checks"][rule]["measured"]
    if items[0]["kind"] == "end":
        message = (
            "it takes every tensor but does not ask until there is none left, and a streaming"
            " loader does not end"
        )
        return [Diagnostic(rule, message, origin=_own_line(facts), severity="warning")]
    be = "are" if len(left) > 1 else "is"
    message = (
        f"it stops after {measured['asked_for']} of {measured['tensors']} tensors: {_listed(left)}"
        f" {be} never asked for"
    )
    return [Diagnostic(rule, message, tensors=tuple(left), origin=_own_line(facts))]


def _unwritten(rule: str, items: Sequence[Item], facts: Facts) -> list[Diagnostic]:
    """Of the user's own checkpoint an error.

    A twin may lack a tensor that the hub's files have, unless it has one that is not read.
    """
    unread = facts["checks"].get("unconsumed-tensor", {}).get("items", [])
    waiting = {name for item in unread for name in item["waiting"]}
    items = [item for item in items if not item["parameter"].endswith(OF_CACHE)]
    certain = [
        item
        for item in items
        if facts["origin"] == "given" or (item["parameter"] in waiting and _own_twin(facts))
    ]
    rest = [item for item in items if item not in certain]
    found = []
    if certain:
        message = (
            f"{_several('parameter', certain)} {'are' if len(certain) > 1 else 'is'} never written:"
            f" {_names(certain)}"
        )
        found.append(_finding(rule, message, certain, "error", _own_line(facts)))
    if rest:
        message = (
            f"the {_word(facts)} has no tensor for {_several('parameter', rest)}: {_names(rest)}"
        )
        found.append(_finding(rule, message, rest, "note", _own_line(facts)))
    return found


def _half_written(rule: str, items: Sequence[Item], facts: Facts) -> list[Diagnostic]:
    """Of a twin that is read whole, the rest is padding."""
    unread = facts["checks"].get("unconsumed-tensor", {}).get("items", [])
    severity: Severity = (
        "error" if facts["origin"] == "given" or (unread and _own_twin(facts)) else "note"
    )
    found = []
    for item in items:
        message = (
            f"{item['parameter']}: {item['seen']}; the rest came from {_listed(item['tensors'])}"
        )
        found.append(_finding(rule, message, [item], severity, _own_line(facts)))
    return found


def _unconsumed(rule: str, items: Sequence[Item], facts: Facts) -> list[Diagnostic]:
    """Copies of tensors that are read, and what classes compute, are notes;

    so is what a tiny twin has beyond the files on the hub.
    """

    def severity(item: Item) -> Severity:
        if item["waiting"] and (facts["origin"] == "given" or _own_twin(facts)):
            return "error"
        if facts["origin"] != "given" or item["same_as"] or item["tensors"][0].endswith(COMPUTED):
            return "note"
        if facts["about"].get("served") and ASIDE & set(item["tensors"][0].split(".")):
            return "note"
        return "error"

    found = []
    for graded, group in _by(items, severity).items():
        names = [name for item in group for name in item["tensors"]]
        be = "are" if len(names) > 1 else "is"
        message = f"{_several('tensor', names)} of the checkpoint {be} never read: {_listed(names)}"
        found.append(
            Diagnostic(
                rule, message, tensors=tuple(names), origin=_own_line(facts), severity=graded
            )
        )
    return found


def _retained(rule: str, items: Sequence[Item], facts: Facts) -> list[Diagnostic]:
    return [
        Diagnostic(
            rule,
            item["seen"],
            tensors=tuple(item.get("tensors") or ()) or None,
            origin=_own_line(facts),
        )
        for item in items
    ]


def _differs(rule: str, items: Sequence[Item], facts: Facts) -> list[Diagnostic]:
    """Values that differ without a word are an error;

    an exception is loud, and so a warning. So are names that no file may have.
    """
    found = []
    for kind, group in _by(items, lambda item: str(item["kind"])).items():
        how = _HOW[rule]
        if kind == "raises":
            found.append(
                Diagnostic(
                    rule,
                    f"{how}, it raises {group[0]['seen']}",
                    origin=_own_line(facts),
                    severity="warning",
                )
            )
            continue
        if kind == "chance":
            several = len(group) > 1
            message = (
                f"{_several('buffer', group)} that nothing is loaded into"
                f" {'differ' if several else 'differs'} from object to object, and"
                f" {'are' if several else 'is'} not compared any further: {_names(group)}"
            )
            found.append(_finding(rule, message, group, "note", _own_line(facts)))
            continue
        message = (
            f"{how}, {_several('tensor', group)} {'have' if len(group) > 1 else 'has'} other"
            f" values: {_names(group)}"
        )
        found.append(
            _finding(
                rule,
                message,
                group,
                "warning" if facts["origin"] == "discovered" else "error",
                _own_line(facts),
            )
        )
    return found


_HOW = {
    "order-dependent": "loaded in another order",
    "chunk-dependent": "loaded in several calls",
    "reload-dependent": "loaded a second time",
    "nondeterministic": "loaded again into a new object",
}


def _shards(rule: str, items: Sequence[Item], facts: Facts) -> list[Diagnostic]:
    """What no rank has is lost, whatever the checkpoint."""
    if not items:
        return []
    several = len(items) > 1
    message = (
        f"on two ranks, {_several('parameter', items)} {'are' if several else 'is'} not the source,"
        f" part by part: {_names(items)}"
    )
    return [_finding(rule, message, items, "error", _own_line(facts))]


def _after_processing(rule: str, items: Sequence[Item], facts: Facts) -> list[Diagnostic]:
    """As `_stale`: what has been kept is read when the loader has gone on."""
    if not items:
        return []
    several = len(items) > 1
    what = (
        f"{_several('tensor', items)} {'have' if several else 'has'} other values once the"
        " framework has processed what was loaded"
    )
    return [
        _finding(
            rule, f"{what}: {_names(items)}{_way(facts)}", items, _reach(facts), _own_line(facts)
        )
    ]


def _quantised(rule: str, items: Sequence[Item], facts: Facts) -> list[Diagnostic]:
    """Of the twin in fp8.

    Names are certain only where a tensor waits for a parameter, and a parameter for a tensor.
    """
    found = []
    plain = {
        rule: {
            name
            for item in facts["checks"].get(rule, {}).get("items", ())
            for name in _of_item(item)
        }
        for rule in OF_ALL_NAMES
    }
    # What waits without a scale, as its weight does when nothing is quantised, is told there.
    items = [
        item
        for item in items
        if not {name.removesuffix("_scale") for name in _of_item(item)}
        & plain.get(item["how"], set())
    ]
    kinds = {item["how"] for item in items}
    parted = "unconsumed-tensor" in kinds and bool(
        kinds & {"unwritten-parameter", "partly-written-parameter"}
    )
    for how, group in _by(items, lambda item: str(item["how"])).items():
        several = len(group) > 1
        if how in OF_ALL_NAMES:
            certain = facts["origin"] == "given" or _own_twin(facts)
            severity: Severity = (
                "note"
                if facts["origin"] == "discovered" or not parted
                else "error"
                if certain
                else "warning"
            )
            said = {
                "unconsumed-tensor": (
                    f"{_several('tensor', group)} {'are' if several else 'is'} never read:"
                    f" {_listed(_tensors(group))}"
                ),
                "unwritten-parameter": (
                    f"{_several('parameter', group)} {'are' if several else 'is'} never written:"
                    f" {_names(group)}"
                ),
            }.get(
                how,
                f"{_several('parameter', group)} {'are' if several else 'is'} written in part:"
                f" {_names(group)}",
            )
        elif how in ("stale-reference", "stale-after-processing"):
            severity = _reach(facts)
            said = (
                f"{_several('parameter', group)} {'hold' if several else 'holds'} bytes of what"
                f" came later: {_names(group)}{_way(facts)}"
            )
        else:
            severity = "error"
            said = f"{how}: {_names(group)}"
        found.append(
            _finding(
                rule,
                f"with fp8 weights and their scales, {said}",
                group,
                severity,
                _own_line(facts),
            )
        )
    return found


def _of_item(item: Item) -> Sequence[str]:
    return [item["parameter"]] if item.get("parameter") else item.get("tensors") or []


def _tensors(items: Sequence[Item]) -> list[str]:
    return [name for item in items for name in item.get("tensors") or ()]


def _reach(facts: Facts) -> Severity:
    """An error where a path of the installed framework hands the class tensors that do not stay;

    else it leans on the loader's copies.
    """
    return "error" if _paths(facts, "unprotected") or not _paths(facts, "protected") else "warning"


def _way(facts: Facts) -> str:
    """By which path, as the end of a message."""
    reachable, protected = _paths(facts, "unprotected"), _paths(facts, "protected")
    if reachable:
        return f"; reached without a copy by {', '.join(reachable)}"
    return f"; it relies on the loader's copies ({', '.join(protected)})" if protected else ""


def _aliased(rule: str, items: Sequence[Item], facts: Facts) -> list[Diagnostic]:
    """What takes a folder, as transformers does, may map its file into memory:

    that is its loader's doing, and not the class's.
    """
    if not items:
        return []
    several = len(items) > 1
    if not facts["streams"]:
        message = (
            f"{_several('parameter', items)} {'are' if several else 'is'} mapped from the file, and"
            f" will change with it: {_names(items)}"
        )
        return [_finding(rule, message, items, "note", _own_line(facts))]
    message = (
        f"{_several('parameter', items)} {'are' if several else 'is'} the loader's own memory:"
        f" {_names(items)}"
    )
    return [_finding(rule, message, items, "error", _own_line(facts))]


def _narrowed(rule: str, items: Sequence[Item], facts: Facts) -> list[Diagnostic]:
    """A twin keeps in float32 what transformers does;

    files on the hub need not. A dtype for the whole model is the framework's choice.
    """
    found = []
    chosen = (facts["about"].get("declared_dtype"), facts["about"].get("dtype"))
    for (before, after), group in _by(items, lambda item: (item["expected"], item["seen"])).items():
        names = [item["tensors"][0] for item in group]
        message = (
            f"{_several('tensor', group)} {'go' if len(group) > 1 else 'goes'} from {before} into"
            f" {after}: {_listed(names)}"
        )
        help = None
        if (before, after) == chosen:
            message += f"; it is the framework's choice for a config that says {before}"
            help = f"nothing, if {after} is meant; else ask the server for --dtype {before}"
        severity: Severity = "warning" if facts["origin"] == "given" and not help else "note"
        found.append(replace(_finding(rule, message, group, severity, _own_line(facts)), help=help))
    return found


_JUDGES: Mapping[str, Callable[[str, Sequence[Item], Facts], list[Diagnostic]]] = {
    "stale-reference": _stale,
    "iterator-not-exhausted": _exhausted,
    "unwritten-parameter": _unwritten,
    "partly-written-parameter": _half_written,
    "unconsumed-tensor": _unconsumed,
    "retained-memory": _retained,
    "order-dependent": _differs,
    "chunk-dependent": _differs,
    "reload-dependent": _differs,
    "aliased-parameter": _aliased,
    "lossy-cast": _narrowed,
    "nondeterministic": _differs,
    "shard-mismatch": _shards,
    "stale-after-processing": _after_processing,
    "quantised-load": _quantised,
}


def _finding(
    rule: str, message: str, items: Sequence[Item], severity: Severity, origin: Origin | None
) -> Diagnostic:
    """A finding about several parameters:

    the first one is shown in full, and the tensors are those of all.
    """
    first = items[0]
    tensors = tuple(dict.fromkeys(name for item in items for name in item.get("tensors") or ()))
    return Diagnostic(
        rule,
        message,
        parameter=first.get("parameter"),
        origin=origin,
        expected=first.get("expected"),
        seen=first.get("seen"),
        severity=severity,
        tensors=tensors or None,
    )


def _own_twin(facts: Facts) -> bool:
    """Whether the twin is transformers' class of the very name, and not of a related one."""
    return bool(facts["about"].get("own_twin"))


def _own_line(facts: Facts) -> Origin | None:
    """The class's load_weights."""
    about = facts["about"]
    return Origin(about["file"], about.get("line")) if about.get("file") else None


def _word(facts: Facts) -> str:
    return "tiny twin of transformers' class" if facts["origin"] == "twin" else "checkpoint"


def _shards_of(finding: Diagnostic, facts: Facts) -> str:
    """The files that a finding's tensors are in, as the end of a message;

    nothing where the checkpoint is one file.
    """
    files = facts["about"].get("files") or {}
    named = list(dict.fromkeys(files[name] for name in finding.tensors or () if name in files))
    return f" (in {_listed(named)})" if named else ""


def _raises(item: Item) -> str | None:
    return f"it raises {item['seen']}" if item["kind"] == "raises" else None


def _by(items: Sequence[Item], key: Callable[[Item], K]) -> dict[K, list[Item]]:
    groups: dict[K, list[Item]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return dict(groups)


def _several(noun: str, items: Sequence[object]) -> str:
    return f"{len(items)} {noun}{'s' if len(items) > 1 else ''}"


def _names(items: Sequence[Item]) -> str:
    return _listed([item["parameter"] for item in items if item.get("parameter")])


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:SHOWN])
    return f"{shown} and {len(names) - SHOWN} more" if len(names) > SHOWN else shown
