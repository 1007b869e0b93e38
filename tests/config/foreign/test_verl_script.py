"""Scripts that start verl's SFT trainer, and what Hydra composes of verl's own defaults."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.commands import run_vtool
from vtool.config.foreign.known_words import known_words
from vtool.config.load import Examined, examine_foreign, read_foreign
from vtool.diagnostics import Findings


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


OLD = """\
set -x
torchrun --standalone --nnodes=1 --nproc_per_node=4 \\
    -m verl.trainer.fsdp_sft_trainer \\
    data.train_files=$HOME/parts/train.parquet \\
    data.micro_batch_size=4 \\
    data.multiturn.messages_key=messages \\
    model.partial_pretrain=/models/Qwen2.5-VL-3B-Instruct \\
    optim.warmup_steps_ratio=0.05 \\
    ulysses_sequence_parallel_size=2
"""
SHARED = """\
backend=${BACKEND:-fsdp}
SP=${SP:-2}
FSDP="\\
    engine=${backend} optim=${backend} \\
    optim.lr=2e-5 optim.betas="[0.9,0.95]" \\
    engine.ulysses_sequence_parallel_size=${SP}"
MEGATRON="engine=megatron optim=megatron optim.lr=3e-5"
if [ "$backend" = "fsdp" ]; then CONFIG="$FSDP"; else CONFIG="$MEGATRON"; fi
torchrun --nproc-per-node=${GPUS:-8} -m verl.trainer.sft_trainer \\
    data.train_files="${PWD_OF_ROWS:-.}/rows.parquet" data.train_batch_size=96 \\
    data.pad_mode=right data.max_length=2048 data.truncation=right \\
    model.path=$MODEL trainer.total_epochs=10 trainer.logger=['console','wandb'] \\
    trainer.default_local_dir=$1 \\
    ${CONFIG} "$@"
"""
ON_NPU = """\
torchrun --nproc_per_node=8 -m verl.trainer.sft_trainer trainer.device=npu \\
    data.train_files=$HOME/rows.parquet model.path=Qwen/Qwen3-VL-30B-A3B-Instruct \\
    engine=megatron optim=megatron engine.tensor_model_parallel_size=4 \\
    engine.expert_model_parallel_size=2 engine.pipeline_model_parallel_size=2 \\
    +engine.override_transformer_config.use_flash_attn=True \\
    profiler.enable=True profiler.tool=npu profiler.tool_config.npu.level=level1 \\
    trainer.profile_interval=[3,5] trainer.total_training_steps=10
