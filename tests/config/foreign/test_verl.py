"""Recipes of verl's SFT trainer:

what is found stands in their file and in their words, and what means the same is checked as ours
is.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from vtool.cli.app import app
from vtool.config.load import Examined, examine_foreign
from vtool.config.schema.profiler import Profiler
from vtool.diagnostics import RULES, Diagnostic, Findings

WHOLE = """
defaults:
  - sft_trainer_engine
  - override /engine: megatron
data:
  train_files: rows.parquet
  train_batch_size: 64
  use_dynamic_bsz: false
  micro_batch_size_per_gpu: 2
  pad_mode: right
  truncation: right
  max_length: 2048
model:
  path: Qwen/Qwen2.5-VL-7B-Instruct
  lora_rank: 8
  lora_alpha: 32
  target_modules: [q_proj, v_proj]
optim: {lr: 1.0e-5, betas: [0.9, 0.999], weight_decay: 0.1, clip_grad: 0.5,
  lr_decay_style: cosine, lr_warmup_steps_ratio: 0.1}
engine:
  tensor_model_parallel_size: 4
  pipeline_model_parallel_size: 2
  override_ddp_config: {overlap_grad_reduce: true, overlap_param_gather: true}
  override_transformer_config: {apply_rope_fusion: true}
trainer:
  total_training_steps: 50
  save_freq: 10
  test_freq: -1
  resume_mode: disable
  experiment_name: mine
  default_local_dir: runs/${trainer.experiment_name}
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.parquet").write_bytes(b"PAR1")


def examined(text: str) -> Examined:
    Path("theirs.yaml").write_text(text)
    return examine_foreign(Path("theirs.yaml"))


def found(text: str, rule: str) -> list[Diagnostic]:
    return [finding for finding in examined(text).findings if finding.rule == rule]


def test_what_means_the_same_becomes_our_setting() -> None:
    done = examined(WHOLE)
    assert [one.message for one in done.findings if one.severity != "note"] == []
    assert done.loaded is not None
    plain: dict[str, Any] = done.loaded.plain
    assert plain["engine"]["kind"] == "megatron"
    assert plain["engine"]["parallel"] == {
        "tensor": 4,
        "pipeline": 2,
        "context": 1,
        "sequence": True,
    }
    assert plain["engine"]["wrap_config"]["use_distributed_optimizer"] is True  # verl's default
    assert plain["engine"]["ddp_config"]["overlap_param_gather"] is True
    assert plain["engine"]["transformer_config"]["apply_rope_fusion"] is True
    assert plain["model"]["dtype"] == "bfloat16"
    assert plain["lora"] | {"exclude": None} == {
        "rank": 8,
        "alpha": 32,
        "dropout": 0.0,
        "targets": ["q_proj", "v_proj"],
        "exclude": None,
        "rslora": False,
        "dora": False,
        "modules_to_save": [],
        "base_dtype": "float32",
    }
    assert (
        plain["data"]["global_batch_size"],
        plain["data"]["micro_batch_size"],
        plain["data"]["on_overlong"],
    ) == (64, 2, "truncate")
    assert (plain["optim"]["betas"], plain["optim"]["clip_norm"], plain["optim"]["schedule"]) == (
        [0.9, 0.999],
        0.5,
        "cosine",
    )
    assert (plain["train"], plain["optim"]["warmup_steps"]) == (
        {"steps": 50, "epochs": None, "from": None},
        5,
    )
    assert plain["checkpoint"] | {"keep_last": 0, "asynchronous": 0} == {
        "every_steps": 10,
        "resume": "never",
        "keep_last": 0,
        "keep_best": None,
        "asynchronous": 0,
    }
    assert (plain["evaluation"]["every_steps"], plain["run"]["dir"]) == (None, "runs/mine")


def test_an_empty_recipe_is_what_verl_does_by_default() -> None:
    loaded = examined("data: {train_files: rows.parquet}").loaded
    assert loaded is not None
    plain = loaded.plain
    assert (plain["engine"]["kind"], plain["device"]["kind"], plain["train"]) == (
        "fsdp2",
        "cuda",
        {"steps": None, "epochs": 4, "from": None},
    )
    assert (plain["optim"]["lr"], plain["optim"]["weight_decay"], plain["optim"]["schedule"]) == (
        1e-3,
        0.01,
        "constant",
    )
    assert (plain["model"]["gradient_checkpointing"], plain["lora"]) == ("full", None)


@pytest.mark.parametrize("rule", ["setting-without-reader", "setting-dropped", "no-counterpart"])
def test_the_bad_example_is_found_and_the_good_one_is_not(rule: str) -> None:
    assert found(RULES[rule].bad, rule) or found(
        f"{RULES[rule].bad}\ndefaults: [override /engine: megatron]", rule
    )
    assert not found(f"{RULES[rule].good}\ndefaults: [override /engine: megatron]", rule)


