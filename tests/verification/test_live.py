"""`compare_objects` in trainers that are not ours, and `validate-config --live`."""

import json
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from tests.cli.test_startup import PRINT_MODULES
from tests.each_family import EACH_FAMILY
from tests.engines.megatron.test_ddp_config import WRAP, local_layers, qwen2
from tests.rows import chat, write_rows
from vtool.cli.app import app
from vtool.config.expected import expected_settings
from vtool.config.load import load_run
from vtool.config.megatron_ddp import live_fields
from vtool.config.readback import compare_readback
from vtool.config.schema.base import ReadBack
from vtool.config.schema.megatron import DdpConfig, Parallel
from vtool.config.settings import arrivals
from vtool.diagnostics import Findings, rules_live
from vtool.engines.ranks import Ranks
from vtool.training import model_and_engine
from vtool.training.observe_run import observe_run
from vtool.verification import live
from vtool.verification.compare import compare_objects
from vtool.verification.live import LiveTask, observe_small_run
from vtool.verification.shrink_run import shrink_run
from vtool.verification.small_session import open_small_session

ROOT = Path(__file__).parents[2]


def test_the_page_names_settings_and_findings_that_there_are() -> None:
    page = (ROOT / "docs/live.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ") and "`" in line]
    names = {name for line in rows for name in re.findall(r"`([a-z]+\.[a-z_.]+)`", line)}
    read = {name for name, arrival in arrivals().items() if isinstance(arrival, ReadBack)}
    assert len(names) > 20
    assert {name for name in names if name != "engine.ddp_config"} <= read
    assert set(re.findall(r"VT3\d\d", page)) == {rule.code for rule in rules_live.RULES}


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The objects that transformers' own Trainer hands to a callback when it begins to train."""
    from transformers import (
        Qwen2Config,
        Qwen2ForCausalLM,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    model = Qwen2ForCausalLM._from_config(
        Qwen2Config(**sizes, num_attention_heads=2, num_key_value_heads=1),
        attn_implementation="eager",
    )
    # transformers 5.23 has renamed it
    recomputes = next(
        one.name for one in fields(TrainingArguments) if one.name.endswith("_checkpointing")
    )
    arguments = TrainingArguments(
        output_dir=str(tmp_path_factory.mktemp("trainer")),
        use_cpu=True,
        report_to=[],
        max_steps=1,
        warmup_steps=2,
        save_strategy="no",
        learning_rate=1e-3,
        adam_beta2=0.95,
        adam_epsilon=1e-6,
        weight_decay=0.1,
        **{recomputes: True},
    )
    objects: dict[str, Any] = {}

    class ObjectKeeper(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, *_given: Any, model: Any, optimizer: Any, **_more: Any) -> None:
            objects.update(model=model, optimizer=optimizer)

    Trainer(
        model,
        arguments,
        train_dataset=[{"input_ids": [1, 2], "labels": [1, 2]}] * 8,
        callbacks=[ObjectKeeper()],
    ).train()
    return objects


SETTINGS = {
    "optim.name": "adamw",
    "optim.lr": 1e-3,
    "optim.betas": (0.9, 0.95),
    "optim.eps": 1e-6,
    "optim.weight_decay": 0.1,
    "model.attention": "eager",
    "model.gradient_checkpointing": True,
}


class TestOtherTrainers:
    def test_what_has_arrived_in_transformers_trainer_is_no_finding(
        self, trainer: dict[str, Any]
    ) -> None:
        assert type(trainer["optimizer"]).__name__ == "AcceleratedOptimizer"
        assert compare_objects(SETTINGS, trainer) == []
        assert (
            compare_objects(
                SETTINGS, {"model": trainer["model"], "optimizer": trainer["optimizer"].optimizer}
            )
            == []
        )

    @pytest.mark.parametrize("name", SETTINGS)
    def test_what_has_not_is_found_with_its_object(
        self, trainer: dict[str, Any], name: str
    ) -> None:
        other = {
            "optim.name": "adam",
            "model.attention": "sdpa",
            "model.gradient_checkpointing": False,
            "optim.betas": (0.9, 0.999),
        }
        asked = SETTINGS | {name: other.get(name, 0.5)}
        (finding,) = compare_objects(asked, trainer)
        assert (finding.rule, finding.parameter) == ("setting-not-arrived", name)
        assert ("optimizer: AdamW" in finding.message) is name.startswith("optim")

    def test_a_setting_that_nothing_shows_has_not_passed(self, trainer: dict[str, Any]) -> None:
        (finding,) = compare_objects(
            {"engine.bucket_cap_mb": 25, "optim.lr": 1e-3}, {"optimizer": trainer["optimizer"]}
        )
        assert (finding.rule, finding.parameter) == ("setting-not-shown", "engine.bucket_cap_mb")
        assert "optimizer (AcceleratedOptimizer)" in finding.message

    def test_fsdp_that_is_asked_for_and_not_there(self, trainer: dict[str, Any]) -> None:
        (finding,) = compare_objects({"engine.kind": "fsdp2"}, {"model": trainer["model"]})
        assert (
            finding.message
            == "`engine.kind` asks for fsdp2, but Qwen2ForCausalLM, which nothing wraps, has none"
        )

    def test_adapters_of_peft(self) -> None:
        from peft import LoraConfig, get_peft_model
        from transformers import Qwen2Config, Qwen2ForCausalLM

        sizes = {
            "vocab_size": 32,
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": 1,
        }
        model = Qwen2ForCausalLM(Qwen2Config(**sizes, num_attention_heads=2, num_key_value_heads=1))
        tuned = get_peft_model(
            model,
            LoraConfig(r=3, lora_alpha=6, lora_dropout=0.1, target_modules=["q_proj", "v_proj"]),
        )
        asked = {
            "lora.rank": 3,
            "lora.alpha": 6.0,
            "lora.dropout": 0.1,
            "lora.targets": ("q_proj", "v_proj"),
        }
        assert compare_objects(asked, {"model": tuned}) == []
        found = compare_objects(
            {"lora.rank": 4, "lora.alpha": 8.0, "lora.dropout": 0.0, "lora.targets": ("q_proj",)},
            {"model": tuned},
        )
        assert {finding.parameter for finding in found} == {
            "lora.targets",
            "lora.rank",
            "lora.alpha",
            "lora.dropout",
        }

    def test_a_name_that_is_no_settings_is_refused(self) -> None:
        with pytest.raises(Findings, match=r"there is no setting `optim\.beta`") as raised:
            compare_objects({"optim.beta": (0.9, 0.95)}, {})
        assert "did you mean `optim.betas`" in raised.value.diagnostics[0].remedy

    @pytest.mark.parametrize(
        "given", [None, live_fields(WRAP, DdpConfig())], ids=["mbridge's own", "ours"]
    )
    def test_what_mbridge_builds_by_default_is_found(self, given: dict[str, Any] | None) -> None:
        """verl#5775; tests/engines/megatron/test_ddp_config.py shows which weights then drift."""
        pytest.importorskip("mbridge", reason="mbridge is not installed")
        from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

        from vtool.engines.megatron.groups import start_groups
        from vtool.engines.megatron.shim import on_cpu

        start_groups(Parallel(), Ranks())
        with on_cpu(torch.device("cpu")), local_layers():
            model = qwen2().get_model(wrap_with_ddp=True, bf16=False, ddp_config=given)
            settings = OptimizerConfig(optimizer="adam", lr=1e-2, weight_decay=0.1, adam_beta2=0.95)
            optimizer = get_megatron_optimizer(settings, model, use_gloo_process_groups=False)
        asked = {
            "engine.wrap_config.use_distributed_optimizer": False,
            "optim.lr": 1e-2,
            "optim.betas": (0.9, 0.95),
            "optim.weight_decay": 0.1,
        }
        found = [
            finding.message
            for finding in compare_objects(asked, {"model": model, "optimizer": optimizer})
        ]
        name = "engine.wrap_config.use_distributed_optimizer"
        drifts = [f"`{name}` asks for false, but megatron-core's DistributedDataParallel has true"]
        assert found == (drifts if given is None else [])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A row, and a model's folder with a config.json as Qwen2.5-VL-7B has it, and no weights."""
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "rows.jsonl", [chat("2 + 2?", "4")])
    (tmp_path / "model").mkdir()
    text = {
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "hidden_size": 3584,
        "num_hidden_layers": 28,
        "hidden_act": "silu",
    }
    rope = {"type": "mrope", "mrope_section": [16, 24, 24]}
    config = {
        "model_type": "qwen2_5_vl",
        "vision_config": {},
        **text,
        "rope_theta": 1e6,
        "rope_scaling": rope,
        "tie_word_embeddings": False,
    }
    (tmp_path / "model/config.json").write_text(json.dumps(config))
    return tmp_path


