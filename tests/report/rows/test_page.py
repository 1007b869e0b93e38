"""The page of rows: what is learnt is seen, its numbers are the audit's, and it runs nothing."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.report.test_browser import measure
from tests.report.test_page import ATTACK, Elements
from tests.rows import chat, picture, write_rows
from vtool.cli.app import app
from vtool.report.rows.page import render_rows_page


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def verified(rows: list[Any], *arguments: str) -> tuple[str, dict[str, Any]]:
    """The page, and the document that was printed with it."""
    write_rows(Path("rows.jsonl"), rows)
    return page_of("rows.jsonl", *arguments)


def page_of(*arguments: str) -> tuple[str, dict[str, Any]]:
    result = CliRunner().invoke(
        app, ["verify", *arguments, "--html", "page.html", "--format", "json"]
    )
    assert "page: page.html" in result.stderr, result.stdout
    return Path("page.html").read_text(encoding="utf-8"), json.loads(result.stdout)


def numbered(count: int) -> list[Any]:
    return [chat(f"What is {n} times {n}?", " ".join(["so"] * (n + 1))) for n in range(count)]


def learnt(page: str) -> list[str]:
    """The supervised texts of rows, without the key's."""
    found = re.findall(r'class="learnt"[^>]*title[^>]*><bdi>([^<]*)</bdi>', page)
    return [str(text) for text in found]


def test_what_is_supervised_is_shaded_and_its_counts_are_the_ledgers() -> None:
    page, document = verified(numbered(30))
    details = document["results"][0]["details"]
    look, ledger = details["look"], details["ledger"]
    assert learnt(page)[:2] == ["so&lt;|im_end|&gt;", "so so&lt;|im_end|&gt;"]
    assert look["lengths"]["sum"] == sum(ledger["lengths"]) == ledger["tokens"]
    assert look["lengths"]["supervised"] == ledger["supervised_tokens"]
    assert sum(bar["count"] for bar in look["lengths"]["bars"]) == 30
    shown = {group["kind"]: [row["row"] for row in group["rows"]] for group in look["groups"]}
    by_length = sorted(range(30), key=lambda index: ledger["lengths"][index])
    names = [f"rows.jsonl:{index + 1}" for index in range(30)]
    assert shown["first"] == names[:3]
    assert shown["shortest"] == [names[index] for index in by_length[:3]]
    assert shown["longest"] == [names[index] for index in by_length[::-1][:3]]
    for group in look["groups"]:
        for row in group["rows"]:
            pieces = row["pieces"]
            assert pieces[0]["start"] == 0
            assert pieces[-1]["end"] == row["tokens"]
            supervised = [piece for piece in pieces if piece["supervised"]]
            assert sum(piece["end"] - piece["start"] for piece in supervised) == row["supervised"]


def test_images_are_counted_and_their_sizes_are_the_files() -> None:
    rows: list[Any] = numbered(3)
    for number in range(4):
        picture(Path(f"{number}.png"), 56 if number else 84, 28, seed=number)
        rows.append(chat("<image>" * 2 + "Which?", "a") | {"images": [f"{number}.png"] * 2})
    page, document = verified(rows)
    look = document["results"][0]["details"]["look"]
    bars = [(bar["low"], bar["count"]) for bar in look["images"]["bars"]]
    assert bars == [(0, 3), (1, 0), (2, 4)]
    assert look["pictures"]["common"] == [[56, 28, 6], [84, 28, 2]]
    text = Elements(page).text
    assert "56 × 28 6 84 × 28 2" in text
    (one, two) = [piece for piece in look["groups"][1]["rows"][0]["pieces"] if piece["visual"]]
    assert one["end"] - one["start"] == two["end"] - two["start"] > 1
    assert f"<|image_pad|> × {one['end'] - one['start']}" in text


