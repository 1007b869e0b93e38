"""Rows that are held back: by groups, stable, and each split by a hash of its own."""

import base64
import json
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from tests.rows import chat, picture, write_rows
from tests.runs import encoded, messages, request
from vtool.config.schema import Split
from vtool.data.audit_cache import _deciding
from vtool.data.inspect_rows import inspect_rows
from vtool.data.ledgers import build_ledgers, with_held_back
from vtool.data.loader import EncodedRows
from vtool.data.row_audits import ROW, RowAudits
from vtool.data.splits import divide
from vtool.diagnostics import Diagnostic

_U64 = 2**64


def expected_side(group: int, shares: dict[str, float]) -> str:
    """The rule of docs/data.md, in Python's own whole numbers."""
    for split in ("test", "validation"):
        value = group ^ xxhash.xxh3_64_intdigest(split.encode())
        value = (value + 0x9E3779B97F4A7C15) % _U64
        value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 % _U64
        value = (value ^ (value >> 27)) * 0x94D049BB133111EB % _U64
        value ^= value >> 31
        if split in shares and Fraction(value, _U64) < Fraction(str(shares[split])):
            return split
    return "train"


def of_groups(groups: Sequence[int]) -> RowAudits:
    table = np.zeros(len(groups), ROW)
    table["index"], table["usable"], table["group"] = np.arange(len(groups)), True, groups
    return RowAudits(table)


def sides(groups: Sequence[int], **shares: float) -> list[str]:
    parts = divide(Split(**shares), of_groups(groups))
    found = {index: split for split in parts for index in parts[split].table["index"].tolist()}
    assert len(found) == len(groups) == sum(map(len, parts.values())), "each row is on one side"
    return [found[index] for index in range(len(groups))]


GROUPS = [xxhash.xxh3_64_intdigest(str(number % 2500).encode()) for number in range(6000)]


@pytest.mark.parametrize(
    "shares",
    [{"test": 0.05}, {"validation": 0.1}, {"test": 0.2, "validation": 0.3}, {"test": 0.999}],
)
def test_the_side_is_a_hash_of_the_group_with_the_splits_name(shares: dict[str, float]) -> None:
    assert sides(GROUPS, **shares) == [expected_side(group, shares) for group in GROUPS]


def test_a_group_is_on_one_side_and_sides_have_about_their_share() -> None:
    found = sides(GROUPS, validation=0.1, test=0.05)
    of: dict[int, set[str]] = {}
    for group, side in zip(GROUPS, found, strict=True):
        of.setdefault(group, set()).add(side)
    assert all(len(own) == 1 for own in of.values())
    groups = [next(iter(own)) for own in of.values()]
    # of 2500 groups, within four standard deviations of a binomial
    assert abs(groups.count("test") - 125) < 4 * 11
    assert abs(groups.count("validation") - 0.95 * 250) < 4 * 15


def test_rows_that_are_added_move_none() -> None:
    before = sides(GROUPS[:4000], validation=0.1, test=0.05)
    assert sides(GROUPS, validation=0.1, test=0.05)[:4000] == before


def test_another_fraction_of_one_split_moves_no_row_between_the_others() -> None:
    before = sides(GROUPS, validation=0.1, test=0.05)
    for after in (
        sides(GROUPS, validation=0.3, test=0.05),
        sides(GROUPS, test=0.05),
        sides(GROUPS, validation=0.01, test=0.05),
    ):
        assert [side == "test" for side in after] == [side == "test" for side in before]
    wider = sides(GROUPS, validation=0.1, test=0.2)
    for old, new in zip(before, wider, strict=True):
        assert new in (old, "test")
    larger = sides(GROUPS, validation=0.3, test=0.05)
    assert all(
        new == "validation" for old, new in zip(before, larger, strict=True) if old == "validation"
    )


def audited(folder: Path, *overrides: str) -> tuple[EncodedRows, RowAudits]:
    rows = encoded(request("rows", messages(folder / "rows.jsonl"), *overrides))[0]
    return rows, inspect_rows(rows, range(len(rows.rows)), 0)


def groups_of(folder: Path, rows: Sequence[Any], *overrides: str) -> list[int]:
    write_rows(folder / "rows.jsonl", rows)
    _, audits = audited(folder, *overrides)
    assert not audits.findings, audits.findings
    return [int(group) for group in audits.table["group"]]


def test_a_group_is_the_first_picture_wherever_it_lies_else_the_first_question(
    tmp_path: Path,
) -> None:
    for name, seed in (("a", 0), ("copy", 0), ("b", 1)):
        picture(tmp_path / f"{name}.png", seed=seed)
    content = (tmp_path / "a.png").read_bytes()
    inside = f"data:image/png;base64,{base64.b64encode(content).decode()}"

    def of(question: str, *images: str) -> dict[str, Any]:
        return {**chat("<image>" * len(images) + question, "yes"), "images": list(images)}

    two_turns = chat("What?", "no")
    two_turns["messages"] += chat("Why?", "so")["messages"]
    system = chat("What?", "so")
    system["messages"].insert(0, {"role": "system", "content": "Be brief."})
    a, copy, again, both, within, other, swapped, text, turns, prompted, why = groups_of(
        tmp_path,
        [
            *(of("x", "a.png"), of("x", "copy.png"), of("y", "a.png"), of("x", "a.png", "b.png")),
            *(of("z", inside), of("x", "b.png"), of("x", "b.png", "a.png")),
            *(chat("What?", "yes"), two_turns, system, chat("Why?", "so")),
        ],
    )
    assert a == copy == again == both == within == xxhash.xxh3_64_intdigest(content)
    assert other == swapped == xxhash.xxh3_64_intdigest((tmp_path / "b.png").read_bytes())
    assert text == turns == prompted == xxhash.xxh3_64_intdigest(b"What?")
    assert len({a, other, text, why}) == 4


