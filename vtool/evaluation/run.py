"""An evaluation from beginning to end: `vtool evaluate`."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import xxhash

from vtool.config.load import names_rows
from vtool.config.schema import Run
from vtool.devices import place
from vtool.engines.ranks import Ranks
from vtool.evaluation.asking import Asked, Asking, ask_rows
from vtool.evaluation.metrics import named_metrics
from vtool.evaluation.progress import Meter
from vtool.evaluation.results import score_and_keep
from vtool.evaluation.rows import Questions, load_settings, open_questions
from vtool.evaluation.scoring import Scored
from vtool.evaluation.store import Store
from vtool.evaluation.subject import Subject, open_subject, with_own_reading
from vtool.models.answers import Sampling

_FEWEST_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Request:
    """A call of `vtool evaluate`."""

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
    how: str
    seconds: float
    asked: int
    """Rows that were asked now; the others had been before."""


@contextmanager
def own_group() -> Iterator[None]:
    """End the process group that evaluations began; they share it, as it cannot be begun twice."""
    there = dist.is_initialized()
    try:
        yield
    finally:
        if dist.is_initialized() and not there:
            dist.destroy_process_group()


def evaluate_model(request: Request, say: Callable[[str], None]) -> Evaluated | None:
    """Ask a model every row, and score its answers; None on any rank but the first.

    Args:
        request: what is asked.
        say: is given a line on what happens.

    Raises:
        Findings: fatal where nothing could be asked.
    """
    ranks = Ranks.from_environment()
    named = named_metrics(request.metrics)
    subject = open_subject(request.model, request.base)
    run = load_settings(request.rows, request.given)
    given = {one.lstrip("+~").partition("=")[0] for one in request.given}
    run = with_own_reading(run, subject.run, given)
    placement = place(run, ranks.local_rank, ranks.local_world)
    ranks = replace(ranks, device=placement.device)
    torch.set_num_threads(placement.threads)
    if ranks.world > 1 and not dist.is_initialized():
        dist.init_process_group(placement.backend)
    if ranks.rank:
        say = _silent
    say(f"reading {request.rows}")
    processor = subject.processor(run.data)
    questions = open_questions(request.rows, run, processor, ranks, request.by)
    say(f"{request.rows}: {questions.ledger.in_words()}")
    kept = list(questions.ledger.kept)[: request.limit]
    if len(kept) < len(questions.ledger.kept):
        say(f"the first {len(kept)} of {len(questions.ledger.kept)} rows are asked: --limit")
    asking = _asking(request, run, questions)
    with Store(request.to()).held(ranks) as store:
        ranks.on_rank_zero(lambda: store.begin(_settings(subject, run, questions, kept, asking)))
        seconds, asked = _ask(subject, store, questions, kept, asking, ranks, say)
        if ranks.rank:
            return None
        answers = store.answers(kept)
        how = asking.in_words()
        trained = names_rows(request.rows) and subject.trained_on(questions.ledger.sources)
        scored = score_and_keep(
            store,
            questions,
            answers,
            named,
            request.choices,
            request.by,
            {
                "model": str(subject.export.folder),
                "base": str(subject.export.base),
                "family": subject.export.family,
                "rows": request.rows,
                "how": how,
            },
            [f"{subject.given} was trained on rows of {request.rows}"] if trained else [],
        )
    return Evaluated(subject, store, answers, scored, how, seconds, asked)


def _silent(line: str) -> None:
    pass


def _ask(
    subject: Subject,
    store: Store,
    questions: Questions,
    kept: Sequence[int],
    asking: Asking,
    ranks: Ranks,
    say: Callable[[str], None],
) -> tuple[float, int]:
    """Ask the rows that have no answer yet; return the seconds that it took, and their number."""
    had = ranks.on_rank_zero(lambda: set(store.read()))
    todo = _longest_first(questions, [index for index in kept if index not in had])
    if len(todo) < len(kept):
        say(f"{len(kept) - len(todo)} of {len(kept)} rows have answers in {store.path} already")
    if not todo:
        return 0.0, 0
    say(f"loading {subject.in_words()}")
    model = subject.load().to(ranks.device)
    began, meter = time.monotonic(), Meter(len(kept), len(kept) - len(todo))
    for batch in ask_rows(model, questions.rows, todo[ranks.rank :: ranks.world], asking):
        store.append(batch, ranks.rank)
        if ranks.rank == 0:
            meter.add(len(batch) * ranks.world)
    ranks.barrier()
    return time.monotonic() - began, len(todo)


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
    asked = {"asked": len(kept), "rows_xxh3": xxhash.xxh3_64_hexdigest(repr(kept).encode())}
    return {
        "model": {"folder": str(subject.export.folder), "digest": subject.digest()},
        "rows": questions.identity() | asked,
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
