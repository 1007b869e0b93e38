"""The page of load-check: complete, self-contained, escaped, and made from JSON alone."""

import copy
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.loading.checkpoint.folders import ONE, folder, of, sharded
from tests.report.test_browser import measure
from tests.report.test_page import ATTACK, Elements
from vtool.diagnostics.render import as_json
from vtool.loading.checkpoint import audit_folder
from vtool.report.load_check import write_load_check


@pytest.fixture
def document(tmp_path: Path) -> dict[str, Any]:
    """A folder with a NaN, a healthy one, none, and a class as a probe's results describe it."""
    import numpy as np

    healthy, broken = sharded(tmp_path / "healthy"), sharded(tmp_path / "broken")
    folder(
        broken,
        **{
            ONE: {
                "a": of("F32", np.full((2, 3), np.nan, np.float32)),
                "b": of("F32", np.zeros(4, np.float32)),
            }
        },
    )
    results = as_json(
        [audit_folder(path) for path in (healthy, tmp_path / "nothing", broken)], "load-check"
    )
    finding = {
        **{
            "code": "VT401",
            "rule": "stale-reference",
            "severity": "error",
            "message": "17 parameters hold other bytes",
            "help": "clone it",
        },
        **{
            "parameter": "encoder.q.weight",
            "tensors": ["bert.q", "bert.k"],
            "expected": "its own",
            "seen": "those of bert.v",
        },
        "origin": {"file": "models/bert.py", "line": 508},
    }
    details = {"stale-reference": {"smallest_safe_slots": 38, "reachable_via": ["reload_weights"]}}
    checks = {"stale-reference": "failed", "lossy-cast": "passed"}
    results["results"].append(
        {
            "subject": "vllm:Bert Model",
            "verdict": "unsafe",
            "checks": checks,
            "findings": [finding],
            "details": details,
        }
    )
    return json.loads(json.dumps(results))  # type: ignore[no-any-return]


def page_of(document: dict[str, Any], tmp_path: Path) -> str:
    return write_load_check(document, tmp_path / "page.html").read_text(encoding="utf-8")


def test_every_subject_has_a_row_with_a_cell_for_every_check(
    document: dict[str, Any], tmp_path: Path
) -> None:
    table = Elements(page_of(document, tmp_path).partition("<table")[2].partition("</table>")[0])
    columns = sum("rule" in (attributes.get("class") or "") for attributes in table.having("th"))
    assert columns == len({rule for result in document["results"] for rule in result["checks"]})
    cells = [(attributes["title"] or "").rpartition(": ")[2] for attributes in table.having("td")]
    assert len(cells) == columns * len(document["results"])
    states = [state for result in document["results"] for state in result["checks"].values()]
    for word, state in (("passed", "passed"), ("error", "failed"), ("not run", "not-run")):
        assert cells.count(word) == states.count(state)


