"""`prove`: the proofs of `vtool verify RECIPE`, one after the other."""

import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from math import hypot
from pathlib import Path

import torch
from torch import Tensor, nn

from vtool.config.schema import Run
from vtool.diagnostics import Diagnostic, Findings, Origin
from vtool.engines.ranks import Ranks
from vtool.models.processor import first_line
from vtool.verify.processes import PATIENCE, Ended, run_processes
from vtool.verify.proofs import data, forward, gradient, reference, training
from vtool.verify.proofs.context import ProofContext, build_proof_context
from vtool.verify.proofs.proof import Proof
from vtool.verify.proofs.rounding import tolerances
from vtool.verify.proved import ALONE, PROCESSES, RANKED, NotProvable, Proved, ProveTask

HOLLOW = 0.1
"""What rounding may be of the reference's norm. On digits it is 1e-5."""
# What says that a proof cannot be made on this machine, and nothing against the recipe.
NOT_HERE = ("extra-not-installed", "needs-transformer-engine", "device-missing")


class Basis:
    """What several proofs are held against, computed when the first of them asks."""

    def __init__(self, context: ProofContext) -> None:
        self.context = context

    @cached_property
    def reference(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The gradient of a step of all rows, and the logits of each row by itself."""
        return reference.gradient_and_logits(self.context, self.context.model())

    @cached_property
    def tolerances(self) -> dict[str, float]:
        """Of both, by their names."""

        def compute(model: nn.Module) -> dict[str, Tensor]:
            gradient, logits = reference.gradient_and_logits(self.context, model)
            return gradient | logits

        here = self.reference[0] | self.reference[1]
        allowed = tolerances(self.context.model(), sum(self.context.lengths), compute, here)
        for kind, names in (("gradient", self.reference[0]), ("logits", self.reference[1])):
            size = hypot(*(float(here[name].double().norm()) for name in names))
            if (part := hypot(*(allowed[name] for name in names)) / (size or 1.0)) > HOLLOW:
                raise NotProvable(
                    f"rounding alone counts for {part:.0%} of the {kind}'s norm: nothing could be"
                    " told from it"
                )
        return allowed

    @property
    def gradient(self) -> dict[str, Tensor]:
        return self.reference[0]

    @property
    def logits(self) -> dict[str, Tensor]:
        return self.reference[1]

    @property
    def logit_tolerances(self) -> dict[str, float]:
        return {name: self.tolerances[name] for name in self.logits}


def prove(
    run: Run, *, only: Sequence[str] = (), fast: bool = False, full_size: bool = False
) -> Proved:
    """Prove what can be proved of a run before it is started.

    Args:
        only: rules of `ALONE` and `RANKED`; without any, all of them.
        fast: in this process alone: no proof that needs several.
        full_size: with the recipe's own model, in the place of one of its tiny size.

    Raises:
        Findings: where a model's folder or the rows cannot be read at all, or no row can be used.
        NotProvable: where the recipe is fine, and no row of it, or its model, can be computed with
            here.
    """
    began = time.perf_counter()
    asked = [rule for rule in dict.fromkeys((*ALONE, *RANKED)) if not only or rule in only]
    with (
        tempfile.TemporaryDirectory(prefix="vtool-verify-") as folder,
        _threads(None if full_size else 1),
    ):
        context = build_proof_context(run, Path(folder), full_size=full_size)
        reference.must_repeat(context)
        alone = [rule for rule in asked if rule in ALONE and (fast or rule not in RANKED)]
        proofs = [*prove_on(context, Ranks(), alone)]
    ranked = [rule for rule in asked if rule not in alone]
    if ranked and fast:
        proofs += [Proof(rule, "", "not-run", reason="--fast is one process") for rule in ranked]
    elif ranked:
        proofs += _in_processes(ProveTask(run, tuple(ranked), full_size))
    order = {rule: place for place, rule in enumerate(asked)}
    proofs.sort(key=lambda proof: order[proof.rule])
    names = tuple(row.id for row in context.rows)
    size = (
        f"of {run.model.path}"
        if full_size and run.model.path
        else f"at size {context.run.model.size}"
    )
    return Proved(
        tuple(proofs),
        context.changes,
        names,
        f"{run.model.family} {size}",
        time.perf_counter() - began,
    )


@contextmanager
def _threads(number: int | None) -> Iterator[None]:
    """A tiny model is slower on several threads than on one."""
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def prove_on(context: ProofContext, ranks: Ranks, rules: Sequence[str]) -> list[Proof]:
    """These proofs, on these ranks; a proof that cannot be computed has failed."""
    basis, own = Basis(context), ranks.world > 1
    ways: dict[str, Callable[[], Proof]] = {
        "label-masks-disagree": lambda: data.label_masks(context),
        "rows-lost": lambda: data.rows_lost(context),
        "positions-differ": lambda: data.positions(context),
        "loss-differs": lambda: forward.loss(context, basis.logits, basis.logit_tolerances),
        "gradient-depends-on-split": lambda: gradient.split(
            context, basis.gradient, basis.tolerances
        ),
        "gradient-depends-on-packing": lambda: gradient.packing(
            context, basis.gradient, basis.tolerances
        ),
        "padding-changes-row": lambda: forward.padding(context, basis.logits, basis.tolerances),
        "documents-see-each-other": lambda: forward.leak(context),
        "attention-differs": lambda: forward.attention(context, basis.logits, basis.tolerances),
        "embeddings-written-in-place": lambda: forward.written_in_place(context),
        "dummy-not-neutral": lambda: gradient.dummy(context),
        "text-only-differs": lambda: training.text_only(context, ranks, own_engine=own),
        "trained-set-differs": lambda: training.trained_set(context, ranks, own_engine=own),
        "gradient-depends-on-ranks": lambda: training.across_ranks(
            context, ranks, basis.gradient, basis.tolerances
        ),
        "resume-differs": lambda: training.resume(context, ranks, own_engine=own),
        "export-differs": lambda: training.exported(
            context, ranks, basis.tolerances, own_engine=own
        ),
    }
    assert ways.keys() == {*ALONE, *RANKED}
    return [_computed(rule, ways[rule], shared=own) for rule in rules]


def _computed(rule: str, way: Callable[[], Proof], *, shared: bool) -> Proof:
    try:
        return way()
    except NotProvable as error:
        return Proof(rule, "", "not-run", reason=str(error))
    except Exception as error:  # whatever a model, a library or a defect raises on the way
        if shared:  # the other ranks wait for this one: no proof after it can be made
            raise
        return not_computed(rule, error)


def _first_failed(found: tuple[Proof, ...]) -> Proof:
    return next((proof for proof in found if proof.state == "failed"), found[0])


def not_computed(rule: str, error: Exception) -> Proof:
    """The proof that an exception stood in the way of."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    findings = error.diagnostics if isinstance(error, Findings) else ()
    if findings and findings[0].rule in NOT_HERE:
        return Proof(rule, "", "not-run", reason=findings[0].message)
    message = (
        f"{findings[0].rule}: {findings[0].message}"
        if findings
        else f"{type(error).__name__}: {first_line(error)}"
    )
    origin = None if findings else Origin(frame.filename, frame.lineno)
    return Proof(
        rule,
        "",
        "failed",
        finding=Diagnostic(rule, f"could not be computed: {message}", origin=origin),
    )


def _in_processes(task: ProveTask) -> list[Proof]:
    """On the recipe's engine.

    What the first process says; where it has lost another one, what became of that.
    """
    patience = 10 * PATIENCE if task.full_size else PATIENCE
    told = run_processes(
        "vtool.verify.prove_rank",
        task,
        PROCESSES,
        lambda proofs: len(proofs) < len(task.rules),
        patience,
    )
    ended = [f"process {rank} {one.how}" for rank, one in enumerate(told) if isinstance(one, Ended)]
    # A rank that raises ends at once, and its peers then raise because they have lost it: the first
    # cause is the shortest list of proofs.
    lists = [one for one in told if isinstance(one, list)]
    said = min(
        lists,
        key=lambda one: (
            len(one),
            bool(one and one[-1].finding and "gloo" in one[-1].finding.message),
        ),
        default=[],
    )
    whole = [one for one in lists if len(one) == len(task.rules)]
    # What any rank has found stands; what only the first is told, such as gradients, is not run on
    # the others.
    proofs = (
        [_first_failed(found) for found in zip(*whole, strict=True)]
        if len(whole) == len(told)
        else said[: len(task.rules)]
    )
    if len(proofs) < len(task.rules) and (not proofs or proofs[-1].finding is None or ended):
        why = ended[0] if ended else "no process has answered"
        proofs = [proof for proof in proofs if proof.state == "passed"]
        rule = task.rules[len(proofs)]
        proofs.append(
            Proof(rule, "", "failed", finding=Diagnostic(rule, f"could not be computed: {why}"))
        )
    return proofs + [
        Proof(rule, "", "not-run", reason="the proof before it could not be computed")
        for rule in task.rules[len(proofs) :]
    ]