def test_a_key_that_the_recipe_names_is_the_group(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    rows = [
        {**chat("<image>x", "y"), "images": ["a.png"], "patient": 7},
        {**chat("z", "y"), "patient": "7"},
        {**chat("z", "y"), "patient": {"b": 1, "a": [2]}},
        {**chat("w", "y"), "patient": {"a": [2], "b": 1}},
    ]
    split = "data.split={validation:0.5,group:patient}"
    one, same, two, also = groups_of(tmp_path, rows, split)
    assert (one, two) == (same, also)
    assert one == xxhash.xxh3_64_intdigest(b"7") != two


@pytest.mark.parametrize("format", ["messages", "swift", "auto"])
def test_the_key_of_the_groups_is_read_and_a_row_without_it_is_a_finding(
    tmp_path: Path, format: str
) -> None:
    rows = [{**chat("a", "b"), "case_id": 1}, chat("c", "d"), {**chat("e", "f"), "case_id": None}]
    if format == "auto":
        rows = [
            {**row, "messages": [*row["messages"][:1], {**row["messages"][1], "loss": True}]}
            for row in rows
        ]
    write_rows(tmp_path / "rows.jsonl", rows)
    source = f"data.train=[{{format: {format}, path: '{tmp_path / 'rows.jsonl'}'}}]"
    _, audits = audited(tmp_path, source, "data.split={test:0.5,group:case_id}")
    assert list(audits.findings) == [1, 2]
    for number, finding in audits.findings.items():
        assert finding.rule == "missing-group"
        assert f'rows.jsonl:{number + 1} has no "case_id"' in finding.message
        assert finding.origin
        assert finding.origin.line == number + 1


def ledgers(folder: Path, *overrides: str) -> tuple[dict[str, Any], list[Diagnostic]]:
    rows, audits = audited(folder, *overrides)
    every = with_held_back(rows.settings, {"train": rows})
    made = build_ledgers(rows.settings, every, {"train": audits})
    return (
        {split: each.ledger for split, each in made.items()},
        [one for each in made.values() for one in each.findings],
    )


def test_sides_have_ledgers_of_their_own_that_add_up(tmp_path: Path) -> None:
    rows: list[Any] = [chat(f"question {number % 40}", str(number)) for number in range(120)]
    rows[3] = {"messages": []}
    write_rows(tmp_path / "rows.jsonl", rows)
    made, found = ledgers(
        tmp_path, "data.split={validation:0.2,test:0.2}", "data.max_dropped_rows=1"
    )
    assert not found
    assert list(made) == ["train", "validation", "test"]
    kept = [index for ledger in made.values() for index in ledger.kept]
    assert sorted(kept) == [index for index in range(120) if index != 3]
    assert [len(ledger.dropped) for ledger in made.values()] == [1, 0, 0]
    for index in range(120):
        if index != 3:
            side = expected_side(
                xxhash.xxh3_64_intdigest(f"question {index % 40}".encode()),
                {"validation": 0.2, "test": 0.2},
            )
            assert index in made[side].kept
    assert made["test"].held_back.startswith(f"{len(made['test'].kept)} of 119 rows held back")


def test_a_side_without_a_row_is_a_finding_with_what_to_do(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.jsonl", [chat("Describe it.", str(n)) for n in range(50)])
    one = ledgers(tmp_path, "data.split.validation=0.1")[1]
    assert [(each.rule, each.parameter) for each in one] == [("no-rows", "data.split.validation")]
    assert "50 rows in 1 group" in one[0].message
    assert "data.split.group=KEY" in (one[0].help or "")
    all_of_it = ledgers(tmp_path, "data.split.validation=0.999999")[1]
    assert [(each.rule, each.parameter) for each in all_of_it] == [("no-rows", "data.split")]
    assert "leaves data.train no row" in all_of_it[0].message
    write_rows(tmp_path / "rows.jsonl", [chat(f"{n}?", str(n)) for n in range(50)])
    few = ledgers(tmp_path, "data.split.test=0.000001")[1]
    assert [(each.rule, each.parameter) for each in few] == [("no-rows", "data.split.test")]
    assert few[0].help == "raise data.split.test, or give data.test rows of its own"


def test_an_audit_that_is_kept_is_of_all_rows_whatever_is_held_back(tmp_path: Path) -> None:
    def deciding(*overrides: str) -> Any:
        return _deciding(request("rows", messages(tmp_path / "rows.jsonl"), *overrides).run.data)

    path = tmp_path / "rows.jsonl"
    path.touch()
    plain = deciding()
    assert plain == deciding("data.split={validation:0.1,test:0.1}")
    entry = f"{{format: messages, path: '{path}', name: mine, repeat: 2, limit: 9}}"
    assert plain == deciding(f"data.train=[{entry}]")
    assert plain != deciding("data.split={validation:0.1,group:case_id}")
    assert json.dumps(plain)