def test_the_gravest_come_first_and_links_lead_to_them(
    document: dict[str, Any], tmp_path: Path
) -> None:
    elements = Elements(page_of(document, tmp_path))
    order = [
        elements.text.rindex(name)
        for name in (
            f"{tmp_path}/broken unsafe",
            "vllm:Bert Model unsafe",
            "nothing not-run",
            "healthy clean",
        )
    ]
    assert order == sorted(order)
    ids = [attributes["id"] for _, attributes in elements.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {(link["href"] or "")[1:] for link in elements.having("a")} <= set(ids)


def test_a_finding_has_its_tensors_its_line_and_what_to_do(
    document: dict[str, Any], tmp_path: Path
) -> None:
    text = Elements(page_of(document, tmp_path)).text
    assert (
        "stale-reference VT401 17 parameters hold other bytes line models/bert.py:508 parameter"
        " encoder.q.weight" in text
    )
    assert (
        "expected its own seen those of bert.v what to do clone it 2 tensors bert.q bert.k" in text
    )
    assert "smallest safe slots 38 reachable via reload_weights" in text
    assert "Check it again vtool load-check 'vllm:Bert Model'" in text
    assert "6 NaN of 6 values, the first at [0, 0]" in text


def test_what_was_not_run_is_not_passed_and_says_why(
    document: dict[str, Any], tmp_path: Path
) -> None:
    text = Elements(page_of(document, tmp_path)).text
    assert "Not run: there was nothing to check" in text
    assert "1 not-run" in text


def test_a_warning_is_not_shown_as_an_error(document: dict[str, Any], tmp_path: Path) -> None:
    document["results"] = document["results"][-1:]
    document["results"][0]["findings"][0]["severity"] = "warning"
    page = page_of(document, tmp_path)
    assert 'title="stale-reference: warning"' in page
    assert 'title="stale-reference: error"' not in page


def test_a_check_that_passed_with_a_warning_is_no_tick(
    document: dict[str, Any], tmp_path: Path
) -> None:
    """As no-config, which a folder with weights alone passes with a warning."""
    one = document["results"][-1]
    document["results"] = [one]
    one["findings"][0]["severity"] = "warning"
    one["checks"] = dict.fromkeys(one["checks"], "passed")
    page = page_of(document, tmp_path)
    assert 'title="stale-reference: warning"' in page


def test_the_page_loads_nothing_and_runs_nothing_whatever_names_say(
    document: dict[str, Any], tmp_path: Path
) -> None:
    hostile = copy.deepcopy(document["results"][-1])
    hostile |= {
        "subject": ATTACK,
        "details": {ATTACK: {"reason": ATTACK, ATTACK: [ATTACK]}},
        "checks": {ATTACK: "not-run"},
    }
    hostile["findings"][0] |= {
        "message": ATTACK,
        "help": ATTACK,
        "parameter": ATTACK,
        "tensors": [ATTACK],
        "origin": {"file": ATTACK},
    }
    document["results"].append(hostile)
    page = page_of(document, tmp_path)
    elements = Elements(page)
    assert ATTACK not in page
    assert ATTACK in elements.text
    assert not elements.having("script")
    assert not elements.having("img")
    for tag, attributes in elements.tags:
        for name in ("src", "href", "srcset", "data", "action"):
            assert re.match(r"data:|#", attributes.get(name) or "#"), (tag, attributes)
        assert not [name for name in attributes if name.startswith("on")]
    assert not re.search(r"@import|url\(", page)
    assert "default-src 'none'" in page


def test_a_long_name_breaks_behind_its_dots_and_a_wide_table_says_that_it_scrolls(
    document: dict[str, Any], tmp_path: Path
) -> None:
    document["results"][-1]["findings"][0]["message"] = "never read: a.<b>.c_weight, d"
    page = page_of(document, tmp_path)
    assert "never read: a.&lt;b&gt;.c_<wbr>weight, d" in page
    columns = len({rule for result in document["results"] for rule in result["checks"]})
    assert (
        f'<p class="note sideways">The table has {columns} checks, and scrolls sideways.</p>'
        in page
    )


def test_another_layout_is_refused(document: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="version 2"):
        write_load_check(document | {"version": 2}, tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_the_same_document_gives_the_same_bytes_without_torch(
    document: dict[str, Any], tmp_path: Path
) -> None:
    page = page_of(document, tmp_path)
    (tmp_path / "results.json").write_text(json.dumps(document))
    program = (
        "import sys, json; from pathlib import Path; from vtool.report.load_check import"
        " write_load_check; folder = Path(sys.argv[1]);write_load_check(json.loads((folder /"
        " 'results.json').read_text()), folder / 'again.html'); print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert (tmp_path / "again.html").read_text(encoding="utf-8") == page
    assert {name.partition(".")[0] for name in done.stdout.split()}.isdisjoint(
        {"torch", "transformers", "hydra", "pydantic"}
    )


@pytest.mark.browser
@pytest.mark.parametrize("is_open", [False, True], ids=["closed", "open"])
@pytest.mark.parametrize("width", [390, 1200])
def test_the_page_fits_its_window(
    document: dict[str, Any], tmp_path: Path, width: int, is_open: bool
) -> None:
    document["results"][-1]["findings"][0]["tensors"] = [
        "model.layers.0." + "very_long_name_of_a_tensor_" * 8 + "weight"
    ] * 3
    document["results"][-1]["findings"][0]["message"] = "x" * 300
    seen = measure(
        write_load_check(document, tmp_path / "page.html"), tmp_path / "profile", width, is_open
    )
    assert seen["window"] == width
    assert seen["page"] <= width, "nothing scrolls sideways"
    assert not seen["wide"], "nothing sticks out"
