"""`vtool verify`, as a user runs it."""

import gc
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import vtool
from tests.data.drawn_boxes import rows_file
from tests.rows import chat, write_rows
from vtool.cli.app import app
from vtool.cli.exit_at_once import ExitAtOnce
from vtool.diagnostics import RULES, rules_boxes, rules_data, rules_quality
from vtool.verification.audit_result import rules_of

GOOD = chat("Hi", "Hello there")
TWO = {"messages": [*GOOD["messages"], *chat("And now?", "Bye")["messages"]]}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["verify", *arguments])
    return result.exit_code, result.stdout, result.stderr


def result_of(rows: list[Any], *arguments: str) -> dict[str, Any]:
    write_rows(Path("rows.jsonl"), rows)
    _, out, _ = run("rows.jsonl", *arguments, "--format", "json")
    (result,) = json.loads(out)["results"]
    assert set(result["checks"]) <= set(RULES)
    return dict(result)


def test_good_rows_show_their_spans_and_why_something_was_not_looked_for() -> None:
    write_rows(Path("rows.jsonl"), [GOOD, TWO])
    code, out, _ = run("rows.jsonl")
    assert code == 0
    table = out[out.index("  tokens  span") :].splitlines()
    assert [line.split(None, 1)[0] for line in table[1:3]] == ["rows.jsonl:1", "rows.jsonl:2"]
    assert "'Hello there<|im_end|>'" in table[1]
    assert "'Bye<|im_end|>'" in table[3]
    assert "not run: overlong-row, answer-cut-off (data.max_length is not given)\n" in out
    assert "because of the above" not in out


def test_rows_without_a_model_say_what_counts_their_tokens() -> None:
    write_rows(Path("rows.jsonl"), [GOOD])
    _, out, _ = run("rows.jsonl")
    assert (
        "  tokens are counted with a tiny built-in qwen2_5_vl tokenizer, trained on these rows:"
        " lengths will differ with your model; to count with its tokenizer, add model.path=FOLDER\n"
        in out
    )
    made = vtool.train(vtool.load("rows", ROWS, *TINY))
    _, out, _ = run("rows.jsonl", f"model.path={made.folder / 'export'}")
    assert "1 kept" in out
    assert "tokens are counted with" not in out


ROWS = "data.train=[{format: messages, path: rows.jsonl}]"
TINY = ("train={steps: 1, epochs: null}", "optim.warmup_steps=0", "data.global_batch_size=1")


@pytest.mark.parametrize(
    "files", [{"config.json": '{"model_type": "qwen2_vl"}'}, {"a.safetensors": ""}]
)
def test_the_folder_of_a_model_is_called_one(files: dict[str, str]) -> None:
    Path("model").mkdir()
    for name, text in files.items():
        Path("model", name).write_text(text)
    code, _, err = run("model")
    assert code == 2
    assert "`model` is a model's folder, and no recipe" in err
    assert "vtool load-check model checks its weights" in err
    assert "vtool verify ROWS model.path=model audits rows with its tokenizer" in err


def test_a_file_of_weights_and_any_other_folder_say_what_they_are() -> None:
    Path("a.safetensors").write_bytes(b"\x08")
    assert "`a.safetensors` has weights, and is no recipe" in run("a.safetensors")[2]
    Path("empty").mkdir()
    assert "`empty` is a folder without files of rows" in run("empty")[2]


def test_with_a_length_all_that_can_be_is_looked_for() -> None:
    assert result_of([GOOD])["checks"]["overlong-row"] == "not-run"
    checked = result_of([GOOD], "data.max_length=90")
    assert checked["checks"]["overlong-row"] == "passed"
    assert checked["checks"]["answer-cut-off"] == "not-run"
    assert checked["details"]["answer-cut-off"]["reason"] == "data.on_overlong is error"
    settings = ["data.max_length=90", "data.on_overlong=truncate"]
    long = chat("Hi", "so " * 30)
    assert _not_run(result_of([GOOD, long], *settings)) == {
        "outside-of-root": "data.root is not given",
        "near-duplicate-rows": "--near is not given",
        "processor-backend-differs": "no usable row has an image or a video",
    }
    assert _not_run(result_of([GOOD, long], *settings, "data.root=.", "--near")) == {
        "files-outside-folder": "data.root says where files have to be",
        "processor-backend-differs": "no usable row has an image or a video",
    }


