"""The end of a run: balance the ledger, evaluate the test split, export, write the result."""

import json
import platform
import resource
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor

from vtool.contents import read_small_json
from vtool.data.audit import ledger_checks
from vtool.data.loader import EncodedRows
from vtool.data.mixture import trained_on
from vtool.diagnostics import Diagnostic
from vtool.diagnostics.progress import working
from vtool.engines.contract import to_rank_zero
from vtool.engines.ranks import SharedFindings
from vtool.evaluation.evaluate import RowAnswer, Scores
from vtool.export.huggingface import about_base, export_adapter, write_export
from vtool.training.base import base_of
from vtool.training.checkpoint import best_before, checkpoint_name
from vtool.training.digests import on_rank_zero_by_all
from vtool.training.extend import read_extensions
from vtool.training.own_folder import write_atomically
from vtool.training.remarks import answer_checks, one_answer, spike_findings, spikes_of
from vtool.training.run_folder import RunFolder
from vtool.training.samples import describe, write_picture
from vtool.training.session import Progress, Session, evaluate_split, restore_checkpoint
from vtool.training.step import STEP_RULES
from vtool.version import __version__

# Test images kept for the report, wrong answers and right ones each.
SAMPLES = 24


def finish(
    session: Session, progress: Progress, more: Sequence[str] = (), found: Sequence[Diagnostic] = ()
) -> list[Diagnostic]:
    """Write `predictions.jsonl`, `samples/`, `export/` and, last, `result.json`.

    Where the best checkpoint is kept, all of them are of its weights.

    Args:
        more: rules that the run is checked by in addition to those of every run.
        found: findings of the run that did not end it.

    Returns:
        The findings of the test split's scores, of the losses, of a best checkpoint that is
        damaged, and of the export.

    Raises:
        Findings: `ledger-mismatch`, or `run-folder-unwritable`; everything before it is saved.
    """
    counts = balance(session, progress)
    exported, lost = _take_best(session, progress)
    with working("scoring the test split", counts="rows"):
        scores = evaluate_split(session, "test") if "test" in session.rows else None
    of_test = [*scores.findings("test"), *one_answer(scores, "test")] if scores else []
    spikes = session.ranks.on_rank_zero(lambda: spikes_of(session))
    of_test += spike_findings(spikes or [])
    own_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    peak_mib = int(max(mib for (mib,) in session.ranks.all_gather([own_mib])))
    state = session.engine.model_state(to_rank_zero)
    weights = {name: tensor.detach().cpu() for name, tensor in state}
    result = _result(session, progress, counts, scores, peak_mib)
    result |= _ending(session, progress, exported)
    result["spikes"] = spikes
    result["checks"] |= answer_checks(scores) | dict.fromkeys(more, "passed")
    result["checks"] |= {
        finding.rule: "failed"
        for finding in (*found, *lost, *of_test)
        if finding.severity != "note"
    }
    with working("exporting the model"):
        session.ranks.on_rank_zero(lambda: _write(session, weights, scores, result))
    run, folder = session.run, session.folder
    about = about_base(run.lora, base_of(run, folder), folder.export, merged=False)
    return [*lost, *of_test, *about]


def _take_best(session: Session, progress: Progress) -> tuple[int, list[Diagnostic]]:
    """Load the best checkpoint into the engine, if one is kept; every rank calls this.

    Returns:
        The step whose weights the engine then has, and a finding where the best one is damaged.
    """
    best = progress.marks.best
    if best is None or best.step == progress.step:
        return progress.step, []
    newest = session.folder.checkpoints / checkpoint_name(progress.step)
    found, lost = on_rank_zero_by_all(session.ranks, partial(best_before, newest))
    if found is None:
        return progress.step, lost
    restore_checkpoint(session.engine, found)
    return best.step, []


def _ending(session: Session, progress: Progress, exported: int) -> dict[str, Any]:
    """Return a result's entries on the exported step, and on an end before the last."""
    marks, entries = progress.marks, {}
    if marks.best is not None:
        entries["best"] = {**asdict(marks.best), "exported": exported == marks.best.step}
    if marks.stopped:
        entries["stopped_early"] = {
            "after_step": progress.step,
            "of_steps": session.total_steps,
            "evaluations": marks.waited,
            "reference": asdict(marks.reference) if marks.reference else None,
        }
    return entries


