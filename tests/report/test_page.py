import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from vtool.report import write_report

ATTACK = '<script>alert(1)</script><img src=x onerror="alert(2)">'


class Elements(HTMLParser):
    """The tags of a page with their attributes, and its text, with one space where tags or white
    space are.
    """

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(page)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        self.tags.append((f"/{tag}", {}))

    def handle_data(self, data: str) -> None:
        if not self.tags or self.tags[-1][0] != "style":
            self.words.append(data)

    def having(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.tags if tag == name]


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def change(path: Path, **changes: object) -> None:
    """Change keys of a JSON file; None removes one."""
    content = json.loads(path.read_text(encoding="utf-8")) | changes
    path.write_text(
        json.dumps({key: value for key, value in content.items() if value is not None}),
        encoding="utf-8",
    )


def page_of(*runs: Path) -> str:
    return write_report(runs, runs[0].parent / "page.html").read_text(encoding="utf-8")


def test_the_page_loads_nothing_and_runs_nothing(run_folder: Path) -> None:
    page = page_of(run_folder)
    elements = Elements(page)
    assert not elements.having("script")
    for tag, attributes in elements.tags:
        for name in ("src", "href", "xlink:href", "srcset", "data", "action", "poster"):
            assert re.match(r"data:|#", attributes.get(name) or "#"), (tag, attributes)
        assert not [name for name in attributes if name.startswith("on")]
    assert not re.search(r"@import|url\((?!#)", page)
    assert "default-src 'none'" in page


def test_what_a_finished_run_says_of_itself(run_folder: Path) -> None:
    text = Elements(page_of(run_folder)).text
    assert "10 of 12 rows; 95 % interval 55.2 to 95.3 %" in text
    assert "checks: 2 passed, 1 not run" in text
    assert "Clipped to 1 in 3 of 40 steps." in text
    assert "overlong-row" in text
    assert "1500 tokens, and data.max_length is 1024" in text
    assert "100 kept + 1 dropped of 101 rows" in text
    assert "100 trained on + 1 dropped of 101 rows seen; 1,280 samples over 12.8 epochs" in text
    assert "command line" in text
    assert "torch 2.9.1" in text
    assert "vtool train sft" not in text, "a finished run has nothing to go on with"


def test_test_images_are_inside_wrong_ones_first(run_folder: Path) -> None:
    pictures = [image for image in Elements(page_of(run_folder)).having("img") if image["alt"]]
    assert [image["alt"] for image in pictures][:3] == [
        "Test image digits:test:5",
        "Test image digits:test:11",
        "Test image digits:test:0",
    ]
    assert len(pictures) == 12
    assert all(
        (image["src"] or "").startswith("data:image/png;base64,") and image["class"] == "pixelated"
        for image in pictures
    )


def test_rows_whose_image_was_not_kept_make_room_for_the_others(run_folder: Path) -> None:
    rows = lines_of(run_folder / "predictions.jsonl")
    for row in rows[:11]:
        del row["image"]
    write_lines(run_folder / "predictions.jsonl", rows)
    elements = Elements(page_of(run_folder))
    assert [image["alt"] for image in elements.having("img")] == ["Test image digits:test:11"]
    assert "Wrong (1 of 2)" in elements.text


