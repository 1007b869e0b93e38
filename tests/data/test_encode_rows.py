"""Rows that are encoded together have the tokens, labels and findings of rows encoded alone."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.each_family import EACH_FAMILY
from vtool.config.load import load_run
from vtool.config.schema import Image, Model
from vtool.data.chat import IGNORED
from vtool.data.encode import Sample, encode_row, encode_rows
from vtool.data.row import Row
from vtool.data.tokens import texts_of_tokens, tokenize
from vtool.diagnostics import Findings
from vtool.models.processor import Processor, new_processor

CHATS = 2_000
PIECES = (
    *(
        "the cat ",
        "Größe ",
        "e\u0301 ",
        "猫が",
        "🐈‍⬛",
        "  ",
        "\n",
        "\t",
        "a",
        "1234",
        "<b>",
        "</b>",
    ),
    *("'s ", "… ", "<think>", "</think>", "\n\n", "\u00a0", "ﬁ", "{{x}}", "{% y %}", "<|im_end"),
)
_END = "<|im_end|>\n"
_TURN = "<|im_start|>{{ message['role'] }}\n"
_ASK = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
TEMPLATES = {
    "strips": "{% for message in messages %}" + _TURN + "{{ message['content'] | trim }}" + _END
    + "{% endfor %}" + _ASK,
    "forgets thoughts": "{% for message in messages %}" + _TURN + "{% if not loop.last and"
    " message['role'] == 'assistant' and '</think>' in message['content'] %}{{"
    " message['content'].split('</think>')[-1] }}{% else %}{{ message['content'] }}{% endif %}"
    + _END + "{% endfor %}" + _ASK,
    "refuses systems": "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system')"
    " }}{% endif %}{% for message in messages %}" + _TURN + "{{ message['content'] }}" + _END
    + "{% endfor %}" + _ASK,
    "counts turns": "{% for message in messages %}" + _TURN + "{{ messages|length }}: {{"
    " message['content'] }}" + _END + "{% endfor %}" + _ASK,
    "never ends an answer": "{% for message in messages %}" + _TURN + "{{ message['content'] }}\n"
    "{% endfor %}" + _ASK,
}  # fmt: skip


def words(chance: random.Random) -> str:
    return "".join(chance.choices(PIECES, k=chance.randrange(12)))


def chats(count: int, seed: int) -> list[Row]:
    """Rows of text of which most can be trained on, and many have something odd."""
    chance = random.Random(seed)
    return [Row(f"r{number}", list(_turns(chance)), []) for number in range(count)]


def _turns(chance: random.Random) -> Iterator[dict[str, Any]]:
    if chance.random() < 0.2:
        yield {"role": "system", "content": words(chance)}
    for _ in range(chance.randrange(1, 4)):
        if chance.random() < 0.97:
            yield {"role": "user", "content": _content(chance)}
        if chance.random() < 0.95:
            answer: dict[str, Any] = {"role": "assistant", "content": words(chance) or "yes"}
            if chance.random() < 0.1:
                answer["weight"] = 0
            if chance.random() < 0.05:
                answer["reasoning_content"] = "so"
            if chance.random() < 0.03:
                answer["content"] = chance.choice(("", " ", "<|im_end|>", "<|endoftext|>"))
            yield answer
    yield (
        {"role": "user", "content": "?"}
        if chance.random() < 0.1
        else {
            "role": "assistant",
            "content": words(chance) + ".",
        }
    )


def _content(chance: random.Random) -> Any:
    if chance.random() < 0.8:
        return words(chance)
    return [{"type": "text", "text": words(chance)} for _ in range(chance.randrange(1, 3))]


def alone(row: Row, processor: Processor) -> tuple[list[int], list[int]]:
    """The ids and labels of a row, by one call of transformers for each text, as its docs say."""
    tokenizer = processor.tokenizer

    def text(turns: int, prompt: bool) -> str:
        made: str = tokenizer.apply_chat_template(
            row.messages[:turns], tokenize=False, add_generation_prompt=prompt
        )
        return made

    end = tokenizer.convert_ids_to_tokens(processor.ids.end)
    whole, done = text(len(row.messages), False), 0
    ids: list[int] = []
    labels: list[int] = []
    for place, message in enumerate(row.messages):
        if message["role"] != "assistant" or message.get("weight") == 0:
            continue
        begin = len(text(place, True))
        stop = text(place + 1, False).rindex(end)
        asked = tokenizer(whole[done:begin], add_special_tokens=False).input_ids
        answer = tokenizer(whole[begin:stop], add_special_tokens=False).input_ids
        ids += [*asked, *answer, processor.ids.end]
        labels += [*[IGNORED] * len(asked), *answer, processor.ids.end]
        done = stop + len(end)
    rest = tokenizer(whole[done:], add_special_tokens=False).input_ids
    return [*ids, *rest], [*labels, *[IGNORED] * len(rest)]


def check_together(processor: Processor, count: int, seed: int) -> tuple[int, int]:
    """Compare rows that are encoded together with each alone; return the good and the refused."""
    made = chats(count, seed)
    good = refused = 0
    for begin in range(0, count, 256):
        group = list(enumerate(made[begin : begin + 256]))
        encoded = encode_rows(group, processor, SETTINGS)
        assert len(encoded) == len(group)
        for (index, row), together in zip(group, encoded, strict=True):
            if isinstance(together, Sample):
                good += 1
                ids, labels = alone(row, processor)
                assert together.index == index
                assert together.input_ids.tolist() == ids, row
                assert together.labels.tolist() == labels, row
                continue
            refused += 1
            assert isinstance(together, Findings), together
            with pytest.raises(Findings) as found:
                encode_row(row, index, processor, SETTINGS)
            assert together.diagnostics == found.value.diagnostics
    return good, refused


SETTINGS = load_run("digits", ()).run.data


def processor_of(family: str) -> Processor:
    return new_processor(Model(size="tiny", family=family), Image(), list(PIECES))


@pytest.mark.parametrize("count", [200, pytest.param(CHATS, marks=pytest.mark.full)])
@pytest.mark.parametrize("family", EACH_FAMILY)
def test_rows_of_every_family_are_the_same_together_and_alone(family: str, count: int) -> None:
    good, refused = check_together(processor_of(family), count, seed=1)
    assert good > count / 2
    assert refused > count / 100


@pytest.mark.parametrize("count", [200, pytest.param(CHATS, marks=pytest.mark.full)])
@pytest.mark.parametrize("name", TEMPLATES)
def test_rows_are_the_same_together_and_alone_whatever_the_template_does(
    name: str, count: int
) -> None:
    processor = processor_of("qwen2_5_vl")
    tokenizer = type(processor.tokenizer)(
        tokenizer_object=processor.tokenizer.backend_tokenizer, eos_token="<|im_end|>"
    )
    tokenizer.chat_template = TEMPLATES[name]
    good, refused = check_together(replace(processor, tokenizer=tokenizer), count, seed=2)
    assert good + refused == count
    assert refused


def test_a_class_that_tokenizes_in_its_own_way_is_asked_for_each_text() -> None:
    processor = processor_of("qwen2_5_vl")

    class Own(type(processor.tokenizer)):  # type: ignore[misc]
        """After a digit everything is another token, as in no library."""

        def _encode_plus(self, text: Any, *args: Any, **more: Any) -> Any:
            changed = text.replace("1", "one ") if isinstance(text, str) else text
            return super()._encode_plus(changed, *args, **more)

        def _decode(self, *args: Any, **more: Any) -> str:
            return str(super()._decode(*args, **more)).replace("one ", "1")

    own = Own(tokenizer_object=processor.tokenizer.backend_tokenizer, eos_token="<|im_end|>")
    texts = ["a cat", "1 cat", "the 1", "…"]
    ids = [own(text, add_special_tokens=False).input_ids for text in texts]
    assert tokenize(own, texts) == ids
    assert ids[1] != processor.tokenizer("1 cat", add_special_tokens=False).input_ids
    assert texts_of_tokens(own, ids) == [own.decode(one) for one in ids]
    assert "1" in texts_of_tokens(own, ids)[1]


def test_a_tokenizer_that_is_set_to_truncate_or_pad_is_called_for_each_text() -> None:
    processor = processor_of("qwen2_5_vl")
    tokenizer = processor.tokenizer
    texts = ["a cat", "the cat the cat the cat", "a", ""]
    ids = [tokenizer(text, add_special_tokens=False).input_ids for text in texts]
    tokenizer(texts, padding="max_length", truncation=True, max_length=3)
    assert tokenize(tokenizer, texts) == ids
    assert tokenize(tokenizer, []) == []
    assert texts_of_tokens(tokenizer, []) == []


def test_of_a_template_that_takes_too_long_nothing_else_is_rendered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from vtool import template_renderer as template_limits

    processor = processor_of("qwen2_5_vl")
    tokenizer = type(processor.tokenizer)(
        tokenizer_object=processor.tokenizer.backend_tokenizer, eos_token="<|im_end|>"
    )
    tokenizer.chat_template = (
        "{% if messages[0]['content'] == 'slow' %}{% for a in range(10000) %}{% for b in"
        " range(10000) %}{% endfor %}{% endfor %}{% endif %}" + TEMPLATES["strips"]
    )
    monkeypatch.setattr(template_limits, "_SECONDS", 0.2)

    def row(text: str) -> Row:
        turns = (("user", text), ("assistant", "yes"))
        return Row(text, [{"role": role, "content": words} for role, words in turns], [])

    rows: Sequence[Row] = [row(text) for text in ("a", "b", "slow", "c")]
    made = encode_rows(list(enumerate(rows)), replace(processor, tokenizer=tokenizer), SETTINGS)
    assert [type(one) for one in made] == [Sample, Sample, Findings]
    assert isinstance(made[2], Findings)
    assert made[2].diagnostics[0].rule == "template-too-costly"
    assert made[2].diagnostics[0].message.startswith("slow: ")


def test_texts_of_any_size_are_tokenized_in_pieces_and_in_their_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizer = processor_of("qwen2_5_vl").tokenizer
    monkeypatch.setattr("vtool.data.tokens._AT_ONCE", 40)
    chance = random.Random(3)
    for _ in range(40):
        texts = [words(chance) * chance.randrange(9) for _ in range(chance.randrange(30))]
        ids = [tokenizer(text, add_special_tokens=False).input_ids for text in texts]
        assert tokenize(tokenizer, texts) == ids


def row_of(*turns: str, **more: Any) -> Row:
    roles = ("user", "assistant") * len(turns)
    messages = [{"role": role, "content": said} for role, said in zip(roles, turns, strict=False)]
    return Row(turns[0], messages, [], **more)


def with_template(processor: Processor, template: str) -> Processor:
    tokenizer = type(processor.tokenizer)(
        tokenizer_object=processor.tokenizer.backend_tokenizer, eos_token="<|im_end|>"
    )
    tokenizer.chat_template = template
    return replace(processor, tokenizer=tokenizer)


@pytest.mark.parametrize("turns", [("a", "yes"), ("a", "yes", "b"), ("a", "yes", "b", "no")])
def test_an_empty_list_of_tools_is_none_however_many_rows_there_are(turns: tuple[str, ...]) -> None:
    """Llama's templates ask if tools are none, and an empty list is not."""
    template = "{% if tools is not none %}ipython{% endif %}" + TEMPLATES["strips"]
    processor = with_template(processor_of("qwen2_5_vl"), template)
    empty, without = row_of(*turns, tools=[]), row_of(*turns)
    wanted = encode_row(without, 0, processor, SETTINGS).input_ids.tolist()
    assert encode_row(empty, 0, processor, SETTINGS).input_ids.tolist() == wanted
    for one in encode_rows([(0, empty), (1, without), (2, empty)], processor, SETTINGS):
        assert isinstance(one, Sample)
        assert one.input_ids.tolist() == wanted


