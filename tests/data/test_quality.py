"""Findings about rows that can all be used."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.rows import chat, picture, write_rows
from tests.runs import messages, request, session
from vtool.diagnostics import Diagnostic, Findings
from vtool.verification.rows import audit_rows


def found(folder: Path, *overrides: str, **splits: list[Any]) -> list[Diagnostic]:
    """The findings of all splits: a file of rows each."""
    files = [
        messages(write_rows(folder / f"{split}.jsonl", rows)).replace("data.train", f"data.{split}")
        for split, rows in splits.items()
    ]
    audits = audit_rows(request("rows", *files, *overrides).run)
    assert all(audit.ledger.kept for audit in audits)
    return [
        one
        for audit in audits
        for one in audit.findings
        if one.rule not in ("reference-too-long", "evaluated-on-trained-rows")
    ]


def distinct(count: int, first: int = 0) -> list[Any]:
    return [chat(f"What is {n} times {n}?", str(n * n)) for n in range(first, first + count)]


def turns(*roles: str) -> Any:
    return {"messages": [{"role": role, "content": f"{role} {n}"} for n, role in enumerate(roles)]}


def test_of_rows_that_are_in_order_nothing_is_reported(tmp_path: Path) -> None:
    rows = [
        *distinct(30),
        turns("system", "user", "assistant", "user", "assistant"),
        chat("Où est le café ? Größe, naïve, 日本語, “quoted” – Ação, Â, €5, ÇÃO", "Là-bas. 😀"),
        chat("if a < b and c > d: x = y[0]", "<b>bold</b> <div> </p>"),
        chat("How do I write struck text?", "<s>So</s>, or <del>so</del>, never <s>so</s>"),
        chat("<s>Old price</s> 5", "In HTML, </s> closes <s>. Use [x] and <|> as you like: a[0]"),
    ]
    assert found(tmp_path, train=rows, validation=distinct(5, 40), test=distinct(5, 50)) == []


@pytest.mark.parametrize(
    ("row", "rule", "words"),
    [
        (chat("caf\ufffd?", "b"), "damaged-text", "U\\+FFFD"),
        (chat("Où?", "crÃ¨me brÃ»lÃ©e"), "damaged-text", "encoded twice"),
        (chat("itâ€™s â€œsoâ€\x9d", "b"), "damaged-text", "encoded twice"),
        (chat("[INST] What? [/INST]", "b"), "tokens-of-other-models", "plain text"),
        (chat("What?", "A cat.</s>"), "tokens-of-other-models", "plain text"),
        (chat("What?</s> USER: And?", "b"), "tokens-of-other-models", "plain text"),
        (chat("<s>What?", "b"), "tokens-of-other-models", "plain text"),
        (chat("a <｜User｜> b", "b"), "tokens-of-other-models", "plain text"),
        (turns("user", "system", "assistant"), "unusual-turns", "system turn"),
        (turns("user", "user", "assistant"), "unusual-turns", "two user turns"),
    ],
)
def test_an_odd_text_is_reported_with_its_row(
    tmp_path: Path, row: Any, rule: str, words: str
) -> None:
    (one,) = found(tmp_path, train=[*distinct(3), row])
    assert (one.rule, one.parameter) == (rule, "data.train")
    assert "of 4 rows, 1 with" in one.message
    assert "(train.jsonl:4)" in one.message
    assert re.search(words, one.message)


def test_rows_that_are_there_before_are_counted_and_three_are_named(tmp_path: Path) -> None:
    rows = distinct(4)
    (one,) = found(tmp_path, train=[*rows, *rows, chat("a", "b")])
    assert (one.rule, one.severity) == ("duplicate-rows", "note")
    assert "4 of 9 rows" in one.message
    assert "train.jsonl:5 is train.jsonl:1" in one.message
    assert one.message.endswith("…)")


def test_the_same_text_with_another_picture_is_another_row(tmp_path: Path) -> None:
    rows = []
    for number in range(3):
        picture(tmp_path / f"{number}.png", seed=number % 2)
        rows.append(chat("<image>What?", "b") | {"images": [f"{number}.png"]})
    (one,) = found(tmp_path, train=rows)
    assert "1 of 3 rows are there before, in text and pictures (train.jsonl:3 is" in one.message


def test_a_question_with_several_answers_is_reported_and_its_picture_is_part_of_it(
    tmp_path: Path,
) -> None:
    for number in range(2):
        picture(tmp_path / f"{number}.png", seed=number)
    rows = [
        chat("<image>What?", "a cat") | {"images": ["0.png"]},
        chat("<image>What?", "a dog") | {"images": ["1.png"]},
        chat("Who?", "I"),
    ]
    assert found(tmp_path, train=rows) == []
    (one,) = found(tmp_path, train=[*rows, chat("<image>What?", "a fox") | {"images": ["1.png"]}])
    assert one.rule == "several-answers"
    assert "several answers: 1, in 2 rows (train.jsonl:2, train.jsonl:4)" in one.message


def test_one_answer_to_most_questions_is_reported_of_many_rows(tmp_path: Path) -> None:
    rows = [chat(f"Is {n} odd?", "no" if n < 11 else f"yes, {n} is") for n in range(20)]
    (one,) = found(tmp_path, train=rows)
    assert (one.rule, one.severity) == ("one-answer", "note")
    assert "11 of 20 rows" in one.message
    assert found(tmp_path, train=rows[1:]) == []


def test_rows_of_the_test_split_that_are_trained_on_end_it_and_are_named(tmp_path: Path) -> None:
    train = distinct(6)
    (one,) = found(tmp_path, train=train, test=[*distinct(2, 90), train[4], train[1]])
    assert (one.rule, one.severity) == ("rows-in-two-splits", "error")
    assert one.parameter == "data.max_overlap_rows"
    assert one.message == (
        "data.test: 2 of 4 rows are also trained on:\n  test.jsonl:3 is train.jsonl:5\n"
        "  test.jsonl:4 is train.jsonl:2"
    )
    (allowed,) = found(
        tmp_path, "data.max_overlap_rows=2", train=train, test=[*distinct(2, 90), *train[:2]]
    )
    assert allowed.severity == "warning"


def test_rows_of_the_validation_split_that_are_trained_on_are_a_warning(tmp_path: Path) -> None:
    train = distinct(40)
    (one,) = found(tmp_path, train=train, validation=train[:30])
    assert (one.rule, one.severity) == ("rows-in-two-splits", "warning")
    assert one.message.count(" is ") == 20
    assert one.message.endswith("… and 10 more")


def test_a_picture_of_two_splits_with_other_texts_is_a_note(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    train = [chat("<image>What?", "b") | {"images": ["a.png"]}]
    test = [chat("<image>Who?", "c") | {"images": ["a.png"]}, *distinct(1)]
    (one,) = found(tmp_path, train=train, test=test)
    assert (one.rule, one.severity) == ("pictures-in-two-splits", "note")
    assert "1 of 2 rows" in one.message


def test_a_run_whose_test_rows_are_trained_on_does_not_start(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", distinct(4))
    other = tmp_path / "copy.jsonl"
    other.write_text(json.dumps(json.loads(path.read_text().splitlines()[2])) + "\n")
    run = f"run.dir={tmp_path / 'run'}"
    test = messages(other).replace("data.train", "data.test")
    with pytest.raises(Findings, match=r"(?s)rows-in-two-splits.*copy\.jsonl:1 is rows\.jsonl:3"):
        session(request("rows", messages(path), test, run))
    more = ("data.max_overlap_rows=1", "optim.warmup_steps=1")
    session(request("rows", messages(path), test, run, *more))


def outside(folder: Path) -> tuple[str, Path]:
    """A folder of rows with one picture in it, one next to it, and a link from it to that one."""
    own, other = folder / "own", folder / "other"
    own.mkdir()
    other.mkdir()
    picture(own / "a.png")
    picture(other / "b.png", seed=1)
    (own / "link.png").symlink_to(other / "b.png")
    return str(other / "b.png"), own


def shown(name: str, number: int) -> Any:
    return chat(f"<image>What is {number}?", f"It is {number}") | {"images": [name]}


def test_pictures_outside_of_the_rows_folder_are_a_note(tmp_path: Path) -> None:
    absolute, own = outside(tmp_path)
    inside = ["a.png", "./a.png", "../own/a.png", str(own / "a.png"), "file://a.png", "link.png"]
    rows = [shown(name, number) for number, name in enumerate([*inside, "../other/b.png"])]
    (one,) = found(own, train=[*rows, shown(absolute, 20)])
    assert (one.rule, one.severity) == ("files-outside-folder", "note")
    assert "of 8 rows, 2 with images or videos outside" in one.message
    assert "(train.jsonl:7, train.jsonl:8)" in one.message


def test_a_rows_file_in_the_working_directory_is_next_to_its_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, own = outside(tmp_path)
    monkeypatch.chdir(own)
    rows = [shown(name, number) for number, name in enumerate(["a.png", "../other/b.png"])]
    (one,) = found(Path(), train=rows)
    assert "1 with images" in one.message
    assert "(train.jsonl:2)" in one.message


def test_with_a_root_what_is_outside_of_it_is_refused_and_what_is_in_it_is_not_reported(
    tmp_path: Path,
) -> None:
    _, own = outside(tmp_path)
    names = ["a.png", "link.png", "../other/b.png"]
    rows = [shown(name, number) for number, name in enumerate(names)]
    assert found(own, f"data.root={tmp_path}", train=rows) == []
    refused = found(own, f"data.root={own}", train=rows)
    assert [(one.rule, one.origin and one.origin.line) for one in refused] == [
        ("outside-of-root", 2),
        ("outside-of-root", 3),
        ("too-many-dropped-rows", None),
    ]
    assert "link.png is " in refused[0].message, "where the link leads to"
    assert "/other/b.png" in refused[0].message


def test_a_root_that_is_no_folder_is_one_finding(tmp_path: Path) -> None:
    with pytest.raises(Findings) as raised:
        found(tmp_path, f"data.root={tmp_path / 'none'}", train=distinct(3))
    (one,) = raised.value.diagnostics
    assert (one.rule, one.parameter) == ("path-not-found", "data.root")


def test_ids_that_come_again_are_reported_with_their_rows(tmp_path: Path) -> None:
    rows = [row | {"id": number % 4} for number, row in enumerate(distinct(9))]
    (one,) = found(tmp_path, train=[*rows, *distinct(2, 20)])
    assert (one.rule, one.severity) == ("repeated-ids", "note")
    assert "5 of 9 rows with an id have one that a row of their file had before" in one.message
    assert "(train.jsonl:5 has that of train.jsonl:1, train.jsonl:6 has" in one.message
    assert one.message.endswith(", …)")


def test_files_that_number_their_rows_alike_have_no_id_twice(tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    for name, first in (("a", 0), ("b", 50)):
        rows = [row | {"id": str(number)} for number, row in enumerate(distinct(9, first))]
        write_rows(folder / f"{name}.jsonl", rows)
    (audit,) = audit_rows(request("rows", messages(folder)).run)
    assert audit.findings == ()
    two = (
        f"data.train=[{messages(folder / 'a.jsonl')[12:-1]},{messages(folder / 'b.jsonl')[12:-1]}]"
    )
    (audit,) = audit_rows(request("rows", two).run)
    assert audit.findings == ()


def of_words(counts: list[int], first: int = 1000) -> list[Any]:
    return [chat(f"What is {n}?", "so " * count) for n, count in enumerate(counts, first)]


def test_lengths_that_validation_does_not_have_are_reported(tmp_path: Path) -> None:
    mixed = [*range(5, 35), *[200] * 10]
    (one,) = found(tmp_path, train=of_words(mixed), validation=of_words([*range(5, 34)] * 2, 3000))
    assert (one.rule, one.severity, one.parameter) == (
        "lengths-not-validated",
        "note",
        "data.validation",
    )
    assert "10 are much longer (train.jsonl:31, train.jsonl:32, train.jsonl:33, …)" in one.message


def test_lengths_that_a_small_draw_happens_to_lack_are_not_reported(tmp_path: Path) -> None:
    drawn = np.random.RandomState(0).lognormal(3, 0.8, 400).astype(int) + 1
    rows = of_words(drawn.tolist())
    assert found(tmp_path, train=rows[10:], validation=rows[:10]) == []
