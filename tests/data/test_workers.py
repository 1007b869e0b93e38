"""Data workers whose number the first steps decide."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.rows import chat, mixed_rows, write_rows
from tests.runs import encoded, messages, request
from vtool.data import workers
from vtool.data.audit_cache import audit_split
from vtool.data.loader import EncodedRows, MicroBatch, load_steps
from vtool.data.row_audits import ROW
from vtool.data.workers import MEASURED_STEPS, StepCosts, audit_workers, measure_steps

ROWS = 9


def rows_of(folder: Path, setting: str = "auto") -> EncodedRows:
    if not (folder / "rows.jsonl").exists():
        write_rows(folder / "rows.jsonl", mixed_rows(folder, ROWS, text_only=(1, 5)))
    return encoded(request("rows", messages(folder / "rows.jsonl"), f"data.workers={setting}"))[0]


@pytest.mark.parametrize(
    ("costs", "spare", "wanted"),
    [
        (StepCosts(data=0.01, compute=1.0), 8, 0),  # not worth a process
        (StepCosts(data=0.3, compute=1.0), 8, 1),
        (StepCosts(data=2.0, compute=1.0), 8, 3),  # two are just enough, and rows differ
        (StepCosts(data=40.0, compute=1.0), 8, 8),
        (StepCosts(data=2.0, compute=1.0), 0, 0),
        (StepCosts(data=1.0, compute=0.0), 4, 4),
        (StepCosts(data=0.0, compute=0.0), 4, 0),
    ],
)
def test_there_are_as_many_as_keep_up_with_the_steps(
    costs: StepCosts, spare: int, wanted: int
) -> None:
    assert costs.workers(spare) == wanted
    assert f"data.workers=auto: {wanted} for each rank" in costs.in_words(wanted, spare)


def test_the_costs_of_a_step_are_those_of_its_data_and_of_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(workers.time, "perf_counter", lambda: now[0])

    def steps() -> Iterator[int]:
        for step, seconds in enumerate((3.0, 0.5, 2.0)):
            now[0] += seconds
            yield step

    found = measure_steps(steps(), 3)
    for step, seconds in enumerate((9.0, 4.0, 5.0)):  # the first step is slow, as it always is
        assert next(found) == step
        now[0] += seconds
    with pytest.raises(StopIteration) as ended:
        next(found)
    assert ended.value.value == StepCosts(data=3.0, compute=4.0)


@pytest.mark.parametrize("spare", [0, 2])
@pytest.mark.parametrize("steps", [range(1, 2), range(4, 4 + ROWS)])
def test_the_batches_are_those_without_workers(tmp_path: Path, spare: int, steps: range) -> None:
    def plan(step: int) -> list[MicroBatch]:
        return [MicroBatch((step % ROWS,)), MicroBatch(((step + 1) % ROWS, 1))]

    wanted = list(load_steps(rows_of(tmp_path, "0"), steps, plan, 0))
    lines: list[str] = []
    loaded = load_steps(rows_of(tmp_path), steps, plan, "auto", spare_cores=spare, say=lines.append)
    for one, other in zip(loaded, wanted, strict=True):
        assert [batch.indices for batch in one] == [batch.indices for batch in other]
        for batch, same in zip(one, other, strict=True):
            assert batch.inputs.keys() == same.inputs.keys()
            assert all(torch.equal(batch.inputs[key], same.inputs[key]) for key in batch.inputs)
    assert len(lines) == (len(steps) > MEASURED_STEPS)
    # nothing is computed here, so that all spare cores are too few
    assert all(f"auto: {spare} for each rank, of {spare} spare cores" in line for line in lines)


@pytest.mark.full
def test_rows_are_audited_on_all_cores_where_there_are_many(tmp_path: Path) -> None:
    made = [chat(f"What is {number}?", f"a {number}") for number in range(1_030)]
    write_rows(tmp_path / "rows.jsonl", made)
    rows = rows_of(tmp_path)
    assert audit_workers(rows.settings, len(made), cores=2) == 2
    assert audit_workers(rows.settings, ROWS, cores=2) == 0
    assert audit_workers(rows.settings, len(made), cores=1) == 0
    assert audit_workers(rows_of(tmp_path, "3").settings, ROWS, cores=1) == 3
    audits = audit_split(rows, range(len(made)), None, cores=2)
    alone = audit_split(rows_of(tmp_path, "0"), range(len(made)), None)
    for name in ROW.names or ():
        np.testing.assert_array_equal(audits.table[name], alone.table[name], name)
