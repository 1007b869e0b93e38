import random
import time

import jinja2
from jinja2 import nodes

from vtool.families.family import load_family
from vtool.families.tokens import TokenNames
from vtool.models.tokenizer import chat_template, train_tokenizer


def test_the_template_loops_over_nothing_but_the_content_itself() -> None:
    # This is how vLLM finds out that a template takes parts. To any other template it gives a text
    # of its own making, with a newline
    # after each image: a prompt that the model was not trained on (tests/soak/test_serving.py).
    messages, parts = jinja2.Environment().parse(chat_template(TokenNames())).find_all(nodes.For)
    assert messages.iter == nodes.Name("messages", "load")
    assert messages.target == nodes.Name("message", "store")
    assert parts.iter == nodes.Getitem(
        nodes.Name("message", "load"), nodes.Const("content"), "load"
    )


def test_a_text_without_spaces_takes_no_longer_than_its_length() -> None:
    """As a file in base64: the training of a tokenizer takes the square of a word's length."""
    names = load_family("qwen2_5_vl").facts.token_names
    word = "".join(random.Random(0).choices("abcdefghijklmnop", k=200_000))
    train_tokenizer(["warm"], names)
    began = time.process_time()
    tokenizer = train_tokenizer([word], names)
    assert time.process_time() - began < 3
    assert tokenizer.decode(tokenizer(word).input_ids) == word