"""


def examined(text: str, name: str = "train.sh") -> Examined:
    Path(name).write_text(text)
    return examine_foreign(Path(name))


def errors(done: Examined) -> list[tuple[str, str | None]]:
    return [(one.rule, one.parameter) for one in done.findings if one.severity == "error"]


def test_the_overrides_behind_the_trainer_are_checked(tmp_path: Path) -> None:
    Path("old.sh").write_text(OLD)
    done = run_vtool(tmp_path, "validate-config", "--from", "verl", "old.sh")
    assert done.status == 1
    assert "bad-yaml" not in done.stdout
    words = " ".join(done.stdout.split())
    assert "old.sh:7:5" in words
    assert "has no setting `model.partial_pretrain` (known until 0.7.0)" in words
    for meant in ("model.path", "data.messages_key", "engine.ulysses_sequence_parallel_size"):
        assert f"did you mean `{meant}`" in words
    assert "did you mean `optim.lr_warmup_steps_ratio`" in words
    assert words.count("unknown-key VT101") == 5


def test_an_old_file_names_what_has_taken_the_place_of_its_words() -> None:
    done = examined("model: {partial_pretrain: /models/it}\nuse_remove_padding: true", "old.yaml")
    helps = {one.parameter: one.help for one in done.findings if one.rule == "unknown-key"}
    assert helps == {
        "model.partial_pretrain": "did you mean `model.path`?",
        "use_remove_padding": "did you mean `model.use_remove_padding`?",
    }


def test_variables_and_branches_of_a_script_are_followed() -> None:
    Path("rows.parquet").touch()
    done = examined(SHARED)
    assert errors(done) == []
    assert done.loaded is not None
    plain: dict[str, Any] = done.loaded.plain
    assert (plain["optim"]["lr"], plain["optim"]["betas"]) == (2e-5, [0.9, 0.95])
    assert plain["engine"]["kind"] == "fsdp2"
    assert (plain["data"]["global_batch_size"], plain["data"]["max_length"]) == (96, 2048)
    assert (plain["train"]["epochs"], plain["tracking"][0]["kind"]) == (10, "wandb")
    assert str(done.loaded.origins.of("optim.lr")) == "train.sh:5:5"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("python -m verl.trainer.main_ppo actor_rollout_ref.model.path=x", "verl.trainer.main_ppo"),
        ("echo hello", "does not start verl's SFT trainer"),
        (
            "torchrun -m verl.trainer.sft_trainer --config-path=mine --config-name=it",
            "a configuration of yours",
        ),
    ],
)
def test_a_script_that_is_not_read_says_so(text: str, said: str) -> None:
    with pytest.raises(Findings) as raised:
        examined(text)
    (finding,) = raised.value.diagnostics
    assert finding.rule == "unknown-recipe"
    assert said in finding.message


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("engine.tensor_model_parallel_size=2", ["engine.tensor_model_parallel_size"]),
        ("engine=megatron engine.tensor_model_parallel_size=2", []),
        ("engine=megatron optim.lr_decay_style=cosine", ["optim.lr_decay_style"]),
        ("engine=megatron optim=megatron optim.lr_decay_style=cosine", []),
        ("engine=$ENGINE engine.tensor_model_parallel_size=2", []),
        ("+data.of_mine=1", []),
        ("data.of_mine=1", ["data.of_mine"]),
        ("+engine.reshrd=false", ["engine.reshrd"]),
        ("+engine.override_transformer_config.of_mine=1", []),
        ("hydra.searchpath=[pkg://mine] engine=mine engine.of_mine=1", []),
        ("engine=veomni optim=veomni engine.ulysses_parallel_size=2", []),
        ("~trainer.seed", []),
    ],
)
def test_a_setting_that_hydra_would_not_compose_is_an_error(given: str, found: list[str]) -> None:
    done = examined(f"torchrun -m verl.trainer.sft_trainer {given}")
    assert errors(done) == [("unknown-key", name) for name in found]


def test_a_recipe_for_npus_is_not_wrong_for_what_is_lacking_here() -> None:
    done = examined(ON_NPU)
    assert errors(done) == []
    notes = [one.message for one in done.findings if one.rule == "no-counterpart"]
    assert any("MindSpeed" in note for note in notes)
    assert (done.checks["not-built-on-engine"], done.checks["no-counterpart"]) == (
        "not-run",
        "not-run",
    )


def test_betas_do_not_reach_megatron() -> None:
    start = "torchrun -m verl.trainer.sft_trainer engine=megatron optim=megatron"
    done = examined(f"{start} optim.betas=[0.9,0.95]")
    (finding,) = (one for one in done.findings if one.rule == "setting-dropped")
    assert finding.parameter == "optim.betas"
    same = examined(f"{start} optim.betas=[0.9,0.999]").findings
    assert not [one for one in same if one.rule == "setting-dropped"]


def _composed(engine: str) -> dict[str, Any]:
    """Return verl's defaults with an engine, nested as Hydra composes them."""
    known, made = known_words("verl"), dict[str, Any]()
    groups = ("engine.", "optim.")
    flat = {name: one for name, one in known.fields.items() if not name.startswith(groups)}
    for group in ("engine", "optim"):
        flat |= known.choices[f"{group}={engine}"] | {f"{group}._target_": "verl.of_it"}
    newest = known.release
    old = {name for name, releases in known.history.items() if newest not in releases}
    for name in sorted(flat.keys() - old):
        *above, last = name.split(".")
        inner = made
        for key in above:
            inner[key] = inner.get(key) or {}
            inner = inner[key]
        inner[last] = flat[name]
    return made


@pytest.mark.parametrize("engine", ["fsdp", "megatron", "veomni", "torchtitan", "automodel"])
def test_verls_own_defaults_have_no_error_and_no_warning(engine: str) -> None:
    composed = _composed(engine)
    assert len(composed["engine"]) > 10
    done = examined(yaml.safe_dump(composed), "composed.yaml")
    assert [one for one in done.findings if one.severity != "note"] == []
    composed["optim"]["lrr"] = 1
    again = examined(yaml.safe_dump(composed), "composed.yaml")
    assert errors(again) == [("unknown-key", "optim.lrr")]


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        ("+optim.lr=1e-5", "optim.lr"),
        ("optim.lr=1e-5", None),
        ("++optim.lr=1e-5", None),
        ("+optim.betas=[0.9,0.95]", None),  # merged
        ("+data.custom_cls.path=x.py", None),  # null is no value
        ("+data.train_max_samples=3", "data.train_max_samples"),
        ("+trainer.mine=1 +trainer.mine=2", "trainer.mine"),
        ("model.override_config.attn_implementation=sdpa", "model.override_config.attn_impl"),
        ("model.override_config={attn_implementation:sdpa}", "model.override_config.attn_impl"),
        ("+model.override_config.attn_implementation=sdpa", None),
        ("engine=megatron optim=megatron +engine.dtype=bfloat16", "engine.dtype"),
        ("hydra.run.dir=out", None),
    ],
)
def test_a_sign_that_hydra_refuses_is_told(words: str, refused: str | None) -> None:
    """Compare with Hydra 1.3, which has composed each with verl 0.9.1's own files."""
    found = errors(examined(f"torchrun -m verl.trainer.sft_trainer {words}"))
    assert len(found) == (refused is not None)
    assert all(rule == "refused-there" for rule, _ in found)
    assert refused is None or str(found[0][1]).startswith(refused)


