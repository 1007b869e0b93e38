"""Weights frozen, merged, thawed or without a rate: as they may be, and as they should not."""

from typing import Any

from tests.watch.runs import changes, masks
from tests.watch.runs.expected import Planted, error, warning
from tests.watch.runs.loop import Batch, Row


# ---- rates
def warms_up_by_whole_numbers(model: Any, optimizer: Any) -> None:
    """Warm up with // for /: a rate of 0 for 100 steps."""
    _schedule(model, optimizer, lambda step: min(1, step // 100))


def warms_up(model: Any, optimizer: Any) -> None:
    _schedule(model, optimizer, lambda step: min(1.0, step / 10))


def falls_to_nought(model: Any, optimizer: Any) -> None:
    """Fall to 0 after one step, as a schedule of too few steps."""
    _schedule(model, optimizer, lambda step: max(0.0, 1.0 - step))


def _schedule(model: Any, optimizer: Any, rate: Any) -> None:
    import torch

    model.__dict__["_rate"] = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)


def next_rate(model: Any, optimizer: Any, step: int) -> None:
    model.__dict__["_rate"].step()


def next_rate_after_an_epoch(model: Any, optimizer: Any, step: int) -> None:
    if step % 10 == 9:
        next_rate(model, optimizer, step)


# ---- adapters
def merge_by_hand(model: Any, optimizer: Any, step: int) -> None:
    """Merge adapters, to write samples, and leave them merged."""
    import torch

    if step == 0:
        with torch.no_grad():
            for module in model.modules():
                if hasattr(module, "get_delta_weight"):
                    module.base_layer.weight += module.get_delta_weight("default")


def merge_and_go_on(model: Any, optimizer: Any, step: int) -> None:
    if step == 0:
        model.merge_adapter()


def takes_gradients(model: Any) -> None:
    """Let embeddings require a gradient, as for gradient checkpointing."""
    model.enable_input_require_grads()


def merge_and_begin_anew(model: Any, optimizer: Any, step: int) -> None:
    """Merge adapters for good and begin new ones, as ReLoRA does."""
    if step == 0:
        model.merge_adapter()
        for module in model.modules():
            if hasattr(module, "get_delta_weight"):
                module.merged_adapters.clear()
                module.reset_lora_parameters("default", True)


def first_values(model: Any) -> None:
    """Let the adapters' product not be 0 at the beginning."""
    import torch

    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            with torch.no_grad():
                parameter.normal_(std=0.05)


def second_adapter(model: Any) -> None:
    from peft import LoraConfig

    model.add_adapter("other", LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))


def merge_both(model: Any, optimizer: Any, step: int) -> None:
    model.merge_adapter(["default", "other"])
    model.unmerge_adapter()


def reference_pass(model: Any, optimizer: Any, step: int) -> None:
    import torch

    with torch.no_grad(), model.disable_adapter():
        model(input_ids=torch.ones(1, 8, dtype=torch.long))


def thaw_all(model: Any) -> None:
    model.requires_grad_(True)


def thaw_down(model: Any) -> None:
    for name, parameter in model.named_parameters():
        if "down_proj" in name:
            parameter.requires_grad_(True)


def thaw_norms(model: Any) -> None:
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.requires_grad_(True)


# ---- frozen or thawed within a run
def freeze_with_gradients(model: Any, optimizer: Any, step: int) -> None:
    """Freeze a layer after the second step; its gradients stay, as zeros."""
    if step == 1:
        model.model.layers[0].requires_grad_(False)
    optimizer.zero_grad(set_to_none=False)


def freeze_without_gradients(model: Any, optimizer: Any, step: int) -> None:
    if step == 1:
        model.model.layers[0].requires_grad_(False)


def thaw_first_layer(model: Any, optimizer: Any, step: int) -> None:
    if step == 0:
        model.model.layers[0].requires_grad_(True)