def test_every_chart_has_a_name_and_ids_are_unique(run_folder: Path) -> None:
    elements = Elements(page_of(run_folder))
    drawings = [
        attributes for attributes in elements.having("svg") if attributes.get("role") == "img"
    ]
    assert [(attributes["aria-label"] or "").split(" by step:")[0] for attributes in drawings] == [
        "Training loss",
        "Validation NLL",
        "Validation exact match",
        "Gradient norm",
        "Learning rate",
        "Throughput",
    ]
    ids = [attributes["id"] for _, attributes in elements.tags if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_answers_questions_and_names_are_escaped(run_folder: Path) -> None:
    rows = lines_of(run_folder / "predictions.jsonl")
    rows[5] |= {"answer": ATTACK, "question": ATTACK, "row": ATTACK, "image": f"{ATTACK}.png"}
    rows[4]["reference"] = rows[4]["answer"] = ATTACK
    write_lines(run_folder / "predictions.jsonl", rows)
    (run_folder / "config.yaml").write_text(
        f"run:\n  name: {json.dumps(ATTACK)}  # {ATTACK}\n", encoding="utf-8"
    )
    change(run_folder / "result.json", status=ATTACK, versions={ATTACK: ATTACK})
    page = page_of(run_folder)
    assert ATTACK not in page
    assert "onerror=" not in re.sub(r"&#34;|&lt;[^<>]*", "", page)
    assert not Elements(page).having("script")
    assert ATTACK in Elements(page).text, "shown as text"


def test_an_answer_that_utf8_cannot_hold_does_not_stop_the_page(run_folder: Path) -> None:
    (run_folder / "predictions.jsonl").write_text(
        '{"row": "r", "question": "?", "reference": "a", "answer": "\\ud83d", "correct": false}\n',
        encoding="utf-8",
    )
    assert "1 wrong" in Elements(page_of(run_folder)).text


def test_an_unfinished_run_counts_as_nothing_passed(run_folder: Path) -> None:
    (run_folder / "result.json").unlink()
    (run_folder / "predictions.jsonl").unlink()
    metrics_file = run_folder / "metrics.jsonl"
    metrics_file.write_bytes(metrics_file.read_bytes()[:-20])
    text = Elements(page_of(run_folder)).text
    assert "unfinished" in text
    assert "not measured the run has no result yet" in text
    assert "half written" in text
    assert "result.json is not there" in text
    assert "That is “not run”, not “passed”." in text
    assert "passed," not in text
    assert f"vtool train sft {run_folder / 'config.yaml'}" in text
    assert f"vtool report {run_folder} --follow" in text


@pytest.mark.parametrize("kept", ["config.yaml", "metrics.jsonl", "result.json"])
def test_any_other_file_may_be_missing(run_folder: Path, kept: str) -> None:
    for name in {
        "config.yaml",
        "metrics.jsonl",
        "result.json",
        "data.json",
        "predictions.jsonl",
    } - {kept}:
        (run_folder / name).unlink()
    text = Elements(page_of(run_folder)).text
    assert "is not there" in text
    assert ("Not measured: metrics.jsonl has no step with it." in text) == (kept != "metrics.jsonl")


def test_a_run_without_test_rows_says_so(run_folder: Path) -> None:
    change(run_folder / "data.json", test=None)
    change(run_folder / "result.json", test_exact_match=None, test_nll=None, test_samples=None)
    (run_folder / "predictions.jsonl").unlink()
    text = Elements(page_of(run_folder)).text
    assert "there are no test rows" in text
    assert "predictions.jsonl is not there:" not in text


def test_what_does_not_fit_together_is_said(run_folder: Path) -> None:
    rows = lines_of(run_folder / "metrics.jsonl")
    rows[7]["loss"] = float("nan")
    write_lines(run_folder / "metrics.jsonl", [*rows[:20], *rows[15:30], *rows[33:]])
    write_lines(run_folder / "predictions.jsonl", lines_of(run_folder / "predictions.jsonl")[:11])
    change(
        run_folder / "result.json",
        checks={"ledger-mismatch": "failed"},
        ledger={"seen": 101, "trained": 99, "dropped": 1},
    )
    text = Elements(page_of(run_folder)).text
    assert "the step number does not rise in 1 place" in text
    assert "steps are missing in 1 place" in text
    assert "Not finite, and not drawn, at 1 point(s)." in text
    assert "predictions.jsonl has 10 right of 11 rows, but result.json says 10 of 12." in text
    assert "the rows do not add up: 99 trained on + 1 dropped of 101 rows seen" in text
    assert "1 check failed: ledger-mismatch." in text


@pytest.mark.parametrize(
    "damaged",
    [
        {"test_samples": -6, "test_exact_match": 0.5},
        {"test_samples": float("inf"), "test_exact_match": 0.5},
        {"test_samples": 0.25, "test_exact_match": 1.0},
        {"checks": {"broken-row": ["passed"]}},
    ],
)
def test_a_result_of_odd_values_still_has_a_page(run_folder: Path, damaged: dict[str, Any]) -> None:
    file = run_folder / "result.json"
    file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | damaged), encoding="utf-8")
    page = write_report([run_folder], run_folder / "odd.html").read_text("utf-8")
    assert "there is no interval" in page or "checks" in damaged


