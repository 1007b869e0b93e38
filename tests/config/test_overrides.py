"""KEY=VALUE that cannot be read is answered with what to type."""

import pytest

from vtool.config.load import examine
from vtool.diagnostics import Findings


@pytest.mark.parametrize(
    ("override", "message", "help"),
    [
        ("optim.lr=1e-4,", "it ends with a comma", "write optim.lr=1e-4"),
        (
            "data.train=a=b.jsonl",
            "its value has characters that need quotes",
            "quote the value, for vtool and for the shell: \"data.train='a=b.jsonl'\"",
        ),
    ],
)
def test_a_value_that_cannot_be_read_is_answered_without_the_parsers_words(
    override: str, message: str, help: str
) -> None:
    with pytest.raises(Findings) as caught:
        examine("digits", [override])
    (found,) = caught.value.diagnostics
    assert (found.rule, found.help) == ("bad-override", help)
    assert found.message == f"`{override}` cannot be read: {message}"