LARGE = ("model.path=model", "data.train=[{format: messages, path: rows.jsonl}]", "launch.nproc=8")
RECIPES = {
    "digits": (),
    "digits_lora": (),
    "digits_fsdp2": (),
    "rows": LARGE[1:2],
    "finetune": LARGE[:2],
    **{f"qwen2_5_vl_7b_{name}": LARGE for name in ("fsdp2", "lora", "qlora", "npu", "megatron")},
    "digits_megatron": (),
}
_OTHERS = ("2_5_vl_3b", "2_5_vl_32b", "2_5_vl_72b", "3_vl_8b")
OF_ITS_KIND = {
    f"qwen{model}_{name}": f"qwen2_5_vl_7b_{name}"
    for model in _OTHERS
    for name in ("fsdp2", "lora")
} | {f"qwen{model}_qlora": f"qwen{model}_lora" for model in (*_OTHERS, "2_5_vl_7b")}
"""Recipes that differ from another in sizes, in the family, or in the engine of adapters."""


def test_the_shipped_recipes_are_all_looked_at() -> None:
    shipped = {
        path.stem
        for path in (ROOT / "recipes").glob("*.yaml")
        if "kind: load_check" not in path.read_text()
    }
    assert {*RECIPES, *OF_ITS_KIND} == shipped
    assert all(
        f"- {like}\n" in text or f"[{like}, " in text
        for name, like in OF_ITS_KIND.items()
        for text in [(ROOT / f"recipes/{name}.yaml").read_text()]
    )


