"""Rows with nearly the same answers: what MinHash finds is what comparing all pairs finds."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.rows import chat, write_rows
from tests.runs import messages, request
from vtool.data.near import ALIKE, FEWEST_WORDS, runs_of_words
from vtool.verification.rows import Audit, audit_rows

RANDOM = np.random.RandomState(0)


def text(words: int, seed: int, vocabulary: int = 3000) -> str:
    numbers = np.random.RandomState(seed).randint(0, vocabulary, words)
    return " ".join(f"w{number}" for number in numbers)


def changed(text_: str, count: int, seed: int) -> str:
    """A text of which so many words are other ones."""
    words, random = text_.split(), np.random.RandomState(seed)
    for place in random.choice(len(words), count, replace=False):
        words[place] = f"x{random.randint(10**6)}"
    return " ".join(words)


def audited(folder: Path, **splits: list[Any]) -> dict[str, Audit]:
    files = [
        messages(write_rows(folder / f"{split}.jsonl", rows)).replace("data.train", f"data.{split}")
        for split, rows in splits.items()
    ]
    run = request("rows", *files, "data.max_overlap_rows=99").run
    return {audit.split: audit for audit in audit_rows(run, near=True)}


def near_findings(audit: Audit) -> list[tuple[str, str]]:
    rule = "near-duplicate-rows"
    return [(one.severity, one.message) for one in audit.findings if one.rule == rule]


def by_hand(one: str, other: str) -> float:
    """The share of runs of five words that two texts have in common, with Python's own sets."""
    runs = [
        {tuple(words[at : at + 5]) for at in range(len(words) - 4)}
        for words in (one.split(), other.split())
    ]
    return len(runs[0] & runs[1]) / len(runs[0] | runs[1])


def test_runs_of_words_have_the_likeness_of_sets_of_words() -> None:
    for seed in range(40):
        one = text(60, seed, vocabulary=12)  # runs come again
        other = changed(one, seed % 7, seed)
        two = runs_of_words(one), runs_of_words(other)
        common = len(np.intersect1d(*two))
        alike = common / (len(two[0]) + len(two[1]) - common)
        assert alike == pytest.approx(by_hand(one, other), abs=1e-12)


@pytest.mark.full
def test_all_pairs_are_found_that_comparing_each_with_each_finds(tmp_path: Path) -> None:
    answers: list[str] = []
    for number in range(120):
        first = text(40 + 2 * number, number)
        answers += [first, changed(first, 1 + number % 6, number)]
    order = RANDOM.permutation(len(answers))
    answers = [answers[place] for place in order]
    near = [
        place
        for place, one in enumerate(answers)
        if any(by_hand(one, other) >= ALIKE for other in answers[:place])
    ]
    assert 40 < len(near) < 120
    rows = [chat(f"Question {number}?", answer) for number, answer in enumerate(answers)]
    audit = audited(tmp_path, train=rows)["train"]
    ((severity, message),) = near_findings(audit)
    assert severity == "note"
    assert f"data.train: {len(near)} of 240 rows have nearly the answers of a row before" in message
    named = [f"train.jsonl:{place + 1} as" for place in near[:3]]
    assert all(name in message for name in named)
    assert audit.measured == {"near-duplicate-rows": {"rows compared": 240, "rows too short": 0}}


def test_a_row_to_evaluate_that_is_near_one_that_is_trained_on_is_a_warning(
    tmp_path: Path,
) -> None:
    long, own = text(100, 1), text(100, 2)
    train = [chat("a", long), chat("b", text(100, 3))]
    test = [chat("c", changed(long, 2, 5)), chat("d", own), chat("e", changed(own, 1, 6))]
    audits = audited(tmp_path, train=train, test=test)
    assert near_findings(audits["train"]) == []
    warning, note = sorted(near_findings(audits["test"]), reverse=True)
    assert warning[0] == "warning"
    assert (
        "1 of 3 rows have nearly the answers of a row of data.train (test.jsonl:1 as"
        in (warning[1])
    )
    assert note[0] == "note"
    assert "(test.jsonl:3 as test.jsonl:2," in note[1]


def test_rows_that_are_equal_or_short_or_ask_alike_are_not_near(tmp_path: Path) -> None:
    question, same = text(80, 1), chat("What?", text(60, 2))
    short = " ".join(["yes"] * (FEWEST_WORDS - 1))
    rows = [same, same, *[chat(f"{question} {n}?", f"{n} {short}"[2:]) for n in range(4)]]
    rows += [chat(question, text(30, 50 + n)) for n in range(4)]
    audit = audited(tmp_path, train=rows)["train"]
    assert near_findings(audit) == []
    assert audit.measured["near-duplicate-rows"] == {"rows compared": 5, "rows too short": 4}


def test_texts_without_spaces_are_compared_by_their_characters(tmp_path: Path) -> None:
    one = "".join(chr(0x4E00 + number) for number in np.random.RandomState(1).randint(0, 900, 120))
    rows = [chat("a", one), chat("b", one[:60] + "一" + one[61:]), chat("c", one[::-1])]
    ((_, message),) = near_findings(audited(tmp_path, train=rows)["train"])
    assert "1 of 3 rows" in message
    assert "train.jsonl:2 as train.jsonl:1" in message


def test_without_the_option_nothing_is_compared_and_that_is_reported(tmp_path: Path) -> None:
    rows = [chat("a", text(60, 1)), chat("b", changed(text(60, 1), 1, 1))]
    run = request("rows", messages(write_rows(tmp_path / "rows.jsonl", rows))).run
    (audit,) = audit_rows(run)
    assert near_findings(audit) == []
    assert audit.reasons["near-duplicate-rows"] == "--near is not given"


def test_where_all_answers_are_short_nothing_was_looked_at(tmp_path: Path) -> None:
    for rows in ([chat("a", "b")], [chat("a", "b"), chat("c", text(60, 1))]):
        audit = audited(tmp_path, train=rows)["train"]
        assert near_findings(audit) == []
        why = f"no row has answers of {FEWEST_WORDS} words"
        assert audit.reasons.get("near-duplicate-rows") == (why if len(rows) == 1 else None)
