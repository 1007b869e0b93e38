"""The files of a run's processor/ stay what they were, and a change is named."""

import json
from pathlib import Path

import pytest

from vtool.diagnostics import Findings
from vtool.training.kept_processor import check_processor, record_processor, take_processor
from vtool.training.run_folder import RunFolder
from vtool.training.start import Start

CONFIG = {"text_config": {"hidden_act": "silu"}, "image_token_id": 5, "eos": [1, 2]}


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    run = RunFolder(tmp_path / "run")
    run.lock()
    run.unlock()
    run.processor.mkdir()
    (run.processor / "config.json").write_text(json.dumps(CONFIG))
    (run.processor / "chat_template.jinja").write_text("{{ messages }}")
    record_processor(run)
    return run


def reported(folder: RunFolder) -> str:
    with pytest.raises(Findings) as caught:
        check_processor(folder)
    (found,) = caught.value.diagnostics
    assert found.rule == "processor-changed"
    return found.message.partition("\n")[2].strip()


def test_an_unchanged_one_passes_and_so_does_what_an_editor_leaves(folder: RunFolder) -> None:
    (folder.processor / "config.json").write_text(json.dumps(CONFIG, indent=7, sort_keys=True))
    (folder.processor / ".config.json.swp").write_text("")
    (folder.processor / "config.json~").write_text("")
    check_processor(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"text_config": {"hidden_act": "gelu"}}, 'text_config.hidden_act: "silu" → "gelu"'),
        ({"image_token_id": 7}, "image_token_id: 5 → 7"),
        ({"image_token_id": 5.0}, "image_token_id: 5 → 5.0"),
        ({"eos": [1]}, "eos: [1, 2] → [1]"),
        ({"new": 1}, "new has been added"),
        ({"text_config": {}}, "text_config.hidden_act is missing"),
    ],
)
def test_a_changed_setting_is_named_with_both_values(
    folder: RunFolder, change: dict[str, object], message: str
) -> None:
    (folder.processor / "config.json").write_text(json.dumps({**CONFIG, **change}))
    assert reported(folder) == f"config.json: {message}"


def test_changed_missing_and_added_files_are_named_at_once(folder: RunFolder) -> None:
    (folder.processor / "config.json").unlink()
    (folder.processor / "chat_template.jinja").write_text("{{ other }}")
    (folder.processor / "added_tokens.json").write_text("{}")
    assert [line.strip() for line in reported(folder).splitlines()] == [
        "added_tokens.json was not there",
        "chat_template.jinja has other bytes than were written",
        "config.json is missing",
    ]


@pytest.mark.parametrize("text", [None, "", "[]", '{"config.json": 1}', "[" * 100_000])
def test_a_record_that_is_lost_or_damaged_is_reported(folder: RunFolder, text: str | None) -> None:
    if text is None:
        folder.processor_files.unlink()
    else:
        folder.processor_files.write_text(text)
    with pytest.raises(Findings, match=r"not-a-run.*processor\.json"):
        check_processor(folder)


def test_a_run_of_an_older_vtool_resumes_and_has_a_record_from_then_on(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.processor.mkdir()
    (run.processor / "config.json").write_text("{}")
    take_processor(Start(run.checkpoints / "step-000001"), run)
    (run.processor / "config.json").write_text('{"a": 1}')
    assert reported(run) == "config.json: a has been added"


def test_a_run_that_begins_from_anothers_checkpoint_has_that_ones_processor(
    folder: RunFolder, tmp_path: Path
) -> None:
    other = RunFolder(tmp_path / "other")
    other.lock()
    other.unlock()
    other.processor.mkdir()
    (other.processor / "config.json").write_text("{}")  # of a start that did not get far
    take_processor(Start(folder.checkpoints / "step-000001"), other)
    check_processor(other)
    assert json.loads((other.processor / "config.json").read_text()) == CONFIG
    (folder.processor / "config.json").write_text("{}")
    with pytest.raises(Findings, match="processor-changed"):
        take_processor(Start(folder.checkpoints / "step-000001"), other)
