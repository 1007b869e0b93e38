"""The page of load-check: complete, self-contained, escaped, and made from JSON alone."""

import base64
import hashlib
import html
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.loading.checkpoint.folders import ONE, folder, of, sharded
from tests.report.test_browser import BROWSER, dump_dom, measure
from tests.report.test_page import ATTACK, Elements
from vtool.diagnostics import Diagnostic, Origin
from vtool.diagnostics.render import as_json
from vtool.diagnostics.result import Result
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
    finding = Diagnostic(
        "stale-reference",
        "17 parameters hold other bytes",
        help="clone it",
        parameter="encoder.q.weight",
        tensors=("bert.q", "bert.k"),
        expected="its own",
        seen="those of bert.v",
        origin=Origin("models/bert.py", 508),
    )
    details = {"stale-reference": {"smallest_safe_slots": 38, "reachable_via": ["reload_weights"]}}
    checks = {"stale-reference": "failed", "lossy-cast": "passed"}
    results = [
        *(audit_folder(path) for path in (healthy, tmp_path / "nothing", broken)),
        Result("vllm:Bert Model", "unsafe", checks, (finding,), details),
    ]
    return as_document(*results)


def as_document(*results: Result) -> dict[str, Any]:
    return json.loads(json.dumps(as_json(results, "load-check")))  # type: ignore[no-any-return]


def of_lines() -> dict[str, Any]:
    """Four classes: two that share a line, one of them by another framework, one with notes."""

    def stale(subject: str, number: int) -> Diagnostic:
        message = f"{subject}: {number} parameters hold other bytes"
        return Diagnostic("stale-reference", message, origin=Origin("models/bert.py", 508))

    def result(subject: str, oracle: str, *findings: Diagnostic) -> Result:
        failed = {one.rule for one in findings if one.severity == "error"}
        rules = ("stale-reference", "unwritten-parameter")
        checks = {rule: "failed" if rule in failed else "passed" for rule in rules}
        details = {"subject": {"class": f"of.{subject[-1]}", "oracle": oracle}}
        return Result(subject, "unsafe" if failed else "clean", checks, findings, details)

    note = Diagnostic(
        "unwritten-parameter",
        "vllm:Laguna: the twin has no tensor for 1 parameter: gate.bias",
        parameter="gate.bias",
        origin=Origin("models/laguna.py", 9),
        severity="note",
    )
    return as_document(
        result("vllm:Laguna", "the names of transformers' Laguna and its logits", note),
        result("vllm:A", "loading only", stale("vllm:A", 2)),
        result("sglang:B", "the names of transformers' B", stale("sglang:B", 3)),
        result("vllm:C", "the names of transformers' C"),
    )


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


