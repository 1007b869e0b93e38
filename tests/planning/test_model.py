"""The model of a plan: what train could not load is refused, in train's words."""

import json
import logging
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any

import pytest

from tests.commands import run_vtool
from tests.planning.test_micro_batch import run_of
from vtool.diagnostics import Findings
from vtool.families.family import load_family
from vtool.planning.model import _IDS, model_of
from vtool.planning.plan import PlanQuestion, make_plan

FAMILY = "qwen2_5_vl"


def folder_of(folder: Path, **text: Any) -> Path:
    """Write the config.json of a tiny model, with other values in that of its language model."""
    load_family(FAMILY).random_config("tiny", 64, _IDS).save_pretrained(folder)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["text_config"] |= text
    path.write_text(json.dumps(config))
    return folder


def refused(folder: Path) -> str:
    with pytest.raises(Findings) as raised:
        model_of(run_of(folder, f"model.path={folder}", "model.size=null"))
    (finding,) = raised.value.diagnostics
    assert (finding.rule, finding.parameter) == ("model-does-not-load", "model.path")
    return finding.message


@pytest.mark.parametrize(
    "settings",
    [
        {"num_hidden_layers": 7},  # of which layer_types names another number
        {"num_hidden_layers": -2},
        {"hidden_size": 0},
        {"num_attention_heads": 7},
        {"rope_parameters": 3},
    ],
)
def test_a_config_that_makes_no_model_is_a_finding(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    assert "no model can be built of its config.json" in refused(folder_of(tmp_path, **settings))


def test_the_reason_is_that_of_the_check_and_not_its_name(tmp_path: Path) -> None:
    message = refused(folder_of(tmp_path, num_hidden_layers=7))
    assert "`num_hidden_layers` (7) must be equal to the number of `layer_types`" in message


def test_such_a_folder_ends_the_command_with_one(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, num_hidden_layers=7)
    given = ("data.max_length=64", f"model.path={folder}", "model.size=null")
    done = run_vtool(tmp_path, "plan", "digits", *given)
    assert done.status == 1
    assert "error[model-does-not-load VT502]: " in done.output
    assert "Traceback" not in done.output


@pytest.mark.usefixtures("no_process_group")
def test_an_operation_without_shapes_is_reported_in_a_line(tmp_path: Path) -> None:
    """torch's grouped product has a shape in bfloat16 alone; torch logs a traceback of it."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    heard = BufferingHandler(99)
    log.addHandler(heard)  # torch's own loggers hand nothing on
    try:
        given = ("model=qwen3_vl_moe_tiny", "engine=fsdp2", "data.max_length=64")
        with pytest.raises(Findings) as raised:
            make_plan(run_of(tmp_path, *given), PlanQuestion(2))
    finally:
        log.removeHandler(heard)
    assert raised.value.diagnostics[0].rule == "not-planned"
    assert not heard.buffer
    assert not log.disabled