def test_a_text_that_the_tokenizer_refuses_is_a_finding_of_its_row_alone() -> None:
    processor = processor_of("qwen2_5_vl")
    rows = [row_of("a", "yes"), row_of("half \ud800", "yes"), row_of("b", "no")]
    made = encode_rows(list(enumerate(rows)), processor, SETTINGS)
    assert [type(one) for one in made] == [Sample, TypeError, Sample]


def test_memory_that_runs_out_is_no_fault_of_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    processor = with_template(processor_of("qwen2_5_vl"), TEMPLATES["strips"])

    def full(*_: Any, **__: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(processor.tokenizer, "apply_chat_template", full)
    with pytest.raises(MemoryError):
        encode_rows([(0, row_of("a", "yes")), (1, row_of("b", "no"))], processor, SETTINGS)


READS_IT = "{% if enable_thinking is defined and not enable_thinking %}ab{% endif %}"
READS_IT += TEMPLATES["strips"]


@pytest.mark.parametrize("value", [True, False])
def test_enable_thinking_of_a_row_is_an_argument_of_the_template_that_reads_it(
    value: bool,
) -> None:
    run = load_run("digits").run
    processor = new_processor(run.model, run.data.image, ["ab"], run.data.video)
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    row = Row("r", messages, [], thinking=value)
    (plain, known) = encode_rows([(0, replace(row, thinking=None)), (1, row)], processor, run.data)
    assert isinstance(plain, Sample)
    assert isinstance(known, Sample), "a template that does not read it writes the same"
    assert plain.input_ids.tolist() == known.input_ids.tolist()
    processor.tokenizer.chat_template = READS_IT
    both = encode_rows([(0, replace(row, thinking=None)), (1, row)], processor, run.data)
    texts = [processor.tokenizer.decode(one.input_ids) for one in both if isinstance(one, Sample)]
    assert len(texts) == 2
    assert [text.startswith("ab") for text in texts] == [False, not value]