def test_an_image_elsewhere_or_damaged_is_not_shown(run_folder: Path) -> None:
    Image.new("RGB", (8, 8)).save(run_folder.parent / "secret.png")
    (run_folder / "samples" / "00001.png").write_bytes(b"\x89PNG\r\n\x1a\nnot an image")
    rows = lines_of(run_folder / "predictions.jsonl")[:3]
    rows[0]["image"] = "../secret.png"
    rows[1]["image"] = "samples/a\0b.png"
    rows[2]["image"] = "samples/none.png"
    write_lines(run_folder / "predictions.jsonl", rows)
    elements = Elements(page_of(run_folder))
    assert not [image for image in elements.having("img") if image["alt"]]
    assert elements.text.count("image not readable, or left out for size") == 3


@pytest.mark.full
def test_photos_and_long_runs_keep_the_page_small(run_folder: Path) -> None:
    for index in range(12):
        Image.effect_noise((900, 700), 90).convert("RGB").save(
            run_folder / "samples" / f"{index:05d}.png"
        )
    write_lines(run_folder / "predictions.jsonl", lines_of(run_folder / "predictions.jsonl") * 20)
    step = lines_of(run_folder / "metrics.jsonl")[0]
    steps = [
        step | {"step": index, "loss": 2 + index % 7, "seconds": index * 0.1}
        for index in range(20_000)
    ]
    write_lines(run_folder / "metrics.jsonl", steps)
    assert len(page_of(run_folder).encode()) < 1_500_000


def test_several_runs_stand_side_by_side(make_run: Callable[..., Path]) -> None:
    first, second = make_run("first"), make_run("second")
    config = second / "config.yaml"
    config.write_text(
        config.read_text(encoding="utf-8").replace("2.0e-3", "5.0e-4"), encoding="utf-8"
    )
    rows = lines_of(second / "predictions.jsonl")
    rows[5] |= {"answer": "2", "correct": True}
    write_lines(second / "predictions.jsonl", rows)
    change(second / "result.json", test_exact_match=11 / 12)
    text = Elements(page_of(first, second)).text
    assert "optim.lr 2.0e-3 5.0e-4" in text
    assert "optim.clip_norm 1.0 1.0" not in text, "what is the same is not listed"
    assert "10 of 12 rows" in text
    assert "11 of 12 rows" in text
    assert (
        "Of 12 shared test rows, 1 is right in one run and wrong in another. first alone is right"
        " on 0." in text
    )


def test_runs_of_one_name_are_distinguished_and_one_may_be_unfinished(
    make_run: Callable[..., Path],
) -> None:
    first, second = make_run("first"), make_run("second")
    (second / "config.yaml").write_text(
        (first / "config.yaml").read_text(encoding="utf-8"), encoding="utf-8"
    )
    (second / "result.json").unlink()
    text = Elements(page_of(first, second)).text
    assert str(first) in text
    assert str(second) in text
    assert "version of" not in text, "what a run does not say is no difference"
    assert "Nothing: the same settings, data and versions" in text


