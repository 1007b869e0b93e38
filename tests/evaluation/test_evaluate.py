"""Scores do not depend on how rows are batched, or on who is in the batch with them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.engines.ranks import run_ranks
from tests.rows import mixed_rows, write_rows
from tests.runs import messages, request, session
from vtool.engines.ranks import Ranks
from vtool.evaluation.evaluate import Scores, evaluate_rows
from vtool.training.session import RunRequest


def made_run(folder: Path, text_only: tuple[int, ...], batch: int, *overrides: str) -> RunRequest:
    rows = write_rows(folder / "rows.jsonl", mixed_rows(folder, 7, text_only))
    batches = [
        f"evaluation={{batch_size:{batch},generate:{{max_new_tokens:6}}}}",
        "data.image={min_pixels:784,max_pixels:3136}",
    ]
    return request(
        "rows",
        messages(rows),
        *batches,
        f"run.dir={folder / 'run'}",
        "model.dtype=float64",
        "optim.warmup_steps=0",
        *overrides,
    )


def scores(ranks: Ranks, made: RunRequest) -> Scores:
    torch.set_num_threads(1)
    opened, _ = session(made, ranks)
    return evaluate_rows(
        opened.engine, opened.rows["train"], opened.ledgers["train"].kept, made.run.evaluation
    )


@pytest.mark.parametrize("text_only", [(), (1, 4), tuple(range(7))])
def test_scores_do_not_depend_on_the_batch(tmp_path: Path, text_only: tuple[int, ...]) -> None:
    alone = scores(Ranks(), made_run(tmp_path, text_only, 1))
    together = scores(Ranks(), made_run(tmp_path, text_only, 7))
    assert [answer.answer for answer in together.answers] == [
        answer.answer for answer in alone.answers
    ]
    assert any(answer.answer for answer in alone.answers)
    assert abs(together.nll - alone.nll) < 1e-6  # transformers' norms are float32
    assert alone.samples == 7


def test_ranks_share_the_rows_and_agree_on_the_scores(tmp_path: Path) -> None:
    alone = scores(Ranks(), made_run(tmp_path, (1,), 2))
    for shared in run_ranks(scores, 2, made_run(tmp_path, (1,), 2)):
        assert shared.answers == alone.answers
        assert abs(shared.nll - alone.nll) < 1e-6


def test_a_reference_is_matched_but_for_the_space_around_it(tmp_path: Path) -> None:
    from vtool.evaluation.evaluate import RowAnswer

    assert RowAnswer(0, "7", " 7\n").correct
    assert not RowAnswer(0, "7", "77").correct


@pytest.mark.parametrize(("heeded", "sizes"), [(True, [5, 2]), (False, [1] * 7)])
def test_a_model_that_looks_at_no_mask_is_asked_one_question_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, heeded: bool, sizes: list[int]
) -> None:
    import vtool.evaluation.evaluate as evaluation

    found: list[int] = []
    answer = evaluation.answer_greedily

    def watched(
        model: Any, processor: Any, inputs: dict[str, torch.Tensor], longest: int
    ) -> list[str]:
        found.append(len(inputs["input_ids"]))
        return answer(model, processor, inputs, longest)

    monkeypatch.setattr(evaluation, "answer_greedily", watched)
    made = made_run(tmp_path, (1, 4), 5)
    opened, _ = session(made)
    opened.engine.module.heeds_masks = heeded  # type: ignore[assignment]
    evaluate_rows(
        opened.engine, opened.rows["train"], opened.ledgers["train"].kept, made.run.evaluation
    )
    assert found == sizes


@pytest.mark.parametrize(
    "dropped", ["attention_mask", "mm_token_type_ids", "pixel_values,image_grid_thw"]
)
def test_answers_are_given_from_the_inputs_that_are_trained_on(
    tmp_path: Path, dropped: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import vtool.evaluation.evaluate as evaluation

    seen: list[set[str]] = []
    answer = evaluation.answer_greedily

    def watched(
        model: Any, processor: Any, inputs: dict[str, torch.Tensor], longest: int
    ) -> list[str]:
        seen.append(set(inputs))
        return answer(model, processor, inputs, longest)

    monkeypatch.setattr(evaluation, "answer_greedily", watched)
    override = f"data.drop_model_inputs=[{dropped}]"
    alone = scores(Ranks(), made_run(tmp_path, (1, 4), 1, override))
    together = scores(Ranks(), made_run(tmp_path, (1, 4), 7, override))
    assert seen
    assert not any(inputs & set(dropped.split(",")) for inputs in seen)
    assert [one.answer for one in together.answers] == [one.answer for one in alone.answers]
    assert abs(together.nll - alone.nll) < 1e-6


@pytest.mark.full
@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_run_whose_scores_are_no_numbers_says_so_when_it_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split: str
) -> None:
    import json

    from vtool.evaluation import evaluate as module
    from vtool.training.sft import train

    made = made_run(
        tmp_path,
        (1,),
        2,
        "train={steps: 2, epochs: null}",
        f"data.{split}=${{data.train}}",
        "data.max_overlap_rows=7",
    )
    nothing = lambda _engine, _rows, chunk, _ranks: np.zeros((len(chunk), 3))  # noqa: E731
    monkeypatch.setattr(module, "_scores", nothing)
    outcome = train(made, Ranks())
    assert [(finding.rule, finding.severity) for finding in outcome.findings] == [
        ("nonfinite-loss", "error")
    ]
    assert f"data.{split}, 7 rows" in outcome.findings[0].message
    assert (made.run.folder / "export/model.safetensors").exists()
    assert (
        json.loads((made.run.folder / "result.json").read_text())["checks"]["nonfinite-loss"]
        == "failed"
    )