def test_findings_stand_in_their_file_and_in_their_words() -> None:
    text = (
        "engine:\n  strategy: megatron\n  use_distributed_optimizer: false\n "
        " override_ddp_config:\n    use_distributed_optimizer: true\n"
    )
    (conflict,) = found(text, "megatron-ddp-conflict")
    assert str(conflict.origin) == "theirs.yaml:5:32"
    assert conflict.parameter == "engine.override_ddp_config.use_distributed_optimizer"
    assert conflict.message.startswith(
        "engine.override_ddp_config.use_distributed_optimizer is true, but"
        " engine.use_distributed_optimizer, and"
    )
    assert "in verl engine.override_ddp_config wins, and in the DDP alone" in (conflict.help or "")
    (ignored,) = found(
        "engine: {strategy: megatron, override_ddp_config: {overlap_param_gather: true}}",
        "megatron-ddp-conflict",
    )
    assert "without engine.override_ddp_config.overlap_grad_reduce=true" in ignored.message
    assert "ddp_config" not in (ignored.help or "").replace("engine.override_ddp_config", "")
    (lost,) = found("data: {train_files: gone.parquet}", "not-on-this-machine")
    assert (lost.parameter, str(lost.origin)) == ("data.train_files", "theirs.yaml:1:21")


def test_a_setting_that_does_not_reach_mbridge_is_named_with_what_does() -> None:
    dropped = "engine: {strategy: megatron, use_distributed_optimizer: false%s}"
    (finding,) = found(dropped % "", "setting-dropped")
    assert "verl#5775" in finding.message
    for more in (
        ", override_ddp_config: {use_distributed_optimizer: false}",
        ", use_mbridge: false",
        ", vanilla_mbridge: false",
    ):
        assert not found(dropped % more, "setting-dropped"), more


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("trainer: {seed: 3}", "Here: run.seed"),
        ("model: {freeze_vision_tower: true}", "Here: model.freeze.vision"),
        ("data: {balance_dp_token: true}", "never reads it"),
        ("trainer: {use_legacy_worker_impl: enable}", "has removed it"),
        ("global_profiler: {tool: nsys, steps: [1]}", "its own group is `profiler`"),
        ("data: {truncation: error}", "longer rows silently lose their end"),
        ("data: {micro_batch_size_per_gpu: 2}", "data.max_token_len_per_gpu in its place"),
    ],
)
def test_what_verl_never_reads_is_reported_with_what_takes_its_place(text: str, said: str) -> None:
    (finding,) = found(text, "setting-without-reader")
    assert said in finding.message
    assert finding.origin is not None
    assert finding.severity == "warning"


def test_an_unknown_setting_is_an_error_with_the_name_that_was_meant() -> None:
    (finding,) = found("engine:\n  tensor_model_paralel_size: 2\n", "unknown-key")
    assert (str(finding.origin), finding.help) == (
        "theirs.yaml:2:3",
        "did you mean `engine.tensor_model_parallel_size`?",
    )
    assert found(
        "engine: {strategy: megatron, override_ddp_config: {overlap: true}}", "unknown-key"
    )
    assert not found(
        "profiler: {tool_config: {npu: {level: level1}}}\nmodel: {mtp: {enable: true}}\nhydra:"
        " {run: {dir: x}}",
        "unknown-key",
    )


def test_what_has_no_counterpart_is_not_run_and_not_passed() -> None:
    done = examined(
        "trainer: {logger: [swanlab]}\nmodel: {path: Qwen/Qwen2-VL-2B}\noptim: {optimizer: Muon}"
    )
    (note,) = (finding for finding in done.findings if finding.rule == "no-counterpart")
    assert note.message.startswith("2 settings have no counterpart")
    assert all(name in note.message for name in ("trainer.logger", "optim.optimizer"))
    (absent,) = (finding for finding in done.findings if finding.rule == "not-on-this-machine")
    assert (absent.parameter, str(absent.origin)) == ("model.path", "theirs.yaml:2:15")
    assert (done.checks["no-counterpart"], done.checks["not-on-this-machine"]) == (
        "not-run",
        "not-run",
    )