@pytest.mark.parametrize("name", [name for name in RECIPES if "megatron" not in name])
def test_a_shipped_recipe_has_nothing_against_it(folder: Path, name: str) -> None:
    """Built in this process; two processes are started below, and all recipes by `make soak`."""
    loaded = load_run(name, [one for one in RECIPES[name] if not one.startswith("launch.")])
    small = shrink_run(loaded.run)
    assert small.processes == 1
    (folder / "live").mkdir()
    session = open_small_session(loaded.run, small.run, folder / "live", Ranks())
    assert (
        compare_readback(expected_settings(small.run), observe_run(session), loaded.origins) == []
    )
    assert sorted(path.name for path in folder.iterdir()) == ["live", "model", "rows.jsonl"]


@pytest.mark.parametrize("name", EACH_FAMILY)
def test_a_recipe_of_any_family_has_nothing_against_it(tmp_path: Path, name: str) -> None:
    loaded = load_run(
        "digits", [f"model.family={name}", "model.gradient_checkpointing=true", "lora={rank: 2}"]
    )
    session = open_small_session(loaded.run, shrink_run(loaded.run).run, tmp_path, Ranks())
    seen = observe_run(session)
    assert compare_readback(expected_settings(loaded.run), seen) == []
    assert {"model.family", "model.size", "model.attention", "lora.rank"} <= {
        one.name for one in seen
    }


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["validate-config", *arguments, "--live"])
    return result.exit_code, result.stdout


