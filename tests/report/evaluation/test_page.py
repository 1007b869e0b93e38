"""The page of an evaluation: wrong answers first, safe with any text, of bounded size."""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.report.test_browser import BROWSER, dump_dom, measure
from tests.report.test_page import ATTACK, Elements
from vtool.diagnostics import Findings
from vtool.evaluation.store import Store
from vtool.report.evaluation import is_evaluation, write_evaluation

Made = Callable[..., Path]


def line(index: int, answer: str, **more: Any) -> dict[str, Any]:
    """A line of predictions.jsonl, whose reference is `yes`."""
    values = {
        "index": index,
        "row": f"rows:{index}",
        "question": f"Is it {index}?",
        "reference": "yes",
        "answer": answer,
        "nll": 0.5 + index,
        "supervised": 2,
        "confidence": 0.75,
        "scores": {"exact": float(answer == "yes")},
    }
    return values | more


def score(metric: str, right: int | None, rows: int) -> dict[str, Any]:
    value = 0.5 if right is None else right / rows
    return {
        "metric": metric,
        "says": f"what {metric} says",
        **{"value": value, "low": 0.25, "high": 0.75, "rows": rows, "right": right},
    }


@pytest.fixture
def make(tmp_path: Path) -> Made:
    def made(name: str, lines: list[dict[str, Any]], **result: Any) -> Path:
        folder = tmp_path / name
        (folder / "images").mkdir(parents=True)
        Image.new("RGB", (8, 8), (200, 60, 90)).save(folder / "images" / "0.png")
        (folder / "predictions.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
        right = sum(one["scores"].get("exact", 0) == 1 for one in lines)
        written = {
            "model": f"runs/{name}/export",
            "base": f"runs/{name}/export",
            **{"family": "qwen2_5_vl", "rows": "my.jsonl", "how": "greedy, at most 64 tokens"},
            "answered": len(lines),
            "sorted_by": "exact",
            "scores": [score("exact", right, len(lines)), score("nll", None, len(lines))],
        }
        (folder / "result.json").write_text(json.dumps(written | result))
        return folder

    return made


def page_of(folder: Path) -> str:
    return write_evaluation(folder).read_text(encoding="utf-8")


def shown(page: str) -> list[str]:
    """The ids of the rows that are shown, in their order."""
    words = Elements(page).words
    return [word.strip() for word in words if word.strip().startswith("rows:")]


def test_wrong_answers_come_first_those_of_the_largest_loss_before_others(make: Made) -> None:
    answers = ["yes", "no", "yes", "no", "no"]
    lines = [line(at, answer) for at, answer in enumerate(answers)]
    lines[1]["nll"] = None  # not a number: worse than any
    page = page_of(make("one", lines))
    assert shown(page) == ["rows:1", "rows:4", "rows:3", "rows:2", "rows:0"]
    text = Elements(page).text
    assert "Wrong answers 3 rows" in text
    assert "Right answers 2 rows" in text
    assert "expected yes got no loss 2.25 · confidence 75 %" in text
    assert "2 of 5; 95 % interval 25 to 75 %" in text


def test_images_of_a_row_are_inside_and_those_that_are_not_are_counted(make: Made) -> None:
    lines = [
        line(0, "no", pictures=["images/0.png", "../../secret.png"], images=["a", "b", "c"]),
        line(1, "no"),
    ]
    page = page_of(make("one", lines))
    assert [one["src"][:22] for one in Elements(page).having("img") if one["src"]] == [
        "data:image/png;base64,"
    ]
    assert "2 images not on this page" in Elements(page).text


def test_hostile_texts_are_text(make: Made) -> None:
    hostile = f"</script></li>{ATTACK}\ud800"
    lines = [
        line(0, hostile, row=hostile, question=hostile, reference=hostile, source=hostile),
        line(1, "no", source="other"),
    ]
    groups = {hostile: {hostile: [score(hostile, 1, 2)]}}
    finding = {"rule": hostile, "severity": hostile, "message": hostile}
    page = page_of(
        make(
            "one",
            lines,
            model=hostile,
            rows=hostile,
            how=hostile,
            groups=groups,
            notes=[hostile],
            findings=[finding],
        )
    )
    elements = Elements(page)
    assert len(elements.having("script")) == len(elements.having("/script")) == 1
    assert not elements.having("img")
    assert not [name for _, attributes in elements.tags for name in attributes if name[:2] == "on"]
    assert page.count("<script>alert(1)") == 0
    assert "<script>alert(1)</script>" in elements.text


def test_everything_is_there_without_a_script_and_no_other_script_may_run(make: Made) -> None:
    page = page_of(make("one", [line(0, "no"), line(1, "yes")]))
    body, _, script = page.partition("<script>")
    assert "http" not in script
    assert shown(body) == shown(page)
    elements = Elements(body)
    assert "hidden" in elements.having("form")[0]
    assert elements.having("noscript")
    (policy,) = (one["content"] for one in elements.having("meta") if "http-equiv" in one)
    assert policy is not None
    assert policy.startswith("default-src 'none';")
    assert policy.count("script-src") == policy.count("'sha256-") == 1


@pytest.mark.full
def test_ten_thousand_wrong_rows_of_long_texts_stay_below_four_mebibytes(make: Made) -> None:
    lines = [
        line(at, "<" * 3000, question="&" * 3000, pictures=["images/0.png"] * (at >= 9_800))
        for at in range(10_000)
    ]
    folder = make("many", lines)
    Image.effect_noise((256, 256), 90).convert("RGB").save(folder / "images" / "0.png")
    page = page_of(folder)
    assert len(page.encode()) < 4 * 2**20
    assert f"Shown are {len(shown(page))} of 10,000; predictions.jsonl has all." in " ".join(
        Elements(page).text.split()
    )
    assert len(shown(page)) > 100


def test_a_mean_is_sorted_by_the_score(make: Made) -> None:
    lines = [line(at, "no", scores={"f1": value}) for at, value in enumerate((0.5, 1.0, 0.1))]
    page = page_of(make("one", lines, sorted_by="f1", scores=[score("f1", None, 3)]))
    assert shown(page) == ["rows:2", "rows:0", "rows:1"]
    assert "Worst answers 2 rows" in Elements(page).text
    assert "f1 0.1" in Elements(page).text


def test_groups_have_their_scores(make: Made) -> None:
    groups = {"kind": {"chart": [score("exact", 1, 4)], "": [score("exact", 3, 5)]}}
    text = Elements(page_of(make("one", [line(0, "no")], groups=groups))).text
    assert "By kind kind rows exact chart 4 25 % 25 to 75 % (none) 5 60 % 25 to 75 %" in text


def against(first: Path, other: Path) -> None:
    compared = {"difference": 0.1, "low": -0.1, "high": 0.3, "p": 0.5, "alone": [1, 2]}
    text = {"model": f"runs/{other.name}/export", "evaluation": f"../{other.name}"}
    (first / "against.json").write_text(
        json.dumps(text | {"compared": [{"metric": "exact"} | compared]})
    )


def test_rows_that_one_of_two_models_has_right_are_shown_with_both_answers(make: Made) -> None:
    one = make("one", [line(0, "yes"), line(1, "no"), line(2, "no"), line(3, "no")])
    two = make(
        "two",
        [line(0, "no", pictures=["images/0.png"]), line(1, "yes"), line(2, "yes"), line(3, "no")],
    )
    against(one, two)
    page = page_of(one)
    assert shown(page) == ["rows:3", "rows:2", "rows:1", "rows:0", "rows:2", "rows:1", "rows:0"]
    text = Elements(page).text
    assert "Right in one alone 1 row of 4" in text
    assert "expected yes got yes two no" in text
    assert "Right in two alone 2 rows of 4" in text
    assert "+10 % -10 to 30 % right in it alone 1, in the other alone 2; p = 0.5000" in text
    assert len(Elements(page).having("img")) == 1  # of the other model's folder
    shutil.rmtree(two)
    assert "The other model's answers are not there any more" in Elements(page_of(one)).text


def test_models_are_compared_by_a_metric_that_both_have_still(make: Made) -> None:
    both = [{"exact": 0.0, "f1": 0.5}, {"exact": 1.0, "f1": 1.0}]
    own = [line(at, "yes" if at else "no", scores=scores) for at, scores in enumerate(both)]
    scores = [score("exact", 1, 2), score("f1", None, 2)]
    one = make("one", own, sorted_by="f1", scores=scores)
    two = make("two", [line(0, "yes"), line(1, "yes")])
    against(one, two)
    text = Elements(page_of(one)).text
    assert "Better in two, by exact 1 row of 2" in text
    again = make("again", [line(0, "no")], sorted_by="nll", scores=[score("nll", None, 1)])
    against(again, two)
    assert "+10 %" in text
    assert "+10 %" not in Elements(page_of(again)).text  # `exact` is not scored there any more


@pytest.mark.parametrize(
    "damaged",
    [
        {"scores": [{"metric": 3, "value": "x"}, 7], "groups": {"a": [], "b": {"c": 1}}},
        {"scores": [], "sorted_by": None, "notes": 3, "findings": [1], "answered": "many"},
        {"sorted_by": ["exact"], "groups": [1], "model": {"a": 1}},
    ],
)
def test_files_of_odd_values_still_have_a_page(make: Made, damaged: Mapping[str, Any]) -> None:
    folder = make("one", [line(0, "no")], **damaged)
    with (folder / "predictions.jsonl").open("a") as file:
        file.write('{"index": 1, "scores": [], "pictures": 4, "nll": "x", "confidence": 1e999}\n')
        file.write('[1]\n{"index": 2, "answer": nul\n')
    (folder / "against.json").write_text('{"evaluation": 5, "compared": [{"alone": 1}, null]}')
    assert "rows:0" in shown(page_of(folder))


def test_the_same_files_give_the_same_bytes_over_an_own_page_alone(make: Made) -> None:
    folder = make("one", [line(0, "no")])
    assert page_of(folder) == page_of(folder)
    (folder / "report.html").write_text("mine")
    with pytest.raises(FileExistsError):
        write_evaluation(folder)


def test_an_evaluation_is_distinguished_from_a_run(
    make: Made, run_folder: Path, tmp_path: Path
) -> None:
    assert is_evaluation(make("one", [line(0, "no")]))
    assert not is_evaluation(run_folder)
    assert not is_evaluation(tmp_path / "nowhere")


@pytest.mark.full
@pytest.mark.browser
@pytest.mark.parametrize("width", [400, pytest.param(1280, marks=pytest.mark.full)])
def test_the_page_fits_its_window(make: Made, tmp_path: Path, width: int) -> None:
    long = "x" * 300
    lines = [
        line(at, long, question=long, row=long, pictures=["images/0.png"], stopped=True)
        for at in range(5)
    ]
    groups = {"kind": {long: [score(name, 1, 4) for name in ("exact", "f1", "nll")]}}
    page = write_evaluation(make("one", lines, groups=groups, model=long, notes=[long]))
    seen = measure(page, tmp_path / "profile", width, True)
    assert seen["page"] <= width, "nothing scrolls sideways"
    assert not seen["wide"], "nothing sticks out"
    assert (seen["images"], seen["broken"]) == (5, 0)


@pytest.mark.browser
def test_the_filter_runs_under_the_pages_own_policy(make: Made, tmp_path: Path) -> None:
    if BROWSER is None:
        pytest.skip("not run: there is no Chromium here, so nobody ran the filter")
    page = write_evaluation(make("one", [line(0, "no"), line(1, "yes")]))
    (form,) = Elements(dump_dom(page, tmp_path / "profile")).having("form")
    assert "hidden" not in form, "the script has run and shows the filter"


@pytest.mark.parametrize("kind", ["a pipe", "40 GiB"])
def test_answers_that_never_end_are_not_waited_for(make: Made, kind: str) -> None:
    folder = make("run", [line(0, "yes")])
    if kind == "a pipe":
        (folder / "predictions.jsonl").unlink()
        os.mkfifo(folder / "predictions.jsonl")
    else:
        os.truncate(folder / "predictions.jsonl", 40 * 2**30)
    write_evaluation(folder, folder / "page.html")
    assert "Shown are" not in (folder / "page.html").read_text()
    with pytest.raises(Findings, match=r"run-folder-unwritable.*predictions\.jsonl"):
        Store(folder).read()
