"""Graders: each turns what a check found into findings with a message and a severity.

`GRADERS` has one for each check of `probe/checks.py`.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from vtool.diagnostics import Diagnostic, Origin
from vtool.diagnostics.diagnostic import Severity
from vtool.loading.probe.checks import NEED_ALL_NAMES
from vtool.loading.probe.facts import Item, SubjectFacts
from vtool.loading.reach import reach_severity, reach_text
from vtool.loading.words import listed

K = TypeVar("K", bound=Hashable)
Items = Sequence[Item]
Grader = Callable[[str, Items, SubjectFacts], Iterable[Diagnostic]]
"""Given a rule, what its check found (at least one item), and all facts of the subject.

A finding without an origin is about the class's `load_weights`.
"""
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
KV_CACHE_SCALES = tuple(
    f".attn.{part}_{kind}" for part in ("k", "v", "q", "prob") for kind in ("scale", "zero_point")
)
"""Endings of parameters that vLLM gives values of its own where the checkpoint has none
(layers/quantization/kv_cache.py).
"""
_LEFT_OUT = frozenset({"pooler", "mtp"})
"""Parts of checkpoints that classes leave out on purpose: BERT's pooler where only embeddings are
served, and layers for drafting.
"""
_SINGULAR = {"are": "is", "have": "has", "go": "goes", "hold": "holds", "differ": "differs"}


def _grade_stale(rule: str, items: Items, facts: SubjectFacts) -> Iterable[Diagnostic]:
    severity, reach = reach_severity(facts), reach_text(facts)
    for source, group in group_by(items, lambda item: item.source).items():
        if source is not None:
            text = f"{_count('tensor', group, 'have')} other values: {_parameters(group)}"
            yield _finding(rule, f"read by {source}, {text}{reach}", group, severity)
    ring = [item for item in items if item.source is None]
    measured = facts.checks[rule].measured
    safe = measured.get("smallest_safe_slots")
    if "parts" in measured:
        needs = "compared with the files, part by part"
    elif not safe:
        needs = "no number of buffers is enough"
    elif safe > measured["tensors"]:
        needs = f"it needs all {measured['tensors']} tensors to stay valid, and one request more"
    else:
        needs = f"it needs {safe} of {measured['tensors']} tensors to stay valid"
    for (file, line), group in group_by(ring, lambda item: (item.file, item.line)).items():
        text = (
            f"it raises {group[0].seen}"
            if group[0].kind == "raises"
            else f"{_count('parameter', group, 'hold')} bytes of what came later"
        )
        message = f"{text}: {_parameters(group)}; {needs}{reach}"
        yield _finding(rule, message, group, severity, Origin(file, line) if file else None)


def _grade_exhausted(rule: str, items: Items, facts: SubjectFacts) -> Iterable[Diagnostic]:
    measured, left = facts.checks[rule].measured, items[0].tensors
    if items[0].kind == "end":
        message = (
            "it takes every tensor but does not ask until there is none left, and a streaming"
            " loader does not end"
        )
        yield _finding(rule, message, items, "warning")
    else:
        message = (
            f"it stops after {measured['asked_for']} of {measured['tensors']} tensors:"
            f" {listed(left)} {_agree('are', left)} never asked for"
        )
        yield _finding(rule, message, items)


def _grade_unwritten(rule: str, items: Items, facts: SubjectFacts) -> Iterable[Diagnostic]:
    """Yield an error for the user's own checkpoint.

    A twin may lack a tensor that the hub's files have, unless it has one that is not read.
    """
    waiting = {
        name for item in _unread(facts) if _known(facts, item.tensors) for name in item.waiting
    }

    def certain(item: Item) -> bool:
        return facts.origin == "given" or item.parameter in waiting

    loaded_by_no_one = _never_loaded(facts)
    items = [
        item
        for item in items
        if not (item.parameter or "").endswith(KV_CACHE_SCALES)
        and item.parameter not in {one.parameter for one in loaded_by_no_one}
    ]
    if group := [item for item in items if certain(item)]:
        text = f"{_count('parameter', group, 'are')} never written: {_parameters(group)}"
        yield _finding(rule, f"{text}{_kept(group)}", group, "error")
    if group := [item for item in items if not certain(item)]:
        twin = "tiny twin of transformers' class" if facts.origin == "twin" else "checkpoint"
        text = f"the {twin} has no tensor for {_count('parameter', group)}: {_parameters(group)}"
        yield _finding(rule, f"{text}{_kept(group)}", group, "note")


def _kept(items: Items) -> str:
    """Return the end of a message: what parameters that no load writes keep."""
    words = dict.fromkeys((item.seen or "").partition("it keeps ")[2] for item in items)
    kept = [word for word in words if word]
    return f"; kept is {' or '.join(kept)}" if kept else ""


def _grade_never_loaded(rule: str, items: Items, facts: SubjectFacts) -> Iterable[Diagnostic]:
    """Yield an error where the tensors are certain.

    What files may not have is a note of the two rules that this one joins.
    """
    for kept, group in group_by(_never_loaded(facts), lambda item: item.seen).items():
        names = _tensors(group)
        text = (
            f"{_count('tensor', names, 'are')} never read, and"
            f" {_count('parameter', group, 'are')} never written that"
            f" {'they belong' if len(names) > 1 else 'it belongs'} into: {listed(names)} into"
            f" {_parameters(group)}; kept is {kept}"
        )
        yield _finding(rule, text, group, "error")


def _never_loaded(facts: SubjectFacts) -> Items:
    """Return the tensors that a class leaves out for certain, where that was checked."""
    check = facts.checks.get("never-loaded")
    return [
        item
        for item in (check.items if check else ())
        if facts.origin == "given" or _known(facts, item.tensors)
    ]


def _grade_wrong_place(rule: str, items: Items, facts: SubjectFacts) -> Iterable[Diagnostic]:
    """Yield an error where the names are those of files, and a warning of what is transposed.

    Files may keep a matrix the other way round; so may they where the outputs agree.
    """
    if turned := [item for item in items if item.kind == "transposed"]:
        outputs = facts.checks.get("computes-differently")
        if outputs is None or outputs.reason or outputs.items:
            verb = "is" if len(turned) == 1 else "are"
            text = f"{len(turned)} square of the checkpoint's weights {verb} transposed by the load"
            text += f", and no other: {listed(_tensors(turned))} in {_parameters(turned)}"
            yield _finding(rule, text, turned, "warning")
    items = [item for item in items if item.kind != "transposed"]
    if not items:
        return
    certain = facts.origin == "given" or _known(facts, _tensors(items))
    text = f"{_count('parameter', items, 'have')} each other's weights: {_parameters(items)}"
    first = items[0]
    text += f"; {first.parameter} has those of {first.seen}, and not of {first.expected}"
    yield _finding(rule, text, items, "error" if certain else "warning")


def _grade_partly_written(rule: str, items: Items, facts: SubjectFacts) -> Iterable[Diagnostic]:
    """Yield notes where a twin is read whole: the rest is padding."""
    unread = [item for item in _unread(facts) if _known(facts, item.tensors)]
    severity: Severity = "error" if facts.origin == "given" or unread else "note"
    for item in items:
        message = f"{item.parameter}: {item.seen}; the rest came from {listed(item.tensors)}"
        yield _finding(rule, message, [item], severity)


def _grade_partly_loaded(rule: str, items: Items, facts: SubjectFacts) -> Iterable[Diagnostic]:
    """Yield an error for the user's own checkpoint, and for a twin whose tensors are certain.

    The sizes of what a table adds to a twin were written by hand.
    """
    added = {*facts.about.added}

    def certain(item: Item) -> bool:
        return facts.origin == "given" or (
            _known(facts, item.tensors) and added.isdisjoint(item.tensors)
        )

    for sure, group in group_by(items, certain).items():
        names = _tensors(group)
        text = f"{_count('tensor', names, 'are')} loaded in part: {listed(names)}"
        text += f"; {'of the first, ' if len(names) > 1 else ''}{group[0].seen}"
        yield _finding(rule, text, group, "error" if sure else "note")


def _grade_unconsumed(rule: str, items: Items, facts: SubjectFacts) -> Iterable[Diagnostic]:
    """Yield notes for copies of tensors that are read, and for what classes compute.

    A tiny twin may also have more than the files on the hub.
    """

    def severity(item: Item) -> Severity:
        name = item.tensors[0]
        if (item.waiting or item.weight_in) and _known(facts, item.tensors):
            return "error"
        if item.waiting and facts.origin == "given":
            return "error"
        if facts.origin != "given" or item.same_as or name.endswith(COMPUTED):
            return "note"
        return "note" if facts.about.served and _LEFT_OUT & {*name.split(".")} else "error"

    joined = {name for item in _never_loaded(facts) for name in item.tensors}
    items = [item for item in items if not joined.issuperset(item.tensors)]
    for graded, group in group_by(items, severity).items():
        names = _tensors(group)
        text = f"{_count('tensor', names)} of the checkpoint {_agree('are', names)} never read"
        text += f": {listed(names)}"
        if biases := [item for item in group if item.weight_in and not item.waiting]:
            text += f"; {_agree('are', biases)} left out of what {biases[0].weight_in} computes"
        yield Diagnostic(rule, text, tensors=names, severity=graded)


def _grade_retained(rule: str, items: Items, facts: SubjectFacts) -> Iterable[Diagnostic]:
    for item in items:
        yield Diagnostic(rule, item.seen or "", tensors=item.tensors or None)


def _grade_differences(
    how: str, rule: str, items: Items, facts: SubjectFacts
) -> Iterable[Diagnostic]:
    """Yield errors for values that differ silently.

    An exception is loud, and so a warning; so are values under names that no file may have.
    """
    for kind, group in group_by(items, lambda item: item.kind).items():
        if kind == "raises":
            yield Diagnostic(rule, f"{how}, it raises {group[0].seen}", severity="warning")
        elif kind == "chance":
            message = (
                f"{_count('buffer', group)} that nothing is loaded into {_agree('differ', group)}"
                f" from object to object, and {_agree('are', group)} not compared any further:"
                f" {_parameters(group)}"
            )
            yield _finding(rule, message, group, "note")
        elif kind == "changed":
            names = _tensors(group)
            message = (
                f"it changes {len(group)} of the tensors that it is given, in place:"
                f" {listed(names)}; whoever keeps them and gives them again, as weight"
                " synchronization may, loads other values"
            )
            yield _finding(rule, message, group, "warning")
        else:
            if kind == "hash":
                how = "loaded in another process, whose sets have another order"
            text = f"{how}, {_count('tensor', group, 'have')} other values: {_parameters(group)}"
            severity: Severity = "warning" if facts.origin == "discovered" else "error"
            yield _finding(rule, text, group, severity)


def _grade_shards(how: str, rule: str, items: Items, facts: SubjectFacts) -> Iterable[Diagnostic]:
    """Yield an error: what no rank has is lost, whatever the checkpoint."""
    text = f"{_count('parameter', items, 'are')} not the source, part by part"
    yield _finding(rule, f"{how}, {text}: {_parameters(items)}", items, "error")


def _grade_processed(rule: str, items: Items, facts: SubjectFacts) -> Iterable[Diagnostic]:
    message = (
        f"{_count('tensor', items, 'have')} other values once the framework has processed what was"
        f" loaded: {_parameters(items)}{reach_text(facts)}"
    )
    yield _finding(rule, message, items, reach_severity(facts))


def _grade_quantized(rule: str, items: Items, facts: SubjectFacts) -> Iterable[Diagnostic]:
    """Yield findings about quantized twins, of one format after the other.

    Names are certain only where a tensor waits for a parameter, and a parameter for a tensor. Of a
    scale that does not follow its weight, they do not matter.
    """
    for form, group in group_by(items, lambda item: item.format).items():
        yield from _grade_astray(rule, form, group, facts)
        yield from _grade_format(rule, form, group, facts)


def _grade_astray(
    rule: str, form: str | None, items: Items, facts: SubjectFacts
) -> Iterable[Diagnostic]:
    """Yield errors for weights whose scales or zero points are another's, or none."""
    astray = [item for item in items if item.kind in ("place", "lost")]
    for kind, group in group_by(astray, lambda item: item.kind).items():
        wanted, seen = group[0].expected, group[0].seen
        if kind == "place":
            text = (
                f"{_count('parameter', group, 'have')} values of other weights:"
                f" {_parameters(group)}; in place of {wanted} there is {seen}"
            )
        else:
            text = (
                f"{_count('parameter', group, 'are')} never written, or in part:"
                f" {_parameters(group)}; {wanted} is not there"
            )
        severity: Severity = "warning" if facts.origin == "discovered" else "error"
        yield _finding(rule, f"as {form}, {text}", group, severity)


