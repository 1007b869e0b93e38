"""Recipes that are converted make the same first step as their trainers: loss and gradient.

The settings are those of examples in the trainers' repositories. They are run with a tiny model of
vtool's families, in float32 on a CPU, on rows of tokens without images: the trainer's own batches
and its own beginning of the adapters are handed to vtool.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from tests.commands import run_vtool
from tests.runs import messages, request, session
from vtool.config.foreign.convert import as_recipe
from vtool.config.foreign.theirs import ForeignRecipe
from vtool.config.load import read_foreign
from vtool.data.chat import IGNORED
from vtool.data.collate import Batch
from vtool.training.step import train_step
from vtool.training.stop import StopRequest

HERE = Path(__file__)
OTHERS = HERE.parents[3] / ".trainers"
_QWEN3_LORA = {
    "finetuning_type": "lora",
    "lora_rank": 8,
    "lora_target": "all",
    "template": "qwen3_nothink",
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 8,
    "learning_rate": 1e-4,
}
"""Settings of LLaMA-Factory's qwen3_lora_sft.yaml, and of the script of its name."""
PYTHON = {
    "trl": Path(sys.executable),
    "llamafactory": OTHERS / "llamafactory/bin/python",
    "ms-swift": OTHERS / "swift/bin/python",
}
COMMON = {"bf16": False, "report_to": "none", "use_cpu": True, "seed": 7, "max_steps": 20}
HERE_ONLY: dict[str, dict[str, Any]] = {
    "trl": {"dtype": "float32", "attn_implementation": "sdpa", "optim": "adamw_torch"},
    "llamafactory": {"flash_attn": "sdpa", "preprocessing_num_workers": 1},
    "ms-swift": {
        "attn_impl": "sdpa",
        "model_type": "qwen3_vl",
        "template": "qwen2_5",
        "check_model": False,
        "load_from_cache_file": False,
        "split_dataset_ratio": 0,
        "torch_dtype": "float32",
        "fp16": False,
        "lora_dropout": 0,
    },
}
TRL = {"max_length": None, "dataset_name": "rows"}
FACTORY_SFT = {
    "stage": "sft",
    "do_train": True,
    "cutoff_len": 2048,
    "dataset": "identity,alpaca_en_demo",
    "num_train_epochs": 3.0,
    "lr_scheduler_type": "cosine",
    "warmup_ratio": 0.1,
}
SWIFT = {
    "tuner_type": "lora",
    "num_train_epochs": 1,
    "per_device_train_batch_size": 1,
    "learning_rate": 1e-4,
    "lora_rank": 8,
    "lora_alpha": 32,
    "target_modules": "all-linear",
    "freeze_vit": True,
    "freeze_aligner": True,
    "gradient_accumulation_steps": 16,
    "warmup_ratio": 0.05,
    "max_length": 2048,
}
EXAMPLES: dict[str, tuple[str, dict[str, Any]]] = {
    "trl/scripts/sft.py, full": (
        "trl",
        {
            "learning_rate": 2e-5,
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 8,
        },
    ),
    "trl/scripts/sft.py, LoRA": (
        "trl",
        {
            "learning_rate": 2e-4,
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 8,
            "use_peft": True,
            "lora_r": 32,
            "lora_alpha": 16,
            "lora_dropout": 0.0,
            "lora_target_modules": ["q_proj", "v_proj"],  # peft's default for its Qwen2
        },
    ),
    "examples/scripts/sft_vlm_gemma3.py": (
        "trl",
        {
            "per_device_train_batch_size": 1,
            "use_peft": True,
            "lora_target_modules": "all-linear",
            "lora_dropout": 0.0,
        },
    ),
    "examples/scripts/sft_vlm.py": (
        "trl",
        {"gradient_accumulation_steps": 8},
    ),
    "examples/notebooks/sft_qwen_vl.ipynb": (
        "trl",
        {
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 8,
            "warmup_steps": 5,
            "learning_rate": 2e-4,
            "use_peft": True,
            "lora_r": 32,
            "lora_alpha": 32,
            "lora_dropout": 0.0,
            "lora_target_modules": [
                *("down_proj", "o_proj", "k_proj", "q_proj", "gate_proj", "up_proj", "v_proj"),
            ],
        },
    ),
    "examples/train_full/qwen3vl_full_sft.yaml": (
        "llamafactory",
        {
            "image_max_pixels": 262144,
            "finetuning_type": "full",
            "freeze_vision_tower": True,
            "freeze_multi_modal_projector": True,
            "freeze_language_model": False,
            "template": "qwen3_vl_nothink",
            "per_device_train_batch_size": 1,
            "gradient_accumulation_steps": 2,
            "learning_rate": 1e-5,
        },
    ),
    "examples/train_lora/qwen3vl_lora_sft.yaml": (
        "llamafactory",
        {
            "image_max_pixels": 262144,
            "finetuning_type": "lora",
            "lora_rank": 8,
            "lora_target": "all",
            "template": "qwen3_vl_nothink",
            "per_device_train_batch_size": 1,
            "gradient_accumulation_steps": 8,
            "learning_rate": 1e-4,
        },
    ),
    "examples/train_lora/qwen3_lora_sft.yaml": (
        "llamafactory",
        _QWEN3_LORA,
    ),
    "examples/train_lora/qwen3_lora_sft.sh": (
        "llamafactory",
        _QWEN3_LORA,
    ),
    "examples/train_full/qwen3_full_sft.yaml": (
        "llamafactory",
        {
            "finetuning_type": "full",
            "template": "qwen3_nothink",
            "per_device_train_batch_size": 1,
            "gradient_accumulation_steps": 2,
            "learning_rate": 1e-5,
        },
    ),
    "examples/train/multimodal/ocr.sh": ("ms-swift", {**SWIFT, "max_length": 4096}),
    "examples/train/multimodal/caption.sh": ("ms-swift", SWIFT),
    "examples/train/multimodal/video.sh": ("ms-swift", {**SWIFT, "gradient_accumulation_steps": 8}),
    "examples/models/qwen3_vl/transformers.sh": (
        "ms-swift",
        {**SWIFT, "per_device_train_batch_size": 16, "gradient_accumulation_steps": 4},
    ),
    "examples/train/multimodal/vit_gradient_checkpointing.sh": (
        "ms-swift",
        {
            "tuner_type": "full",
            "per_device_train_batch_size": 4,
            "learning_rate": 1e-5,
            "freeze_vit": False,
            "freeze_aligner": False,
            "gradient_accumulation_steps": 1,
            "gradient_checkpointing": True,
            "vit_gradient_checkpointing": True,
            "max_length": 2048,
            "warmup_ratio": 0.05,
        },
    ),
}
"""By an example's file: its trainer, and its settings that say what a step is."""


