"""Groups of rows by the value of a key."""

from datetime import date
from decimal import Decimal

import pytest

from vtool.data.groups import group_of_value


def test_a_whole_number_is_one_group_also_where_a_column_has_it_as_a_fraction() -> None:
    assert group_of_value(7.0) == group_of_value(7) == group_of_value("7")
    assert group_of_value(7.5) != group_of_value(7)


@pytest.mark.parametrize(
    ("value", "other"),
    [
        (date(2024, 1, 2), date(2024, 1, 3)),
        (Decimal("1.50"), Decimal("2.50")),
        (b"a", b"b"),
        ({"day": date(2024, 1, 2)}, {"day": date(2024, 1, 3)}),
    ],
)
def test_a_value_that_only_arrow_has_is_a_group(value: object, other: object) -> None:
    assert group_of_value(value) == group_of_value(value)
    assert group_of_value(value) != group_of_value(other)
