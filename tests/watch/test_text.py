"""The lines before the findings."""

from pathlib import Path

from tests.watch.made import Fact, healthy, write
from vtool.diagnostics.result import Result
from vtool.watch.conclude import conclude_folder
from vtool.watch.text import describe_results


def test_the_first_row_is_shown_where_it_is_learnt() -> None:
    def of(text: str, weight: float | None = None) -> Fact:
        return {"text": text, "weight": weight}

    prompt, answer = [of(f"asked{at} ") for at in range(99)], [of("fine"), of("<end>")]
    pads = [of("<pad>") for _ in range(50)]
    learnt = [of(one["text"], 0.1) for one in answer]
    seen = {
        "model": {},
        "number": 0,
        "ranks": 1,
        "tokens": 2,
        "micro_batches": 1,
        "steps": 1,
        "damaged": 0,
        "unended": 0,
    }
    shown = {**seen, "rows": [{"tokens": [*prompt, *learnt, *pads]}]}
    *_, line = describe_results([Result("run", "clean", {}, (), {"watch": shown})])
    assert "asked0" in line
    assert " … " in line
    assert line.endswith("⟦fine<end>⟧<pad> x 50")


def test_models_that_are_trained_together_are_distinguished(tmp_path: Path) -> None:
    first = [fact for fact in healthy(steps=1) if fact["kind"] != "process"]
    second = [{**fact, "model": 1} for fact in first]
    write(tmp_path, [*healthy(steps=1)[:1], *first[:-1], *second])
    results = conclude_folder(tmp_path, "run", None)
    lines = [line for line in describe_results(results) if line.startswith("watched")]
    read = "36 learnt tokens read in 2 micro-batches of 1 step"
    assert lines == [f"watched: TinyForCausalLM {number}, AdamW: {read}" for number in (0, 1)]
