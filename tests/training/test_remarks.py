"""Suspicious numbers of a run: spikes with their rows, one answer to every row."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.runs import read_lines, session
from tests.training.test_sft import made_run
from vtool.evaluation.evaluate import RowAnswer, Scores
from vtool.training.remarks import one_answer, spike_findings, spikes_of


def metrics(count: int, **losses: float) -> str:
    values = {step: 1.0 + step % 3 / 50 for step in range(1, count + 1)}
    values |= {int(step.removeprefix("at")): loss for step, loss in losses.items()}
    lines = [{"step": step, "loss": loss} for step, loss in values.items()]
    return "".join(json.dumps(line) + "\n" for line in [*lines, {"step": 5, "validation_nll": 9}])


def test_a_spike_is_reported_with_the_rows_of_its_step(tmp_path: Path) -> None:
    opened, _ = session(made_run(tmp_path))
    opened.folder.metrics.write_text(metrics(60, at40=9.0, at50=3.0) + '{"step": 61, "lo')
    high, low = spikes_of(opened) or []
    # by the seed's own formula: an epoch of ten rows is three steps
    rows = [opened.rows["train"].rows.name(int(place)) for place in opened.plan.step(40)]
    assert (high["step"], high["loss"], high["rows"]) == (40, 9.0, rows)
    assert (low["step"], low["steps"]) == (50, [50, 50])
    (finding,) = spike_findings([low, high])
    assert (finding.rule, finding.severity) == ("loss-spike", "note")
    assert "the loss of step 40 is 9, where 1.02 was usual" in finding.message
    assert all(name in finding.message for name in rows)
    assert finding.message.endswith("further spikes: step 50")


@pytest.mark.parametrize(("count", "said"), [(60, []), (20, None)])
def test_a_steady_loss_and_few_steps_are_distinguished(
    tmp_path: Path, count: int, said: list[object] | None
) -> None:
    opened, _ = session(made_run(tmp_path))
    opened.folder.metrics.write_text(metrics(count))
    assert spikes_of(opened) == said
    assert spike_findings(said or []) == []


def scores(answers: Sequence[str], references: Sequence[str]) -> Scores:
    said = [
        RowAnswer(i, of, answer)
        for i, (of, answer) in enumerate(zip(references, answers, strict=True))
    ]
    return Scores(1.0, 0.0, len(said), tuple(said))


def test_one_answer_to_rows_that_differ_is_a_warning() -> None:
    (finding,) = one_answer(scores(["7"] * 20, ["7", "3"] * 10), "test")
    assert (finding.rule, finding.severity) == ("constant-answer", "warning")
    assert finding.message == (
        "all 20 answers to data.test are '7', where 2 different ones are expected"
    )


@pytest.mark.parametrize(
    ("answers", "references"),
    [
        (["7"] * 19 + ["3"], ["7", "3"] * 10),  # one of them differs
        (["7"] * 20, ["7"] * 20),  # so it should be
        (["7"] * 9, ["7", "3", "2"] * 3),  # few rows, which may be chance
    ],
)
def test_other_answers_are_none(answers: list[str], references: list[str]) -> None:
    assert one_answer(scores(answers, references), "test") == []


def test_a_run_keeps_what_was_trained_and_the_same_validation_rows(
    trained: tuple[Path, str],
) -> None:
    folder = trained[0] / "runs" / "digits"
    lines, result = (
        read_lines(folder / "metrics.jsonl"),
        json.loads((folder / "result.json").read_text()),
    )
    parts = result["parts"]
    assert sum(part["parameters"] for part in parts.values()) == result["parameters"]
    assert parts["head"]["parameters"] == 0, "tied"
    assert all(part["trained"] == part["parameters"] for part in parts.values())
    steps = [line for line in lines if "loss" in line]
    # every row has one image, of one token, and all have one length
    assert sum(step["visual_tokens"] for step in steps) == sum(step["samples"] for step in steps)
    assert all(step["padding_tokens"] == 0 for step in steps)
    evaluated = [line["step"] for line in lines if "validation_nll" in line]
    again = read_lines(folder / "validation.jsonl")
    assert [line["step"] for line in again] == evaluated
    rows = [[answer["row"] for answer in line["answers"]] for line in again]
    assert len(rows[0]) == 8
    assert all(each == rows[0] for each in rows)
    assert all((folder / answer["image"]).is_file() for answer in again[0]["answers"])
    assert result["spikes"] == []
    answers = {line["answer"] for line in read_lines(folder / "predictions.jsonl")}
    said = "failed" if len(answers) == 1 else "passed"
    assert result["checks"]["constant-answer"] == said
