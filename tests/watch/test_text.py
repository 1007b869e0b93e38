"""The lines before the findings."""

from tests.watch.made import Fact
from vtool.diagnostics.result import Result
from vtool.watch.text import describe


def test_the_first_row_is_shown_where_it_is_learnt() -> None:
    def of(text: str, weight: float | None = None) -> Fact:
        return {"text": text, "weight": weight}

    prompt, answer = [of(f"asked{at} ") for at in range(99)], [of("fine"), of("<end>")]
    pads = [of("<pad>") for _ in range(50)]
    told = [of(one["text"], 0.1) for one in answer]
    seen = {
        "model": {},
        "ranks": 1,
        "tokens": 2,
        "micro_batches": 1,
        "steps": 1,
        "damaged": 0,
        "unended": 0,
    }
    shown = {**seen, "rows": [{"tokens": [*prompt, *told, *pads]}]}
    *_, line = describe([Result("run", "clean", {}, (), {"watch": shown})])
    assert "asked0" in line
    assert " … " in line
    assert line.endswith("⟦fine<end>⟧<pad> x 50")
