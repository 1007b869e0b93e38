"""Loads a subject in every way that can go wrong, and measures what comes of it.

Facts only: vtool grades them, in `vtool.loading.grading`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any

from .checks import (
    BY_RULE,
    CHECKS,
    CHECKS_ON_RANKS,
    OF_QUANTIZED_TWIN,
    TWO_RANKS,
    WATCHED,
    ClassCheck,
)
from .errors import NotRun, error_text
from .facts import CheckFacts, Item, SubjectFacts
from .followed import FormatTrace, mark_for_following, trace_format
from .formats import DEFAULT, FORMATS_BY_NAME, WeightFormat
from .memory import resident_bytes
from .processed import snapshot_everything
from .quantized import quantized_stems
from .reference import ReferenceTensors
from .sources import ChangeRecorder, OwnedSource, ReusableBuffer, buckets, other_values, shuffled
from .stale import ring_of_buffers
from .state import NamedState, compare_states, copy_state, named_parameters
from .subject import QuantizedTwin, Subject
from .threads import TaskOrder, threads_in_order
from .upcast import asked_formats, upcast_twin
from .watched import first_load, watched_load

IN_FLOAT32 = 14
"""Bytes for each element that both classes take, made in float32, and what moves their weights.

Measured with vLLM 0.32 and Llamas of 95 and 128 MiB in bfloat16: 12.2 and 13.7.
"""
MOST_CALLS = 64
"""Tensors are loaded one a call, unless there are more than this."""
NOT_APPLICABLE = "its class makes no plain numbers of fp8 in blocks"
Checks = Mapping[str, CheckFacts]
"""The facts of each check, by the name of its rule."""


def run_checks(
    subject: Subject,
    rules: Sequence[str],
    slots: int,
    sources: Sequence[str],
    progress: Callable[[str], None] = lambda stage: None,
    keep: Callable[[Checks], None] = lambda checks: None,
    formats: Sequence[str] = (),
    memory: float = inf,
) -> Checks:
    """Run the checks that are asked for.

    Args:
        slots: requests for which a reusable buffer stays valid.
        sources: where weights come from, besides memory of their own.
        progress: is called with each stage.
        keep: is given the facts so far, before each check that takes more than one process or the
            class's own dtype, and at the end.
        formats: those of quantized twins; none: as `asked_formats`.
        memory: resident bytes that this process may take.

    Raises:
        NotRun, LoadFailed: the subject cannot be loaded rightly at all; the second where the
            checkpoint is the user's own.
    """
    with threads_in_order(subject.code) as order:
        return _load_and_check(
            order, subject, rules, slots, sources, formats, progress, keep, memory
        )[1]


def _load_and_check(
    order: TaskOrder,
    subject: Subject,
    rules: Sequence[str],
    slots: int,
    sources: Sequence[str],
    formats: Sequence[str] = (),
    progress: Callable[[str], None] = lambda stage: None,
    keep: Callable[[Checks], None] = lambda checks: None,
    memory: float = inf,
) -> tuple[ReferenceTensors, Checks]:
    progress("first load")
    first = OwnedSource(subject.checkpoint)
    before = first_load(subject, first)
    progress("second load")
    reference, watched = watched_load(subject, slots, sources, first, before)
    reference = replace(reference, formats=tuple(formats), memory=memory)
    found = dict(watched)
    if "nondeterministic" in rules and subject.elsewhere:
        progress("other hash seeds")
        found["nondeterministic"] = _with_hash_seeds(reference, found["nondeterministic"])

    def asked_for() -> Checks:
        asked = {rule: found[rule] for rule in rules if rule in found}
        return _by_chance(asked) if order.by_chance else asked

    for check in CHECKS:
        if check.rule not in rules:
            continue
        if reason := _not_run(check, reference):
            found[check.rule] = CheckFacts(reason=reason)
        elif check.measurement != WATCHED and check.rule not in found:
            if check.hosts:
                keep(asked_for())
            progress(check.rule)
            if check.measurement == TWO_RANKS:
                found |= _two_ranks(reference, [rule for rule in rules if rule in CHECKS_ON_RANKS])
            else:
                found[check.rule] = MEASUREMENTS[check.measurement](reference, found)
    keep(asked_for())
    return reference, asked_for()


def judged_facts(subject: Subject, checks: Checks, paths: Mapping[str, str]) -> SubjectFacts:
    """Return the facts of a subject whose checks were run.

    Args:
        paths: the framework's own ways of loading it, as in `SubjectFacts`.
    """
    return SubjectFacts("judged", "", subject.origin, subject.streams, subject.about, checks, paths)


def _by_chance(checks: Checks) -> Checks:
    """Return the facts about a class whose threads run during the load.

    How many tensors it holds at once is chance then, and neither found nor passed.
    """
    found = {rule: replace(facts, by_chance=True) for rule, facts in checks.items()}
    if retained := found.get("retained-memory"):
        after = tuple(item for item in retained.items if item.kind == "after")
        reason = None if after else "how many tensors its threads hold at once is chance"
        found["retained-memory"] = replace(retained, items=after, reason=reason)
    return found


def _not_run(check: ClassCheck, reference: ReferenceTensors) -> str | None:
    if check.stream_only and not reference.subject.streams:
        return "it takes a folder, not an iterator"
    if check.sources and not set(check.sources) & set(reference.sources):
        return f"sources has no {check.sources[0]}"
    return None


def _with_hash_seeds(reference: ReferenceTensors, alone: CheckFacts) -> CheckFacts:
    """Return the facts of two loads in one process, with those of loads in others."""
    assert reference.subject.elsewhere is not None
    if any(item.kind == "differs" for item in alone.items):
        return alone  # it differs without another seed
    try:
        found = reference.subject.elsewhere(reference.state, reference.unwritten)
    except (RuntimeError, OSError) as error:
        return replace(alone, measured={"other_hash_seeds": f"not run: {error}"})
    items = (replace(item, kind="hash") for item in reference.items(found))
    return replace(alone, items=(*alone.items, *items))


def _late_ring(reference: ReferenceTensors, checks: Checks) -> CheckFacts:
    with threads_in_order(reference.subject.code, late=True):
        return ring_of_buffers(reference, checks)


def _another_order(reference: ReferenceTensors, checks: Checks) -> CheckFacts:
    """Load backwards, which turns every two tensors round, and mixed."""
    names = list(reference.subject.checkpoint)
    found: dict[str | None, Item] = {}
    for order in (names[::-1], shuffled(names)):
        for item in reference.compare(partial(reference.load_in_calls, [order])):
            found.setdefault(item.parameter, item)
    return CheckFacts(tuple(found.values()))


def _several_calls(reference: ReferenceTensors, checks: Checks) -> CheckFacts:
    """Load one tensor a call, which separates whatever can be separated."""
    names = list(reference.subject.checkpoint)
    size = max(1, -(-len(names) // MOST_CALLS))
    items = reference.compare(lambda: reference.load_in_calls(buckets(names, size)))
    return CheckFacts(items, {"tensors_a_call": size})


def _second_load(reference: ReferenceTensors, checks: Checks) -> CheckFacts:
    """Load twice into one object, other values first; look whether it changes what it is given."""
    checkpoint = reference.subject.checkpoint
    source = ChangeRecorder(checkpoint)

    def load() -> Any:
        try:
            model = reference.load(OwnedSource(other_values(checkpoint)))
        except Exception:  # integers may be indices or sizes, of which not all are valid
            floats = {name for name, one in checkpoint.items() if one.is_floating_point()}
            model = reference.load(OwnedSource(other_values(checkpoint, floats)))
        reference.subject.load(model, source)
        return model

    items = reference.compare(load)
    return CheckFacts((*items, *(Item("changed", None, (name,)) for name in source.changed)))


def _two_ranks(reference: ReferenceTensors, rules: Sequence[str]) -> Checks:
    """Load on two ranks in the layout of each rule, in as few processes as can be."""
    on_ranks = reference.subject.on_ranks
    if on_ranks is None:
        return dict.fromkeys(rules, CheckFacts(reason="it is not loaded by ranks"))
    return on_ranks(reference.subject, rules, reference.alone)


def _outputs(reference: ReferenceTensors, checks: Checks) -> CheckFacts:
    computed = reference.subject.computed
    if computed is None:
        return CheckFacts(reason="no class of transformers is known to compute the same")
    needed = resident_bytes() + IN_FLOAT32 * sum(
        tensor.numel() for tensor in reference.subject.checkpoint.values()
    )
    if needed > reference.memory:
        return CheckFacts(
            reason=f"in float32, with its twin, it takes about {needed >> 20:,} MiB, more than"
            f" the {int(reference.memory) >> 20:,} of limits.memory_mib"
        )
    try:
        return computed(reference.subject)
    except NotRun as why:
        return CheckFacts(reason=str(why))
    except Exception as error:
        return CheckFacts(reason=f"it does not compute on a CPU: {error_text(error)}")


def _processing(reference: ReferenceTensors, checks: Checks) -> CheckFacts:
    """Load from a ring of buffers, process, and compare everything that the model then holds."""
    process, checkpoint = reference.subject.process, reference.subject.checkpoint
    if process is None:
        return CheckFacts(reason="its framework does not process weights after it has loaded them")
    if _items(checks, "stale-reference"):
        return CheckFacts(reason="its weights are wrong already before they are processed")

    def processed(source: OwnedSource) -> NamedState:
        model = reference.load(source)
        process(model)
        return snapshot_everything(model)

    try:
        expected = processed(OwnedSource(checkpoint))
        with threads_in_order(reference.subject.code, late=True):
            ring = processed(ReusableBuffer(checkpoint, reference.slots))
        found = compare_states(expected, ring)
        if found:  # what differs between two correct loads is not due to the ring
            varying = compare_states(expected, processed(OwnedSource(checkpoint)))
            found = {name: values for name, values in found.items() if name not in varying}
    except Exception as error:
        return CheckFacts(reason=f"it cannot be processed on a CPU: {error_text(error)}")
    return CheckFacts(reference.items(found), {"tensors": len(expected)})


def _quantized_twins(reference: ReferenceTensors, checks: Checks) -> CheckFacts:
    """Load the class made for each format that is asked, and as it is with fp8 in blocks."""
    found = {
        name: _in_format(reference, checks, FORMATS_BY_NAME[name])
        for name in asked_formats(reference.subject, reference.formats)
    }
    if not reference.formats or "fp8-block" in reference.formats:
        found["upcast"] = _upcast(reference, checks)
    # a format that nobody has named, and that does not apply, takes nothing from what was asked
    asked = reference.formats or (DEFAULT,)
    reasons = {name: one.reason for name, one in found.items() if name in asked and one.reason}
    items = tuple(item for one in found.values() for item in one.items)
    of_formats = {
        name: {"not_run": one.reason, **one.measured} if one.reason else one.measured
        for name, one in found.items()
        if one.reason != NOT_APPLICABLE
    }
    measured: dict[str, Any] = {"formats": of_formats}
    if "quantised_tensors" in found.get(DEFAULT, CheckFacts()).measured:
        measured["quantised_tensors"] = found[DEFAULT].measured["quantised_tensors"]
    if reasons and not items:
        messages = list(reasons.values() if len(asked) == 1 else map(": ".join, reasons.items()))
        if right := [name for name in asked if name not in reasons]:
            messages.append(f"nothing was found in {', '.join(right)}")
        return CheckFacts((), measured, "; ".join(messages))
    paths = [one.paths for one in found.values() if one.paths is not None]
    return CheckFacts(items, measured, paths=paths[0] if paths else None)


def _upcast(reference: ReferenceTensors, checks: Checks) -> CheckFacts:
    """Load fp8 in blocks into the class as it is, where it makes plain numbers of that."""
    twin = upcast_twin(reference) if not _items(checks, "stale-reference") else None
    if twin is None:
        return CheckFacts(reason=NOT_APPLICABLE)
    try:
        found = run_checks(twin, ("stale-reference",), reference.slots, ("reusable_buffer",))
    except NotRun as why:
        return CheckFacts(reason=str(why))
    stale = [replace(item, rule="stale-reference") for item in found["stale-reference"].items]
    paths = None
    if stale and twin.paths:
        with threads_in_order(late=True):
            paths = twin.paths(twin)
    measured = {"tensors": len(twin.checkpoint) - len(reference.subject.checkpoint)}
    return CheckFacts(tuple(stale), measured, paths=paths)


def _in_format(reference: ReferenceTensors, checks: Checks, form: WeightFormat) -> CheckFacts:
    """Load the class made for a format, and follow each weight and its scale into it."""
    if reference.subject.quantized is None:
        return CheckFacts(reason="it has no quantized twin")
    try:
        twin = reference.subject.quantized(form, reference.came_from)
        if form.name == DEFAULT:
            return _audited_twin(reference, checks, twin)
        model = twin.subject.make()
        mark_for_following(model, form)
        try:
            twin.subject.load(model, OwnedSource(twin.subject.checkpoint))
        except Exception as error:
            raise NotRun(f"the checkpoint does not load: {error_text(error)}") from error
        followed = trace_format(
            form, twin.given, copy_state(model), named_parameters(model), _written(reference)
        )
    except NotRun as why:
        return CheckFacts(reason=str(why))
    except Exception as error:
        return CheckFacts(reason=f"its quantized twin cannot be made on a CPU: {error_text(error)}")
    measured = _measured(twin, followed)
    if followed.lost_sight and not followed.items:
        first, *others = followed.lost_sight.values()
        reason = f"{len(others) + 1} of {followed.weights} weights could not be followed: {first}"
        return CheckFacts((), measured, reason)
    return CheckFacts(followed.items, measured)


def _written(reference: ReferenceTensors) -> dict[str, Sequence[str]]:
    """Return the tensors that go into each parameter of which every element is written."""
    unwritten = reference.unwritten
    return {name: of for name, of in reference.came_from.items() if name not in unwritten}


def _measured(twin: QuantizedTwin, followed: FormatTrace) -> dict[str, Any]:
    """Return how many tensors are quantized, and how many parameters' weights were followed."""
    measured: dict[str, Any] = {
        "layers": len(twin.given.layers),
        "followed": followed.weights - len(followed.lost_sight),
    }
    if twin.replaced:
        measured["parts_replaced"] = list(twin.replaced)
    if followed.lost_sight:
        measured["not_followed"] = dict(followed.lost_sight)
    return measured


