"""The SARIF of every checking command, against the schema of SARIF 2.1.0.

The schema is OASIS's, in the form of SchemaStore's `sarif-2.1.0-rtm.5.json`, as the npm package
@microsoft/jest-sarif 1.0.0-beta.0 has it.
"""

import json
from pathlib import Path

import pytest
from jsonschema import Draft4Validator
from typer.testing import CliRunner

from tests.loading.checkpoint.folders import f32, folder
from tests.rows import chat, write_rows
from vtool.cli.app import app

SCHEMA = Path(__file__).parents[1] / "diagnostics/sarif-2.1.0-rtm.5.json"


@pytest.fixture(scope="module")
def validator() -> Draft4Validator:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    Draft4Validator.check_schema(schema)
    return Draft4Validator(schema)


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["validate-config", "digits"], 0),
        (["validate-config", "digits", "lr=1", "train.epochs=3", "launch.nproc=2"], 2),
        (["validate-config", "digts"], 1),
        (["validate-config", "mine.yaml"], 1),
        (["verify", "rows.jsonl", "data.max_length=40"], 3),
        (["load-check", "model"], None),
        (["doctor", "load_check"], 1),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)
def test_it_is_what_the_schema_says(
    arguments: list[str],
    found: int | None,
    validator: Draft4Validator,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TASK_QUEUE_ENABLE", "9")
    Path("mine.yaml").write_text("defaults: [digits]\noptim: {lrr: 1}\n")
    write_rows(Path("rows.jsonl"), [chat("a", "b"), chat("word " * 40, "b"), chat("<image>", "b")])
    folder(Path("model"), model={"a": f32(2, 3)}, other={"a": f32(2, 3)})
    done = CliRunner().invoke(app, [*arguments, "--format", "sarif"])
    log = json.loads(done.stdout)
    assert [
        f"{'/'.join(map(str, error.path))}: {error.message}" for error in validator.iter_errors(log)
    ] == []
    (run,) = log["runs"]
    assert found is None or len(run["results"]) == found
    assert run["tool"]["driver"]["rules"]