def _not_run(result: dict[str, Any]) -> dict[str, str]:
    """The checks that were not run, each with the reason."""
    assert set(result["checks"].values()) == {"passed", "not-run"}
    return {
        rule: result["details"][rule]["reason"]
        for rule, state in result["checks"].items()
        if state == "not-run"
    }


def test_bad_rows_are_not_called_dropped_and_fail_the_check_of_their_number() -> None:
    write_rows(Path("rows.jsonl"), [GOOD, *["{"] * 21])
    code, out, _ = run("rows.jsonl")
    assert code == 1
    assert "dropped rows" not in out
    assert (
        "error[too-many-dropped-rows VT613]: data.train: 21 of 22 rows cannot be used;"
        " data.max_dropped_rows is 0" in out
    )
    assert result_of([GOOD, *["{"] * 21])["checks"]["too-many-dropped-rows"] == "failed"


def test_rows_that_are_dropped_as_is_allowed_are_a_note_that_says_why() -> None:
    result = result_of([GOOD, "{"], "data.max_dropped_rows=1")
    assert result["verdict"] == "clean"
    assert result["checks"]["broken-row"] == "passed"
    assert result["details"]["broken-row"] == {"reason": "rows dropped: 1"}
    (note,) = result["findings"]
    assert (note["rule"], note["severity"]) == ("broken-row", "note")
    assert result["checks"]["too-many-dropped-rows"] == "passed"
    code, out, _ = run("rows.jsonl", "data.max_dropped_rows=1")
    assert code == 0
    assert (
        "note[broken-row VT601]: data.train: 1 of 2 rows dropped, as data.max_dropped_rows"
        " allows:\n  rows.jsonl:2 is not JSON" in out
    )
    assert out.count("rows.jsonl:2 is not JSON") == 1


SHORT = {"data.max_length": 30, "data.on_overlong": "truncate"}


def test_a_file_whose_every_answer_is_cut_is_an_error() -> None:
    long = {"messages": [*GOOD["messages"][:1], {"role": "assistant", "content": "word " * 60}]}
    other = {"messages": [{"role": "user", "content": "Else?"}, long["messages"][1]]}
    result = result_of([long, other], *(f"{key}={value}" for key, value in SHORT.items()))
    assert result["verdict"] == "unsafe"
    assert result["checks"]["end-token-unsupervised"] == "failed"
    assert [finding["rule"] for finding in result["findings"]] == ["end-token-unsupervised"]
    code, out, _ = run("rows.jsonl", *(f"{key}={value}" for key, value in SHORT.items()))
    assert code == 1
    assert "cuts every answer of all 2 rows (rows.jsonl:1, …): a model" in out


def test_where_some_answers_end_a_cut_one_is_a_warning() -> None:
    long = {"messages": [*GOOD["messages"][:1], {"role": "assistant", "content": "word " * 60}]}
    turns = {"messages": [*GOOD["messages"], *long["messages"]]}
    for rows in ([GOOD, long], [turns]):
        result = result_of(rows, *(f"{key}={value}" for key, value in SHORT.items()))
        assert result["verdict"] == "clean"
        assert result["checks"]["end-token-unsupervised"] == "passed"
        assert result["checks"]["answer-cut-off"] == "failed"
        assert [finding["rule"] for finding in result["findings"]] == ["answer-cut-off"]


def test_where_no_row_can_be_read_nothing_else_has_passed() -> None:
    checks = result_of(['{"messages"', "["])["checks"]
    assert {rule for rule, state in checks.items() if state == "failed"} == {
        "broken-row",
        "too-many-dropped-rows",
    }
    assert {rule for rule, state in checks.items() if state == "passed"} == {"no-rows"}


