"""The proofs of `vtool verify RECIPE`: in this process, or in two on the recipe's own engine."""

import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from vtool.config.schema import Run
from vtool.diagnostics import Diagnostic, Findings, Origin
from vtool.diagnostics.progress import tick, working
from vtool.engines.ranks import Ranks
from vtool.processes import (
    MOST_PROCESSES,
    MOST_SECONDS,
    Ended,
    join_ranks,
    run_processes,
)
from vtool.scratch import scratch_folder
from vtool.verification.context import ProofContext, build_proof_context
from vtool.verification.not_provable import ProofNotMade
from vtool.verification.proofs import PROOF_NAMES, PROOFS
from vtool.verification.proofs.proof import ProofResult
from vtool.verification.proofs.report import ProofReport
from vtool.verification.reference import check_repeatable
from vtool.words import first_line

# Rules that say that a proof cannot be made on this machine, and nothing against the recipe.
NOT_HERE = ("extra-not-installed", "needs-transformer-engine", "device-missing")
_COMPUTE = {proof.name: proof.compute for proof in PROOFS}


@dataclass(frozen=True, slots=True)
class ProveTask:
    """The task of each process that proves."""

    run: Run
    names: tuple[str, ...]
    full_size: bool

    @property
    def patience(self) -> float:
        """Seconds for all of it."""
        return 10 * MOST_SECONDS if self.full_size else MOST_SECONDS


def prove(
    run: Run, *, only: Sequence[str] = (), fast: bool = False, full_size: bool = False
) -> ProofReport:
    """Prove what can be proved of a run before it is started.

    Args:
        only: names of proofs; by default all of them.
        fast: in this process alone: no proof that needs several.
        full_size: with the recipe's own model, in the place of one of its tiny size.

    Raises:
        Findings: where a model's folder or the rows cannot be read at all, or no row can be used.
        NotProvable: where the recipe is fine, and no row of it, or its model, can be computed with
            here.
    """
    started = time.perf_counter()
    asked = [proof for proof in PROOFS if not only or proof.name in only]
    here = [proof.name for proof in asked if proof.fast and (fast or not proof.on_ranks)]
    ranked = tuple(proof.name for proof in asked if proof.name not in here)
    with (
        working("proving the recipe", counts="proofs"),
        scratch_folder() as folder,
        _torch_threads(None if full_size else 1),
    ):
        context = build_proof_context(run, folder, full_size=full_size)
        check_repeatable(context)
        proofs = run_proofs(context, here)
    if fast:
        proofs += [
            ProofResult(name, "", "not-run", reason="preflight and --fast are one process")
            for name in ranked
        ]
    elif ranked:
        with working("proving the recipe in two processes"):
            proofs += _prove_in_processes(ProveTask(run, ranked, full_size))
    used = context.run.model
    size = f"of {used.path}" if used.path else f"at size {used.size}"
    return ProofReport(
        proofs=tuple(sorted(proofs, key=lambda proof: PROOF_NAMES.index(proof.rule))),
        changes=context.changes,
        rows=tuple(row.id for row in context.rows),
        model=f"{run.model.family} {size}",
        seconds=time.perf_counter() - started,
    )


@contextmanager
def _torch_threads(number: int | None) -> Iterator[None]:
    """Set the number of torch's threads: a tiny model is slower on several than on one."""
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def run_proofs(context: ProofContext, names: Sequence[str]) -> list[ProofResult]:
    """Make these proofs on the context's ranks; one that cannot be computed has failed."""
    done: list[ProofResult] = []
    for name in names:
        tick(len(done), len(names), "proofs")
        done.append(_run_proof(context, name))
    return done


def _run_proof(context: ProofContext, name: str) -> ProofResult:
    try:
        return _COMPUTE[name](context)
    except ProofNotMade as error:
        return ProofResult(name, "", "not-run", reason=str(error))
    except Exception as error:  # whatever a model, a library or a defect raises on the way
        if context.ranks.world > 1:  # the other ranks wait for this one: no later proof can be made
            raise
        return _not_computed(name, error)


def _not_computed(name: str, error: Exception) -> ProofResult:
    """Return the result of a proof that an exception ended."""
    finding = error.diagnostics[0] if isinstance(error, Findings) else None
    if finding and finding.rule in NOT_HERE:
        return ProofResult(name, "", "not-run", reason=finding.message)
    if finding:
        return _failed(name, f"{finding.rule}: {finding.message}")
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return _failed(
        name, f"{type(error).__name__}: {first_line(error)}", Origin(frame.filename, frame.lineno)
    )


def _failed(name: str, reason: str, origin: Origin | None = None) -> ProofResult:
    finding = Diagnostic(name, f"could not be computed: {reason}", origin=origin)
    return ProofResult(name, "", "failed", finding=finding)


def _prove_in_processes(task: ProveTask) -> list[ProofResult]:
    """Start processes that prove on the recipe's engine, and return one result for each proof."""
    results = run_processes(
        "vtool.verification.prove",
        task,
        MOST_PROCESSES,
        lambda proofs: len(proofs) < len(task.names),
        task.patience,
    )
    complete = [one for one in results if isinstance(one, list) and len(one) == len(task.names)]
    if len(complete) == MOST_PROCESSES:
        # A failure on any rank counts. Gradients are on rank 0 alone: the others did not run those.
        return [
            next((proof for proof in proofs if proof.state == "failed"), proofs[0])
            for proofs in zip(*complete, strict=True)
        ]
    ended = [
        f"process {rank} {one.how}" for rank, one in enumerate(results) if isinstance(one, Ended)
    ]
    # A rank that raises ends at once, and the others then raise because they have lost it: the
    # first cause is in the shortest list of proofs.
    proofs = min((one for one in results if isinstance(one, list)), key=_lost_others, default=[])
    if len(proofs) < len(task.names) and (not proofs or proofs[-1].finding is None or ended):
        proofs = [proof for proof in proofs if proof.state == "passed"]
        proofs.append(
            _failed(task.names[len(proofs)], ended[0] if ended else "no process has answered")
        )
    reason = "the proof before it could not be computed"
    missing = task.names[len(proofs) :]
    return proofs + [ProofResult(name, "", "not-run", reason=reason) for name in missing]


def _lost_others(proofs: list[ProofResult]) -> tuple[int, bool]:
    """Sort first the proofs of the rank that ended first, and not because it lost another one."""
    finding = proofs[-1].finding if proofs else None
    return len(proofs), finding is not None and "gloo" in finding.message


def work(task: ProveTask, folder: Path, rank: int) -> list[ProofResult]:
    """Prove in one of several processes."""
    torch.set_num_threads(1)
    join_ranks(folder, rank, MOST_PROCESSES, task.patience)
    proofs: list[ProofResult] = []
    try:
        context = build_proof_context(
            task.run,
            folder,
            Ranks(rank, MOST_PROCESSES, rank, MOST_PROCESSES),
            full_size=task.full_size,
        )
        for name in task.names:
            proofs += run_proofs(context, [name])
    except Exception as error:
        traceback.print_exc()
        proofs.append(_not_computed(task.names[len(proofs)], error))
    return proofs