VERL: dict[str, list[str]] = {
    "examples/sft/gsm8k/run_gemma_2b_fsdp.sh": [
        *("data.micro_batch_size_per_gpu=4", "optim.lr=1e-4", "engine=fsdp"),
        "trainer.total_epochs=2",
    ],
    "examples/sft/gsm8k/run_qwen3_8b_fsdp.sh": [
        *("data.micro_batch_size_per_gpu=64", "optim.lr=1e-4", "engine=fsdp"),
        *("model.lora_rank=32", "model.lora_alpha=16", "model.target_modules=all-linear"),
        *("data.ignore_input_ids_mismatch=True", "trainer.total_epochs=2"),
    ],
    "examples/sft/gsm8k/run_deepseek_coder_6_7b_fsdp.sh": [
        *("data.micro_batch_size_per_gpu=4", "optim.lr=1e-4", "engine=fsdp"),
        *("data.use_dynamic_bsz=False", "trainer.total_epochs=4"),
    ],
    "examples/sft/multiturn/run_qwen2_5_0_5b_fsdp.sh": [
        *("data.micro_batch_size_per_gpu=4", "engine=fsdp"),
        *("engine.ulysses_sequence_parallel_size=1", "trainer.total_training_steps=1"),
    ],
    "examples/sft/vlm/run_qwen3_vl_2b_fsdp.sh": [
        *("data.train_batch_size=96", "data.max_length=2048", "data.truncation=error"),
        *("data.use_dynamic_bsz=True", "data.max_token_len_per_gpu=65536"),
        *("engine=fsdp", "optim=fsdp", "optim.lr=2e-5", "optim.lr_warmup_steps_ratio=0.01"),
        *("optim.weight_decay=0.1", "optim.betas=[0.9,0.95]", "optim.clip_grad=1.0"),
        *("optim.min_lr_ratio=0.1", "optim.warmup_style=cosine", "trainer.total_epochs=10"),
    ],
}
"""By an example's file: its words that say what a step is, on one process."""
VERL_HERE = (
    *("trainer.device=cpu", "trainer.logger=[console]", "model.use_remove_padding=False"),
    *("+model.override_config.attn_implementation=sdpa", "engine.strategy=fsdp2"),
    "+engine.mixed_precision.param_dtype=fp32",
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen3-VL, as vtool exports it."""
    folder = tmp_path_factory.mktemp("model")
    settings = ("model.family=qwen3_vl", "model.dtype=float32", "train.steps=1", "run.dir=run")
    done = run_vtool(folder, "train", "sft", "digits", *settings)
    assert done.status == 0, done.stderr
    return folder / "run/export"


def make_rows(python: Path, folder: Path, visual: bool) -> None:
    """Write 64 rows of as many tokens: the loss of models with images is a mean of means there.

    Args:
        visual: each row has columns for images, which are empty.
    """
    program = f"""
import random
from datasets import Dataset, DatasetDict
draw = random.Random(0)
rows = []
for _ in range(64):
    ids = [draw.randint(20, 90) for _ in range(24)]
    row = {{"input_ids": ids, "labels": [-100] * 8 + ids[8:]}}
    rows.append(row | {{"attention_mask": [1] * 24}})
    if {visual}:
        rows[-1] |= {{"images": None, "videos": None, "audios": None}}
DatasetDict({{"train": Dataset.from_list(rows)}}).save_to_disk({str(folder)!r})
"""
    subprocess.run([str(python), "-c", program], check=True, capture_output=True)


def make_chats(path: Path) -> Path:
    """Write chats whose answers have as many letters, each of which is a token."""
    words = [f"{number:06b}".replace("0", "a").replace("1", "b") for number in range(64)]
    chats = [
        [{"role": "user", "content": word}, {"role": "assistant", "content": word * 2}]
        for word in words
    ]
    path.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
    return path


def batch_of(given: dict[str, Tensor], first: int) -> Batch:
    """Return a micro-batch of theirs as one of ours."""
    ids, targets = given["input_ids"], given["labels"][:, 1:]
    columns = (targets != IGNORED).any(0).nonzero().flatten()
    mask = given["attention_mask"]
    return Batch(
        inputs={"input_ids": ids, "attention_mask": mask, "mm_token_type_ids": ids * 0},
        columns=columns,
        targets=targets[:, columns],
        indices=tuple(range(first, first + len(ids))),
        supervised=int((targets != IGNORED).sum()),
        tokens=int(mask.sum()),
        visual=0,
        padding=int((mask == 0).sum()),
    )


def plain(name: str) -> str:
    return name.removeprefix("module.").removeprefix("base_model.model.")


@pytest.mark.soak
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_converted_recipe_makes_the_trainers_own_first_step(
    name: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, settings = EXAMPLES[name]
    python = PYTHON[trainer]
    if not python.is_file():
        pytest.skip(f"not run: {trainer} is not installed (make trainers-env)")
    monkeypatch.chdir(tmp_path)
    rows = tmp_path / "rows"
    if trainer == "ms-swift":
        rows = make_chats(tmp_path / "chats.jsonl")
    else:
        make_rows(python, rows, visual=trainer == "llamafactory")
    base = {"trl": TRL, "llamafactory": FACTORY_SFT, "ms-swift": {"dataset": "rows"}}[trainer]
    recipe = {**COMMON, **HERE_ONLY[trainer], **base, **settings, "output_dir": "out"}
    recipe["model" if trainer == "ms-swift" else "model_name_or_path"] = str(model)
    theirs = dict(recipe)
    if trainer == "llamafactory":
        # a template with images needs torchvision, for a picture that counts for nothing
        theirs |= {"tokenized_path": str(rows), "template": "qwen3_nothink"}
    Path("theirs.yaml").write_text(json.dumps(recipe))  # JSON is YAML
    Path("run.yaml").write_text(json.dumps(theirs))
    own = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    own |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [str(python), str(HERE.with_name("trainer_step.py")), trainer, "run.yaml"]
    done = subprocess.run(
        [*command, str(rows), "step.pt"], env=own, capture_output=True, text=True, check=False
    )
    assert Path("step.pt").exists(), (done.stdout + done.stderr)[-3000:]
    step = torch.load("step.pt")

    sizes = make_our_step(step, read_foreign(Path("theirs.yaml"), trainer), trainer)
    assert sizes == [settings.get("per_device_train_batch_size", 8)] * len(sizes)


@pytest.mark.soak
@pytest.mark.parametrize("name", VERL)
def test_a_converted_script_of_verls_makes_its_own_first_step(
    name: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torchrun = OTHERS / "verl/bin/torchrun"
    if not torchrun.is_file():
        pytest.skip("not run: verl is not installed (make trainers-env)")
    monkeypatch.chdir(tmp_path)
    Path("rows.parquet").touch()
    words = [*VERL[name], *VERL_HERE, "data.train_files=rows.parquet", f"model.path={model}"]
    Path("theirs.sh").write_text(f"torchrun -m verl.trainer.sft_trainer {' '.join(words)}\n")
    plugin = HERE.with_name("verl_step.py")
    words += [f"data.custom_cls.path={plugin}", "data.custom_cls.name=RowsOfTokens"]
    words += ["data.num_workers=0", "trainer.default_local_dir=out"]
    own = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    own |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    own |= {"VERL_USE_EXTERNAL_MODULES": "verl_on_cpu,verl_step", "VERL_STEP": "step.pt"}
    folders = (plugin.parent, HERE.parents[2] / "watch/trainers")
    own["PYTHONPATH"] = os.pathsep.join(map(str, folders))
    command = [
        str(torchrun),
        "--standalone",
        "--nproc_per_node=1",
        "-m",
        "verl.trainer.sft_trainer",
    ]
    done = subprocess.run([*command, *words], env=own, capture_output=True, text=True, check=False)
    assert Path("step.pt").exists(), (done.stdout + done.stderr)[-3000:]
    step = torch.load("step.pt")
    step["batches"] = [padded(**one) for one in step["batches"]]
    make_our_step(step, read_foreign(Path("theirs.sh"), "verl"), "verl")


def padded(input_ids: list[Tensor], loss_mask: list[Tensor]) -> dict[str, Tensor]:
    """Return rows of verl's, which have no padding, as a batch that has it at the right."""
    labels = [
        torch.where(mask.bool(), ids, IGNORED)
        for ids, mask in zip(input_ids, loss_mask, strict=True)
    ]
    ones = [torch.ones_like(ids) for ids in input_ids]
    return {
        name: torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=empty)
        for name, rows, empty in (
            ("input_ids", input_ids, 0),
            ("labels", labels, IGNORED),
            ("attention_mask", ones, 0),
        )
    }