def test_json_has_the_ledger_the_lengths_and_the_spans() -> None:
    details = result_of([GOOD, TWO, "{"])["details"]
    ledger, rows = details["ledger"], details["rows"]
    assert (ledger["rows"], ledger["kept"]) == (3, 2)
    assert [entry["rule"] for entry in ledger["dropped"]] == ["broken-row"]
    assert ledger["lengths"] == [rows["rows.jsonl:1"]["tokens"], rows["rows.jsonl:2"]["tokens"]]
    assert [span["text"] for span in rows["rows.jsonl:2"]["spans"]] == [
        "Hello there<|im_end|>",
        "Bye<|im_end|>",
    ]
    assert all(span["start"] < span["end"] for span in rows["rows.jsonl:2"]["spans"])
    asked = result_of([GOOD, TWO, "{"], "--row", "3")["details"]["rows"]
    assert asked.keys() == {"rows.jsonl:3"}
    assert "broken-row" in asked["rows.jsonl:3"]["problem"]


def test_a_json_array_is_audited_like_lines() -> None:
    Path("rows.json").write_text(json.dumps([GOOD, TWO], indent=1))
    code, out, _ = run("rows.json")
    assert code == 0
    assert "data.train: 2 rows = 2 kept + 0 dropped; 3 assistant turns" in out


TALK = {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]}


def test_the_layout_of_rows_is_found_and_said() -> None:
    Path("rows.json").write_text(json.dumps([TALK] * 3))
    code, out, _ = run("rows.json")
    assert code == 0
    assert "data.train: 3 rows of LLaVA or ShareGPT conversations\n" in out
    Path("my_rows").mkdir()
    write_rows(Path("my_rows/a.jsonl"), [TALK])
    code, out, _ = run("my_rows")
    assert code == 0
    assert "data.train: 1 row of LLaVA or ShareGPT conversations\n" in out


def test_rows_of_two_layouts_are_refused_and_none_is_read_as_another() -> None:
    write_rows(Path("rows.jsonl"), [GOOD, TALK])
    code, _, err = run("rows.jsonl")
    assert code == 1
    assert "error[layout-not-certain VT649]: rows.jsonl has rows of several layouts" in err


def test_a_parquet_file_that_is_named_json_is_reported_with_the_conversion() -> None:
    Path("rows.jsonl").write_bytes(b"PAR1 and more PAR1")
    code, _, err = run("rows.jsonl")
    assert code == 1
    assert err.count("error[") == 1
    assert "vtool convert rows.jsonl rows-lines.jsonl" in err


@pytest.mark.parametrize("left_out", [("--fast",), ("--only", "rows-lost")], ids=["fast", "only"])
def test_a_row_is_not_shown_where_rows_are_not_audited(left_out: tuple[str, ...]) -> None:
    code, out, _ = run("digits", *left_out, "--row", "digits:0", "--format", "json")
    (finding,) = json.loads(out)["results"][0]["findings"]
    assert (code, finding["rule"]) == (2, "unknown-choice")
    assert finding["message"].startswith("--row digits:0: ")
    assert f"which {left_out[0]} leaves out" in finding["message"]


def test_a_row_that_is_not_there_is_found_next_to_the_audit() -> None:
    write_rows(Path("rows.jsonl"), [GOOD, TWO, "{"])
    code, out, err = run("rows.jsonl", "--row", "17", "--row", "2")
    assert (code, err.count("error")) == (1, 0)
    assert "data.train: 3 rows = 2 kept + 1 dropped" in out
    assert "error[broken-row VT601]: rows.jsonl:3 is not JSON" in out
    assert (
        "error[unknown-row VT620]: there is no row 17\n"
        "  help: rows are named rows.jsonl:1 to rows.jsonl:3\n" in out
    )
    assert result_of([GOOD], "--row", "17")["checks"]["unknown-row"] == "failed"
    assert "unknown-row" not in result_of([GOOD], "--row", "1")["checks"]


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("empty.jsonl", "", "empty.jsonl is empty, of 0 bytes"),
        ("empty.json", "[]", "empty.json has no row"),
        ("blank.jsonl", "\n\n", "blank.jsonl has no row"),
    ],
)
def test_a_file_without_rows_is_one_finding_and_no_list_of_rules(
    name: str, text: str, says: str
) -> None:
    Path(name).write_text(text)
    code, out, err = run(name)
    assert (code, out) == (1, "")
    assert f"error[no-rows VT614]: {says}\n" in err
    assert "not run" not in err


