"""Small chat templates of the kinds that are published, and processors that have them.

The published ones come with TRL; these have their rules in a few lines.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from vtool.data.row import Row
from vtool.families.tokens import TokenIds
from vtool.models.chat_template import find_form
from vtool.models.chosen_template import with_arguments
from vtool.models.processor import Processor

_CONTENT = (
    "{% macro write(content) %}{% if content is string %}{{ content }}{% else %}"
    "{% for part in content %}{{ part.text if part.type == 'text' else '<image>' }}{% endfor %}"
    "{% endif %}{% endmacro %}"
)
_SPLIT = (
    "{% set thought = m.reasoning_content or '' %}{% set said = write(m.content) %}"
    "{% if not thought and '</think>' in said %}"
    "{% set thought = said.split('</think>')[0].split('<think>')[-1].strip('\n') %}"
    "{% set said = said.split('</think>')[-1].lstrip('\n') %}{% endif %}"
)
_LAST = (
    "{% set ns = namespace(last=0) %}{% for m in messages %}"
    "{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
)
_OPEN = (
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n"
    "{% else %}<think>\n{% endif %}{% endif %}"
)
TEMPLATES = {
    "qwen2_5": _CONTENT + "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ write(m.content) }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    # earlier answers are written without their thoughts, as Qwen3.5's does
    "qwen3_5": _CONTENT + _LAST + "{% for m in messages %}" + _SPLIT + "<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.index0 > ns.last %}<think>\n{{ thought }}\n</think>\n\n"
    "{% endif %}{{ said }}<|im_end|>\n{% endfor %}" + _OPEN,
    # a thought in the content stays there, behind an empty one, as in Qwen3.8's
    "qwen3_8": _CONTENT + "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}<think>\n{{ m.reasoning_content or '' }}\n</think>\n\n"
    "{% endif %}"
    "{{ write(m.content) }}<|im_end|>\n{% endfor %}" + _OPEN,
    "glm": _CONTENT
    + "[gMASK]<sop>"
    + _LAST
    + "{% for m in messages %}"
    + _SPLIT
    + "{% if m.role == 'user' %}<|user|>\n{{ said }}"
    "{{ '/nothink' if enable_thinking is defined and not enable_thinking else '' }}"
    "{% else %}<|assistant|>\n"
    "<think>{{ thought if loop.index0 > ns.last else '' }}</think>\n{{ said }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>"
    "{{ '\n<think></think>' if enable_thinking is defined and not enable_thinking else '' }}"
    "{% endif %}",
    "gemma": _CONTENT + "<bos>{% for m in messages %}<start_of_turn>"
    "{{ 'model' if m.role == 'assistant' else m.role }}\n{{ write(m.content) | trim }}"
    "<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}",
    # it takes lists of parts only: of a text, it would write nothing
    "smolvlm": "<|im_start|>{% for m in messages %}{{ m.role | capitalize }}: "
    "{% for line in m.content %}{% if line['type'] == 'text' %}{{ line['text'] }}"
    "{% elif line['type'] == 'image' %}<image>{% endif %}{% endfor %}<end_of_utterance>\n"
    "{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}",
}
STOPS = {
    "glm": ("<|endoftext|>", "<|user|>", "<|observation|>"),
    "gemma": ("<eos>", "<end_of_turn>"),
    "smolvlm": ("<end_of_utterance>",),
}
_MARKS = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<image>", "<video>", "<|user|>"),
    *("<|assistant|>", "<|observation|>", "<|system|>", "[gMASK]", "<sop>", "<bos>", "<eos>"),
    *("<start_of_turn>", "<end_of_turn>", "<end_of_utterance>"),
)


def without_prompt(template: str) -> str:
    """A template that asks for no answer: the role is then learnt with each."""
    before, _, behind = template.rpartition("add_generation_prompt")
    return f"{before}false{behind}"


def keeping_thoughts(template: str) -> str:
    """A template that keeps earlier thoughts, but for the prompt of an answer."""
    kept = r"(loop.index0 > ns.\1 or not add_generation_prompt)"
    return re.sub(r"loop\.index0 > ns\.(\w+)", kept, template)


def byte_tokenizer() -> Any:
    """A tokenizer of bytes, with the marks of all templates as tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = Tokenizer(models.BPE({one: place for place, one in enumerate(alphabet)}, []))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(
        tokenizer_object=plain, bos_token="<bos>", eos_token="<|im_end|>"
    )
    made.add_tokens(list(_MARKS), special_tokens=True)
    made.add_tokens(["<think>", "</think>"])
    return made


def real_tokenizer(name: str) -> Any | None:
    """A published tokenizer, which `make real-env` fetches; None where it has not."""
    folder = Path(os.environ.get("VTOOL_TOKENIZERS", ".real-env")) / name
    if not (folder / "tokenizer.json").is_file():
        return None
    config = json.loads((folder / "tokenizer_config.json").read_text())
    named = ("bos_token", "eos_token", "pad_token", "unk_token")
    own = {each: config[each] for each in named if isinstance(config.get(each), str)}
    made = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), **own)
    known = made.get_vocab()
    made.add_tokens([each for each in _MARKS if each not in known], special_tokens=True)
    return made


def processor_of(
    template: str,
    tokenizer: Any,
    arguments: Mapping[str, Any] | None = None,
    stops: Sequence[str] = (),
) -> Processor:
    """A processor of texts, as one of a folder with this template."""
    tokenizer.chat_template = with_arguments(template, arguments) if arguments else template
    form, token = find_form(tokenizer), tokenizer.convert_tokens_to_ids
    ends = [token(each) for each in stops or (tokenizer.eos_token,)]
    end = token(form.closing) if form.closing and token(form.closing) in ends else ends[0]
    image, video = token("<image>"), token("<video>")
    ids = TokenIds(image, video, vision_start=image, vision_end=image, end=end, pad=ends[0])
    return Processor(
        tokenizer,
        None,
        None,
        ids,
        form=form,
        stops=tuple(dict.fromkeys((end, *ends))),  # type: ignore[arg-type]
    )


class OneRow:
    """The rows of a file that has one."""

    def __init__(self, messages: Sequence[Mapping[str, Any]]) -> None:
        self.own = Row("rows.jsonl:1", messages, [])

    def __len__(self) -> int:
        return 1

    def name(self, index: int) -> str:
        return self.own.id

    def row(self, index: int) -> Row:
        return self.own

    def describe(self) -> dict[str, Any]:
        return {}
