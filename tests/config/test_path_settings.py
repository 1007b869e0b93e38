"""Folders that no file system can have are findings before anything is written."""

import pytest

from vtool.config.load import examine


@pytest.mark.parametrize("setting", ["run.name", "run.dir"])
def test_a_name_that_is_longer_than_any_can_be_is_a_finding(setting: str) -> None:
    (found,) = examine("digits", [f"{setting}={'n' * 300}"]).findings
    assert (found.rule, found.parameter) == ("path-not-found", setting)
    assert "300 bytes" in found.message
    assert found.help == "choose a shorter one"
    assert examine("digits", [f"{setting}={'n' * 200}"]).findings == ()


def test_a_name_decides_nothing_where_the_folder_is_given() -> None:
    assert examine("digits", [f"run.name={'n' * 300}", "run.dir=here"]).findings == ()