class TestCommand:
    @pytest.mark.full
    def test_a_recipe_passes_and_the_command_itself_imports_no_torch(self, tmp_path: Path) -> None:
        command = [sys.executable, "-c", PRINT_MODULES, "validate-config", "digits", "--live"]
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=tmp_path, env=None, check=False
        )
        assert done.returncode == 0, done.stdout
        assert done.stdout.splitlines()[-1].startswith("digits: no findings; checks: ")
        assert "settings read back from the objects of 1 process;" in done.stdout
        assert {"torch", "transformers"}.isdisjoint(
            name.partition(".")[0] for name in done.stderr.splitlines()[-1].split()
        )
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.full
    def test_a_cluster_becomes_two_processes_and_what_that_costs_is_reported(
        self, folder: Path
    ) -> None:
        code, out = run("qwen2_5_vl_7b_megatron", *LARGE, "--format", "json")
        (result,) = json.loads(out)["results"]
        assert (code, result["verdict"], result["findings"]) == (0, "clean", [])
        assert [
            result["checks"][name]
            for name in ("objects-not-built", "setting-not-arrived", "device-not-used")
        ] == [
            "passed",
            "passed",
            "not-run",
        ]
        details = result["details"]["setting-not-arrived"]
        assert details["processes"] == 2
        assert details["smaller"][:2] == ["engine.parallel.tensor 4 → 2", "launch.nproc 8 → 2"]
        assert {
            "engine.wrap_config.use_distributed_optimizer",
            "optim.betas",
            "engine.parallel.sequence",
        } <= set(details["read"])
        assert "device.kind" in details["not_asked"]
        assert "device.kind" not in details["read"]
        assert "--live is on the CPU" in result["details"]["device-not-used"]["reason"]
        assert sorted(path.name for path in folder.iterdir()) == ["model", "rows.jsonl"]

    @pytest.mark.full
    def test_what_cannot_be_built_is_a_finding(self, folder: Path) -> None:
        config = json.loads((folder / "model/config.json").read_text())
        (folder / "model/config.json").write_text(json.dumps(config | {"hidden_act": "swish7"}))
        code, out = run(
            "rows", "model.path=model", "model.size=null", LARGE[1], "--format", "concise"
        )
        assert code == 1
        assert "error model-does-not-load (VT502): no model can be built of its config" in out
        assert "swish7" in out
        assert "3 not run" in out.splitlines()[-1]

    def test_what_has_not_arrived_is_a_finding_with_its_line(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """verl#4214 again: betas that are left out. In this process, so that they can be."""
        build = model_and_engine.build_optimizer
        loaded = load_run("digits")
        without = loaded.run.optim.model_copy(update={"betas": (0.9, 0.999)})
        monkeypatch.setattr(
            model_and_engine,
            "build_optimizer",
            lambda module, _settings, part: build(module, without, part),
        )
        threads = torch.get_num_threads()
        observed = observe_small_run(
            LiveTask(loaded.run, shrink_run(loaded.run), loaded.origins), tmp_path, 0
        )
        torch.set_num_threads(threads)
        monkeypatch.setattr(live, "_observe_in_processes", lambda *_given: [observed])
        code, out = run("digits")
        assert code == 1
        assert (
            "error[setting-not-arrived VT301]: `optim.betas` asks for [0.9, 0.98], but AdamW, group"
            " 0 (and 1 more) has [0.9, 0.999]\n" in out
        )
        assert "--> recipes/digits.yaml:24:10" in out
        assert out.splitlines()[-1].endswith("1 failed")

    def test_objects_of_another_trainer_are_not_ours_to_build(self) -> None:
        result = CliRunner().invoke(
            app, ["validate-config", "theirs.yaml", "--from", "verl", "--live"]
        )
        assert result.exit_code == 2
        assert "vtool.compare" in result.stderr.replace("\n", "")

    @pytest.mark.parametrize(("recipe", "more"), [("digits", ("lr=1",)), ("load_check", ())])
    def test_where_there_is_nothing_to_build_it_has_not_passed(
        self, recipe: str, more: tuple[str, ...]
    ) -> None:
        code, out = run(recipe, *more, "--format", "json")
        (result,) = json.loads(out)["results"]
        assert code == (1 if more else 0)
        assert {
            result["checks"][name]
            for name in ("objects-not-built", "setting-not-arrived", "device-not-used")
        } == {"not-run"}


def test_what_is_made_smaller_is_reported() -> None:
    run = load_run(
        "digits",
        [
            "engine=megatron",
            "engine.parallel={tensor: 2, pipeline: 2}",
            "launch.nproc=16",
            "device.kind=cuda",
            "engine.transformer_config.apply_rope_fusion=true",
            "engine.ddp_config.nccl_ub=true",
        ],
    ).run
    # the tiny model has two heads of keys, and a large one is not here
    parallel = run.engine.parallel.model_copy(update={"tensor": 4})  # type: ignore[union-attr]
    engine = run.engine.model_copy(update={"parallel": parallel})
    small = shrink_run(run.model_copy(update={"engine": engine}))
    assert small.processes == 2
    assert (small.run.engine.parallel.tensor, small.run.engine.parallel.pipeline) == (2, 1)  # type: ignore[union-attr]
    assert small.changes == (
        "engine.parallel.tensor 4 → 2",
        "engine.parallel.pipeline 2 → 1",
        "launch.nproc 16 → 2",
    )
    assert set(small.not_asked) == {
        "device.kind",
        "engine.parallel.pipeline",
        "engine.transformer_config.apply_rope_fusion",
        "engine.ddp_config.nccl_ub",
    }


def test_a_window_that_a_small_model_has_not_is_reported(tmp_path: Path) -> None:
    text = {
        "use_sliding_window": True,
        "sliding_window": 24,
        "max_window_layers": 1,
        "num_hidden_layers": 4,
    }
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "qwen2_5_vl", "vision_config": {"depth": 2}, "text_config": text})
    )
    run = load_run("digits", []).run
    run = run.model_copy(
        update={"model": run.model.model_copy(update={"path": str(tmp_path), "size": None})}
    )
    assert (
        "3 of 4 layers with a sliding_window of 24 tokens → none has a window"
        in shrink_run(run).changes
    )
    text["use_sliding_window"] = False
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "qwen2_5_vl", "vision_config": {"depth": 2}, "text_config": text})
    )
    assert not any("sliding_window" in change for change in shrink_run(run).changes)


