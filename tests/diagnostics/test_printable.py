"""Text by others is printed escaped: no line of it is a command of GitHub's log."""

import io
import json
import random
import unicodedata
from dataclasses import replace
from pathlib import Path

import pytest

from vtool.cli.load_check_text import describe_subjects, digest_lines, last_line
from vtool.diagnostics import Diagnostic, Origin
from vtool.diagnostics.printable import Lines, printable
from vtool.diagnostics.render import as_json, render_results
from vtool.diagnostics.result import Result
from vtool.report.load_check.page import render_load_check_page as render_page

FORMATS = ("full", "concise", "github", "json", "sarif")
EVIL = "w\n::error::in\r##[group]\x1b[2J\u2028\u202e\x85\udc80\x00"


def result(name: str) -> Result:
    finding = Diagnostic(
        "nonfinite-value",
        f"`{name}` has NaN",
        help=f"look at {name}",
        parameter=name,
        origin=Origin(f"folder/{name}"),
        expected=name,
        seen=name,
        tensors=(name,),
    )
    details = {"bad-header": {"reason": name, name: [name]}}
    return Result(
        name, "unsafe", {"nonfinite-value": "failed", "bad-header": "not-run"}, (finding,), details
    )


def printed(name: str, format: str) -> str:
    stream = io.StringIO()
    render_results([result(name)], format, command="load-check", stream=stream, options=(name,))
    return stream.getvalue()


def names() -> list[str]:
    """Names of letters of all kinds, many of them such that print badly; seeded."""
    chance = random.Random(18)
    bad = "\n\r\t\v\f\x00\x1b\x85\u2028\u2029\u202e\u2066\ud800\udfff:#%[]`'\"\\"
    return [
        "w"
        + "".join(
            chance.choice(bad) if chance.random() < 0.5 else chr(chance.randrange(0x11_0000))
            for _ in range(chance.randrange(1, 30))
        )
        for _ in range(300)
    ]


def unsafe(text: str) -> set[str]:
    """The characters of a text that are no letters, but for its own line ends."""
    return {
        letter
        for letter in text
        if unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp") and letter != "\n"
    } | {letter for letter in text if letter in "\u202e\u2066"}


@pytest.mark.parametrize("format", FORMATS)
def test_a_name_is_escaped_in_every_format(format: str) -> None:
    text = printed(EVIL, format)
    assert unsafe(text) == set()
    lines = [line.lstrip() for line in text.splitlines()]
    own = [line for line in lines if line.startswith(("::", "##["))]
    assert len(own) == (format == "github")
    assert len(lines) == len(printed("w", format).splitlines())
    text.encode()


@pytest.mark.parametrize("format", FORMATS)
def test_no_name_begins_a_line_of_its_own(format: str) -> None:
    lines = len(printed("w", format).splitlines())
    for name in names():
        text = printed(name, format)
        assert unsafe(text) == set()
        assert len(text.splitlines()) == lines


def test_the_lines_around_the_findings_of_load_check_are_escaped() -> None:
    made = {"class": EVIL, "checkpoint": EVIL, "fields_guessed": {EVIL: EVIL}}
    measured = {EVIL: {"bytes": 4, "xxh3_128": "00"}}
    details = {
        "subject": made,
        "truncated-file": {"measured": measured},
        "bad-header": {"reason": EVIL},
    }
    checks = {"nonfinite-value": "failed", "bad-header": "not-run"}
    evil = replace(result(EVIL), details=details, checks=checks)
    for lines in (describe_subjects([evil]), digest_lines([evil]), [last_line([evil])]):
        (line,) = lines
        assert unsafe(line) == set()
        assert line.count("\n") == 1


def test_the_page_is_made_of_what_is_escaped() -> None:
    page = render_page(as_json([result(EVIL)], "load-check", [EVIL]))
    assert unsafe(page) == set()
    assert "::error::in" not in {line.strip() for line in page.splitlines()}


def test_a_json_document_is_read_back_as_it_was_meant() -> None:
    (found,) = json.loads(printed(EVIL, "json"))["results"]
    assert found["findings"][0]["tensors"] == [printable(EVIL)]
    assert printable(EVIL).startswith(
        "w\\n::error::in\\r##[group]\\x1b[2J\\u2028\\u202e\\x85\\udc80"
    )


def test_letters_stay_and_escaping_twice_is_escaping_once() -> None:
    for text in names():
        assert printable(printable(text)) == printable(text)
        assert all(letter in printable(text) for letter in text if letter.isalnum())


def test_words_of_every_language_stay() -> None:
    for text in ("größe", "模型.权重", "موديل", "क्षेत्र", "👩\u200d👩\u200d👧", "a\u00a0b", "a\\b"):
        assert printable(text) == text


def test_lines_that_are_our_own_stay_and_what_they_quote_is_escaped() -> None:
    message = Lines.of("two rows:", ["a\n::error::b", "::error::c"])
    finding = Diagnostic("broken-row", message)
    assert finding.message.splitlines() == ["two rows:", "  a\\n::error::b", "  :\\:error::c"]


def test_the_line_that_an_excerpt_shows_is_escaped(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(b"{\x1b[2J\x08\xe2\x80\xa8::error::\n")
    finding = Diagnostic("broken-row", "no", origin=Origin(str(tmp_path / "rows.jsonl"), 1, 1))
    stream = io.StringIO()
    render_results([Result.of_findings("x", [finding])], "full", command="verify", stream=stream)
    assert unsafe(stream.getvalue()) == set()
    assert "{\ufffd[2J" in stream.getvalue()