def test_the_same_files_give_the_same_bytes_and_no_heavy_module_is_imported(
    run_folder: Path,
) -> None:
    page = page_of(run_folder)
    program = (
        "import sys, json; from pathlib import Path; from vtool.report import write_report;folder ="
        " Path(sys.argv[1]); write_report([folder], folder / 'again.html');"
        " print(json.dumps(list(sys.modules)))"
    )
    environment = os.environ | {"PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(
        [sys.executable, "-c", program, str(run_folder)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert (run_folder / "again.html").read_text(encoding="utf-8") == page
    loaded = {name.split(".")[0] for name in json.loads(ran.stdout)}
    assert not loaded & {"torch", "transformers", "hydra", "omegaconf", "pydantic", "sklearn"}


def test_a_page_that_cannot_be_written_leaves_the_old_one(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = write_report([run_folder], run_folder / "report.html")
    old = target.read_text(encoding="utf-8")

    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full_disk)
    with pytest.raises(OSError, match="No space"):
        write_report([run_folder], target)
    assert target.read_text(encoding="utf-8") == old
    assert not list(run_folder.glob(".report.html*"))


@pytest.mark.full
@pytest.mark.parametrize("text", ["weights", "<!DOCTYPE html>\n<html lang='en'>my own</html>"])
def test_a_page_takes_the_place_of_pages_alone(run_folder: Path, text: str) -> None:
    mine, empty = run_folder / "model.safetensors", run_folder / "empty.html"
    mine.write_text(text)
    with pytest.raises(FileExistsError, match=r"no page of vtool's.*model\.safetensors"):
        write_report([run_folder], mine)
    assert mine.read_text() == text
    empty.touch()
    assert write_report([run_folder], write_report([run_folder], empty)) == empty
    pipe = run_folder / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(FileExistsError, match="no file"):
        write_report([run_folder], pipe)


def test_what_a_run_began_with_and_a_later_end_are_said(run_folder: Path) -> None:
    config = run_folder / "config.yaml"
    config.write_text(config.read_text().replace("train:\n", "train:\n  from: runs/<first>\n"))
    result = json.loads((run_folder / "result.json").read_text())
    result["extended"] = [{"after_step": 20, "planned_steps": 20, "steps": 40, "rate": 1e-3}]
    (run_folder / "result.json").write_text(json.dumps(result))
    text = Elements(page_of(run_folder)).text
    assert "It began with the weights of runs/<first>." in text
    assert "After step 20 its end was moved from step 20 to 40" in text


def test_a_spike_is_named_with_its_rows(run_folder: Path) -> None:
    metrics = lines_of(run_folder / "metrics.jsonl")
    for line in metrics:
        if "loss" in line:
            line["loss"] = 900.0 if line["step"] == 30 else 1.0 + line["step"] % 3 / 50
    write_lines(run_folder / "metrics.jsonl", metrics)
    found = {"step": 30, "loss": 900.0, "rows": ["my.jsonl:3", "my.jsonl:<b>"]}
    change(run_folder / "result.json", spikes=[found])
    text = Elements(page_of(run_folder)).text
    assert "The loss spikes in 1 place: step 30." in text
    assert "30 900 1.02 my.jsonl:3, my.jsonl:<b>" in text
    (run_folder / "result.json").unlink()
    assert "30 900 1.02 not known until the run has finished" in Elements(page_of(run_folder)).text


def test_a_run_without_spikes_or_validation_rows_has_no_section_of_them(run_folder: Path) -> None:
    ids = [tag["id"] for tag in Elements(page_of(run_folder)).having("section")]
    assert not {"spikes", "over-time", "trained"} & set(ids)


def test_one_answer_to_every_row_is_remarked(run_folder: Path) -> None:
    rows = lines_of(run_folder / "predictions.jsonl")
    write_lines(run_folder / "predictions.jsonl", [row | {"answer": "\n"} for row in rows])
    text = Elements(page_of(run_folder)).text
    assert "All 12 test rows have one answer, “(white space)”, where" in text


def test_validation_rows_are_shown_with_their_answers_over_time(run_folder: Path) -> None:
    answers = ["7", "7", ATTACK, *map(str, range(20)), "4"]
    lines = [
        {
            "step": 10 * place,
            "answers": [
                {"row": "a:1", "question": "Which?", "reference": "4", "answer": answer}
                | {"correct": answer == "4", "image": None}
            ],
        }
        for place, answer in enumerate(answers, 1)
    ]
    write_lines(run_folder / "validation.jsonl", [*lines, {"step": 999, "answers": 7}])
    text = Elements(page_of(run_folder)).text
    assert "1 validation row at 25 evaluations. Each asks: “ Which? ”" in text
    assert "wrong: 7 steps 10 to 20" in text
    assert f"wrong: {ATTACK} step 30" in text
    assert "right: 4 step 240" in text
    assert "… 16 more answers" in text


def test_parts_and_tokens_are_counted(run_folder: Path) -> None:
    parts = {"vision": (600, 0), "projector": (100, 100), "language": (300, 30), "head": (0, 0)}
    change(
        run_folder / "result.json",
        parts={name: {"parameters": a, "trained": b} for name, (a, b) in parts.items()},
    )
    metrics = lines_of(run_folder / "metrics.jsonl")
    steps = [line for line in metrics if "loss" in line]
    for line in steps:
        line |= {"tokens": 80, "supervised_tokens": 10, "visual_tokens": 30, "padding_tokens": 20}
    write_lines(run_folder / "metrics.jsonl", metrics)
    text = Elements(page_of(run_folder)).text
    assert "Vision tower 600 60 % frozen Projector 100 10 % trained" in text
    assert "Language model 300 30 % 30 trained (10 %) Head 0 0 % shares the embeddings" in text
    assert len(steps) == 40
    assert (
        "Text, learnt 400 10 % Text, read as context 1,600 40 % Images and videos 1,200 30 %"
        " Padding 800 20 % All 4,000"
    ) in text
