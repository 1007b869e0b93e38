"""A model that is asked: its processor first, which finds what is wrong, and then its weights."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vtool.config.schema import Data
from vtool.data.collate import collate_prompts
from vtool.data.encode import Prompt, encode_question
from vtool.data.row import Row
from vtool.data.vocabulary import beyond_vocabulary
from vtool.devices import device_kind, kind_here
from vtool.diagnostics import Diagnostic, Findings
from vtool.evaluation.subject import EvaluatedModel
from vtool.model_folder import ModelFolder
from vtool.models.answers import answer_length
from vtool.models.generate import generate_tokens, shown_answer
from vtool.models.pictures import PictureReader
from vtool.models.processor import Processor, load_processor


@dataclass(frozen=True, slots=True)
class GreedyAnswer:
    """A model's greedy answer."""

    text: str
    tokens: int
    stopped: bool
    """True if it ended before the model has ended it."""


@dataclass(frozen=True, slots=True)
class PromptReader:
    """Makes prompts of chats, as the model's run did; the weights are not there yet."""

    subject: EvaluatedModel
    processor: Processor
    dropped: tuple[str, ...]
    """Inputs that the model was trained without."""
    positions: int | None
    """The most tokens of a chat that the model has positions for, where its config says so."""

    @classmethod
    def of(cls, subject: EvaluatedModel, data: Data | None = None) -> "PromptReader":
        """Load a model's processor.

        Args:
            subject: the model.
            data: how images and videos are read; None: as its run did, or as its folder says.

        Raises:
            Findings: `model-does-not-load`.
        """
        export, run = subject.export, subject.run
        if data is not None:
            processor = subject.processor(data)
        else:
            processor = load_processor(export.folder, export.family, config_of=export.base)
            data = run.data if run else None
            if data is not None:
                processor = replace(processor, pictures=PictureReader.of(data.image))
        dropped = tuple(data.drop_model_inputs) if data else ()
        return cls(subject, processor, dropped, positions_of(export.base))

    def prompt(self, row: Row) -> Prompt:
        """Encode a chat that waits for an answer.

        Raises:
            Findings: what is wrong with its texts and files (VT6xx); `beyond-context`,
                `token-without-embedding`.
        """
        prompt = encode_question(row, self.processor)
        tokens = len(prompt.input_ids)
        if self.positions is not None and tokens >= self.positions:
            message = f"{row.id} has {tokens} tokens, and the model takes {self.positions}"
            raise Findings(Diagnostic("beyond-context", message, origin=row.origin))
        if beyond := beyond_vocabulary(row.id, self.processor, [prompt]):
            raise Findings(beyond)
        return prompt

    def load(self) -> "Asker":
        """Load the model, on the device that its run's settings say, or that is there.

        Raises:
            Findings: `model-does-not-load`, `modeling-changed`.
        """
        run = self.subject.run
        device = torch.device(device_kind(run) if run else kind_here())
        return Asker(self, self.subject.load().to(device), device)


@dataclass(frozen=True, slots=True)
class Asker:
    """A model with its weights."""

    reader: PromptReader
    model: Any
    device: torch.device

    @property
    def at_once(self) -> bool:
        """True if prompts can be asked in one batch.

        Without a mask, padding would be read; and its token may have no row in the embedding.
        """
        processor, heeds = self.reader.processor, getattr(self.model, "heeds_masks", True)
        padded = processor.vocabulary is None or processor.ids.pad < processor.vocabulary
        return padded and heeds and "attention_mask" not in self.reader.dropped

    def answer(
        self,
        prompts: Sequence[Prompt],
        max_new_tokens: int,
        say: Callable[[str], object] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> list[GreedyAnswer]:
        """Answer prompts greedily.

        Args:
            prompts: of the reader.
            max_new_tokens: the longest answer; less where the model has no positions for it.
            say: is given the text of a single answer, piece by piece.
            stop: asked after each token; the answer ends where it returns true.
        """
        processor = self.reader.processor
        if self.reader.positions is not None:
            longest = max(len(prompt.input_ids) for prompt in prompts)
            max_new_tokens = min(max_new_tokens, self.reader.positions - longest)
        collated = collate_prompts(prompts, processor, self.reader.dropped)
        inputs = {name: tensor.to(self.device) for name, tensor in collated.items()}
        streamer = _streamer(processor.tokenizer, say) if say else None
        with torch.inference_mode():
            made = generate_tokens(
                self.model, processor, inputs, max_new_tokens, (), streamer, stop
            )
        return [_answer(row, processor) for row in made.cpu()]


def _answer(tokens: Tensor, processor: Processor) -> GreedyAnswer:
    ids = tokens.tolist()
    length = answer_length(ids, processor)
    text = shown_answer(processor.tokenizer, ids).strip()
    return GreedyAnswer(text, len(ids) if length is None else length, length is None)


def _streamer(tokenizer: Any, say: Callable[[str], object]) -> Any:
    """Return a streamer that passes on the text of an answer once no later token can change it."""
    from transformers import TextStreamer

    streamer = TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    streamer.on_finalized_text = lambda text, stream_end=False: say(text)
    return streamer


def positions_of(folder: Path) -> int | None:
    """Return the positions that the config of a model's folder names, if it does."""
    try:
        config = ModelFolder(folder).config
        text = config.get("text_config") or config
        return int(text["max_position_embeddings"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