def _audited_twin(reference: ReferenceTensors, checks: Checks, twin: QuantizedTwin) -> CheckFacts:
    """Audit the class made for fp8 weights; keep what was not found of it in its own dtype."""
    form, subject = FORMATS_BY_NAME[DEFAULT], twin.subject
    with threads_in_order(subject.code) as order:
        loaded, found = _load_and_check(
            order, subject, OF_QUANTIZED_TWIN, reference.slots, ("reusable_buffer",)
        )
    model = subject.make()
    parameters = named_parameters(model)
    followed = trace_format(form, twin.given, loaded.state, parameters, _written(reference))
    astray = {item.parameter for item in followed.items}
    stems = quantized_stems(parameters, form)
    # parameters of other parts, as of the cache of keys and values, may be left as they are
    of_weights = {None, *(f"{stem}{part.name}" for stem in stems for part in form.parts)}
    items: list[Item] = list(followed.items)
    # What is never read, and is kept besides the parameters, waits for a scale of another format.
    waits = bool(found["unconsumed-tensor"].items)
    kept_by_name = {name for name, _ in (*model.named_parameters(), *model.named_buffers())}
    for rule in OF_QUANTIZED_TWIN:
        known = {name for item in _items(checks, rule) for name in item.names}
        if BY_RULE[rule].needs_all_names:
            new = [item for item in found[rule].items if item.parameter in of_weights - astray]
        else:
            # memory that nobody writes differs in one of the two by chance alone
            new = [item for item in found[rule].items if item.kind != "chance"]
            new = [] if _items(checks, rule) else new
        if rule.startswith("stale-") and waits:
            new = [item for item in new if item.parameter in kept_by_name]
        items += [
            replace(item, rule=rule, format=form.name)
            for item in new
            if known.isdisjoint(item.names)
        ]
    measured = {
        "quantised_tensors": len(subject.checkpoint) - len(reference.subject.checkpoint),
        **_measured(twin, followed),
    }
    if after := found["stale-after-processing"].reason:
        measured["not_processed"] = after
    kept = any(item.rule in ("stale-reference", "stale-after-processing") for item in items)
    with threads_in_order(late=True):
        paths = subject.paths(subject) if kept and subject.paths else None
    return CheckFacts(tuple(items), measured, paths=paths)


def _items(checks: Checks, rule: str) -> Sequence[Item]:
    return checks[rule].items if rule in checks else ()


MEASUREMENTS: Mapping[str, Callable[[ReferenceTensors, Checks], CheckFacts]] = {
    "ring-of-buffers": _late_ring,
    "another-order": _another_order,
    "several-calls": _several_calls,
    "second-load": _second_load,
    "processing": _processing,
    "quantized-twin": _quantized_twins,
    "outputs": _outputs,
}
"""Each measurement of `checks.CHECKS` besides the watched load and those on two ranks.

A measurement is given the reference, and the facts of the checks before it.
"""
