"""TRL's published templates by published tokenizers: what is learnt is what inference would write.

Against an independent computation: transformers' own renderings of the prompt and of the chat, and
of both the tokens. `make real-env` fetches the tokenizers; TRL is of `make .venv/installed-bench`.
"""

import random
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from tests.models.templates import (
    OneRow,
    byte_tokenizer,
    keeping_thoughts,
    processor_of,
    real_tokenizer,
    without_prompt,
)
from vtool.data.chat import IGNORED, render_chat
from vtool.data.row import Row
from vtool.data.turns import EachAnswer
from vtool.diagnostics import Findings
from vtool.models.chat_template import learnt_role
from vtool.models.processor import Processor

pytestmark = pytest.mark.full
CHATS = 200
_QWEN = ("<|im_end|>",)
_GLM = ("<|endoftext|>", "<|user|>", "<|observation|>")
_OFF = {"enable_thinking": False}
CASES: tuple[tuple[str, str, tuple[str, ...], dict[str, Any], bool], ...] = (
    *((name, "qwen3", _QWEN, {}, False) for name in ("qwen2_5", "qwen2_5_vl", "qwen3_vl")),
    *((f"{name}_training", "qwen3", _QWEN, {}, False) for name in ("qwen2_5_vl", "qwen3_vl")),
    *((name, "qwen3", _QWEN, {}, True) for name in ("qwen3_5_think", "qwen3_6", "qwen3_8")),
    *((name, "qwen3", _QWEN, _OFF, False) for name in ("qwen3_5_think", "qwen3_6", "qwen3_8")),
    *((f"{name}_training", "qwen3", _QWEN, {}, True) for name in ("qwen3_5_think", "qwen3_6")),
    *((name, "qwen3", _QWEN, {}, False) for name in ("qwen3_5_nothink", "qwen3_instruct_2507")),
    ("glm4moe", "", _GLM, {}, True),
    ("glm4moe", "", _GLM, _OFF, False),
    ("gemma3", "gemma3", ("<eos>", "<end_of_turn>"), {}, False),
    ("gemma3_training", "gemma3", ("<eos>", "<end_of_turn>"), {}, False),
    ("llama3", "llama3", ("<|eot_id|>",), {}, False),
    *((name, "", ("<end_of_utterance>",), {}, False) for name in ("smolvlm", "idefics3")),
    ("lfm2_2_5_vl", "", _QWEN, {}, False),
    ("phi3", "", ("<|end|>",), {}, False),
)
"""Template, tokenizer ("": bytes), where inference stops, arguments, if answers have thoughts."""
_TEXT_ONLY = ("qwen2_5", "llama3", "phi3")
_PARTS_ONLY = ("smolvlm", "idefics3")
_WORDS = (
    *("red", "What is it?", "  two spaces before", "after  ", "a\n\nb", "```py\nx = [1]\n```"),
    *(
        "🎉👩‍👩‍👧",
        "日本語のテキスト",
        "שלום עולם",
        "naïve café",
        "1. one\n2. two",
        "<b>bold</b>",
        "$x^2$",
    ),
)


@cache
def templates() -> Path:
    trl = pytest.importorskip("trl")
    return Path(trl.__file__).parent / "chat_templates"


def texts(draw: random.Random) -> str:
    return draw.choice((" ", "\n", "")).join(draw.choices(_WORDS, k=draw.randint(1, 4)))


def chats(
    seed: int, thoughts: bool, parts: bool, pictures: bool = True
) -> Iterator[list[dict[str, Any]]]:
    """Chats of up to four turns, with a system's, pictures, and thoughts."""
    draw = random.Random(seed)
    for _ in range(CHATS):
        made: list[dict[str, Any]] = []
        if draw.random() < 0.3:
            made.append({"role": "system", "content": texts(draw)})
        for _ in range(draw.randint(1, 4)):
            asked: Any = texts(draw)
            if pictures and (draw.random() < 0.5 or parts):
                pieces = [{"type": "image"}, {"type": "text", "text": asked}]
                draw.shuffle(pieces)
                asked = [*pieces, {"type": "text", "text": texts(draw)}]
            made.append({"role": "user", "content": asked})
            said = {"role": "assistant", "content": texts(draw).strip()}
            if thoughts:
                said["reasoning_content"] = texts(draw).strip()
            made.append(said)
        yield made