def test_a_rows_images_are_shown_small_and_a_damaged_one_says_so() -> None:
    picture(Path("whole.png"), 60, 30)
    picture(Path("cut.png"))
    Path("cut.png").write_bytes(Path("cut.png").read_bytes()[:900])
    both = chat("<image><image>Which?", "a") | {"images": ["whole.png", "cut.png"]}
    many = chat("<image>" * 9, "b") | {"images": ["whole.png"] * 9}
    page, _ = verified([many, both])
    elements = Elements(page)
    shown = elements.having("img")
    assert "image 1 of 9: whole.png, 60 × 30 pixels" in [one["alt"] for one in shown]
    assert all(re.match(r"data:image/jpeg;base64,/9j/[\w+/]+=*$", one["src"]) for one in shown)
    assert "5 more images not shown" in elements.text
    unusable = elements.text.partition("Rows that cannot be used")[2]
    assert "image 2 of 2: cut.png is not shown: " in unusable
    assert "image 1 of 2: whole.png, 60 × 30 pixels" in page.partition("Rows that cannot be")[2]


def test_the_page_says_what_counts_tokens() -> None:
    words = "Tokens are counted with a tiny built-in qwen2_5_vl tokenizer, trained on these rows"
    assert words in Elements(verified(numbered(2))[0]).text


def test_rows_that_are_there_before_and_rows_that_cannot_be_used_say_why() -> None:
    rows = [
        *numbered(6),
        numbered(2)[1],
        "{",
        chat("Hi <|im_start|>", "b"),
        chat("long", "no " * 300),
    ]
    page, document = verified(rows, "data.max_dropped_rows=3", *LONG)
    text = Elements(page).text
    assert "Rows that are there before 1 of 1 rows.jsonl:7" in text
    assert "It is rows.jsonl:2 again." in text
    assert "Rows that cannot be used 3 of 3" in text
    assert "rows.jsonl:8 is not JSON" in text
    assert "Nothing of it can be shown." in text
    assert "It has no tokens; its texts are: user: Hi <|im_start|>" in text
    assert "no no no" in text.partition("rows.jsonl:10 has")[2], "a row that is too long has tokens"
    assert re.search(r"\d+ tokens not shown", text)
    assert document["results"][0]["verdict"] == "clean"


LONG = ("data.max_length=100", "data.on_overlong=drop")


def test_the_cheapest_budget_is_named_and_the_one_that_is_set() -> None:
    settings = ["data.global_batch_size=16", "launch.nproc=2", "data.packing=token_budget"]
    page, document = verified(numbered(60), *settings, "data.micro_batch_tokens=200")
    budgets = document["results"][0]["details"]["look"]["budgets"]
    best = max(budgets["fills"], key=lambda one: one["fill"])["budget"]
    assert budgets["cheapest"] == best
    text = Elements(page).text
    assert f"The cheapest of these is data.micro_batch_tokens={best} ." in text
    assert "200 2.00" in text or "as set" in text
    assert "4 steps of 16 rows ( data.global_batch_size ) on 2 ranks" in text


def test_rows_that_nobody_packs_have_no_budgets_and_one_median() -> None:
    page, document = verified(numbered(4))
    assert document["results"][0]["details"]["look"]["budgets"] is None
    assert "budget" not in Elements(page).text.lower()
    text = Elements(page).text
    printed = CliRunner().invoke(app, ["verify", "rows.jsonl"]).stdout
    shown = re.search(r"tokens a row: \d+ to \d+, median ([\d.]+);", printed)
    assert shown is not None
    assert f"tokens a row, median {shown[1]} " in text
    assert f", median {shown[1]} " in text


def test_rows_of_one_length_have_one_number() -> None:
    page, _ = verified([chat("What?", "That.")] * 3)
    printed = CliRunner().invoke(app, ["verify", "rows.jsonl"]).stdout
    assert re.search(r"tokens a row: \d+; ", printed)
    assert not re.search(r"(\d+) to \1\b", Elements(page).text + printed)


def test_what_was_not_looked_at_stands_on_the_page() -> None:
    text = Elements(verified(numbered(60))[0]).text
    assert "There are no rows of data.validation and no rows of data.test" in text
    assert "Of 60 rows, at most 9 are shown; all were audited." in text
    assert "Videos a row" not in text
    assert "not run" in text
    assert "data.max_length is not given" in text


def test_where_no_row_can_be_used_nothing_is_called_good() -> None:
    packed = ("data.packing=token_budget", "data.micro_batch_tokens=200")
    text = Elements(verified(["{bad", "null"], *packed)[0]).text
    assert "No row can be used." in text
    assert "Not computed: no row can be used." in text
    assert "unsafe" in text


