"""A tokenizer that is trained on the spot, and its chat template."""

import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from vtool.families.tokens import TokenNames

_LONGEST_WORD = 2_000
"""Characters without a space that the training of a tokenizer takes as one word: the time that a
word takes goes with the square of its length."""
_LONG_WORD = re.compile(rf"\S{{{_LONGEST_WORD + 1},}}|\s{{{_LONGEST_WORD + 1},}}")
_PIECE = 2**16
_BETWEEN_WORDS = re.compile(r"[a-z](?= [a-z])")
"""A place where a space belongs to the word behind it, for every way to find words."""


def chat_template(names: TokenNames) -> str:
    """Return ChatML, as the Qwen families write it, without a system prompt of its own.

    vLLM passes the content's items on only to a template that loops over nothing but
    `message['content']`; to any other one it gives a text of its own making, with a newline after
    each image.
    """
    image = names.vision_start + names.image + names.vision_end
    video = names.video_start + names.video + names.video_end
    return (
        "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
        "{% if message['content'] is string %}{{ message['content'] }}{% elif message['content'] %}"
        "{% for part in message['content'] %}"
        "{% if part['type'] == 'image' %}"
        + image
        + "{% elif part['type'] == 'video' %}"
        + video
        + "{% else %}{{ part['text'] }}{% endif %}"
        "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )


def train_tokenizer(texts: Iterable[str], names: TokenNames, vocab_size: int = 512) -> Any:
    """Train a byte-level BPE on these texts: a few hundred entries, in milliseconds.

    Every byte is in its alphabet, so that any text can be encoded.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    marks = (
        names.vision_start,
        names.vision_end,
        names.image,
        names.video,
        names.video_start,
        names.video_end,
    )
    special = list(dict.fromkeys(("<|endoftext|>", "<|im_start|>", "<|im_end|>", *marks)))
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    known = chain(["system user assistant"], texts)
    bpe.train_from_iterator(
        (piece for text in known for piece in _pieces(_without_long_words(text))), trainer
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=special[1:],
        chat_template=chat_template(names),
        clean_up_tokenization_spaces=False,
    )


def _without_long_words(text: str) -> str:
    """Return a text with its longest words, such as a file in base64, in pieces."""
    return _LONG_WORD.sub(
        lambda found: " ".join(
            found[0][start : start + _LONGEST_WORD]
            for start in range(0, len(found[0]), _LONGEST_WORD)
        ),
        text,
    )


def _pieces(text: str) -> Iterator[str]:
    """Yield a text in pieces of which the words are those of the whole.

    tokenizers takes some hundred bytes of memory for each word of a text.
    """
    start = 0
    while len(text) - start > _PIECE and (found := _BETWEEN_WORDS.search(text, start + _PIECE)):
        yield text[start : found.end()]
        start = found.end()
    yield text[start:]
