"""Answers within the ids of a row, found by the marks that the chat template puts around them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vtool.model_folder import TOKENIZER, TOKENIZER_CONFIG, ModelFolder

_ASKED, _ANSWERED = ("Qxvq", "Wjmz"), ("Zkyw", "Hbpf")


@dataclass(frozen=True, slots=True)
class AnswerTokens:
    """The tokens of one answer: `ids[begin:end]`, its end token the last, if it is there."""

    begin: int
    end: int
    ended: bool


@dataclass(frozen=True, slots=True)
class Turns:
    """The ids before an answer, and the token after it."""

    header: tuple[int, ...]
    end: int
    tokenizer: Any
    """A `tokenizers.Tokenizer`."""

    def answers(self, ids: Sequence[int]) -> list[AnswerTokens]:
        """Return the answers in a row, in order."""
        found, at, size = [], 0, len(self.header)
        while at + size <= len(ids):
            if tuple(ids[at : at + size]) != self.header:
                at += 1
                continue
            begin = at + size
            while begin < len(ids) and not self.text(ids[begin : begin + 1]).strip():
                begin += 1  # line ends after the header
            end = begin
            while end < len(ids) and ids[end] != self.end:
                end += 1
            ended = end < len(ids)
            if end > begin or ended:
                found.append(AnswerTokens(begin, end + ended, ended))
            at = max(end, at + 1)
        return found

    def text(self, ids: Sequence[int]) -> str:
        """Return the text of some tokens, marks included."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))


def load_tokenizer(folder: Path) -> Any | None:
    """Return the `tokenizers.Tokenizer` of a model's folder, or None where it has none."""
    from tokenizers import Tokenizer

    file = folder / TOKENIZER
    try:
        return Tokenizer.from_file(str(file)) if file.is_file() else None
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # plain Exception for a file that it cannot read, and some panic
        return None


def find_turns(folder: Path) -> Turns | str:
    """Return how the chat template of a folder marks answers, or why that is not known."""
    tokenizer = load_tokenizer(folder)
    if tokenizer is None:
        return f"there is no {TOKENIZER} in {folder} that can be read"
    template = next(iter(ModelFolder(folder).templates.values()), None)
    if template is None:
        return f"{folder} has no chat template"
    why = "the chat template does not keep turns in order"
    for in_parts in (False, True):  # some templates of vision models take lists of parts alone
        try:
            text = _render(template, folder, in_parts)
        except Exception as error:  # a template may raise anything
            why = f"the chat template cannot be rendered: {error}"
            continue
        places = [text.find(word) for word in (_ASKED[0], _ANSWERED[0], _ASKED[1], _ANSWERED[1])]
        if -1 not in places and places == sorted(places):
            return _marks(tokenizer, text, places)
    return why


def _marks(tokenizer: Any, text: str, places: Sequence[int]) -> Turns | str:
    """Return the marks between two questions and their answers at some places of a text."""
    before = text[places[0] + len(_ASKED[0]) : places[1]]
    after = text[places[1] + len(_ANSWERED[0]) : places[2]]
    special = set(tokenizer.get_added_tokens_decoder())
    header = _ids(tokenizer, before.rstrip())
    marks = [at for at, token in enumerate(header) if token in special]
    behind = next(iter(_ids(tokenizer, after.strip())), None)
    if not marks or behind is None or behind not in special:
        return "the chat template marks turns by plain text"
    return Turns(tuple(header[marks[-1] :]), behind, tokenizer)


def _ids(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


def _render(template: str, folder: Path, in_parts: bool) -> str:
    from vtool.template_renderer import LimitedRendering

    messages = [
        {"role": role, "content": [{"type": "text", "text": text}] if in_parts else text}
        for asked, answered in zip(_ASKED, _ANSWERED, strict=True)
        for role, text in (("user", asked), ("assistant", answered))
    ]
    named: dict[str, Any] = {}
    for token in ("bos_token", "eos_token", "pad_token", "unk_token"):
        named[token] = _token(folder, token)
    return LimitedRendering(template).render(
        messages=messages, add_generation_prompt=False, tools=None, documents=None, **named
    )


def _token(folder: Path, name: str) -> str:
    found = (ModelFolder(folder).settings(TOKENIZER_CONFIG) or {}).get(name)
    found = found.get("content") if isinstance(found, dict) else found
    return found if isinstance(found, str) else ""