def expected(
    processor: Processor, chat: Sequence[dict[str, Any]], place: int, parts: bool
) -> tuple[list[int], str]:
    """The prompt's tokens, and what inference would write then, by transformers alone."""
    given = [
        {**one, "content": [{"type": "text", "text": one["content"]}]}
        if parts and isinstance(one["content"], str)
        else one
        for one in chat
    ]
    write = processor.tokenizer.apply_chat_template
    prompt = write(given[:place], tokenize=False, add_generation_prompt=True)
    whole = write(given[: place + 1], tokenize=False)
    assert whole.startswith(prompt)
    rest = whole[len(prompt) :]
    ends = [rest.find(stop) + len(stop) for stop in processor.stop_texts if stop in rest]
    answer = rest[: min(ends)] if ends else rest + processor.form.closing
    return processor.tokenizer(prompt, add_special_tokens=False).input_ids, answer


@pytest.mark.parametrize(("name", "tokenizer", "stops", "arguments", "thoughts"), CASES)
def test_what_is_learnt_is_what_inference_would_write(
    name: str, tokenizer: str, stops: tuple[str, ...], arguments: dict[str, Any], thoughts: bool
) -> None:
    text = (templates() / f"{name}.jinja").read_text()
    for own in filter(None, (tokenizer, "bytes")):
        made = byte_tokenizer() if own == "bytes" else real_tokenizer(own)
        if made is None:
            pytest.skip("not run: there is no published tokenizer (make real-env)")
        made.add_tokens([one for one in stops if one not in made.get_vocab()], special_tokens=True)
        processor = processor_of(text, made, arguments, stops)
        parts = name in _PARTS_ONLY
        learnt = 0
        for chat in chats(sum(map(ord, name)), thoughts, parts, name not in _TEXT_ONLY):
            reader = EachAnswer.of(OneRow(chat), processor.form)
            for index in range(len(reader)):
                row = reader.row(index)
                found = render_chat(row, processor)
                places = list(row.supervised())
                runs, at = [], 0
                for is_label, group in groupby(found.labels, lambda one: one != IGNORED):
                    size = len(list(group))
                    runs += [(at, at + size)] if is_label else []
                    at += size
                assert len(runs) == len(places)
                for (begin, end), place in zip(runs, places, strict=True):
                    prompt, answer = expected(processor, list(row.messages), place, parts)
                    if place == places[0]:
                        assert list(found.ids[:begin]) == prompt, (own, chat)
                    written = made.decode(found.ids[begin:end], skip_special_tokens=False)
                    assert written == answer, (own, chat)
                    learnt += 1
        assert learnt >= CHATS


@pytest.mark.parametrize("name", ["qwen3_5_think", "qwen3_6", "qwen3_8", "glm4moe"])
def test_a_wrong_argument_is_a_finding_of_each_row(name: str) -> None:
    """Thoughts are rendered for a server that leaves them out: the prompt is not inference's."""
    text = (templates() / f"{name}.jinja").read_text()
    processor = processor_of(text, byte_tokenizer(), _OFF, _GLM if name == "glm4moe" else _QWEN)
    for chat in chats(1, True, False):
        with pytest.raises(Findings) as caught:
            render_chat(EachAnswer.of(OneRow(chat), None).row(0), processor)
        assert caught.value.diagnostics[0].rule == "prompt-differs"


_FAMILIES = {
    **dict.fromkeys(("qwen2_5_vl", "qwen3_vl", "qwen3_5_think", "qwen3_5_nothink"), _QWEN),
    **dict.fromkeys(("qwen3_6", "qwen3_8"), _QWEN),
    "glm4moe": _GLM,
    "gemma3": ("<eos>", "<end_of_turn>"),
    "smolvlm": ("<end_of_utterance>",),
}


@pytest.mark.parametrize("name", _FAMILIES)
def test_faults_planted_into_a_published_template_are_errors(name: str, tmp_path: Path) -> None:
    text = (templates() / f"{name}.jinja").read_text()
    stops, parts = _FAMILIES[name], name in _PARTS_ONLY

    def made(template: str) -> Processor:
        return processor_of(template, byte_tokenizer(), None, stops)

    assert learnt_role(made(text).form, tmp_path) == ()
    (finding,) = learnt_role(made(without_prompt(text)).form, tmp_path)
    assert (finding.rule, finding.severity) == ("prompt-supervised", "error")
    unended = text.replace(stops[-1] if name != "glm4moe" else "<|user|>", "")
    chat = next(chats(3, False, parts, name not in _TEXT_ONLY))
    with pytest.raises(Findings) as caught:
        render_chat(EachAnswer.of(OneRow(chat), None).row(0), made(unended))
    assert caught.value.diagnostics[0].rule in ("end-token-unsupervised", "prompt-differs")
    if (kept := keeping_thoughts(text)) != text and name not in ("qwen3_5_nothink", "qwen3_8"):
        two = next(one for one in chats(1, True, False) if len(one) > 3 and len(one) % 2 == 0)
        with pytest.raises(Findings) as caught:
            render_chat(Row("r", two, []), made(kept))
        assert caught.value.diagnostics[0].rule == "prompt-differs"
