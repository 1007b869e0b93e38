"""Boxes and points in text: each way of writing them, and numbers that are none."""

import json

import pytest

from vtool.data.boxes import find_boxes
from vtool.data.row import Row


def found(answer: str, question: str = "Where?") -> list[tuple[str, list[float]]]:
    row = Row(
        "row",
        [{"role": "user", "content": question}, {"role": "assistant", "content": answer}],
        ["a.png"],
    )
    boxes = find_boxes(row)
    for box in boxes:
        text = str(row.messages[box.message]["content"])
        assert [float(text[begin:end]) for begin, end in box.spans] == [*map(float, box.numbers)]
    return [(box.form, [float(number) for number in box.numbers]) for box in boxes]


@pytest.mark.parametrize(
    ("answer", "form", "boxes"),
    [
        ('[{"bbox_2d": [1, 2, 30.5, 40], "label": "a"}]', "json", [[1, 2, 30.5, 40]]),
        ("```json\n{'bbox': [1, 2, 3, 4]}\n```", "json", [[1, 2, 3, 4]]),
        ('{"bboxes": [[1, 2, 3, 4], [5, 6, 7, 8]]}', "json", [[1, 2, 3, 4], [5, 6, 7, 8]]),
        ('{"box_2d": [2, 1, 4, 3]}', "json", [[1, 2, 3, 4]]),
        ('{"point_2d": [5, 6]}', "json", [[5, 6]]),
        ('{"action": "left_click", "coordinate": [5, 6]}', "json", [[5, 6]]),
        ("click(start_box='(5,6)')", "json", [[5, 6]]),
        ("<|box_start|>(1,2),(3,4)<|box_end|>", "box_start", [[1, 2, 3, 4]]),
        ("<|box_start|>(5,6)<|box_end|>", "box_start", [[5, 6]]),
        ("<box>[[1, 2, 3, 4], [5, 6, 7, 8]]</box>", "box", [[1, 2, 3, 4], [5, 6, 7, 8]]),
        ("<box>1 2 3 4</box>", "box", [[1, 2, 3, 4]]),
        ("At <|begin_of_box|>[[1,2,3,4]]<|end_of_box|>", "begin_of_box", [[1, 2, 3, 4]]),
        ("<|ref|>a<|/ref|><|det|>[[1, 2, 3, 4]]<|/det|>", "det", [[1, 2, 3, 4]]),
        ('<p data-bbox="1 2 3 4">a</p>', "data-bbox", [[1, 2, 3, 4]]),
        ("<loc0002><loc0001><loc0400><loc1023> cat", "loc", [[1, 2, 1023, 400]]),
        ("cat<loc_1><loc_2><loc_3><loc_999>", "loc_", [[1, 2, 3, 999]]),
        ('<point x="10.5" y="20" alt="a">a</point>', "point", [[10.5, 20]]),
        ('<points x1="1" y1="2" x2="3" y2="4" alt="a">', "point", [[1, 2], [3, 4]]),
    ],
)
def test_each_way_of_writing_boxes_is_read_x_first(
    answer: str, form: str, boxes: list[list[float]]
) -> None:
    assert found(answer) == [(form, box) for box in boxes]


@pytest.mark.parametrize(
    ("question", "answer", "form"),
    [
        ("Give the bounding box of the dog.", "The dog is at [1, 2, 3, 4].", "list"),
        ("Answer as [x1, y1, x2, y2].", "(1,2),(3,4)", "list"),
        ("Locate the dog.", "[1, 2, 3, 4]", "answer"),
        ("请框出狗", "[1, 2, 3, 4]", "answer"),
    ],
)
def test_lists_are_boxes_where_the_question_says_so(question: str, answer: str, form: str) -> None:
    assert found(answer, question) == [(form, [1, 2, 3, 4])]


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("What are the prices?", "[10, 20, 30, 40]"),
        ("Read the table.", json.dumps({"2023": [10, 20, 30, 40], "2024": [1, 2, 3, 4]})),
        ("Solve for x1 and x2.", "The roots are (1, 2, 3, 4)."),
        ("When was it?", "From (2020, 1, 2, 2021)."),
        (
            "Where was the dog born?",
            "In 1999, with 4 others, as page [1, 2, 3, 4] of the long story"
            " of its breed tells, which was printed often in those days.",
        ),
        ("How many?", "<|begin_of_box|>42<|end_of_box|>"),
        ("Which boxes are ticked?", '{"box": 3, "boxes": [1, 2, 3]}'),
        ("Where is Paris?", '{"coordinate": [48.85, 2.35]}'),
        ("Where?", '{"bbox_2d": [0, 0, ' + "9" * 400 + ", 1]}"),
        ("Cite.", "See the box model [3, 7, 12, 19]."),
    ],
)
def test_other_numbers_are_no_boxes(question: str, answer: str) -> None:
    assert found(answer, question) == []