@pytest.mark.full
def test_every_split_and_the_proofs_of_a_recipe_have_a_part_each() -> None:
    write_rows(Path("rows.jsonl"), numbered(8))
    entry = "[{format: messages, path: rows.jsonl}]"
    page, _ = page_of("rows", f"data.train={entry}", f"data.validation={entry}")
    text = Elements(page).text
    assert "Findings of data.train" in text
    assert "Rows of data.validation" in text
    assert "Checks of Proofs of the recipe, and what was not looked at" in text
    assert "There are no rows of data.test: nothing was compared with them." in text


def test_the_page_loads_nothing_and_runs_nothing_whatever_rows_say() -> None:
    hostile = chat(ATTACK, f"</bdi></p>{ATTACK}\n\tand\u202emore")
    page, document = verified([*numbered(2), hostile, hostile, chat(f"{ATTACK}<|im_end|>", "x")])
    (result,) = document["results"]
    result["subject"] = ATTACK
    result["findings"][0] |= {"message": ATTACK, "help": ATTACK}
    for made in (page, render_rows_page(document)):
        elements = Elements(made)
        assert ATTACK not in made
        assert ATTACK in elements.text
        assert not elements.having("script")
        assert not elements.having("img")
        assert "\u202e" not in made
        for tag, attributes in elements.tags:
            for name in ("src", "href", "srcset", "data", "action"):
                assert re.match(r"data:|#", attributes.get(name) or "#"), (tag, attributes)
            assert not [name for name in attributes if name.startswith("on")]
        assert "default-src 'none'" in made
    assert "⏎\n→\tand" in page


@pytest.mark.full
def test_a_page_of_many_and_of_long_rows_stays_small() -> None:
    turns = {"messages": [*chat("q", "a")["messages"]] * 400}
    long = [chat("why " * 4000, f"{n} because " * 4000) for n in range(8)]
    bad = [chat(f"<|im_start|>{n} " + "x" * 50_000, "y") for n in range(40)]
    page, _ = verified([*long, turns, *bad, *["{"] * 300], "data.max_dropped_rows=400")
    assert len(page) < 150_000
    assert "more pieces not shown" in page


def test_where_rows_cannot_be_opened_an_earlier_page_is_called_one() -> None:
    Path("rows.json").write_text("[1,")
    asked = ["verify", "rows.json", "--html", "page.html"]
    assert "no page is written\n" in CliRunner().invoke(app, asked).stderr
    verified(numbered(2))
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 1
    assert "no page is written; page.html is of another time" in result.stderr
    assert "rows.jsonl" in Path("page.html").read_text(encoding="utf-8")


def test_another_file_is_not_overwritten() -> None:
    write_rows(Path("rows.jsonl"), numbered(2))
    Path("mine.txt").write_text("mine")
    result = CliRunner().invoke(app, ["verify", "rows.jsonl", "--html", "mine.txt"])
    assert result.exit_code == 2
    assert "no page of vtool's" in " ".join(result.stderr.split())
    assert Path("mine.txt").read_text() == "mine"


@pytest.mark.parametrize("option", ["--fast", "--only=rows-lost"])
def test_a_page_of_rows_that_are_left_out_is_refused(option: str) -> None:
    result = CliRunner().invoke(app, ["verify", "rows", option, "--html", "page.html"])
    assert result.exit_code == 2
    assert "--html page.html: rows are shown by the audit of rows" in result.stderr
    assert not Path("page.html").exists()


@pytest.mark.full
@pytest.mark.browser
@pytest.mark.parametrize("width", [400, 1280])
def test_nothing_is_wider_than_the_window(tmp_path: Path, width: int) -> None:
    picture(Path("a.png"))
    rows = [
        chat("<image>" + "verylongword" * 60, "x" * 900) | {"images": ["a.png"]},
        *numbered(60),
        chat("<|im_start|>" + "y" * 900, "b"),
        "{",
    ]
    verified(rows, "data.max_dropped_rows=2")
    measured = measure(tmp_path / "page.html", tmp_path / "profile", width, True)
    assert measured["window"] == width
    assert measured["page"] <= width
    assert measured["wide"] == []
    assert measured["images"] > 0
    assert measured["broken"] == 0