@pytest.mark.parametrize("asked", ["2", "rows.json row 2"])
def test_a_row_of_an_array_is_shown_by_its_number_and_by_the_name_that_is_printed(
    asked: str,
) -> None:
    Path("rows.json").write_text(json.dumps([GOOD, {"messages": 7}]))
    code, out, _ = run("rows.json", "--row", asked)
    assert code == 1
    assert "rows.json:2" not in out
    assert "\n    rows.json row 2       -  none: rows.json row 2: " in out
    assert (
        'rows.json row 2: "messages" must be a list with at least one message; here it is 7' in out
    )
    assert "  --> rows.json\n" in out, "the file has one line: no line is this row's alone"


def test_a_long_answer_is_shortened_in_the_table_and_whole_in_json() -> None:
    answer = "begin " + "word " * 60 + "end"
    write_rows(Path("rows.jsonl"), [chat("Hi", answer)])
    _, out, _ = run("rows.jsonl")
    (line,) = [line for line in out.splitlines() if line.strip().startswith("rows.jsonl:1 ")]
    assert len(line) < 110
    assert "'begin" in line
    assert "end<|im_end|>'" in line
    assert (
        result_of([chat("Hi", answer)])["details"]["rows"]["rows.jsonl:1"]["spans"][0]["text"]
        == f"{answer}<|im_end|>"
    )


@pytest.mark.full
def test_a_recipe_that_is_not_proved_is_not_trained_unless_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # Without these, Qwen2.5-VL counts an image's tokens as text, and says nothing. All else is what
    # such a run computes.
    wrong = [
        "train",
        "sft",
        "digits",
        "data.drop_model_inputs=[mm_token_type_ids]",
        "train.steps=1",
        "optim.warmup_steps=0",
        "device.threads=1",
    ]
    refused = CliRunner().invoke(app, wrong)
    assert refused.exit_code == 1
    assert "error[positions-differ VT725]: mm_token_type_ids is left out" in refused.output
    assert refused.output.count("error[") == 1
    assert "nothing has been trained" in refused.output
    assert not (tmp_path / "runs").exists()
    Path("mine").mkdir()
    Path("mine/notes.txt").touch()
    taken = CliRunner().invoke(app, [*wrong, "run.dir=mine"])
    assert "run-folder-not-empty" in taken.output
    assert "positions-differ" not in taken.output, "the folder is looked at before the proofs"
    trained = CliRunner().invoke(app, [*wrong, "--no-preflight"])
    assert trained.exit_code == 0, trained.output
    record = json.loads((tmp_path / "runs/digits/proofs.json").read_text())
    assert record["preflight"] is False
    assert set(record["checks"].values()) == {"not-run"}


def test_proofs_are_reported_by_name_or_code_in_every_format() -> None:
    done = CliRunner().invoke(
        app,
        [
            "verify",
            "digits",
            "--only",
            "vt726",
            "--only",
            "label-masks-disagree",
            "--format",
            "json",
        ],
    )
    assert done.exit_code == 0, done.output
    (result,) = json.loads(done.stdout)["results"]
    assert result["checks"] == {"label-masks-disagree": "passed", "rows-lost": "passed"}
    assert result["details"]["rows-lost"]["tolerance"] == 0
    unknown = CliRunner().invoke(app, ["verify", "digits", "--only", "resume-difers"])
    assert unknown.exit_code == 2
    assert "did you mean `resume-differs`?" in unknown.output


