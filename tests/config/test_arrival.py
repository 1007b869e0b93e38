"""Every setting is known to arrive: its field says who reads it back, or a test shows it acting."""

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from vtool.config.expected import expected_settings
from vtool.config.load import load_run
from vtool.config.schema import RECIPE_KINDS
from vtool.config.schema.base import ActsLater, ReadBack
from vtool.config.settings import all_settings, arrivals

ROOT = Path(__file__).parents[2]
_DATA, _FOLDER, _HERE = (
    "tests/data/test_encode.py::",
    "tests/training/test_run_folder.py::",
    "tests/training/test_observe_run.py::",
)
_CHECKPOINT = "tests/training/test_checkpoint.py::"
_BEST = "tests/training/test_best.py::"
_PROFILE, _ASKED, _NPU = (
    f"tests/profiling/test_{name}.py::" for name in ("profiler", "settings", "devices")
)
_TRACKED = "tests/training/test_tracking.py::"
_EVALUATED = f"{_HERE}test_a_run_is_evaluated_when_and_as_it_is_asked"
_PARTS = ("weight", "repeat")
TESTS: dict[str, str] = {
    "run.name": f"{_FOLDER}test_settings_that_change_no_number_may_differ",
    "model.path": (
        "tests/training/test_agreement.py::test_ranks_of_other_folders_are_named_by_every_rank"
    ),
    "model.revision": "tests/hub/test_hub.py::test_a_run_keeps_the_commit_of_the_name",
    "model.init": "tests/cli/test_train.py::test_a_model_folder_is_fine_tuned",
    "model.dummy_visual": (
        "tests/training/test_dummy_visual.py::"
        "test_never_stops_a_step_in_which_one_rank_would_wait_for_another"
    ),
    **dict.fromkeys(
        (f"data.train.{name}" for name in _PARTS),
        "tests/data/test_mixture.py::test_an_epoch_has_what_weights_and_repeats_say",
    ),
    **dict.fromkeys(
        (f"data.{split}.limit" for split in ("train", "validation", "test")),
        "tests/data/test_mixture.py::"
        "test_a_limit_takes_rows_from_all_over_and_a_higher_one_the_same_and_more",
    ),
    **dict.fromkeys(
        (f"data.{split}.name" for split in ("train", "validation", "test")),
        "tests/training/test_mixtures.py::test_scores_of_sources_are_in_metrics_and_in_the_result",
    ),
    **dict.fromkeys(
        ("data.split.validation", "data.split.test"),
        "tests/data/test_splits.py::test_the_side_is_a_hash_of_the_group_with_the_splits_name",
    ),
    "data.turns": (
        "tests/models/test_published_templates.py::"
        "test_the_answers_that_are_learnt_are_those_that_the_setting_says"
    ),
    **dict.fromkeys(
        ("data.chat_template", "data.template_arguments"),
        "tests/training/test_chat_template.py::"
        "test_a_run_and_its_export_have_the_template_and_its_arguments",
    ),
    **dict.fromkeys(
        ("data.coordinates.from", "data.coordinates.to"),
        "tests/data/test_coordinates.py::test_boxes_in_pixels_become_thousandths_of_each_picture",
    ),
    "data.split.group": (
        "tests/data/test_splits.py::test_a_key_that_the_recipe_names_is_the_group"
    ),
    "data.max_length": f"{_DATA}test_truncation_keeps_a_part_of_the_answer_and_says_so",
    "data.on_overlong": (
        "tests/data/test_audit.py::test_overlong_rows_are_dropped_only_where_the_recipe_says_so"
    ),
    "data.max_dropped_rows": (
        "tests/data/test_audit.py::test_bad_rows_are_dropped_up_to_the_number_allowed"
    ),
    "data.root": (
        "tests/data/test_quality.py::"
        "test_with_a_root_what_is_outside_of_it_is_refused_and_what_is_in_it_is_not_reported"
    ),
    "data.max_overlap_rows": (
        "tests/data/test_quality.py::test_a_run_whose_test_rows_are_trained_on_does_not_start"
    ),
    "data.audit_cache": (
        "tests/data/test_audit_cache.py::test_fresh_audits_all_and_off_keeps_nothing"
    ),
    "data.allow_urls": (
        "tests/data/test_urls.py::test_an_audit_reads_it_where_the_setting_names_its_host"
    ),
    "data.max_text_bytes": (
        "tests/data/test_audit.py::test_a_row_with_more_text_than_may_be_is_refused"
    ),
    "data.workers": (
        "tests/training/test_resume.py::test_data_workers_do_not_hold_the_folder_of_a_killed_run"
    ),
    "data.drop_model_inputs": f"{_DATA}test_an_input_is_left_out_only_where_the_recipe_names_it",
    "data.micro_batch_tokens": (
        "tests/data/test_packing.py::"
        "test_every_row_is_in_one_micro_batch_and_none_is_over_the_budget"
    ),
    "optim.clip_norm": f"{_HERE}test_gradients_are_clipped_to_the_norm_that_is_asked",
    "checkpoint.every_steps": (
        f"{_FOLDER}test_a_run_goes_back_to_an_earlier_step_of_its_own_and_throws_nothing_away"
    ),
    "checkpoint.asynchronous": (
        f"{_CHECKPOINT}test_what_is_written_while_the_loop_continues_is_what_was_there_at_its_step"
    ),
    "device.numa": "tests/training/test_launch.py::test_torchrun_gets_what_to_bind_processes_by",
    **dict.fromkeys(
        ("checkpoint.keep_best.metric", "checkpoint.keep_best.mode"),
        f"{_BEST}test_the_best_is_kept_and_exported_and_scored_on_the_test_rows",
    ),
    **dict.fromkeys(
        (f"evaluation.early_stopping.{name}" for name in ("metric", "mode", "patience")),
        f"{_BEST}test_a_run_ends_when_no_better_score_comes",
    ),
    "evaluation.early_stopping.min_delta": f"{_BEST}test_a_gain_that_is_too_small_is_none",
    "checkpoint.keep_last": f"{_CHECKPOINT}test_only_the_newest_are_kept",
    "train.from": (
        "tests/training/test_weights.py::test_a_run_begins_with_the_weights_it_names_to_the_bit"
    ),
    "checkpoint.resume": f"{_FOLDER}test_a_run_can_begin_from_another_runs_checkpoint",
    **dict.fromkeys(
        ("profiler.tool", "profiler.profile_interval"),
        f"{_PROFILE}test_the_trace_keeps_the_formats_rules_and_names_the_runs_steps",
    ),
    "profiler.warmup": f"{_ASKED}test_the_tool_runs_in_its_warm_up_and_keeps_the_interval",
    "profiler.ranks": f"{_ASKED}test_only_the_ranks_that_are_asked_for_record",
    **{
        f"profiler.record.{name}": f"{_ASKED}test_torchs_profiler_has_what_is_asked"
        for name in ("shapes", "stacks", "flops", "memory")
    },
    **{
        f"profiler.npu.{name}": (
            f"{_NPU}test_torch_npu_is_asked_for_what_the_settings_say_in_its_own_words"
        )
        for name in ("level", "aic_metrics", "export_type", "analysis")
    },
    "profiler.memory.max_entries": (
        f"{_NPU}test_the_allocators_history_is_kept_and_its_curve_ends_at_what_is_allocated"
    ),
    "profiler.max_trace_mb": f"{_PROFILE}test_a_trace_above_its_limit_is_capped_and_said",
    "tracking.kind": f"{_TRACKED}test_tensorboard_reads_the_numbers_of_metrics_jsonl",
    **dict.fromkeys(
        ("tracking.uri", "tracking.experiment"),
        f"{_TRACKED}test_mlflow_has_one_run_of_all_starts_with_the_numbers_of_metrics_jsonl",
    ),
    "tracking.project": f"{_TRACKED}test_wandb_keeps_the_run_in_its_folder_without_a_network",
    **dict.fromkeys(
        ("evaluation.every_steps", "evaluation.batch_size", "evaluation.generate.max_new_tokens"),
        _EVALUATED,
    ),
}
"""By setting that acts after the first step, the test that shows it."""
HANDED_ON = (
    *(f"engine.{group}_config." for group in ("ddp", "wrap", "transformer")),
    *("data.validation", "data.split.validation", "train.from", "data.coordinates.from"),
)
"""Settings that are handed to a library as a group, or read by a name that is put together."""