def _grade_format(
    rule: str, form: str | None, items: Items, facts: SubjectFacts
) -> Iterable[Diagnostic]:
    """Yield findings about what is not loaded of a format, or not to stay."""
    lost = any(item.kind == "lost" for item in items)
    items = [item for item in items if item.kind not in ("place", "lost")]
    plain = {
        check: {name for item in facts.checks[check].items for name in item.names}
        for check in NEED_ALL_NAMES
        if check in facts.checks
    }
    # What waits without a scale, as its weight does when nothing is quantized, is reported there.
    items = [
        item
        for item in items
        if plain.get(item.rule or "", set()).isdisjoint(
            name.removesuffix("_scale") for name in item.names
        )
    ]
    groups = group_by(items, lambda item: item.rule)
    matched = "unconsumed-tensor" in groups and (
        lost or bool(groups.keys() & {"unwritten-parameter", "partly-written-parameter"})
    )
    certain = facts.origin == "given" or facts.about.own_twin
    for check, group in groups.items():
        severity: Severity = "error"
        if check in NEED_ALL_NAMES:
            if facts.origin == "discovered" or not matched:
                severity = "note"
            elif not certain:
                severity = "warning"
        if check == "unconsumed-tensor":
            text = f"{_count('tensor', group, 'are')} never read: {listed(_tensors(group))}"
        elif check == "unwritten-parameter":
            text = f"{_count('parameter', group, 'are')} never written: {_parameters(group)}"
        elif check == "partly-written-parameter":
            text = f"{_count('parameter', group, 'are')} written in part: {_parameters(group)}"
        elif check in ("stale-reference", "stale-after-processing"):
            severity = reach_severity(facts)
            text = (
                f"{_count('parameter', group, 'hold')} bytes of what came later:"
                f" {_parameters(group)}{reach_text(facts)}"
            )
        else:
            text = f"{check}: {_parameters(group)}"
        kept_at = Origin(group[0].file, group[0].line) if group[0].file else None
        text = f"{f'as {form}' if form else 'with fp8 weights and their scales'}, {text}"
        yield _finding(rule, text, group, severity, kept_at)


