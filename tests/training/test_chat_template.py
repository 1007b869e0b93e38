"""A run's chat template and its arguments reach the export, and all that asks its model."""

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from tests.commands import run_vtool
from tests.models.templates import TEMPLATES
from vtool import api
from vtool.data.detect import source_messages
from vtool.diagnostics import Findings
from vtool.verification.rows import audit_rows

_TEMPLATE = TEMPLATES["qwen3_5"].replace("<image>", "<|vision_start|><|image_pad|><|vision_end|>")
ROW = {
    "messages": [
        {"role": "user", "content": "What is it?"},
        {"role": "assistant", "content": "a cat"},
        {"role": "user", "content": "Sure?"},
        {"role": "assistant", "content": "yes"},
    ]
}


def settings(folder: Path, *more: str) -> list[str]:
    (folder / "rows.jsonl").write_text((json.dumps(ROW) + "\n") * 4)
    (folder / "own.jinja").write_text(_TEMPLATE)
    return [
        str(folder / "rows.jsonl"),
        f"data.chat_template={folder / 'own.jinja'}",
        *("train.steps=1", "train.epochs=null", "data.global_batch_size=2"),
        f"run.dir={folder / 'one'}",
        *more,
    ]


def test_a_run_and_its_export_have_the_template_and_its_arguments(tmp_path: Path) -> None:
    """data.chat_template and data.template_arguments."""
    given = settings(tmp_path, "data.template_arguments={enable_thinking: false}")
    ended = api.train(api.load(*given), preflight=False)
    for folder in ("processor", "export"):
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / "one" / folder)
        prompt = tokenizer.apply_chat_template(
            ROW["messages"][:1], tokenize=False, add_generation_prompt=True
        )
        assert prompt.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n"), folder
    assert ended


def test_an_evaluation_with_other_arguments_asks_other_prompts_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers to the prompts that were learnt are not taken for its own."""
    given = settings(tmp_path, "data.template_arguments={enable_thinking: false}")
    api.train(api.load(*given), preflight=False)
    monkeypatch.chdir(tmp_path)
    rows, short = str(tmp_path / "rows.jsonl"), ("--max-new-tokens", "1")
    first = run_vtool(tmp_path, "evaluate", "one", rows, *short)
    assert first.status == 0, first.stderr
    assert "prompt-differs" not in first.stdout + first.stderr
    other = ("data.template_arguments={enable_thinking: true}", *short)
    mixed = run_vtool(tmp_path, "evaluate", "one", rows, *other)
    assert "error[evaluation-differs VT832]" in mixed.stdout + mixed.stderr
    alone = run_vtool(tmp_path, "evaluate", "one", rows, *other, "--to", "thinking")
    assert alone.status == 0, alone.stderr
    assert "the training had {'enable_thinking': False}" in alone.stdout + alone.stderr
    same = ("data.template_arguments={enable_thinking: false}", *short)
    again = run_vtool(tmp_path, "evaluate", "one", rows, *same)
    assert again.status == 0, again.stderr
    assert "prompt-differs" not in again.stdout + again.stderr


def test_each_answer_is_a_sample_where_the_template_needs_it(tmp_path: Path) -> None:
    api.train(
        api.load(*settings(tmp_path, "data.template_arguments={enable_thinking: false}")),
        preflight=False,
    )
    (source,) = json.loads((tmp_path / "one" / "data.json").read_text())["train"]["files"]
    assert (source["turns"], source["samples"]) == ("each", 8)


@pytest.mark.parametrize(
    ("setting", "rule"),
    [
        ("data.chat_template=nowhere.jinja", "model-does-not-load"),
        ("data.template_arguments={thinking: false}", "template-argument-unread"),
    ],
)
def test_a_template_or_an_argument_that_is_not_there_is_refused(
    tmp_path: Path, setting: str, rule: str
) -> None:
    with pytest.raises(Findings) as caught:
        api.train(api.load(*settings(tmp_path, setting)), preflight=False)
    assert caught.value.diagnostics[0].rule == rule


def test_a_row_that_is_asked_for_is_all_of_its_samples(tmp_path: Path) -> None:
    given = settings(tmp_path, "data.template_arguments={enable_thinking: false}")
    (audit,) = audit_rows(api.load(*given).run, ["4"])
    assert [shown.row for shown in audit.shown][-2:] == [
        "rows.jsonl:4 answer 1",
        "rows.jsonl:4 answer 2",
    ]
    assert "unknown-row" not in {one.rule for one in audit.findings}
    (source,) = audit.ledger.sources
    assert source_messages(source)[0].startswith("8 samples of 4 rows: each answer")
