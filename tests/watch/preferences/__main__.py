"""Make the runs that are named, each forked off one process: python -m tests.watch.preferences DIR.

The watch is on the path of this process, as `vtool watch` puts it there.
"""

import copy
import gc
import os
import socket
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.watch import tiny_llava
from tests.watch.preferences import loops, made, runs
from tests.watch.preferences.mistakes import Setting
from tests.watch.preferences.runs import Run
from tests.watch.runs.__main__ import place

IMPORTED = (
    "transformers.trainer",
    "peft",
    "trl.trainer.dpo_trainer",
    "trl.trainer.kto_trainer",
    "trl.trainer.grpo_trainer",
    "trl.trainer.rloo_trainer",
    "trl.experimental.cpo",
    "trl.experimental.orpo",
    "torch._dynamo",
    "transformers.models.qwen2.modeling_qwen2",
    "transformers.models.llava.modeling_llava",
)
QUIET: dict[str, Any] = {
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "max_steps": 3,
    "learning_rate": 1e-3,
    "report_to": [],
    "save_strategy": "no",
    "use_cpu": True,
    "disable_tqdm": True,
    "bf16": False,
    "max_grad_norm": 0.0,
}


def named() -> dict[str, Run]:
    return {
        **{f"healthy: {name}": run for name, run in runs.HEALTHY.items()},
        **{f"planted: {name}": one.run for name, one in runs.PLANTED.items()},
        **{f"unseen: {name}": one.run for name, one in runs.UNSEEN.items()},
    }


def train(run: Run, folder: Path, model_folder: Path) -> None:  # noqa: PLR0912
    """Train as the run says."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoProcessor, LlavaForConditionalGeneration, Qwen2ForCausalLM

    kind = run.kind
    if kind == "loop":
        loops.train(Qwen2ForCausalLM.from_pretrained(model_folder), run.arguments["how"])
        return
    module = import_module(f"trl.experimental.{kind}" if kind in ("cpo", "orpo") else "trl")
    trainer, config = (getattr(module, f"{kind.upper()}{end}") for end in ("Trainer", "Config"))
    if run.heir is not None:
        trainer = run.heir(trainer)
    if run.images:
        model_folder = model_folder.parent / "llava"
    kind_of_model: Any = LlavaForConditionalGeneration if run.images else Qwen2ForCausalLM
    model = kind_of_model.from_pretrained(model_folder)
    adapters = LoraConfig(r=4, target_modules=["q_proj", "v_proj"])
    given: dict[str, Any] = {}
    arguments = {**QUIET, "output_dir": str(folder), **run.arguments}
    if run.lora == "new":
        given["peft_config"] = adapters
    elif run.lora == "old":
        adapters.init_lora_weights = False
        model = get_peft_model(model, adapters)
    if run.reference:
        given["ref_model"] = copy.deepcopy(model)
    if run.reference == "other":
        for p in given["ref_model"].parameters():
            p.data.mul_(1.1)
    if kind in ("grpo", "rloo"):
        arguments |= {"num_generations": 4, "max_completion_length": 8}
        given["reward_funcs"] = lambda completions, **_: [
            float(len(set(one.split()))) for one in completions
        ]
        rows = made.Dataset.from_list([{"prompt": row["prompt"]} for row in made.pairs()])
    elif run.images:
        rows, arguments["max_length"] = made.with_images(made.pairs()), None
    else:
        rows = made.data(kind, made.pairs()) if run.rows is None else run.rows(made.pairs())
    if run.before is not None:
        other = trainer(
            model=model,
            args=config(**{**arguments, "max_steps": 1, **run.before}),
            train_dataset=rows,
            processing_class=made.tokenizer(),
        )
        other.train()
    own = trainer(
        model=model,
        args=config(**arguments),
        train_dataset=rows,
        processing_class=AutoProcessor.from_pretrained(model_folder)
        if run.images
        else made.tokenizer(),
        **given,
    )
    if run.plant is not None:
        run.plant(Setting(own))
    own.train()


def fork(run: Run, folder: Path, model_folder: Path, rank: int, port: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.environ["VTOOL_WATCH_TO"] = str(folder)
        if run.ranks > 1:
            ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": run.ranks}
            ranks |= {"MASTER_PORT": port, "ACCELERATE_USE_CPU": "true"}
            os.environ |= {name: str(value) for name, value in ranks.items()}
            os.environ["MASTER_ADDR"] = "127.0.0.1"
        printed = os.open(folder / f"printed-{rank}.txt", os.O_WRONLY | os.O_CREAT)
        os.dup2(printed, 1)
        os.dup2(printed, 2)
        train(run, folder / "trainer", model_folder)
        from vtool_watch import install  # type: ignore[import-not-found]

        install.current().end()  # what the interpreter does at its end
        status = 0
    except BaseException:
        (folder / f"error-{rank}.txt").write_text(traceback.format_exc())
    finally:
        os._exit(status)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def main(folder: Path, names: list[str]) -> int:
    import torch

    for module in IMPORTED:
        import_module(module)
    torch.set_num_threads(1)
    model_folder = folder / "model"
    made.save(model_folder)
    tiny_llava.make(str(folder / "llava"))
    gc.freeze()
    known, failed = named(), 0
    for name in names or known:
        here = place(folder, name)
        here.mkdir()
        run, port = known[name], free_port()
        children = [fork(run, here, model_folder, rank, port) for rank in range(run.ranks)]
        for child in children:
            failed += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
    return failed


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