def _grade_outputs(rule: str, items: Items, facts: SubjectFacts) -> Iterable[Diagnostic]:
    """Yield an error where transformers' class is of that very name; others may be like it only."""
    measured, about = facts.checks[rule].measured, facts.about
    certain = facts.origin == "given" or about.own_twin
    for item in items:
        of_image = str(item.seen).startswith("image")
        sizes = measured["images"] if of_image else measured
        text = (
            f"computed in float32 on a CPU, its {sizes['compared']} are"
            f" {sizes['distance']:.2g} from those of transformers' {about.like or 'class'},"
            f" relative to their size; moving each weight"
            f" by a unit in bfloat16's last place moves those by {sizes['rounding']:.2g}"
        )
        severity: Severity = "error" if certain else "note"
        if "times" in sizes:  # the likeliest token is the same, and what is drawn is not
            text += f"; they are those times {sizes['times']:.4g}"
            severity = "warning" if certain else "note"
        yield _finding(rule, text, [item], severity)


def _grade_aliased(rule: str, items: Items, facts: SubjectFacts) -> Iterable[Diagnostic]:
    """Yield a note for a class that takes a folder: its loader, as transformers', maps the file."""
    mapped = "mapped from the file, and will change with it"
    text = "the loader's own memory" if facts.streams else mapped
    message = f"{_count('parameter', items, 'are')} {text}: {_parameters(items)}"
    yield _finding(rule, message, items, "error" if facts.streams else "note")