@pytest.mark.parametrize(
    ("words", "dead"),
    [
        ("optim.lr_warmup_steps=9 optim.lr_warmup_steps_ratio=0.1", "lr_warmup_steps_ratio"),
        ("optim.lr_warmup_steps=-1 optim.lr_warmup_steps_ratio=0.1", None),
        ("optim.lr_warmup_steps=9", None),
        ("engine=veomni optim=veomni optim.lr_warmup_steps=9", "lr_warmup_steps"),
    ],
)
def test_a_warm_up_that_verl_does_not_read_is_told(words: str, dead: str | None) -> None:
    done = examined(f"torchrun -m verl.trainer.sft_trainer {words}")
    told = [one.parameter for one in done.findings if one.severity == "warning"]
    assert told == ([f"optim.{dead}"] if dead else [])


@pytest.mark.parametrize(
    ("words", "dtype", "told"),
    [
        ("engine.dtype=float32", "bfloat16", True),
        ("engine.dtype=bfloat16", "bfloat16", False),
        ("+engine.mixed_precision.param_dtype=fp32", "float32", False),
        ("+engine.mixed_precision={param_dtype:fp32}", "float32", False),
    ],
)
def test_the_type_is_the_one_that_verls_fsdp_computes_in(
    words: str, dtype: str, told: bool
) -> None:
    """`_build_fsdp_module` of verl 0.9.1 reads mixed_precision, and never engine.dtype."""
    done = examined(f"torchrun -m verl.trainer.sft_trainer {words}")
    assert errors(done) == []
    warned = [one.parameter for one in done.findings if one.severity == "warning"]
    assert warned == (["engine.dtype"] if told else [])
    assert read_foreign(Path("train.sh"), "verl").composed.values["model"]["dtype"] == dtype


@pytest.mark.parametrize(
    ("launcher", "processes"),
    [
        ("torchrun --standalone --nnodes=1 --nproc_per_node=2 -m verl.trainer.sft_trainer", 2),
        ("torchrun --nproc-per-node 3 -m verl.trainer.sft_trainer", 3),
        ("torchrun --nnodes 2 --nproc_per_node 4 -m verl.trainer.sft_trainer", 4),
        ("python -m torch.distributed.run --nproc_per_node=5 -m verl.trainer.sft_trainer", 5),
        ("nproc_per_node=6\ntorchrun --nproc_per_node=$nproc_per_node x/sft_trainer.py", 6),
        ("accelerate launch --num_processes 7 -m verl.trainer.sft_trainer", 7),
        ("torchrun --nproc_per_node=$1 -m verl.trainer.sft_trainer", None),
        ("torchrun --nproc_per_node=gpu -m verl.trainer.sft_trainer", None),
        ("python -m verl.trainer.sft_trainer_ray trainer.n_gpus_per_node=2", 2),
    ],
)
def test_the_launchers_processes_are_taken_over(
    launcher: str, processes: int | None, tmp_path: Path
) -> None:
    Path("rows.parquet").touch()
    Path("train.sh").write_text(f"{launcher} data.train_files=rows.parquet\n")
    done = run_vtool(tmp_path, "validate-config", "--from", "verl", "train.sh", "--convert")
    recipe = yaml.safe_load(done.stdout)
    assert recipe.get("launch", {}).get("nproc") == processes
    assert ("for 2 machines: start it on each" in done.stdout) == ("--nnodes 2" in launcher)
    data = recipe["data"]  # verl's own default
    assert (data["packing"], data["micro_batch_tokens"]) == ("token_budget", 8192)
    seen = run_vtool(tmp_path, "validate-config", "--from", "verl", "train.sh").stdout
    assert "n_gpus_per_node" not in seen
