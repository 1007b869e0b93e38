"""Asking a model every row of a split, in batches: answers, confidence and NLL."""

import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import torch

from vtool.data.chat import IGNORED
from vtool.data.collate import collate_prompts
from vtool.data.encode import Prompt, Sample
from vtool.data.loader import EncodedRows, MicroBatch
from vtool.data.loss import scores_by_row
from vtool.data.row import texts_of
from vtool.evaluation.evaluate import asked_at_once, chunks
from vtool.models.answers import Generated, Sampling, generate_answers


@dataclass(frozen=True, slots=True)
class AskedRow:
    """A row with the model's answer: a line of predictions.jsonl."""

    index: int
    row: str
    question: str
    reference: str
    answer: str
    tokens: int
    """Tokens of the answer, its end token included."""
    stopped: bool
    """The answer had reached the longest that was asked for."""
    confidence: float | None
    """The geometric mean of the probabilities of the answer's tokens; None: not a number."""
    nll: float | None
    """Σ −log p of the row's supervised tokens; None: not a number."""
    supervised: int
    """The number of these."""
    source: str
    images: tuple[str, ...] = ()
    earlier_answers: int | None = None
    """The row's other answers to learn, which are before this one, and are not asked for."""

    def as_dict(self) -> dict[str, Any]:
        """Return the line's keys and values; those that say nothing are left out."""
        return {
            key: value
            for key, value in asdict(self).items()
            if value not in (None, ()) or key in ("nll", "confidence")
        }


@dataclass(frozen=True, slots=True)
class Asking:
    """The way in which rows are asked."""

    max_new_tokens: int
    batch_size: int
    sampling: Sampling | None = None
    bfloat16: bool = False
    engine: str | None = None
    """`vllm`, or None: transformers' generation."""

    def in_words(self) -> str:
        """Return how answers are chosen, and how long they may be."""
        how = "greedy"
        if self.sampling:
            how = f"sampled at temperature {self.sampling.temperature:g}, seed {self.sampling.seed}"
        by = ", by vLLM" if self.engine else ""
        return f"{how}, at most {self.max_new_tokens} tokens{by}"


def ask_rows(
    model: Any, rows: EncodedRows, order: Sequence[int], asking: Asking
) -> Iterator[list[AskedRow]]:
    """Yield the answers to rows, a batch after the other.

    Args:
        model: in evaluation mode, on its device.
        rows: of a split.
        order: the rows to ask.
        asking: how.
    """
    device = next(model.parameters()).device
    cast = torch.autocast(device.type, torch.bfloat16) if asking.bfloat16 else nullcontext()
    for batch in chunks(order, asked_at_once(model, rows, asking.batch_size)):
        with torch.inference_mode(), cast:
            yield _ask(model, rows, batch, asking, device)


def prompt_of(rows: EncodedRows, sample: Sample) -> Prompt:
    """Return a row's prompt: cut off its sample where it has one answer, so that it is read once.

    Whatever comes behind that answer's beginning must show no image, or the prompt is its own.
    """
    labelled = (sample.labels != IGNORED).nonzero().flatten()
    ids = rows.processor.ids
    if len(sample.turns) == 1 and not sample.truncated and len(labelled):
        begin = int(labelled[0])
        behind = set(sample.input_ids[begin:].tolist())
        if not behind & {ids.image, ids.video}:
            reference = sample.turns[-1].text.removesuffix(sample.turns[-1].end)
            return Prompt(sample.index, sample.input_ids[:begin], sample.visuals, reference)
    return rows.prompt(sample.index)


def _ask(
    model: Any,
    rows: EncodedRows,
    batch: Sequence[int],
    asking: Asking,
    device: torch.device,
) -> list[AskedRow]:
    processor = rows.processor
    samples = [rows.sample(index) for index in batch]
    prompts = [prompt_of(rows, sample) for sample in samples]
    collated = collate_prompts(prompts, processor, rows.settings.drop_model_inputs)
    inputs = {name: tensor.to(device) for name, tensor in collated.items()}
    answers = generate_answers(
        model, processor, inputs, asking.max_new_tokens, batch, asking.sampling
    )
    nll = dict(zip(batch, map(_known_nll, samples, answers), strict=True))
    rest = [index for index, value in nll.items() if value is None]
    if rest:
        scored, _, _ = scores_by_row(model, rows[MicroBatch(tuple(rest))].to(device))
        nll |= dict(zip(rest, scored.double().tolist(), strict=True))
    return [
        asked_row(
            rows,
            prompt,
            answer.text,
            len(answer.ids),
            answer.stopped,
            math.exp(-answer.nll / len(answer.ids)),
            nll[prompt.index],
            sample.supervised,
        )
        for prompt, sample, answer in zip(prompts, samples, answers, strict=True)
    ]


def _known_nll(sample: Sample, answer: Generated) -> float | None:
    """Return a row's NLL where generating its answer has computed it; else None.

    That is so where the answer has the very tokens that are supervised: the numbers are those of
    the same positions behind the same tokens.
    """
    wanted = sample.labels[sample.labels != IGNORED].tolist()
    return answer.nll if len(sample.turns) == 1 and list(answer.ids) == wanted else None


def asked_row(
    rows: EncodedRows,
    prompt: Prompt,
    answer: str,
    tokens: int,
    stopped: bool,
    confidence: float | None,
    nll: float | None,
    supervised: int,
) -> AskedRow:
    """Return the line of a row that was answered."""
    reader, _ = rows.rows.find(prompt.index)
    row = rows.rows.row(prompt.index)
    question = [message for message in row.messages if message["role"] == "user"][-1:]
    number = rows.rows.readers.index(reader)
    return AskedRow(
        prompt.index,
        row.id,
        " ".join(text for message in question for text in texts_of(message)),
        prompt.reference,
        answer,
        tokens,
        stopped,
        confidence if confidence is not None and math.isfinite(confidence) else None,
        nll if nll is not None and math.isfinite(nll) else None,
        supervised,
        rows.rows.names[number] if number < len(rows.rows.names) else "",
        tuple(one for one in row.images if isinstance(one, str) and not one.startswith("data:")),
        len(list(row.supervised())[1:]) or None,
    )
