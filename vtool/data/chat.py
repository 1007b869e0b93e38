"""Render a chat and find what is supervised: the assistant's answers and the token that ends each, nothing else."""

from collections.abc import Sequence
from dataclasses import dataclass

from jinja2 import TemplateError

from vtool.data.row import Row, refuse
from vtool.models.processor import Processor

IGNORED = -100


@dataclass(frozen=True, slots=True)
class Chat:
    """A chat as token ids, with one image token for each image, before expansion."""

    ids: tuple[int, ...]
    labels: tuple[int, ...]
    turns: tuple[str, ...]
    """The supervised text of each assistant turn."""


def render_chat(row: Row, processor: Processor) -> Chat:
    """Tokenize a chat piece by piece: each answer by itself, so that the prompt before it has the very tokens of inference.

    Where an answer begins is read off the chat template itself: the chat so far, rendered as a prompt, must be how the whole
    chat's text begins.

    Raises:
        Findings: `no-assistant-turn`, `malformed-messages`, `unstable-template`, `end-token-unsupervised`.
    """
    tokenizer, end = processor.tokenizer, processor.ids.end
    end_text = tokenizer.convert_ids_to_tokens(end)
    if row.messages[0]["role"] == "assistant":
        raise refuse("malformed-messages", f"{row.id}: the first turn is the assistant's, so that it answers nothing", row.origin)
    whole = _render(row, len(row.messages), processor, prompt=False)
    ids: list[int] = []
    labels: list[int] = []
    turns: list[str] = []
    done = 0
    for place, message in enumerate(row.messages):
        if message["role"] != "assistant":
            continue
        before = _render(row, place, processor, prompt=True)
        after = whole if place + 1 == len(row.messages) else _render(row, place + 1, processor, prompt=False)
        if not whole.startswith(before) or not whole.startswith(after):
            raise refuse(
                "unstable-template", f"{row.id}: the template renders turn {place + 1} differently within the whole chat", row.origin
            )
        answer, found, _ = after[len(before) :].rpartition(end_text)
        if not found:
            raise refuse("end-token-unsupervised", f"{row.id}: the template does not close turn {place + 1} with {end_text}", row.origin)
        if not answer.strip():
            raise refuse("no-assistant-turn", f"{row.id}: the assistant's turn {place + 1} is empty", row.origin)
        prompt_ids = _tokenize(tokenizer, whole[done : len(before)])
        answer_ids = [*_tokenize(tokenizer, answer), end]
        ids += prompt_ids + answer_ids
        labels += [IGNORED] * len(prompt_ids) + answer_ids
        turns.append(answer + end_text)
        done = len(before) + len(answer) + len(end_text)
    if not turns:
        raise refuse("no-assistant-turn", f"{row.id}: there is no assistant turn", row.origin)
    rest = _tokenize(tokenizer, whole[done:])
    return Chat((*ids, *rest), (*labels, *([IGNORED] * len(rest))), tuple(turns))


def render_prompt(row: Row, processor: Processor) -> tuple[tuple[int, ...], str]:
    """The token ids before a chat's last assistant turn, and that turn's text: what the model is asked, and the reference."""
    last = max(place for place, message in enumerate(row.messages) if message["role"] == "assistant")
    before = _render(row, last, processor, prompt=True)
    after = _render(row, last + 1, processor, prompt=False)
    reference = after[len(before) :].rpartition(processor.tokenizer.convert_ids_to_tokens(processor.ids.end))[0]
    return tuple(_tokenize(processor.tokenizer, before)), reference


def control_tokens_in(row: Row, processor: Processor) -> list[str]:
    """The tokenizer's control tokens that the messages' own text contains."""
    texts = list(row.texts())
    return [token for token in processor.tokenizer.all_special_tokens if any(token in text for text in texts)]


def _render(row: Row, turns: int, processor: Processor, *, prompt: bool) -> str:
    try:
        text: str = processor.tokenizer.apply_chat_template(
            row.messages[:turns], tools=row.tools, tokenize=False, add_generation_prompt=prompt
        )
    except TemplateError as error:
        raise refuse("malformed-messages", f"{row.id}: the chat template refuses these messages: {error}", row.origin) from error
    return text


def _tokenize(tokenizer: object, text: str) -> list[int]:
    encoded: Sequence[int] = tokenizer(text, add_special_tokens=False).input_ids  # type: ignore[operator]
    return list(encoded)
