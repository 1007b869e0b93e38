"""Runs of other trainers, each by its own command line: what the watch must find in them."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

HERE = Path(__file__).parent
BIN = HERE.parents[2] / ".trainers"
"""Environments of `make trainers-env`: a folder for each trainer."""


@dataclass(frozen=True)
class Run:
    trainer: str
    command: Callable[[Path, Path], list[str]]
    """The command, by the folder with model and rows, and the one that the run writes into."""
    found: frozenset[tuple[str, str]] = frozenset()
    """Rules with their severity: all that is found, and nothing else."""
    environment: Mapping[str, str] = field(default_factory=dict)
    read: bool = True
    """Each token that is learnt can be read."""

    @property
    def python(self) -> Path:
        return BIN / self.trainer / "bin/python"


def llamafactory(
    *found: tuple[str, str], ranks: int = 1, mistake: str = "", **settings: object
) -> Run:
    def command(made: Path, to: Path) -> list[str]:
        recipe = {
            "model_name_or_path": str(made / "model"),
            "stage": "sft",
            "do_train": True,
            "finetuning_type": "full",
            "dataset": "chats",
            "dataset_dir": str(made),
            "template": "qwen",
            "cutoff_len": 256,
            "output_dir": str(to / "out"),
            "preprocessing_num_workers": 1,
            "overwrite_cache": True,
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 3,
            "max_steps": 3,
            "learning_rate": 1e-3,
            "report_to": "none",
            **settings,
        }
        to.mkdir()
        (to / "recipe.yaml").write_text(json.dumps(recipe))  # JSON is YAML
        if mistake:
            script = str(HERE / "llamafactory_preferences.py")
            return [str(BIN / "llamafactory/bin/python"), script, mistake, str(to / "recipe.yaml")]
        return [str(BIN / "llamafactory/bin/llamafactory-cli"), "train", str(to / "recipe.yaml")]

    several = {"FORCE_TORCHRUN": "1", "NPROC_PER_NODE": str(ranks)} if ranks > 1 else {}
    return Run("llamafactory", command, frozenset(found), several)


def swift(*found: tuple[str, str], ranks: int = 1, kind: str = "sft", **settings: object) -> Run:
    def command(made: Path, to: Path) -> list[str]:
        options = {
            "model": made / "model",
            "model_type": "qwen2",
            "template": "qwen2_5",
            "dataset": made / "chats.jsonl",
            "check_model": False,
            "load_from_cache_file": False,
            "split_dataset_ratio": 0,
            "tuner_type": "full",
            "torch_dtype": "float32",
            "output_dir": to / "out",
            "add_version": False,
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 3,
            "max_steps": 3,
            "learning_rate": 1e-3,
            "report_to": "none",
            **settings,
        }
        given = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        return [str(BIN / "swift/bin/swift"), kind, *(w.format(made=made) for w in given)]

    several = {"NPROC_PER_NODE": str(ranks)} if ranks > 1 else {}
    return Run("swift", command, frozenset(found), several)


def verl(*found: tuple[str, str], ranks: int = 1, mistake: str = "", **settings: object) -> Run:
    def command(made: Path, to: Path) -> list[str]:
        options = {
            "data.train_files": made / "chats.parquet",
            "data.train_batch_size": 6 * ranks,
            "data.micro_batch_size_per_gpu": 2,
            "data.use_dynamic_bsz": False,
            "data.num_workers": 0,
            "model.path": made / "model",
            "model.use_remove_padding": False,
            "+model.override_config.attn_implementation": "sdpa",
            "engine.strategy": "fsdp2",
            "optim.lr": 1e-3,
            "checkpoint.save_contents": "[hf_model]",
            "trainer.default_local_dir": to / "out",
            "trainer.device": "cpu",
            "trainer.logger": "[console]",
            "trainer.total_epochs": 1,
            "trainer.total_training_steps": 3,
            **settings,
        }
        torchrun = [str(BIN / "verl/bin/torchrun"), "--standalone", f"--nproc_per_node={ranks}"]
        given = [f"{name}={value}" for name, value in options.items()]
        return [*torchrun, "-m", "verl.trainer.sft_trainer", *given]

    plugins = "verl_on_cpu,verl_mistakes" if mistake else "verl_on_cpu"
    environment = {"VERL_USE_EXTERNAL_MODULES": plugins, "PYTHONPATH": str(HERE)}
    environment["VERL_MISTAKE"] = mistake
    return Run("verl", command, frozenset(found), environment)


def lightning(*found: tuple[str, str], settings: str = "") -> Run:
    def command(made: Path, to: Path) -> list[str]:
        script = str(HERE / "lightning_sft.py")
        return [str(BIN / "lightning/bin/python"), script, str(made), str(to), *settings.split()]

    return Run("lightning", command, frozenset(found))


def deepspeed(*found: tuple[str, str], ranks: int = 1, settings: str = "") -> Run:
    def command(made: Path, to: Path) -> list[str]:
        torchrun = [
            str(BIN / "deepspeed/bin/torchrun"),
            "--standalone",
            f"--nproc_per_node={ranks}",
        ]
        return [*torchrun, str(HERE / "deepspeed_sft.py"), str(made), str(to), *settings.split()]

    return Run("deepspeed", command, frozenset(found), {"DS_ACCELERATOR": "cpu"})


LEAK = ("row-changes-in-batch", "error")
MEANS = ("token-weights-differ", "error")
SMOOTHED = ("loss-has-another-term", "note")
# both leave the division by the micro-batches to a loss that does not do it when it is smoothed
THRICE = ("gradient-scaled", "warning")
JUDGED = ("rows-judged", "note")
WHOLE = ("prompt-learnt", "note")
WEIGHED = ("token-weights-differ", "note")
FIRST_LOST = ("answer-partly-learnt", "warning")
# norms begin at 1, where bfloat16 has steps of 0.008: a rate of 0.001 moves none of them
STUCK = ("parameter-stopped-moving", "warning")
APART = ("gradients-differ-between-ranks", "error")
NOTHING = ("nothing-read", "note")
NEXT_ROW = ("targets-not-next", "error")
"""The last position of a row learns the first token of the next one."""

_DPO = {"stage": "dpo", "dataset": "pairs"}
_KTO = {"stage": "kto", "dataset": "labels"}
_ADAPTERS = {"finetuning_type": "lora", "lora_rank": 4}
_OFF, _OTHER = ("preference-scaled", "error"), ("preference-scaled", "warning")
_SIDES, _REFERENCE = ("preference-sides", "error"), ("preference-reference", "error")
LLAMAFACTORY_PREFERENCES = {
    "LLaMA-Factory, DPO": llamafactory(JUDGED, **_DPO),
    "LLaMA-Factory, DPO, LoRA": llamafactory(JUDGED, **_DPO, **_ADAPTERS),
    "LLaMA-Factory, DPO, bfloat16": llamafactory(JUDGED, **_DPO, bf16=True, use_cpu=True),
    "LLaMA-Factory, DPO, pref_ftx": llamafactory(JUDGED, **_DPO, pref_ftx=1.0),
    "LLaMA-Factory, DPO, dpo_label_smoothing": llamafactory(
        JUDGED, **_DPO, dpo_label_smoothing=0.1
    ),
    "LLaMA-Factory, ORPO": llamafactory(JUDGED, **_DPO, pref_loss="orpo"),
    "LLaMA-Factory, SimPO": llamafactory(JUDGED, **_DPO, pref_loss="simpo"),
    "LLaMA-Factory, KTO": llamafactory(JUDGED, **_KTO),
    "LLaMA-Factory, KTO, LoRA": llamafactory(JUDGED, **_KTO, **_ADAPTERS),
    "LLaMA-Factory, KTO, weights": llamafactory(
        JUDGED, **_KTO, kto_chosen_weight=1.5, kto_rejected_weight=0.5
    ),
    "LLaMA-Factory, kto_pair": llamafactory(JUDGED, **_DPO, pref_loss="kto_pair"),
    # TRL 0.24 takes the kind of loss as an argument, which is not given: each is a sigmoid
    "LLaMA-Factory, hinge": llamafactory(JUDGED, _OTHER, **_DPO, pref_loss="hinge"),
    "LLaMA-Factory, ipo": llamafactory(JUDGED, _OTHER, **_DPO, pref_loss="ipo"),
    "LLaMA-Factory, DPO, another beta": llamafactory(
        JUDGED, _OTHER, mistake="another_beta", **_DPO
    ),
    "LLaMA-Factory, KTO, another beta": llamafactory(
        JUDGED, _OTHER, mistake="another_beta", **_KTO
    ),
    "LLaMA-Factory, DPO, not divided": llamafactory(JUDGED, _OFF, mistake="not_divided", **_DPO),
    "LLaMA-Factory, ORPO, not divided": llamafactory(
        JUDGED, _OFF, mistake="not_divided", **_DPO, pref_loss="orpo"
    ),
    "LLaMA-Factory, KTO, not divided": llamafactory(JUDGED, _OFF, mistake="not_divided", **_KTO),
    "LLaMA-Factory, DPO, means for sums": llamafactory(JUDGED, _SIDES, mistake="means", **_DPO),
    "LLaMA-Factory, DPO, sides swapped": llamafactory(JUDGED, _SIDES, mistake="swapped", **_DPO),
    "LLaMA-Factory, SimPO, sides swapped": llamafactory(
        JUDGED, _SIDES, mistake="swapped", **_DPO, pref_loss="simpo"
    ),
    "LLaMA-Factory, DPO, prompts judged": llamafactory(
        JUDGED, WHOLE, _SIDES, mistake="prompts", **_DPO
    ),
    "LLaMA-Factory, KTO, labels swapped": llamafactory(
        JUDGED, _SIDES, mistake="labels_swapped", **_KTO
    ),
    "LLaMA-Factory, DPO, the policy as its reference": llamafactory(
        JUDGED, _REFERENCE, mistake="itself", **_DPO
    ),
    "LLaMA-Factory, DPO, LoRA, the policy as its reference": llamafactory(
        JUDGED, _REFERENCE, mistake="itself", **_DPO, **_ADAPTERS
    ),
    "LLaMA-Factory, KTO, the policy as its reference": llamafactory(
        JUDGED, _REFERENCE, mistake="itself", **_KTO
    ),
}
RUNS: dict[str, Run] = {
    "LLaMA-Factory": llamafactory(),
    "LLaMA-Factory, LoRA": llamafactory(finetuning_type="lora", lora_rank=4),
    "LLaMA-Factory, bfloat16": llamafactory(bf16=True, use_cpu=True),
    "LLaMA-Factory, two ranks": llamafactory(ranks=2, ddp_backend="gloo"),
    "LLaMA-Factory, neat_packing": llamafactory(packing=True, neat_packing=True, cutoff_len=512),
    "LLaMA-Factory, packing": llamafactory(LEAK, packing=True, cutoff_len=512),
    "LLaMA-Factory, train_on_prompt": llamafactory(WHOLE, train_on_prompt=True),
    "LLaMA-Factory, label_smoothing_factor": llamafactory(
        MEANS, SMOOTHED, THRICE, label_smoothing_factor=0.1
    ),
    "LLaMA-Factory, use_dft_loss": llamafactory(WEIGHED, use_dft_loss=True),
    **LLAMAFACTORY_PREFERENCES,
    "ms-swift": swift(),
    "ms-swift, LoRA": swift(tuner_type="lora", lora_rank=4),
    "ms-swift, bfloat16 weights": swift(STUCK, torch_dtype="bfloat16", bf16=True, use_cpu=True),
    "ms-swift, two ranks": swift(ranks=2, ddp_backend="gloo", use_cpu=True),
    "ms-swift, two ranks without use_cpu": swift(APART, MEANS, ranks=2, ddp_backend="gloo"),
    "ms-swift, label_smoothing_factor": swift(MEANS, SMOOTHED, THRICE, label_smoothing_factor=0.1),
    "ms-swift, DPO": swift(JUDGED, kind="rlhf", rlhf_type="dpo", dataset="{made}/pairs.jsonl"),
    "verl": verl(),
    "verl, two ranks": verl(ranks=2),
    "verl, use_remove_padding": verl(**{"model.use_remove_padding": True}),
    "verl, use_dynamic_bsz": verl(
        **{"data.use_dynamic_bsz": True, "data.max_token_len_per_gpu": 512}
    ),
    "verl, LoRA": verl(**{"model.lora_rank": 4}),
    "verl, a loss that averages each micro-batch": verl(MEANS, mistake="means"),
    "verl, a loss mask one token late": verl(FIRST_LOST, NEXT_ROW, mistake="mask_late"),
    "Lightning": lightning(),
    "Lightning, clipped, bf16-mixed": lightning(settings="amp clip"),
    "Lightning, two ranks, answers of one length": lightning(settings="ddp even"),
    "Lightning, two ranks": lightning(MEANS, settings="ddp"),
    "Lightning, accumulate_grad_batches": lightning(MEANS, settings="accumulate"),
    "DeepSpeed, stage 0, answers of one length": deepspeed(
        ranks=2, settings="zero0 even accumulate"
    ),
    "DeepSpeed, stage 1, answers of one length": deepspeed(
        ranks=2, settings="zero1 even accumulate"
    ),
    "DeepSpeed, stage 2, answers of one length": deepspeed(ranks=2, settings="zero2 even clip"),
    "DeepSpeed, stage 3": replace(deepspeed(NOTHING, ranks=2, settings="zero3"), read=False),
    "DeepSpeed, bf16": deepspeed(settings="zero1 bf16"),
    "DeepSpeed, two ranks": deepspeed(MEANS, ranks=2, settings="zero1"),
    "DeepSpeed, gradient_accumulation_steps": deepspeed(MEANS, settings="zero2 accumulate"),
}
