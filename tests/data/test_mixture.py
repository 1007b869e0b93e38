"""Sources of one split: their names, what is taken of each, and their counts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.rows import chat, write_rows
from tests.runs import encoded, request
from vtool.config.schema import MessagesSource
from vtool.config.schema.formats.names import source_names
from vtool.data.detect import entry
from vtool.data.ledgers import with_held_back
from vtool.data.mixture import parts_of_epoch
from vtool.data.plan import SourceShare
from vtool.data.sources import Rows
from vtool.diagnostics import Findings
from vtool.engines.ranks import Ranks
from vtool.training.session import plan_rows
from vtool.training.setup import audit_splits


def source(path: str = "rows.jsonl", **settings: Any) -> MessagesSource:
    return MessagesSource(format="messages", path=path, **settings)


def test_sources_go_by_their_names_or_their_files_and_none_is_there_twice() -> None:
    entries = [
        source("a/train.jsonl"),
        source("b/train.jsonl"),
        source("c/träin (1).jsonl"),
        source("d/x.jsonl", name="train.jsonl-2"),
        entry("digits", split="test"),
        entry("llama_factory", path="dataset_info.json", dataset="cats"),
    ]
    assert source_names(entries) == (
        *("train.jsonl", "train.jsonl-3", "träin (1).jsonl", "train.jsonl-2"),
        *("digits-test", "cats"),
    )


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "rows.jsonl", [chat(f"{n}?", str(n)) for n in range(60)])


def test_a_limit_takes_rows_from_all_over_and_a_higher_one_the_same_and_more(rows: Path) -> None:
    other = write_rows(rows.with_name("other.jsonl"), [chat("a", "b")] * 5)

    def taken(limit: int | None) -> list[int]:
        opened = Rows([source(str(other)), source(str(rows), limit=limit)])
        assert opened.limited == (0, max(0, 60 - limit) if limit else 0)
        return list(opened.taken())

    before: set[int] = set(range(5))
    for limit in (1, 7, 20, 59):
        found = taken(limit)
        assert found == sorted(found)
        assert len(found) == 5 + limit
        assert before <= set(found)
        before = set(found)
    assert taken(60) == taken(61) == taken(None) == list(range(65))
    own = np.array(taken(20)[5:])
    assert own.max() > 45
    assert own.min() < 20


@pytest.mark.parametrize(
    ("settings", "kept", "parts"),
    [
        ([{}, {}], [10, 20], ()),
        ([{"weight": 2.0}], [10], ()),
        ([{"weight": 3.0}, {"weight": 1.0}], [30, 90], (SourceShare(30, 30), SourceShare(90, 10))),
        ([{"repeat": 2.5}, {}], [10, 20], (SourceShare(10, 25), SourceShare(20, 20))),
        ([{"repeat": 0.25}], [10], (SourceShare(10, 2),)),
        ([{"weight": 3.0}, {"weight": 1.0}], [], ()),
    ],
)
def test_an_epoch_has_what_weights_and_repeats_say(
    settings: list[dict[str, Any]], kept: list[int], parts: tuple[SourceShare, ...]
) -> None:
    assert parts_of_epoch([source(**each) for each in settings], kept) == parts


def ledgers(rows: Path, train: str, *overrides: str) -> Any:
    made = request("rows", f"data.train={train.replace('ROWS', str(rows))}", *overrides)
    opened, _ = encoded(made)
    every = with_held_back(made.run.data, {"train": opened})
    return made.run, audit_splits(every, Ranks())


def test_each_source_is_counted_and_the_counts_add_up(rows: Path) -> None:
    run, made = ledgers(
        rows,
        "[{format: messages, path: 'ROWS', limit: 40, name: mine}, {format: digits, split: test}]",
        "data.split={validation:0.2,test:0.2}",
    )
    mine = [ledger.by_source[0] for ledger in made.values()]
    scans = [ledger.by_source[1] for ledger in made.values()]
    assert [each.name for each in mine] == ["mine"] * 3
    assert [each.limited for each in mine] == [20, 0, 0]
    assert sum(each.rows for each in mine) == 40
    assert sum(each.rows for each in scans) == 359
    for ledger in made.values():
        assert sum(each.kept for each in ledger.by_source) == len(ledger.kept)
        assert sum(each.tokens for each in ledger.by_source) == sum(ledger.lengths)
        assert sum(each.supervised_tokens for each in ledger.by_source) == ledger.supervised_tokens
        own = [
            length for index, length in zip(ledger.kept, ledger.lengths, strict=True) if index < 60
        ]
        assert (len(own), sum(own)) == (ledger.by_source[0].kept, ledger.by_source[0].tokens)
        assert ledger.as_dict()["sources"][0]["name"] == "mine"
    plan = plan_rows(run, made["train"])
    assert plan.parts == ()


def test_sources_without_a_weight_or_a_repeat_keep_the_order_that_they_had(rows: Path) -> None:
    train = "[{format: messages, path: 'ROWS'}, {format: digits, split: test}]"
    run, made = ledgers(rows, train)
    assert plan_rows(run, made["train"]).parts == ()
    assert len(made["train"].kept) == 60 + 359


def test_a_source_that_gives_nothing_to_a_mixture_is_a_finding(rows: Path) -> None:
    few = "[{format: messages, path: 'ROWS', repeat: 0.001}, {format: digits, split: test}]"
    with pytest.raises(Findings) as caught:
        ledgers(rows, few)
    (found,) = caught.value.diagnostics
    assert (found.rule, found.parameter) == ("no-rows", "data.train.0.repeat")
    assert "an epoch has none" in found.message

    empty = write_rows(rows.with_name("empty.jsonl"), [])
    none = "[{format: messages, path: 'EMPTY', weight: 1}, {format: auto, path: 'ROWS', weight: 1}]"
    none = none.replace("EMPTY", str(empty))
    with pytest.raises(Findings) as caught:
        ledgers(rows, none)
    (found,) = caught.value.diagnostics
    assert (found.rule, found.parameter) == ("no-rows", "data.train.0")
