"""Packed rows whose data set says how long their texts are, and that nothing parts."""

from pathlib import Path

import pytest

from tests.watch.made import Fact, changed, healthy
from tests.watch.test_conclusions import conclude, rules


def packed(names: tuple[str, ...], axes: int | None, texts: int = 1, held: int = 3) -> list[Fact]:
    """Return facts of a run over packed rows, of which the ledger sees `texts` in each."""

    def change(fact: Fact) -> list[Fact] | None:
        if fact["kind"] == "micro":
            return [{**fact, "names": list(names)}]
        if fact["kind"] == "rows" and fact["data"]:
            data = [{**one, "packed": held} for one in fact["data"]]
            return [{**fact, "data": data, "mask_axes": axes, "rows": fact["rows"] * texts}]
        return None

    return changed(healthy(), change)


PLAIN = ("attention_mask", "input_ids", "num_items_in_batch")


def test_texts_that_nothing_parts_are_an_error(tmp_path: Path) -> None:
    result = conclude(tmp_path, packed(PLAIN, 2))
    (finding,) = (one for one in result.findings if one.rule == "row-changes-in-batch")
    assert finding.severity == "error"
    assert "hold up to 3 texts each" in finding.message


@pytest.mark.parametrize(
    ("names", "axes", "texts", "held"),
    [
        ((*PLAIN, "position_ids"), 2, 1, 3),
        ((*PLAIN, "cu_seq_lens_q"), 2, 1, 3),
        ((*PLAIN, "seq_idx"), 2, 1, 3),
        (PLAIN, 4, 1, 3),  # a mask of blocks
        (PLAIN, None, 1, 3),  # a mask that is no tensor
        (PLAIN, 2, 3, 3),  # a mask that counts texts
        (PLAIN, 2, 1, 1),  # rows of one text each
    ],
)
def test_texts_that_something_parts_are_none(
    tmp_path: Path, names: tuple[str, ...], axes: int | None, texts: int, held: int
) -> None:
    found = rules(conclude(tmp_path, packed(names, axes, texts, held)))
    assert "row-changes-in-batch" not in found


def test_a_data_set_of_packed_rows_says_how_many_texts_they_hold() -> None:
    datasets = pytest.importorskip("datasets")
    from vtool.watch.inject.vtool_watch.alive import _texts_of_a_row

    rows = {"input_ids": [[5, 6, 7, 8], [9, 9]], "seq_lengths": [[1, 3], [2]]}
    assert _texts_of_a_row(datasets.Dataset.from_dict(rows)) == 2
    assert _texts_of_a_row(datasets.Dataset.from_dict(rows).select([1])) is not None
    for name, lengths in (("image_lengths", [[9, 9], [9]]), ("turn_lengths", [[1, 3], [2]])):
        others = {"input_ids": rows["input_ids"], name: lengths}
        assert _texts_of_a_row(datasets.Dataset.from_dict(others)) is None
    assert _texts_of_a_row([{"input_ids": [1]}]) is None
