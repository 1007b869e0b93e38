"""An evaluation from beginning to end: `vtool evaluate`."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from vtool.config.load import names_rows
from vtool.config.schema import Run
from vtool.devices import place
from vtool.engines.ranks import Ranks
from vtool.evaluation.asking import Asked, Asking, ask_rows
from vtool.evaluation.metrics import Metric, metrics_for
from vtool.evaluation.metrics.choices import found_in
from vtool.evaluation.progress import Meter
from vtool.evaluation.rows import Questions, load_settings, open_questions
from vtool.evaluation.samples import first_picture
from vtool.evaluation.scoring import Scored, score_answers
from vtool.evaluation.store import Store
from vtool.evaluation.subject import Subject, open_subject, with_own_reading
from vtool.models.answers import Sampling
from vtool.version import __version__

PICTURES = 120
"""Rows whose first image is kept for the page, wrong answers first."""
_SIDE = 256
_FEWEST_TOKENS = 64
_OWN = {each.name for each in fields(Asked)} | {"scores", "picture"}


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked of `vtool evaluate`."""

    model: str
    rows: str
    given: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    by: str | None = None
    temperature: float = 0.0
    seed: int = 0
    max_new_tokens: int | None = None
    batch_size: int | None = None
    limit: int | None = None
    base: Path | None = None
    folder: Path | None = None

    def to(self) -> Path:
        """Return the folder of the results."""
        if self.folder is not None:
            return self.folder
        model = Path(os.path.realpath(self.model))
        name = model.parent.name if model.name == "export" else model.name
        return Path("evaluations") / f"{name}-{Path(self.rows.rstrip('/')).stem}"


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A model's answers to rows, and their scores."""

    subject: Subject
    store: Store
    answers: tuple[Asked, ...]
    scored: Scored
    metrics: tuple[Metric, ...]
    how: str
    seconds: float
    asked: int
    """Rows that were asked now; the others had been before."""


def evaluate_model(request: Request, say: Callable[[str], None]) -> Evaluated | None:
    """Ask a model every row, and score its answers; None on any rank but the first.

    Args:
        request: what is asked.
        say: is given a line on what happens.

    Raises:
        Findings: fatal where nothing could be asked.
    """
    ranks = Ranks.from_environment()
    subject = open_subject(request.model, request.base)
    run = load_settings(request.rows, request.given)
    keys = dict.fromkeys(one.lstrip("+~").partition("=")[0] for one in request.given)
    run = run.model_copy(update={"data": with_own_reading(run.data, subject.data, keys)})
    placement = place(run, ranks.local_rank, ranks.local_world)
    ranks = replace(ranks, device=placement.device)
    if placement.threads:
        torch.set_num_threads(placement.threads)
    own_group = ranks.world > 1 and not dist.is_initialized()
    if own_group:
        dist.init_process_group(placement.backend)
    try:
        return _evaluate(request, subject, run, ranks, say if ranks.rank == 0 else lambda _: None)
    finally:
        if own_group:
            dist.destroy_process_group()


def _evaluate(
    request: Request, subject: Subject, run: Run, ranks: Ranks, say: Callable[[str], None]
) -> Evaluated | None:
    is_file = names_rows(request.rows)
    processor = subject.processor(run.data)
    say(f"reading {request.rows}")
    questions = open_questions(run, processor, ranks, is_file=is_file, group=request.by)
    kept = list(questions.ledger.kept)[: request.limit]
    say(f"{request.rows}: {questions.ledger.in_words()}")
    if len(kept) < len(questions.ledger.kept):
        say(f"the first {len(kept)} of {len(questions.ledger.kept)} rows are asked: --limit")
    asking = _asking(request, run, questions)
    settings = _settings(subject, run, questions, kept, asking)
    store = Store(request.to())
    ranks.on_rank_zero(lambda: store.begin(settings))
    had = ranks.on_rank_zero(store.read)
    todo = _longest_first(questions, [index for index in kept if index not in had])
    if had:
        say(f"{len(kept) - len(todo)} of {len(kept)} rows have answers in {store.path} already")
    began = time.monotonic()
    if todo:
        say(f"loading {subject.in_words()}")
        model = subject.load(torch.float32).to(ranks.device)
        began = time.monotonic()
        meter = Meter(len(kept), len(kept) - len(todo))
        for batch in ask_rows(model, questions.rows, todo[ranks.rank :: ranks.world], asking):
            store.append(batch, ranks.rank)
            if ranks.rank == 0:
                meter.add(len(batch) * ranks.world)
    ranks.barrier()
    seconds = time.monotonic() - began
    if ranks.rank:
        return None
    had = store.read()
    answers = tuple(had[index] for index in kept)
    return _scored(request, subject, questions, store, answers, asking, seconds, len(todo), say)