def _grade_narrowed(rule: str, items: Items, facts: SubjectFacts) -> Iterable[Diagnostic]:
    """Yield notes for twins, and for a dtype of the whole model that the framework chose.

    A twin keeps in float32 what transformers does; files on the hub need not.
    """
    chosen = (facts.about.declared_dtype, facts.about.dtype)
    for dtypes, group in group_by(items, lambda item: (item.expected, item.seen)).items():
        before, after = dtypes
        names = [item.tensors[0] for item in group]
        message = f"{_count('tensor', group, 'go')} from {before} into {after}: {listed(names)}"
        severity: Severity = "warning" if facts.origin == "given" else "note"
        help = None
        if dtypes == chosen:
            message += f"; it is the framework's choice for a config that says {before}"
            help = f"nothing, if {after} is meant; else ask the server for --dtype {before}"
            severity = "note"
        yield replace(_finding(rule, message, group, severity), help=help)


GRADERS: Mapping[str, Grader] = {
    "stale-reference": _grade_stale,
    "iterator-not-exhausted": _grade_exhausted,
    "unwritten-parameter": _grade_unwritten,
    "partly-written-parameter": _grade_partly_written,
    "unconsumed-tensor": _grade_unconsumed,
    "retained-memory": _grade_retained,
    "order-dependent": partial(_grade_differences, "loaded in another order"),
    "chunk-dependent": partial(_grade_differences, "loaded in several calls"),
    "reload-dependent": partial(_grade_differences, "loaded a second time"),
    "aliased-parameter": _grade_aliased,
    "lossy-cast": _grade_narrowed,
    "nondeterministic": partial(_grade_differences, "loaded again into a new object"),
    "never-loaded": _grade_never_loaded,
    "partly-loaded-tensor": _grade_partly_loaded,
    "wrong-place": _grade_wrong_place,
    "shard-mismatch": partial(_grade_shards, "on two ranks"),
    "stale-after-processing": _grade_processed,
    "quantised-load": _grade_quantized,
    "computes-differently": _grade_outputs,
    "stage-mismatch": partial(_grade_shards, "on two stages of a pipeline"),
    "expert-mismatch": partial(_grade_shards, "on two ranks that share experts out"),
}


