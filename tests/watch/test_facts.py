"""A folder of facts is read whatever lies in it."""

import os
from pathlib import Path

import pytest

from vtool.watch.reading import read_facts


@pytest.mark.parametrize("line", ["[" * 100_000, '{"kind":', "[]", '{"step": ' + "9" * 5_000 + "}"])
def test_a_damaged_line_is_counted_and_hides_no_other(tmp_path: Path, line: str) -> None:
    good = '{"kind": "process", "format": 1, "rank": 0}'
    (tmp_path / "rank0.jsonl").write_text(f"{line}\n{good}\n")
    watched = read_facts(tmp_path)
    assert len(watched.processes) == 1
    assert watched.damaged == 1


def test_a_pipe_or_a_folder_among_the_facts_is_reported_and_waited_for_by_nobody(
    tmp_path: Path,
) -> None:
    os.mkfifo(tmp_path / "rank0.jsonl")
    with pytest.raises(ValueError, match=r"rank0\.jsonl cannot be read: it is no file"):
        read_facts(tmp_path)