def make_our_step(step: dict[str, Any], reading: ForeignRecipe, trainer: str) -> list[int]:
    """Make the first step by the converted recipe, and compare; return the micro-batches' rows."""
    Path("ours.yaml").write_text(as_recipe(reading, trainer))
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    Path("rows.jsonl").write_text(f"{json.dumps({'messages': chat})}\n" * 256)
    made = request("ours.yaml", messages(Path("rows.jsonl")), "run.dir=ours")
    opened, progress = session(made)
    trained = {
        plain(each): one
        for each, one in opened.engine.module.named_parameters()
        if one.requires_grad
    }
    assert trained.keys() == {plain(each) for each in step["begun"]}
    with torch.no_grad():
        for each, value in step["begun"].items():
            mine = trained[plain(each)]
            whole = mine.to_local() if isinstance(mine, DTensor) else mine  # of one process
            whole.copy_(value)
    sizes = [len(one["input_ids"]) for one in step["batches"]]
    assert sum(sizes) == made.run.data.global_batch_size
    batches = [batch_of(one, sum(sizes[:number])) for number, one in enumerate(step["batches"])]
    metrics, _ = train_step(opened, progress, 1, batches, StopRequest())
    assert metrics["loss"] == pytest.approx(step["loss"], rel=1e-5)
    assert metrics["grad_norm"] == pytest.approx(step["norm"], rel=1e-5)
    return sizes