def balance(session: Session, progress: Progress) -> dict[str, Any]:
    """Balance the training split's ledger against the batches; return the counts.

    They are what `result.json` has as `ledger`. Rows = kept + dropped, and each kept row was
    trained on as often as the plan says.

    Raises:
        SharedFindings: `ledger-mismatch`.
    """
    split = session.ledgers["train"]
    plan = session.plan
    visits = progress.visits[list(split.kept)]
    fewest, most = plan.fewest_and_most(progress.step)
    times = visits.numpy()
    trained = int(progress.visits.sum())
    right = (
        split.rows == len(split.kept) + len(split.dropped)
        and trained == int(visits.sum()) == plan.samples(progress.step)
        and bool(((fewest <= times) & (times <= most)).all())
        # of a mixture, a part of an epoch says little of how often a row is in it
        and (not plan.parts or bool((times == plan.visits(progress.step)).all()))
    )
    if not right:
        message = (
            f"{split.rows} rows, {len(split.kept)} kept and {len(split.dropped)} dropped; {trained}"
            f" samples in {progress.step} steps, each row {int(visits.min())} to"
            f" {int(visits.max())} times; the plan says {plan.samples(progress.step)}"
            " samples"
        )
        raise SharedFindings(Diagnostic("ledger-mismatch", message))
    dropped = len(split.dropped)
    return {
        "rows": split.rows,
        # of a mixture, rows may wait for a later epoch
        "seen": split.rows if int(fewest.min()) else int((visits > 0).sum()) + dropped,
        "trained": int((visits > 0).sum()),
        "dropped": dropped,
        "samples": trained,
        "distinct": int((visits > 0).sum()),
        "epochs": trained / plan.samples_per_epoch,
        "sources": trained_on(
            session.run,
            split.by_source,
            times,
            {"tokens": split.lengths, "supervised_tokens": split.targets},
        ),
    }


def _write(
    session: Session, weights: Mapping[str, Tensor], scores: Scores | None, result: dict[str, Any]
) -> None:
    folder, run, processor = session.folder, session.run, session.processor
    with folder.writing():
        if scores is not None:
            _write_predictions(folder, session.rows["test"], scores.answers)
        if run.lora is None:
            write_export(session.engine.module, weights, processor, run.model.family, folder.export)
        else:
            export_adapter(run.lora, weights, base_of(run, folder), processor, folder.export)
        write_atomically(folder.result, json.dumps(result, indent=1) + "\n")


def _result(
    session: Session,
    progress: Progress,
    counts: dict[str, Any],
    scores: Scores | None,
    peak_mib: int,
) -> dict[str, Any]:
    import transformers

    result: dict[str, Any] = {
        "status": "finished",
        "steps": progress.step,
        "epochs": counts["epochs"],
    }
    if scores is not None:
        result |= {
            "test_exact_match": scores.exact_match,
            "test_nll": scores.nll,
            "test_samples": scores.samples,
            "test_token_accuracy": scores.token_accuracy,
        }
        if scores.by_source:
            result["test_sources"] = {name: asdict(own) for name, own in scores.by_source.items()}
    if session.folder.begun_from.exists():
        result["from"] = read_small_json(session.folder.begun_from)
    if extensions := read_extensions(session.folder):
        result["extended"] = extensions
    return result | {
        "train_seconds": progress.seconds,
        "parameters": session.engine.size,
        "trained_parameters": session.engine.trained,
        "parts": session.parts,
        "ledger": counts,
        "peak_memory_mib": peak_mib,
        "ranks": session.ranks.world,
        "threads": torch.get_num_threads(),
        # A run in which a step's check or the balance had failed would not have come here.
        "checks": (
            ledger_checks(session.ledgers.values())
            | dict.fromkeys((*STEP_RULES, "ledger-mismatch"), "passed")
        ),
        "versions": {
            "vtool": __version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
        },
    }


def _write_predictions(folder: RunFolder, rows: EncodedRows, answers: Sequence[RowAnswer]) -> None:
    shown = {
        answer.index
        for correct in (False, True)
        for answer in [a for a in answers if a.correct is correct][:SAMPLES]
    }
    lines = []
    for answer in answers:
        line = describe(rows, answer)
        if answer.index in shown:
            line |= write_picture(folder, rows, answer.index, f"{answer.index:05d}")
        lines.append(json.dumps(line) + "\n")
    write_atomically(folder.predictions, "".join(lines))
