"""A load that goes by the order of a set is another one in another process."""

import sys
from pathlib import Path

import pytest

from tests.cli.load_check_commands import results
from vtool.loading.probe.hash_seeds import depends_on_hashes

MODEL = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Parameter(torch.empty(9, 2))

    def load_weights(self, weights):
        found = {name: tensor.clone() for name, tensor in weights}
        for row, name in enumerate(ORDER(found)):
            self.table.data[row] = found[name]

def checkpoint():
    return {f"row{n}": torch.full((2,), float(n)) for n in range(9)}
"""


@pytest.fixture
def by_set(tmp_path: Path) -> str:
    for name, order in (("by_set", "lambda found: set(found)"), ("right", "sorted")):
        (tmp_path / f"{name}.py").write_text(MODEL.replace("ORDER", f"({order})"))
    return f"python:{tmp_path}/by_set.py:Model"


@pytest.mark.full
def test_the_order_of_a_set_is_found_though_every_load_of_a_process_has_the_same(
    by_set: str,
) -> None:
    right = by_set.replace("by_set", "right")
    only = "checks=[nondeterministic,lossy-cast]"
    found = results(by_set, only, "--python", sys.executable, status=1)
    (wrong,) = found.values()
    (finding,) = wrong["findings"]
    assert finding["rule"] == "nondeterministic"
    assert "in another process, whose sets have another order" in finding["message"]
    assert finding["parameter"] == "table"
    (sorted_names,) = results(right, only, "--python", sys.executable, status=0).values()
    assert sorted_names["verdict"] == "clean"


@pytest.mark.parametrize(
    ("line", "asked"),
    [
        ("list({'a', 'b'})", True),
        ("[x for x in set('ab')]", True),
        ("{x for x in 'ab'}", True),
        ("hash('a') % 2", True),
        ("{}.keys() - {}.keys()", True),
        ("{'a': 1}", False),
        ("sorted([1])", False),
    ],
)
def test_only_code_with_sets_or_hashes_is_asked_in_other_processes(
    line: str, asked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_code_of_a_test.py").write_text(line)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_code_of_a_test", raising=False)
    __import__("own_code_of_a_test")
    assert depends_on_hashes([str(tmp_path)]) == asked
