"""Metrics against closed forms and the numbers of their papers' definitions."""

import math
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest

from vtool.diagnostics import Findings
from vtool.evaluation import metrics
from vtool.evaluation.metrics import METRIC_NAMES, METRICS, Metric, metrics_for, named_metrics
from vtool.evaluation.metrics.anls import edits
from vtool.evaluation.metrics.boxes import overlap
from vtool.evaluation.metrics.choices import accuracy, choice_of, found_in


def score(name: str, answer: str, reference: str) -> float:
    return METRICS[name].score(answer, reference)


def test_every_metric_that_a_file_has_is_listed_once() -> None:
    found: list[Metric] = []
    for each in iter_modules(metrics.__path__):
        there = vars(import_module(f"{metrics.__name__}.{each.name}"))
        found += [value for value in there.values() if isinstance(value, Metric)]
    assert {each.name: each for each in found} == METRICS
    assert len(found) == len(METRICS), "two have one name"


def test_exact_match_looks_past_spaces_around_a_text_alone() -> None:
    assert score("exact", " 3\n", "3") == 1
    assert score("exact", "Three", "three") == 0


@pytest.mark.parametrize(
    ("answer", "reference", "wanted"),
    [
        ("the cat sat", "A cat sat down.", 2 * 2 / (2 + 3)),
        ("cat", "dog", 0),
        ("the", "a", 1),
        ("", "cat", 0),
        ("cat cat", "cat", 2 / 3),
    ],
)
def test_f1_is_twice_the_shared_words_over_all_words(
    answer: str, reference: str, wanted: float
) -> None:
    assert score("f1", answer, reference) == pytest.approx(wanted)


def test_edits_are_counted_as_by_their_recurrence() -> None:
    def slow(a: str, b: str) -> int:
        if not a or not b:
            return len(a) + len(b)
        return min(slow(a[1:], b) + 1, slow(a, b[1:]) + 1, slow(a[1:], b[1:]) + (a[0] != b[0]))

    for first, second in [("kitten", "sitting"), ("abc", ""), ("flaw", "lawn"), ("aab", "baa")]:
        assert edits(first, second) == slow(first, second)


def test_anls_is_one_minus_the_part_edited_and_0_from_a_half_on() -> None:
    assert score("anls", "Sittimg", "sitting") == pytest.approx(1 - 1 / 7)
    assert score("anls", "ab", "ac") == 0
    assert score("anls", "", "") == 1


@pytest.mark.parametrize(
    ("answer", "reference", "wanted"),
    [
        ("105", "100", 1),
        ("105.1", "100", 0),
        ("-95", "-100", 1),
        ("12%", "0.12", 1),
        ("1,000", "1000", 1),
        ("0.001", "0", 0),
        ("Yes", "yes", 1),
        ("nan", "nan", 1),
        ("four", "4", 0),
    ],
)
def test_relaxed_accuracy_allows_numbers_five_percent(
    answer: str, reference: str, wanted: float
) -> None:
    assert score("relaxed", answer, reference) == wanted


@pytest.mark.parametrize(
    ("answer", "reference", "wanted"),
    [
        ('{"a": 1, "b": {"c": "x"}}', '{"b": {"c": "x"}, "a": 1.0}', 1),
        ('{"a": 1}', '{"a": 1, "b": 2}', 1 / 2),
        ('{"a": 1, "b": 3}', '{"a": 1, "b": 2}', 1 / 2),
        ('{"a": 1, "c": 3}', '{"a": 1, "b": 2}', 1 / 3),
        ('```json\n{"a": [1, 2]}\n```', '{"a": [1, 3]}', 1 / 2),
        ("a: 1", '{"a": 1}', 0),
        ('{"a": true}', '{"a": 1}', 0),
    ],
)
def test_json_fields_are_equal_over_all_that_either_has(
    answer: str, reference: str, wanted: float
) -> None:
    assert score("json", answer, reference) == pytest.approx(wanted)