def group_by(items: Iterable[Item], key: Callable[[Item], K]) -> dict[K, list[Item]]:
    """Return the items by a key, in the order in which keys appear."""
    groups: dict[K, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def _finding(
    rule: str,
    message: str,
    items: Items,
    severity: Severity | None = None,
    origin: Origin | None = None,
) -> Diagnostic:
    """Return a finding that shows the first item in full, and the names of all."""
    first = items[0]
    parameters = tuple(dict.fromkeys(item.parameter for item in items if item.parameter))
    return Diagnostic(
        rule,
        message,
        parameter=first.parameter,
        origin=origin,
        expected=first.expected,
        seen=first.seen,
        severity=severity,
        tensors=_tensors(items) or None,
        parameters=parameters or None,
    )


def _known(facts: SubjectFacts, tensors: Sequence[str]) -> bool:
    """Return True if files on the hub are known to have the tensors, under these names."""
    about = facts.about
    return all(
        name in about.added or (about.own_twin and name not in about.renamed) for name in tensors
    )


def _unread(facts: SubjectFacts) -> Items:
    unconsumed = facts.checks.get("unconsumed-tensor")
    return unconsumed.items if unconsumed else ()


def _tensors(items: Items) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for item in items for name in item.tensors))


def _parameters(items: Items) -> str:
    return listed([item.parameter for item in items if item.parameter])


def _count(noun: str, items: Sequence[object], verb: str | None = None) -> str:
    """Return `2 tensors`, or with a verb `2 tensors are`."""
    counted = f"{len(items)} {noun}{'s' if len(items) > 1 else ''}"
    return f"{counted} {_agree(verb, items)}" if verb else counted


def _agree(verb: str, items: Sequence[object]) -> str:
    return verb if len(items) > 1 else _SINGULAR[verb]
