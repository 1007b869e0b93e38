"""The page of watch: what was learnt is seen, nothing is loaded, and all text is escaped."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.report.test_browser import measure
from tests.report.test_page import ATTACK, Elements
from tests.watch.made import LENGTHS, Fact, changed, healthy, write
from tests.watch.test_conclusions import PLANTED
from vtool.diagnostics.render import as_json
from vtool.report.watch import write_watch
from vtool.watch.conclude import conclude_folder


def with_tokens(fact: Fact) -> None:
    """Add the ids of rows and the learnt tokens one by one; the last is pushed down."""
    if fact["kind"] == "rows":
        fact["inputs"] = [list(range(10, 50)), list(range(20, 60))]
    if fact["kind"] == "micro":
        weight = fact["weight"][1]
        fact["per_token"] = [
            {
                "row": row,
                "position": list(range(5, 5 + n)),
                "target": [10 + 10 * row + at + 1 for at in range(5, 5 + n)],
                "next": [10 + 10 * row + at + 1 for at in range(5, 5 + n)],
                "weight": [weight] * (n - 1) + [-weight / 2],
                "misfit": [0.0] * n,
                "resolved": [1.0] * n,
            }
            for row, n in enumerate(LENGTHS[fact["index"]])
        ]


@pytest.fixture
def document(tmp_path: Path) -> dict[str, Any]:
    facts = changed(healthy(2), with_tokens)
    for name in ("mean of means on ranks", "rows see each other"):
        facts = changed(facts, PLANTED[name][1])
    facts = changed(facts, with_tokens)
    results = conclude_folder(write(tmp_path / "facts", facts), "torchrun train.py", None)
    return json.loads(json.dumps(as_json(results, "watch")))  # type: ignore[no-any-return]


def page_of(document: dict[str, Any], tmp_path: Path) -> str:
    return write_watch(document, tmp_path / "page.html").read_text(encoding="utf-8")


def test_each_token_of_the_first_rows_has_its_weight(
    document: dict[str, Any], tmp_path: Path
) -> None:
    elements = Elements(page_of(document, tmp_path))
    learnt = [tag for tag in elements.having("span") if "learnt" in (tag.get("class") or "")]
    key = 3
    assert len(learnt) - key == sum(len(row["tokens"]) and _learnt(row) for row in rows(document))
    titles = {tag["title"] for tag in learnt[key:]}
    assert {"0.041667", "-0.020833"} <= titles
    down = [tag for tag in learnt[key:] if "down" in (tag["class"] or "").split()]
    assert all((tag["title"] or "").startswith("-") for tag in down)
    assert len(down) == len(rows(document))


def test_repeats_are_folded_unless_their_weights_differ(
    document: dict[str, Any], tmp_path: Path
) -> None:
    tokens = rows(document)[0]["tokens"]
    learnt = next(token for token in tokens if token["weight"] is not None)
    tokens += [{"text": "<pad>", "weight": None}] * 50 + [{**learnt, "text": "<image>"}] * 6
    tokens += [{**learnt, "text": "<video>", "weight": 0.01 * n} for n in range(1, 6)]
    page = page_of(document, tmp_path)
    assert page.count("&lt;pad&gt;") == 1
    assert "&lt;pad&gt; x 50" in page
    assert page.count("&lt;image&gt;") == 1
    assert "&lt;image&gt; x 6" in page
    assert page.count("&lt;video&gt;") == 5


@pytest.mark.parametrize("unended", [0, 1])
def test_facts_without_an_end_are_said(
    document: dict[str, Any], tmp_path: Path, unended: int
) -> None:
    document["results"][0]["details"]["watch"] |= {"unended": unended, "processes": 2}
    assert page_of(document, tmp_path).count("those of 1 of 2") == unended


def rows(document: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = document["results"][0]["details"]["watch"]["rows"]
    return found


def _learnt(row: dict[str, Any]) -> int:
    return sum(token["weight"] is not None for token in row["tokens"])


def test_bars_have_the_lengths_of_their_weights(document: dict[str, Any], tmp_path: Path) -> None:
    page = page_of(document, tmp_path)
    widths = re.findall(r'style="width:([\d.]+)%"', page)
    assert widths == ["100.0", "50.0"] * 6  # a mean of means: 12 and 24 tokens, 2 ranks, 3 steps


def test_findings_come_first_and_what_was_not_run_has_its_reason(
    document: dict[str, Any], tmp_path: Path
) -> None:
    text = Elements(page_of(document, tmp_path)).text
    assert text.index("token-weights-differ VT906") < text.index("What is learnt Each token")
    assert "the tokenizer is not known: --tokenizer DIR" in text
    assert "✗ 9e+04×" in text
    summary = document["summary"]
    assert f"checks: {summary['passed']} passed, {summary['failed']} failed" in text


def test_a_run_of_which_nothing_was_read_is_no_clean_one(tmp_path: Path) -> None:
    facts = [fact for fact in healthy() if fact["kind"] == "process"]
    results = conclude_folder(write(tmp_path / "facts", facts), "sh -c true", None)
    text = Elements(page_of(as_json(results, "watch"), tmp_path)).text
    assert "not run" in text
    assert "clean" not in text
    assert "No micro-batch was read." in text


def test_the_page_loads_nothing_and_runs_nothing_whatever_rows_say(
    document: dict[str, Any], tmp_path: Path
) -> None:
    (result,) = document["results"]
    result["subject"] = ATTACK
    result["findings"][0] |= {"message": ATTACK, "help": ATTACK}
    seen = result["details"]["watch"]
    seen["model"] = {"class": ATTACK, "head": ATTACK}
    seen["rows"][0]["tokens"][6] |= {"text": ATTACK, "learnt": ATTACK}
    result["details"]["targets-not-next"] = {"measured": {ATTACK: ATTACK}}
    page = page_of(document, tmp_path)
    elements = Elements(page)
    assert ATTACK not in page
    assert ATTACK in elements.text
    assert not elements.having("script")
    assert not elements.having("img")
    for tag, attributes in elements.tags:
        for name in ("src", "href", "srcset", "data", "action"):
            assert re.match(r"data:|#", attributes.get(name) or "#"), (tag, attributes)
        assert not [name for name in attributes if name.startswith("on")]
    assert "default-src 'none'" in page


def test_the_same_document_gives_the_same_bytes(document: dict[str, Any], tmp_path: Path) -> None:
    assert page_of(document, tmp_path) == page_of(document, tmp_path)


@pytest.mark.full
@pytest.mark.browser
@pytest.mark.parametrize("width", [400, 1280])
def test_nothing_is_wider_than_the_window(
    document: dict[str, Any], tmp_path: Path, width: int
) -> None:
    page_of(document, tmp_path)
    measured = measure(tmp_path / "page.html", tmp_path / "profile", width, True)
    assert measured["window"] == width
    assert measured["page"] <= width
    assert measured["wide"] == []