def test_adapters_of_layers_that_a_small_model_has_not_are_put_on_those_that_it_has(
    folder: Path,
) -> None:
    lora = (
        "lora={targets: [layers.20.self_attn.q_proj, 27.mlp.up_proj, merger.mlp.2, v_proj],"
        " exclude: [blocks.31.attn.qkv]}"
    )
    loaded = load_run(
        "qwen2_5_vl_7b_lora", [*LARGE[:2], "model.freeze={vision: false, projector: false}", lora]
    )
    small = shrink_run(loaded.run)
    assert small.run.lora is not None
    assert small.run.lora.targets == (
        "layers.0.self_attn.q_proj",
        "1.mlp.up_proj",
        "merger.mlp.2",
        "v_proj",
    )
    assert small.run.lora.exclude == ("blocks.1.attn.qkv",)
    (folder / "live").mkdir()
    session = open_small_session(loaded.run, small.run, folder / "live", Ranks())
    assert (
        compare_readback(expected_settings(small.run), observe_run(session), loaded.origins) == []
    )


@pytest.mark.soak
@pytest.mark.parametrize("name", RECIPES)
def test_every_shipped_recipe_passes_in_its_own_processes(folder: Path, name: str) -> None:
    code, out = run(name, *RECIPES[name])
    assert code == 0, out
    assert f"{name}: no findings" in out.splitlines()[-1]
