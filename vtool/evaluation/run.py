"""An evaluation from beginning to end: `vtool evaluate`."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import xxhash

from vtool.config.rows_recipe import names_rows
from vtool.config.schema import Run
from vtool.devices import place
from vtool.diagnostics import Findings
from vtool.engines.ranks import Ranks, SharedFindings, meet
from vtool.evaluation.asking import AskedRow, Asking, ask_rows
from vtool.evaluation.metrics import named_metrics
from vtool.evaluation.progress import Meter
from vtool.evaluation.results import score_and_keep
from vtool.evaluation.rows import Questions, load_settings, open_questions
from vtool.evaluation.scoring import Scored
from vtool.evaluation.store import Store
from vtool.evaluation.subject import (
    ADDS_NOTHING,
    EvaluatedModel,
    open_model,
    with_own_reading,
)
from vtool.evaluation.vllm import asked_with_vllm, check_served
from vtool.models.answers import Sampling
from vtool.words import plural

_FEWEST_TOKENS = 64


@dataclass(frozen=True, slots=True)
class EvaluationRequest:
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
    engine: str | None = None
    """`vllm`, or None: vtool's own generation."""

    def to(self) -> Path:
        """Return the folder of the results."""
        if self.folder is not None:
            return self.folder
        model = Path(os.path.realpath(self.model))
        name = model.parent.name if model.name == "export" else model.name
        by = f"-{self.engine}" if self.engine else ""
        return Path("evaluations") / f"{name}-{Path(self.rows.rstrip('/')).stem}{by}"


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A model's answers to rows, and their scores."""

    subject: EvaluatedModel
    store: Store
    answers: tuple[AskedRow, ...]
    scored: Scored
    how: str
    seconds: float
    asked: int
    """Rows that were asked now; the others had been before."""


def evaluate_models(
    requests: Sequence[EvaluationRequest], say: Callable[[str], None]
) -> list[Evaluated]:
    """Ask models one after the other, and score their answers; nothing on any rank but the first.

    They share a process group, as it cannot be begun twice.

    Raises:
        Findings: as `evaluate_model`.
    """
    there = dist.is_initialized()
    found = []
    for request in requests[1:]:  # a wrong name is reported before the first model is asked
        open_model(request.model, request.base)
    try:
        for place, request in enumerate(requests):
            if place and not Ranks.from_environment().rank:
                say(f"evaluate: {request.model} on {request.rows}")
            found.append(evaluate_model(request, say))
    finally:
        if dist.is_initialized() and not there:
            dist.destroy_process_group()
    return [each for each in found if each is not None]


def check_request(request: EvaluationRequest, nproc: int) -> None:
    """Look for what stands against a request, before processes are started for it.

    Raises:
        Findings: fatal.
    """
    if request.engine:
        check_served(open_model(request.model, request.base), nproc)
    named_metrics(request.metrics)
    _, run = _opened(request)
    place(run, 0, nproc)


def _opened(request: EvaluationRequest) -> tuple[EvaluatedModel, Run]:
    """Find the model, and compose the settings by which it is shown the rows."""
    subject = open_model(request.model, request.base)
    run = load_settings(request.rows, request.given)
    given = {one.lstrip("+~").partition("=")[0] for one in request.given}
    return subject, with_own_reading(run, subject.run, given)


def evaluate_model(request: EvaluationRequest, say: Callable[[str], None]) -> Evaluated | None:
    """Ask a model every row, and score its answers; None on any rank but the first.

    Args:
        request: what is asked.
        say: is given a line on what happens.

    Raises:
        Findings: fatal where nothing could be asked.
    """
    threads = torch.get_num_threads()
    try:
        return _evaluate(request, say)
    finally:
        torch.set_num_threads(threads)  # of a process that continues, such as a notebook's


def _evaluate(request: EvaluationRequest, say: Callable[[str], None]) -> Evaluated | None:
    ranks = Ranks.from_environment()
    named = named_metrics(request.metrics)
    subject, run = _opened(request)
    if request.engine:
        check_served(subject, ranks.world)
    ranks, _begun = meet(run, ranks)
    if ranks.rank:
        say = _silent
    say(f"reading {request.rows}")
    processor = subject.processor(run.data)
    questions = open_questions(request.rows, run, processor, ranks, request.by)
    say(f"{request.rows}: {questions.ledger.in_words()}")
    if other := subject.other_prompt(run.data):
        say(other)
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
            [
                *([f"{subject.given} was trained on rows of {request.rows}"] if trained else []),
                *([f"{subject.given} is an adapter {ADDS_NOTHING}"] if subject.idle else []),
                *([other] if other else []),
                *_several(answers),
            ],
        )
    return Evaluated(subject, store, answers, scored, how, seconds, asked)