def _scored(
    request: Request,
    subject: Subject,
    questions: Questions,
    store: Store,
    answers: tuple[Asked, ...],
    asking: Asking,
    seconds: float,
    asked: int,
    say: Callable[[str], None],
) -> Evaluated:
    references = [one.reference for one in answers]
    metrics, said = metrics_for(request.metrics, request.choices, references)
    for line in said:
        say(line)
    by = (request.by, questions.values(request.by)) if request.by else None
    scored = score_answers(answers, metrics, request.choices or found_in(references), by)
    how = (
        f"sampled at temperature {asking.sampling.temperature:g}, seed {asking.sampling.seed}"
        if asking.sampling
        else "greedy"
    )
    how += f", at most {asking.max_new_tokens} tokens"
    pictures = _keep_pictures(store, questions, answers, metrics, scored)
    lines: list[dict[str, Any]] = [
        one.as_dict()
        | ({by[0]: by[1][one.index]} if by and by[0] not in _OWN else {})
        | {"scores": {name: values[place] for name, values in scored.of_rows.items()}}
        | ({"picture": pictures[one.index]} if one.index in pictures else {})
        for place, one in enumerate(answers)
    ]
    result = {
        "model": str(subject.export.folder),
        "base": str(subject.export.base),
        "family": subject.export.family,
        "rows": request.rows,
        "how": how,
        "answered": len(answers),
        "sorted_by": sorting_metric(metrics, scored),
        **scored.as_dict(),
        "findings": [{"rule": one.rule, "message": one.message} for one in scored.findings],
        "versions": {"vtool": __version__, "torch": torch.__version__},
    }
    store.finish(lines, result)
    return Evaluated(subject, store, answers, scored, tuple(metrics), how, seconds, asked)


def sorting_metric(metrics: Sequence[Metric], scored: Scored) -> str | None:
    """Return the metric that says which answers are wrong: the last that was scored."""
    return next((one.name for one in reversed(metrics) if one.name in scored.of_rows), None)


def _asking(request: Request, run: Run, questions: Questions) -> Asking:
    """Return how rows are asked; by default answers may be twice as long as the longest one."""
    longest = max(questions.ledger.answers, default=0) + 1
    return Asking(
        request.max_new_tokens or max(_FEWEST_TOKENS, 2 * longest),
        request.batch_size or run.evaluation.batch_size,
        Sampling(request.temperature, request.seed) if request.temperature else None,
        run.model.dtype == "bfloat16",
    )


def _settings(
    subject: Subject,
    run: Run,
    questions: Questions,
    kept: Sequence[int],
    asking: Asking,
) -> Mapping[str, Any]:
    """Return all that an answer depends on; the size of batches is none of it."""
    return {
        "model": {"folder": str(subject.export.folder), "digest": subject.digest()},
        "rows": questions.identity() | {"asked": len(kept)},
        "max_new_tokens": asking.max_new_tokens,
        "sampling": asdict(asking.sampling) if asking.sampling else None,
        "dtype": run.model.dtype,
        "image": run.data.image.model_dump(mode="json"),
        "video": run.data.video.model_dump(mode="json"),
        "drop_model_inputs": list(run.data.drop_model_inputs),
    }


def _longest_first(questions: Questions, todo: Sequence[int]) -> list[int]:
    """Return rows with those of like length together, and the ones that need most memory first."""
    lengths = dict(zip(questions.ledger.kept, questions.ledger.lengths, strict=True))
    return sorted(todo, key=lambda index: (-lengths[index], index))


def _keep_pictures(
    store: Store,
    questions: Questions,
    answers: Sequence[Asked],
    metrics: Sequence[Metric],
    scored: Scored,
) -> dict[int, str]:
    """Write the first image of the worst answers beside the predictions; return their names."""
    name = sorting_metric(metrics, scored)
    if name is None:
        return {}
    order = sorted(zip(scored.of_rows[name], answers, strict=True), key=lambda pair: pair[0])
    folder = store.path / "images"
    folder.mkdir(exist_ok=True)
    found = {}
    for _, one in order[:PICTURES]:
        path = folder / f"{one.index:05d}.png"
        if not path.exists():
            picture = first_picture(questions.rows.rows.row(one.index), questions.rows)
            if picture is None:
                continue
            small = picture.copy()
            small.thumbnail((_SIDE, _SIDE))
            small.save(path)
        found[one.index] = f"images/{path.name}"
    return found
