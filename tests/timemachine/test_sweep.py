"""The sweep: what it reads, what it runs, and what its page says."""

import ast
from pathlib import Path

import pytest

from timemachine.sweep import page, results, scan
from timemachine.sweep.results import RESULTS, Trained, read_results

FORWARD = """
class TinyForCausalLM:
    {flag}
    def forward(self, input_ids, labels=None, {arguments}):
        {loss}
"""


@pytest.mark.parametrize(
    ("flag", "arguments", "loss", "is_one"),
    [
        ("", "**kwargs", "loss = CrossEntropyLoss()(logits, labels)", True),
        ("", "**kwargs", "loss = self.loss_function(logits, labels, 9)", True),
        ("", "**kwargs", "loss = self.loss_function(logits, labels, 9, **kwargs)", False),
        ("accepts_loss_kwargs = False", "**kwargs", "F.cross_entropy(logits, labels)", False),
        ("", "x=None", "loss = CrossEntropyLoss()(logits, labels)", False),
    ],
)
def test_a_candidate_takes_loss_arguments_and_leaves_them(
    flag: str, arguments: str, loss: str, is_one: bool
) -> None:
    tree = ast.parse(FORWARD.format(flag=flag, arguments=arguments, loss=loss))
    assert list(scan._in_file(tree)) == (["TinyForCausalLM"] if is_one else [])


def test_the_page_is_made_of_the_results() -> None:
    assert page.PAGE.read_text("utf-8") == page.page()


def test_each_outcome_has_its_table() -> None:
    text = page.tables(
        {
            "A": Trained("ran", times=4.0, rules=("gradient-scaled",), read=True),
            "B": Trained("ran", times=1.0, read=True),
            "C": Trained("raised", "ValueError: a | b"),
        },
        {"transformers": "5.23.0", "torch": "2.13.0"},
    )
    assert "of 3 classes 1 are trained wrongly, 1 are not,\nand 1 could not be run." in text
    assert "| A | × 4.000 | `gradient-scaled` |" in text
    assert "| B | × 1.000 | nothing |" in text
    assert "| C | raised: ValueError: a \\| b |" in text


@pytest.mark.full
def test_results_are_of_classes_that_the_scan_names() -> None:
    transformers = pytest.importorskip("transformers")
    kept = read_results(RESULTS)["classes"]
    if results.read_file(RESULTS)["versions"]["transformers"] == transformers.__version__:
        assert set(kept) == set(scan.candidates(Path(transformers.__file__).parent))


@pytest.mark.soak
def test_a_class_that_crashes_is_its_own_result() -> None:
    from timemachine.sweep.run import Sweep

    sweep = Sweep()
    assert sweep.run("NoSuchForCausalLM").state == "not-run"
    assert sweep.run("Pix2StructForConditionalGeneration").state == "raised"
    assert sweep.run("T5ForConditionalGeneration").rules == ("gradient-scaled",)