def read_names() -> set[str]:
    """Return the attributes and arguments that code reads, besides the schema and the rules."""
    names = set()
    for file in (ROOT / "vtool").rglob("*.py"):
        if not {"schema", "rules"}.intersection(file.parts):
            for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                match node:
                    case ast.Attribute(attr=name) | ast.keyword(arg=name) | ast.arg(arg=name):
                        names.add(name)
    return names


def test_every_setting_has_a_description_and_code_that_reads_it() -> None:
    settings = [one for schema in RECIPE_KINDS.values() for one in all_settings(schema)]
    assert [one.name for one in settings if not one.doc.strip()] == [], (
        "a docstring under the field"
    )
    read = read_names()
    unread = [
        one.name
        for one in settings
        if one.name.rpartition(".")[2] not in read and not one.name.startswith(HANDED_ON)
    ]
    assert unread == [], "no code reads them"


def test_every_setting_says_how_it_arrives_and_classes_that_share_one_agree() -> None:
    said: dict[str, set[Any]] = {}
    for setting in all_settings():
        if not setting.groups:
            said.setdefault(setting.name, set()).add(setting.arrival)
    assert {name: found for name, found in said.items() if None in found} == {}
    assert {name: found for name, found in said.items() if len(found) > 1} == {}


def test_every_setting_that_acts_later_has_a_test_and_no_other() -> None:
    assert TESTS.keys() == {name for name, said in arrivals().items() if said == ActsLater()}


@pytest.mark.parametrize("test", sorted(set(TESTS.values())))
def test_the_tests_that_show_a_setting_acting_are_there(test: str) -> None:
    file, _, name = test.partition("::")
    assert f"def {name}(" in (ROOT / file).read_text()


@pytest.mark.parametrize(
    "reader", sorted({said.reader for said in arrivals().values() if isinstance(said, ReadBack)})
)
def test_the_readers_are_there(reader: str) -> None:
    module, _, path = reader.partition(":")
    found: Any = import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    assert callable(found)


def test_no_object_is_expected_to_have_what_acts_later() -> None:
    later = {name for name, arrival in arrivals().items() if arrival == ActsLater()}
    assert later.isdisjoint(expected_settings(load_run("digits").run))