def test_boxes_overlap_as_a_count_of_cells_says() -> None:
    first, second = (1, 1, 5, 4), (3, 2, 8, 6)
    cells = [
        {(x, y) for x in range(box[0], box[2]) for y in range(box[1], box[3])}
        for box in (first, second)
    ]
    wanted = len(cells[0] & cells[1]) / len(cells[0] | cells[1])
    assert overlap(first, second) == pytest.approx(wanted)


def test_boxes_too_many_and_too_few_cost() -> None:
    one, two = "[[0, 0, 2, 2]]", "[[0, 0, 2, 2], [5, 5, 6, 6]]"
    assert score("iou", one, two) == score("iou", two, one) == 1 / 2
    assert score("iou", '[{"bbox_2d": [2, 2, 0, 0], "label": "x"}]', "[0, 0, 2, 2]") == 1
    assert score("iou", "no box", one) == 0


@pytest.mark.parametrize(
    "written",
    [
        "<|box_start|>(0,0),(2,2)<|box_end|>",
        "The <|object_ref_start|>cat<|object_ref_end|><|box_start|>(0,0),(2,2)<|box_end|>.",
        "<box>[[0, 0, 2, 2]]</box>",
        "cat<|det|>[[0, 0, 2, 2]]<|/det|>",
        "<|begin_of_box|>[[0, 0, 2, 2]]<|end_of_box|>",
        '{"bbox_2d": [0, 0, 2, 2]}',
    ],
)
def test_boxes_between_tags_are_those_of_json(written: str) -> None:
    assert score("iou", written, "[0, 0, 2, 2]") == 1
    assert score("iou", "[1, 0, 3, 2]", written) == pytest.approx(1 / 3)
    assert [metric.name for metric in metrics_for({}, (), [written]).metrics][-1] == "iou"


def test_choices_are_known_but_for_case_and_punctuation() -> None:
    assert choice_of(" (b). ", ("A", "B")) == "B"
    assert choice_of("b", ("B", "b")) == "b"
    assert choice_of("B or A", ("A", "B")) is None
    metric = accuracy(("A", "B"))
    assert [metric.score(answer, "A") for answer in ("a.", "B", "C")] == [1, 0, 0]
    assert metric.refuses is not None
    assert metric.refuses("C")


def test_references_are_choices_only_where_that_is_sure() -> None:
    assert found_in(["cat", "dog"] * 3) == ("cat", "dog")
    assert found_in(["cat", "dog"]) == ()  # two rows might be anything
    assert found_in([str(number) for number in range(90)]) == ()
    assert found_in(["Yes", "yes."] * 5) == ()  # distinguished by nothing


def test_metrics_are_chosen_by_references_that_leave_no_doubt() -> None:
    def names(references: list[str]) -> list[str]:
        return [metric.name for metric in metrics_for({}, (), references).metrics]

    assert names(['{"a": 1}', '{"b": 2}']) == ["exact", "json"]
    assert names(['{"bbox_2d": [1, 2, 3, 4]}'])[-1] == "iou"
    assert names(["[1, 2, 3, 4]"]) == ["exact"]
    assert names(["yes", "no"] * 3) == ["exact", "accuracy"]
    assert names(["some text", "another"]) == ["exact"]


def test_an_unknown_metric_names_the_nearest() -> None:
    with pytest.raises(Findings, match="no metric anl") as raised:
        named_metrics(("anl",))
    assert "anls" in (raised.value.diagnostics[0].help or "")
    assert set(METRICS) < set(METRIC_NAMES)