def parts_in_turn(model: Any, optimizer: Any) -> None:
    """Let another optimizer train the last layer in every second step, while the rest is frozen."""
    import torch

    last = list(model.model.layers[-1].parameters())
    own = {id(p) for p in last}
    rest = [p for p in model.parameters() if id(p) not in own]
    other, turn = torch.optim.AdamW(last, lr=1e-3), [0]
    steps = [optimizer.step, other.step]

    def freeze() -> None:
        for part, number in ((rest, 0), (last, 1)):
            for p in part:
                p.requires_grad_(number == turn[0])
                p.grad = None

    def step() -> None:
        steps[turn[0]]()
        turn[0] = 1 - turn[0]
        freeze()

    freeze()
    optimizer.step = step


# ---- packed rows, and the order of rows
def whole_texts(batch: Batch) -> Batch:
    """Learn every token of a packed row, the first of each text too."""
    return batch | {"labels": batch["input_ids"].clone()}


def first_tokens_masked(batch: Batch) -> Batch:
    labels = batch["input_ids"].masked_fill(batch["position_ids"] == 0, -100)
    return batch | {"labels": labels}


def without_positions(batch: Batch) -> Batch:
    """Pack as one long text."""
    return {"input_ids": batch["input_ids"], "labels": batch["input_ids"].clone()}


def first_rows(rows: list[Row]) -> list[Row]:
    return rows[:4]


def one_batch(rank: int, world: int, count: int) -> list[int]:
    return [0, 1, 2, 3] * (count // 4)


def two_batches(rank: int, world: int, count: int) -> list[int]:
    return [0, 1, 2, 3, 4, 5, 6, 7] * (count // 8)


PLANTED: dict[str, Planted] = {
    "a rate that a schedule has at nought": warning(
        "parameter-stopped-moving",
        made=warms_up_by_whole_numbers,
        after_step=next_rate,
    ),
    "a schedule that begins at nought and is never stepped": warning(
        "parameter-stopped-moving", made=warms_up, steps=5
    ),
    "a rate that falls to nought after a step": warning(
        "parameter-stopped-moving",
        made=falls_to_nought,
        after_step=next_rate,
        steps=6,
        every=1,
    ),
    "adapters merged by hand and never unmerged": error(
        "frozen-parameter-moved", adapters=True, after_step=merge_by_hand
    ),
    "adapters merged by hand and never unmerged, bfloat16 weights": error(
        "frozen-parameter-moved",
        adapters=True,
        dtype="bfloat16",
        lr=0.05,
        after_step=merge_by_hand,
    ),
    "adapters merged, and training goes on": error(
        "frozen-parameter-moved",
        adapters=True,
        built=takes_gradients,
        after_step=merge_and_go_on,
    ),
    "the base trained beside adapters": warning(
        "base-trained-beside-adapters", adapters=True, built=thaw_all
    ),
    "matrices that no adapter adapts trained beside adapters": warning(
        "base-trained-beside-adapters", adapters=True, built=thaw_down
    ),
    "a layer frozen in mid-run with its gradients": error(
        "frozen-parameter-moved", after_step=freeze_with_gradients, zero=False
    ),
    "a layer thawed in mid-run that is in no group": error(
        "parameter-in-no-group",
        built=changes.freeze_first_layer,
        after_step=thaw_first_layer,
    ),
    "packed, the first token of each text learnt": warning(
        "targets-cross-documents", packed=True, collated=whole_texts
    ),
    "packed, a mask of four dimensions, the first token of each text learnt": warning(
        "targets-cross-documents",
        packed=True,
        collated=lambda batch: masks.blocks(whole_texts(batch)),
    ),
    "one batch in every step": warning("same-batch-every-step", steps=5, order=one_batch),
    "one batch in every step, DDP": warning(
        "same-batch-every-step",
        steps=5,
        world=2,
        order=lambda rank, world, count: [rank, 2 + rank, 4 + rank, 6 + rank] * (count // 8),
    ),
    "two batches in turn": warning("same-batch-every-step", steps=6, order=two_batches),
}