def graded(severity: str, state: str) -> dict[str, Any]:
    """One subject with one finding of a severity, and a check that ended in a state."""
    finding = Diagnostic("no-config", "there is none", severity=severity)  # type: ignore[arg-type]
    verdict = "unsafe" if severity == "error" else "clean"
    return as_document(Result("a", verdict, {"no-config": state}, (finding,)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("severity", "state", "word"),
    [
        ("error", "failed", "error"),
        ("warning", "failed", "warning"),
        ("warning", "passed", "warning"),  # as a folder with weights alone
        ("note", "passed", "passed with a note"),
        ("note", "failed", "failed"),  # which a baseline knows
    ],
)
def test_a_cell_shows_the_gravest_that_was_found_and_is_a_tick_for_nothing_alone(
    severity: str, state: str, word: str, tmp_path: Path
) -> None:
    page = page_of(graded(severity, state), tmp_path)
    (cell,) = re.findall(r'<td class="cell \S+"\ntitle="no-config: (.*?)">(.)<', page)
    assert cell[0] == word
    assert cell[1] != "✓"


def test_a_class_with_notes_is_distinguished_from_one_without_in_the_matrix(tmp_path: Path) -> None:
    page = page_of(of_lines(), tmp_path)
    rows = dict(re.findall(r"</span></span>(\S+)</a></th>(.*?)</tr>", page, re.DOTALL))
    assert rows["vllm:C"].count("✓") == 2
    assert rows["vllm:Laguna"].count("✓") == 1
    assert "unwritten-parameter: passed with a note" in rows["vllm:Laguna"]


def test_subjects_that_share_a_line_are_one_finding_with_links_to_them(tmp_path: Path) -> None:
    page = page_of(of_lines(), tmp_path)
    lines = re.findall(r'<article class="line finding.*?</article>', page, re.DOTALL)
    assert len(lines) == 2
    shared = Elements(lines[0])
    assert "stale-reference VT401 models/bert.py:508 2 parameters hold other bytes" in shared.text
    assert "vllm:A sglang:B What to do" in shared.text
    links = [link["href"] for link in shared.having("a")]
    (first, second) = (re.search(f'id="{(link or "")[1:]}"', page) for link in links)
    assert first
    assert second
    assert "1 error (2 by subject)" in " ".join(Elements(page).text.split())
    assert "1 note" in Elements(page).text


def test_one_subject_alone_has_its_findings_and_neither_lines_nor_a_filter(tmp_path: Path) -> None:
    page = page_of(graded("note", "passed"), tmp_path)
    assert 'id="lines"' not in page
    assert "<script" not in page
    assert "<form" not in page


def test_the_page_loads_nothing_and_runs_its_filter_alone_whatever_names_say(
    tmp_path: Path,
) -> None:
    finding = Diagnostic(
        "stale-reference",
        ATTACK,
        help=ATTACK,
        parameter=ATTACK,
        parameters=(ATTACK, "b"),
        tensors=(ATTACK,),
        origin=Origin(ATTACK, 1),
    )
    details = {ATTACK: {"reason": ATTACK, ATTACK: [ATTACK]}, "subject": {"oracle": ATTACK}}
    hostile = Result(ATTACK, "unsafe", {ATTACK: "not-run"}, (finding,), details)
    page = page_of(as_document(hostile, hostile, *[Result("a", "clean")] * 2), tmp_path)
    elements = Elements(page)
    assert ATTACK not in page
    assert ATTACK in elements.text
    assert not elements.having("img")
    # the filter, by its bytes alone
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = re.findall(r'content="(default-src .*?)">', page, re.DOTALL)
    assert [one.strip() for one in policy.split(";")] == [
        "default-src 'none'",
        "img-src data:",
        "style-src 'unsafe-inline'",
        f"script-src 'sha256-{digest}'",
    ]
    for tag, attributes in elements.tags:
        for name in ("src", "href", "srcset", "data", "action"):
            assert re.match(r"data:|#", attributes.get(name) or "#"), (tag, attributes)
        assert not [name for name in attributes if name.startswith("on")]
    assert not re.search(r"@import|url\(", page)


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


ASKED = """<script>addEventListener("load", () => {
  const form = document.getElementById("filter"), said = document.getElementById("filtered");
  const left = (list) => [...document.querySelectorAll(list)].filter((one) => !one.hidden).length;
  const seen = {};
  for (const asked of ASKED) {
    form.reset();
    for (const [name, value] of Object.entries(asked)) form.elements[name].value = value;
    form.dispatchEvent(new Event("input"));
    seen[JSON.stringify(asked)] = [left("tr[data-subject]"), left(".subject"), left(".line"),
      left(".line:not([hidden]) li"), said.textContent];
  }
  document.body.replaceChildren(JSON.stringify(seen));
});</script></body>"""


@pytest.mark.browser
def test_the_filter_shows_the_subjects_and_lines_that_are_asked_for(tmp_path: Path) -> None:
    """Four classes and two findings, of which one is shared by two classes."""
    if BROWSER is None:
        pytest.skip("not run: there is no Chromium here, so nobody ran the filter")
    expected = {
        (): (4, 2, 3),
        (("verdict", "unsafe"),): (2, 1, 2),
        (("rule", "unwritten-parameter"),): (1, 1, 1),
        (("severity", "error"),): (2, 1, 2),
        (("framework", "sglang"),): (1, 1, 1),
        (("framework", "vllm"), ("rule", "stale-reference")): (1, 1, 1),
        (("oracle", "transformers' names and outputs"),): (1, 1, 1),
        (("oracle", "loading only"),): (1, 1, 1),
        (("text", "LAGUNA gate"),): (1, 1, 1),
        (("text", "bert.py:508"),): (2, 1, 2),
        (("text", "no such words"),): (0, 0, 0),
    }
    page = page_of(of_lines(), tmp_path).replace(
        "script-src 'sha256-", "script-src 'unsafe-inline' 'sha-", 1
    )
    asked = json.dumps([dict(one) for one in expected])
    (tmp_path / "asking.html").write_text(
        page.replace("</body>", ASKED.replace("ASKED", asked)), encoding="utf-8"
    )
    text = dump_dom(tmp_path / "asking.html", tmp_path / "profile", "--virtual-time-budget=5000")
    seen = json.loads(html.unescape(text.partition("<body>")[2].partition("</body>")[0]))
    for one, (subjects, lines, names) in expected.items():
        counts = f"{subjects} of 4 subjects, {lines} of 2 findings shown"
        assert seen[json.dumps(dict(one), separators=(",", ":"))] == (
            [subjects, subjects, lines, names, counts]
        ), one


@pytest.mark.browser
def test_the_filter_runs_under_the_pages_own_policy(tmp_path: Path) -> None:
    if BROWSER is None:
        pytest.skip("not run: there is no Chromium here, so nobody ran the filter")
    page_of(of_lines(), tmp_path)
    text = dump_dom(tmp_path / "page.html", tmp_path / "profile", "--virtual-time-budget=5000")
    assert "hidden" not in text.partition('<form id="filter"')[2].partition(">")[0]
    assert "4 of 4 subjects, 2 of 2 findings shown" in text


@pytest.mark.full
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