def test_a_folder_of_a_family_is_checked_and_of_another_model_is_not() -> None:
    for kind, judged in (("qwen2_vl", True), ("llama", False)):
        Path(kind).mkdir()
        (Path(kind) / "config.json").write_text(json.dumps({"model_type": kind}))
        notes = found(
            f"data: {{train_files: rows.parquet}}\nmodel: {{path: {kind}}}", "no-counterpart"
        )
        assert (notes == []) is judged
    [note] = found("model: {path: /not/there}", "not-on-this-machine")
    assert (note.severity, note.parameter) == ("note", "model.path")


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("a: [", "bad-yaml"),
        ("a: 1\na: 2", "bad-yaml"),
        ("actor_rollout_ref: {actor: {}, model: {path: x}}", "unknown-recipe"),
        ("", "bad-yaml"),
    ],
)
def test_what_is_no_recipe_of_this_trainer_is_reported_and_exits_2(text: str, rule: str) -> None:
    with pytest.raises(Findings) as raised:
        examined(text)
    assert [finding.rule for finding in raised.value.diagnostics][:1] == [rule]
    assert (
        CliRunner().invoke(app, ["validate-config", "--from", "verl", "theirs.yaml"]).exit_code == 2
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("model: {lora_rank: '8'}", "wrong-type model.lora_rank"),
        ("trainer: {total_training_steps: '100'}", "wrong-type trainer.total_training_steps"),
        ("optim: {lr_warmup_steps_ratio: abc}", "wrong-type optim.lr_warmup_steps_ratio"),
        ("optim: {lr_warmup_steps_ratio: .nan}", "no-counterpart optim.lr_warmup_steps_ratio"),
        ("trainer: {save_freq: after_each_epoch}", "no-counterpart trainer.save_freq"),
    ],
)
def test_a_value_of_another_kind_is_a_finding(line: str, said: str) -> None:
    more = {
        "trainer": "trainer: {total_training_steps: 100}",
        "optim": "optim: {lr_warmup_steps_ratio: 0.1}",
    }
    text = "\n".join(
        [
            "data: {train_files: rows.parquet}",
            line,
            *(each for group, each in more.items() if not line.startswith(group)),
        ]
    )
    assert said in {f"{finding.rule} {finding.parameter}" for finding in examined(text).findings}


def test_rows_are_looked_for_where_verl_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert not found("data: {train_files: ~/rows.parquet}", "not-on-this-machine")
    [note] = found("data: {train_files: ~/others.parquet}", "not-on-this-machine")
    assert (note.severity, note.parameter) == ("note", "data.train_files")
    [note] = found(
        "data: {train_files: [rows.parquet, 'hdfs://there/rows.parquet']}", "no-counterpart"
    )
    assert note.parameter == "data.train_files"
    assert not found("data: {train_files: hdfs://there/rows.parquet}", "not-on-this-machine")


def test_the_command_reads_it_and_shows_it_as_a_recipe_of_ours() -> None:
    folder = Path("model")
    folder.mkdir()
    (folder / "config.json").write_text(
        json.dumps({"model_type": "qwen2_5_vl", "vision_config": {}})
    )
    Path("theirs.yaml").write_text(
        "data: {train_files: rows.parquet}\nmodel: {path: model}\ntrainer: {experiment_name:"
        " mine}\n"
    )
    shown = CliRunner().invoke(app, ["validate-config", "--from", "verl", "theirs.yaml", "--show"])
    assert shown.exit_code == 0, shown.output
    Path("ours.yaml").write_text(shown.stdout)
    again = CliRunner().invoke(app, ["validate-config", "ours.yaml"])
    assert again.exit_code == 0, again.output
    assert (
        CliRunner()
        .invoke(app, ["validate-config", "--from", "verl", "theirs.yaml", "optim.lr=1"])
        .exit_code
        == 2
    )


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("trainer: {profile_interval: [5, 7]}", "nothing-profiled"),
        ("profiler: {enable: true}", "nothing-profiled"),
        (
            "profiler: {enable: true, tool: torhc}\ntrainer: {profile_interval: [5, 7]}",
            "unknown-choice",
        ),
        (
            "profiler: {enable: true, tool: torch}\ntrainer: {profile_interval: [0, 2]}",
            "profile-interval",
        ),
        (
            "profiler: {enable: true, tool: torch}\ntrainer: {profile_interval: [5, 3]}",
            "profile-interval",
        ),
        (
            "profiler: {enable: true, ranks: [0, 0]}\ntrainer: {profile_interval: [5, 7]}",
            "profiler-ranks",
        ),
    ],
)
def test_profiles_that_verl_would_not_record_are_findings_in_its_words(
    text: str, rule: str
) -> None:
    (finding,) = found(text, rule)
    assert finding.severity == "error"
    assert (
        "profiler.profile_interval" not in f"{finding.message} {finding.help} {finding.parameter}"
    )


def test_a_profile_of_verls_is_ours_and_without_ranks_of_the_first_one() -> None:
    def of(text: str) -> Profiler:
        steps = "trainer: {profile_interval: [5, 7], total_training_steps: 100}"
        loaded = examined(f"data: {{train_files: rows.parquet}}\n{steps}\n{text}").loaded
        assert loaded is not None
        return loaded.run.profiler

    only = of("profiler: {enable: true}")
    assert (only.tool, only.profile_interval, only.warmup, only.ranks) == ("torch", (5, 7), 0, (0,))
    assert of("profiler: {enable: true, tool: torch_memory, all_ranks: true}").tool == "memory"
    assert of("profiler: {enable: true, all_ranks: true}").ranks is None
    assert of("profiler: {enable: true, ranks: [1, 3]}").ranks == (1, 3)