def test_a_function_of_the_users_is_a_metric(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def longer(answer, reference):\n    return len(answer) > len(reference)\n")
    own = named_metrics((f"{file}:longer",))[f"{file}:longer"]
    assert own is not None
    assert own.score("ab", "a") == 1


@pytest.mark.parametrize(
    ("text", "asked", "message"),
    [
        ("def longer(a, r): ...\n", "mine.py:shorter", "has no function shorter"),
        ("longer = 3\n", "mine.py:longer", "has no function longer"),
        ("import nothing_of_this_name\n", "mine.py:longer", r"ModuleNotFoundError.*mine\.py:1"),
        ("raise SystemExit(3)\n", "mine.py:longer", "SystemExit: 3"),
        ("def longer(:\n", "mine.py:longer", "SyntaxError"),
        ("", "other.py:longer", "there is no file"),
    ],
)
def test_a_function_that_cannot_be_had_is_refused_before_rows_are_asked(
    tmp_path: Path, text: str, asked: str, message: str
) -> None:
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(Findings, match=message) as raised:
        named_metrics((f"{tmp_path}/{asked}",))
    assert raised.value.fatal


def test_choices_that_no_row_has_are_reported() -> None:
    chosen = metrics_for({}, ("cat", "dog", "fox"), ["cat", "dog"])
    assert chosen.choices == ("cat", "dog", "fox")
    assert chosen.notes == ("no row's reference is the choice fox",)


def test_accuracy_without_sure_choices_is_a_finding_and_no_score() -> None:
    chosen = metrics_for(named_metrics(("accuracy", "f1")), (), ["some text", "another"])
    assert [metric.name for metric in chosen.metrics] == ["exact", "f1"]
    assert [one.rule for one in chosen.findings] == ["unknown-choice"]


ANSWERS = ["the cat sat on the mat today", "a dog runs in the park", "it is raining"]
REFERENCES = ["the cat sat on the mat", "a dog ran in the big park", "it is raining"]


def test_bleu_is_the_geometric_mean_of_ngram_precisions() -> None:
    from collections import Counter

    matched, total = [0] * 4, [0] * 4
    pairs = [(a.split(), r.split()) for a, r in zip(ANSWERS, REFERENCES, strict=True)]
    for order in range(1, 5):
        for given, wanted in pairs:
            grams = [
                Counter(tuple(t[i : i + order]) for i in range(len(t) - order + 1))
                for t in (given, wanted)
            ]
            matched[order - 1] += sum((grams[0] & grams[1]).values())
            total[order - 1] += sum(grams[0].values())
    given_length, wanted_length = (sum(len(pair[side]) for pair in pairs) for side in (0, 1))
    brevity = min(1.0, math.exp(1 - wanted_length / given_length))
    precisions = [m / t for m, t in zip(matched, total, strict=True)]
    wanted_bleu = 100 * brevity * math.exp(sum(map(math.log, precisions)) / 4)
    whole = METRICS["bleu"].whole
    assert whole is not None
    sums = whole.rows(ANSWERS, REFERENCES)
    assert sums.shape == (len(ANSWERS), 10)
    assert whole.of(sums.sum(0)) == pytest.approx(wanted_bleu, rel=1e-9)


def test_bleu_of_answers_without_a_common_4_gram_is_smoothed_as_sacrebleu_does() -> None:
    pytest.importorskip("sacrebleu")
    from sacrebleu import corpus_bleu

    answers = ["the cat is on a mat here", "the dog ran off away from us"]
    wanted = ["the cat sat on the mat today", "a dog ran far away from me"]
    whole = METRICS["bleu"].whole
    assert whole is not None
    # 8 of 14 words, 3 of 12 pairs; no triple of 10, no four of 8: a half and a quarter of a match
    precisions = (8 / 14, 3 / 12, 1 / 2 / 10, 1 / 4 / 8)
    sums = whole.rows(answers, wanted).sum(0)
    found = whole.of(sums)
    assert found == pytest.approx(100 * math.prod(precisions) ** 0.25, rel=1e-9)
    assert found == pytest.approx(corpus_bleu(answers, [wanted]).score, rel=1e-9)
    assert whole.remark(sums) is None
    short = whole.rows(["a red disc", "7"], ["a red disc", "7"]).sum(0)
    assert whole.of(short) == corpus_bleu(["a red disc", "7"], [["a red disc", "7"]]).score == 0
    assert whole.remark(short) is not None, "right answers with a 0 are explained"


def test_rouge_l_is_the_f1_of_the_longest_common_subsequence() -> None:
    # "a dog in the park" is common: 5 words of 6 given and of 7 wanted
    assert score("rouge", ANSWERS[1], REFERENCES[1]) == pytest.approx(2 * 5 / (6 + 7))