def _several(answers: Sequence[AskedRow]) -> Iterator[str]:
    """Yield a note on rows of which not every answer is scored."""
    if several := sum(one.earlier_answers is not None for one in answers):
        yield (
            f"{several:,} of {plural(len(answers), 'row')} {'have' if several > 1 else 'has'}"
            " several answers: the last of each is scored; data.turns=each asks for every one"
        )


def _silent(line: str) -> None:
    pass


def _ask(
    subject: EvaluatedModel,
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
    own = todo[ranks.rank :: ranks.world]
    with _answering(subject, questions, own, asking, ranks, say) as answered:
        began, meter = time.monotonic(), Meter(len(kept), len(kept) - len(todo))
        for batch in answered:
            store.append(batch, ranks.rank)
            if ranks.rank == 0:
                meter.add(len(batch) * ranks.world)
    ranks.barrier()
    return time.monotonic() - began, len(todo)


def _answering(
    subject: EvaluatedModel,
    questions: Questions,
    own: Sequence[int],
    asking: Asking,
    ranks: Ranks,
    say: Callable[[str], None],
) -> AbstractContextManager[Iterator[list[AskedRow]]]:
    """Load the model, or have vLLM load it, and return its answers to these rows."""
    by = "vLLM is " if asking.engine else ""
    say(f"{by}loading {subject.in_words()}")
    if asking.engine:
        longest = max(questions.ledger.lengths)
        return asked_with_vllm(subject, questions.rows, own, asking, longest, say)
    model = _loaded(subject, ranks).to(ranks.device)
    return nullcontext(ask_rows(model, questions.rows, own, asking))


def _loaded(subject: EvaluatedModel, ranks: Ranks) -> Any:
    """Load the model on every rank; where one cannot, all raise what it has found."""
    model: Any = None
    problem: Findings | None = None
    try:
        model = subject.load()
    except Findings as findings:
        problem = findings
    for each in ranks.all_gather_objects(problem):
        if each is not None:
            raise SharedFindings(each.diagnostics, fatal=True)
    return model


def _asking(request: EvaluationRequest, run: Run, questions: Questions) -> Asking:
    """Return how rows are asked; by default answers may be twice as long as the longest one."""
    longest = max(questions.ledger.answers, default=0) + 1
    return Asking(
        request.max_new_tokens or max(_FEWEST_TOKENS, 2 * longest),
        request.batch_size or run.evaluation.batch_size,
        Sampling(request.temperature, request.seed) if request.temperature else None,
        run.model.dtype == "bfloat16",
        request.engine,
    )


def _settings(
    subject: EvaluatedModel,
    run: Run,
    questions: Questions,
    kept: Sequence[int],
    asking: Asking,
) -> Mapping[str, Any]:
    """Return every setting that an answer depends on; the size of batches is none of them."""
    asked = {"asked": len(kept), "rows_xxh3": xxhash.xxh3_64_hexdigest(repr(kept).encode())}
    processor = questions.rows.processor
    template = str(processor.tokenizer.chat_template).encode("utf-8", "surrogatepass")
    return {
        "model": {"folder": str(subject.export.folder), "digest": subject.digest()},
        "rows": questions.identity() | asked,
        "max_new_tokens": asking.max_new_tokens,
        "sampling": asdict(asking.sampling) if asking.sampling else None,
        "engine": asking.engine,
        "dtype": run.model.dtype,
        "image": run.data.image.model_dump(mode="json") | {"backend": processor.backend},
        "chat_template_xxh3": xxhash.xxh3_64_hexdigest(template),
        "video": run.data.video.model_dump(mode="json"),
        "drop_model_inputs": list(run.data.drop_model_inputs),
    }


def _longest_first(questions: Questions, todo: Sequence[int]) -> list[int]:
    """Return rows with those of like length together, and the ones that need most memory first."""
    lengths = dict(zip(questions.ledger.kept, questions.ledger.lengths, strict=True))
    return sorted(todo, key=lambda index: (-lengths[index], index))
