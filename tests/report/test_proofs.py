"""The proofs of a run, made before it, on its page."""

import json
from pathlib import Path

import pytest

from tests.report.test_page import ATTACK, Elements, page_of

RECORD = {
    "version": 1,
    "preflight": True,
    "checks": {"loss-differs": "passed", "resume-differs": "not-run", "rows-lost": "failed"},
    "details": {
        "loss-differs": {"what": "the loss of a step", "measured": 1.5e-7, "tolerance": 2.4e-5},
        "resume-differs": {"reason": "preflight and --fast are one process"},
        "rows-lost": {"what": "97 rows", "measured": 0.0, "tolerance": 0.0},
        "proofs": {
            "model": "qwen2_5_vl at size tiny",
            "rows": ["a", ATTACK],
            "smaller": [ATTACK, "model.dtype bfloat16 → float32"],
            "seconds": 5.25,
        },
    },
}


def test_it_shows_each_proof_the_failed_ones_first_and_what_it_stands_on(run_folder: Path) -> None:
    (run_folder / "proofs.json").write_text(json.dumps(RECORD))
    page = page_of(run_folder)
    text = Elements(page).text
    assert "qwen2_5_vl at size tiny, on 2 rows of data.train, in 5.2 s" in text
    assert "those of the rows. loss-differs VT723 1.5e-07 2.4e-05 the loss of a step" in text
    assert "never stopped. resume-differs VT720 preflight and --fast are one process" in text
    assert text.index("rows-lost VT726 0 none 97 rows") < text.index("loss-differs VT723")
    assert "A row is in no batch of an epoch" in text, "of a proof that failed, what does not hold"
    assert "3 passed, 1 failed, 2 not run" in text.partition("Test exact match")[0]
    assert ATTACK not in page


@pytest.mark.full
def test_a_run_without_proofs_says_so_and_what_cannot_be_read_is_not_shown(
    run_folder: Path,
) -> None:
    assert 'id="proofs"' not in page_of(run_folder)
    for damaged in (
        "{",
        "[]",
        '{"checks": 5}',
        '{"checks": {"a": {}}, "details": {}, "preflight": true}',
    ):
        (run_folder / "proofs.json").write_text(damaged)
        assert 'id="proofs"' not in page_of(run_folder)
    (run_folder / "proofs.json").write_text(
        json.dumps({"preflight": False, "checks": {"rows-lost": "not-run"}, "details": {}})
    )
    text = Elements(page_of(run_folder)).text
    assert "nothing was proved before its first step" in text
