import jinja2
from jinja2 import nodes

from vtool.families.tokens import TokenNames
from vtool.models.tokenizer import chat_template


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