def test_proofs_that_cannot_be_made_are_not_run_and_nothing_is_said_against_the_recipe() -> None:
    write_rows(Path("rows.jsonl"), ['{"messages": []}'] * 700 + [GOOD])
    override = ["data.train=[{format: messages, path: rows.jsonl}]", "data.max_dropped_rows=700"]
    code, out, _ = run("rows", *override)
    assert code == 0, out
    assert "proofs: not run: none of the first 640 rows" in out
    code, out, _ = run("rows", *override, "--fast", "--format", "json")
    (result,) = json.loads(out)["results"]
    assert code == 2, "no result could be made"
    assert result["verdict"] == "not-run"
    assert result.get("findings", []) == []
    assert set(result["checks"].values()) == {"not-run"}
    assert "data.max_dropped_rows=700 lets them go" in result["details"]["rows-lost"]["reason"]


@pytest.mark.parametrize("format", ["full", "concise", "github"])
def test_no_line_begins_with_what_a_files_name_says(tmp_path: Path, format: str) -> None:
    file = write_rows(tmp_path / "rows\n::error::mine.jsonl", [chat("2 + 2?", "4")])
    code, out, err = run(str(file), "--format", format)
    assert code == 0
    assert "rows\\n::error::mine.jsonl:1" in out
    assert not [line for line in (out + err).splitlines() if line.startswith("::error::")]


def test_a_rows_file_has_no_numbers_to_prove(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", [chat("2 + 2?", "4")])
    done = CliRunner().invoke(app, ["verify", str(rows), "--fast"])
    assert done.exit_code == 2
    assert "proofs are of a recipe" in done.output


def test_verify_ends_its_process_at_once_and_leaves_the_collector_as_it_was() -> None:
    with pytest.raises(ExitAtOnce) as ended:
        app(["verify", "digits", "--fast", "--only", "rows-lost"])
    assert ended.value.code == 0
    assert gc.isenabled()


def test_every_rule_about_rows_is_checked_by_the_audit_or_about_something_else() -> None:
    assert {rule.name for rule in rules_data.RULES if rule.stage is None} == {
        "unknown-row",  # a row that --row names
        "ledger-mismatch",  # the rows that a run has trained on
        "row-changed",  # a row that a run is about to train on
        "data-worker-failed",  # a process that was at a row
        "source-changed",  # the files of a run, at its end
    }
    assert rules_of("split") == (
        "too-many-dropped-rows",
        "no-rows",
        "zero-embedding-used",
        "token-not-learnable",
    )
    assert rules_of("references") == (
        "reference-too-long",
        "rows-in-two-splits",
        "pictures-in-two-splits",
        "lengths-not-validated",
    )
    checked = {*rules_of("quality"), *rules_of("references")} - {"reference-too-long"}
    of_boxes = {rule.name for rule in rules_boxes.RULES if rule.stage == "quality"}
    assert checked == of_boxes | {rule.name for rule in rules_quality.RULES}


def test_boxes_of_another_unit_are_named_and_rescaled_as_the_finding_says() -> None:
    rows_file(Path(), "absolute", sizes=((640, 480),))
    given = ("rows.jsonl", "model.family=qwen3_vl", "data.image.max_pixels=50176")
    status, out, _ = run(*given, "--format", "json")
    (result,) = json.loads(out)["results"]
    assert (status, result["checks"]["boxes-of-another-convention"]) == (0, "failed")
    (one,) = result["findings"]
    assert "are in pixels of the picture (rows.jsonl:" in one["message"]
    assert one["help"] == "data.coordinates={from: absolute, to: thousand} rescales them"
    remedy = one["help"].removesuffix(" rescales them")
    _, out, _ = run(*given, remedy, "--html", "page.html", "--format", "json")
    (result,) = json.loads(out)["results"]
    assert result["findings"] == []
    assert result["checks"]["boxes-of-another-convention"] == "passed"
    page = Path("page.html").read_text()
    assert "0 to 1000, rescaled from pixels of the picture" in page
    assert page.count('class="boxed"') == 9  # of the first, longest and shortest rows
