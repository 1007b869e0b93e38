"""Variations of runs, and mistakes in them: a function each."""

import random
from collections.abc import Callable
from typing import Any

from tests.watch.runs.loop import ASSISTANT, END, IMAGE, PAD, Batch, Row


def positions_of_mask(batch: Batch) -> Batch:
    mask = batch["attention_mask"]
    return batch | {"position_ids": (mask.cumsum(-1) - 1).clamp_min(0)}


def freeze_first_layer(model: Any) -> None:
    model.model.layers[0].requires_grad_(False)


def freeze_embeddings(model: Any) -> None:
    model.get_input_embeddings().requires_grad_(False)


def whole_rows(rows: list[Row]) -> list[Row]:
    return [{**row, "labels": list(row["input_ids"])} for row in rows]


def scale_gradients(times: float, rank: int | None = None) -> Callable[[Any, int, int], None]:
    def scale(model: Any, step: int, here: int) -> None:
        for parameter in model.parameters():
            if parameter.grad is not None and rank in (None, here):
                parameter.grad.mul_(times)

    return scale


divide_gradients = scale_gradients


def shuffled(rank: int, world: int, count: int) -> list[int]:
    return random.Random(3).sample(range(count), count)


def shared(rank: int, world: int, count: int) -> list[int]:
    return shuffled(0, 1, count)[rank::world]


def zeros(model: Any, optimizer: Any, step: int) -> None:
    optimizer.zero_grad(set_to_none=False)


# ---- mistakes in rows and labels
def shifted_labels(batch: Batch) -> Batch:
    """The trainer shifts them once more."""
    labels = batch["labels"].roll(-1, 1)
    labels[:, -1] = -100
    return batch | {"labels": labels}


def unshifted(logits: Any, labels: Any, model: Any) -> Any:
    import torch.nn.functional as F  # noqa: N812

    return F.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), reduction="sum")


def late_mask(rows: list[Row]) -> list[Row]:
    """The mask is one token late, the labels are not."""

    def late(row: Row) -> Row:
        on = [False, *(label != -100 for label in row["labels"])][:-1]
        pairs = zip(row["input_ids"], on, strict=True)
        return {**row, "labels": [token if there else -100 for token, there in pairs]}

    return [late(row) for row in rows]


def early_mask(rows: list[Row]) -> list[Row]:
    """The mask ends one token early."""

    def early(row: Row) -> Row:
        on = [*(label != -100 for label in row["labels"][1:]), False]
        pairs = zip(row["input_ids"], on, strict=True)
        return {**row, "labels": [token if there else -100 for token, there in pairs]}

    return [early(row) for row in rows]


def no_end(rows: list[Row]) -> list[Row]:
    return [
        {**row, "labels": [-100 if label == END else label for label in row["labels"]]}
        for row in rows
    ]


def part_of_prompt(rows: list[Row]) -> list[Row]:
    """Train on the question of every second prompt."""

    def taught(at: int, row: Row) -> Row:
        labels = list(row["labels"])
        if at % 2:
            labels[3:5] = row["input_ids"][3:5]
        return {**row, "labels": labels}

    return [taught(at, row) for at, row in enumerate(rows)]


def padding_learnt(batch: Batch) -> Batch:
    import torch

    labels = torch.where(batch["attention_mask"] == 0, batch["input_ids"], batch["labels"])
    return batch | {"labels": labels}


def image_learnt(rows: list[Row]) -> list[Row]:
    return [
        {
            **row,
            "labels": [
                token if token == IMAGE else label
                for token, label in zip(row["input_ids"], row["labels"], strict=True)
            ],
        }
        for row in rows
    ]


def only_answer(number: int) -> Callable[[list[Row]], list[Row]]:
    """Teach one of a chat's answers."""

    def change(rows: list[Row]) -> list[Row]:
        return [{**row, "labels": _keep(row, number)} for row in rows]

    return change


def _keep(row: Row, number: int) -> list[int]:
    begins = [at for at, token in enumerate(row["input_ids"]) if token == ASSISTANT]
    begin = begins[number]
    end = next(at for at in range(begin, len(row["input_ids"])) if row["input_ids"][at] == END)
    return [label if begin < at <= end else -100 for at, label in enumerate(row["labels"])]


def lengths_in_pairs(rows: list[Row]) -> list[Row]:
    """Cut rows so that those of a micro-batch, two, have as many learnt tokens as each other."""

    def cut(row: Row, at: int) -> Row:
        begin = next(place for place, label in enumerate(row["labels"]) if label != -100)
        end = begin + 1 + at // 2 % 3
        return {key: [*values[:end], *values[-2:]] for key, values in row.items()}

    return [cut(row, at) for at, row in enumerate(rows)]


def repeated(rows: list[Row]) -> list[Row]:
    return [*rows[: len(rows) // 2], *rows[: len(rows) - len(rows) // 2]]


def with_replacement(rank: int, world: int, count: int) -> list[int]:
    """Draw rows of two epochs without looking at which were drawn."""
    return random.Random(5).choices(range(count), k=2 * count)


def all_rows(rank: int, world: int, count: int) -> list[int]:
    return list(range(count))


# ---- mistakes in what the model is given
def no_mask(batch: Batch) -> Batch:
    return {key: value for key, value in batch.items() if key != "attention_mask"}


def mask_of_ones(batch: Batch) -> Batch:
    import torch

    return batch | {"attention_mask": torch.ones_like(batch["input_ids"])}


def no_positions(batch: Batch) -> Batch:
    return {key: value for key, value in batch.items() if key != "position_ids"}


def stretched_positions(batch: Batch) -> Batch:
    import torch

    n = batch["input_ids"].shape[1]
    return batch | {"position_ids": (torch.arange(n) * 2).expand_as(batch["input_ids"])}


def one_position_twice(batch: Batch) -> Batch:
    import torch

    n = batch["input_ids"].shape[1]
    positions = torch.arange(n)
    positions[n // 2 :] -= 1
    return batch | {"position_ids": positions.expand_as(batch["input_ids"])}


# ---- mistakes in the loss
def mean_of_micro(tokens: list[int], index: int, everyone: int, world: int) -> float:
    return tokens[index] * len(tokens)


def mean_of_rank(tokens: list[int], index: int, everyone: int, world: int) -> float:
    return sum(tokens)


def not_divided(tokens: list[int], index: int, everyone: int, world: int) -> float:
    return everyone / world / len(tokens)


def divided_twice(tokens: list[int], index: int, everyone: int, world: int) -> float:
    return everyone / world * len(tokens)


def not_by_world(tokens: list[int], index: int, everyone: int, world: int) -> float:
    return everyone / world / world


def micro_not_divided(tokens: list[int], index: int, everyone: int, world: int) -> float:
    return tokens[index]


def mean_of_rows(logits: Any, labels: Any, model: Any) -> Any:
    import torch.nn.functional as F  # noqa: N812

    losses = F.cross_entropy(
        logits[:, :-1].float().transpose(1, 2), labels[:, 1:], reduction="none"
    )
    return (losses.sum(1) / (labels[:, 1:] >= 0).sum(1)).sum()


def hf_mean_of_means(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    """Average each micro-batch by itself."""
    return hf_not_divided(outputs, labels) / 2


def hf_not_divided(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    """Average each micro-batch, and nothing more."""
    from tests.watch.runs.loop import cross_entropy

    return cross_entropy(outputs["logits"], labels, None) / (labels[:, 1:] >= 0).sum()


def negated(logits: Any, labels: Any, model: Any) -> Any:
    from tests.watch.runs.loop import cross_entropy

    return -cross_entropy(logits, labels, model)


def with_smoothing(logits: Any, labels: Any, model: Any) -> Any:
    import torch.nn.functional as F  # noqa: N812

    flat = logits[:, :-1].float().flatten(0, 1)
    return F.cross_entropy(flat, labels[:, 1:].flatten(), reduction="sum", label_smoothing=0.1)


def _learnt(logits: Any, labels: Any) -> Any:
    return logits[:, :-1].float()[labels[:, 1:] >= 0]


def with_z(logits: Any, labels: Any, model: Any) -> Any:
    from tests.watch.runs.loop import cross_entropy

    z = _learnt(logits, labels).logsumexp(-1)
    return cross_entropy(logits, labels, model) + 1e-2 * (z * z).sum()


def with_entropy(logits: Any, labels: Any, model: Any) -> Any:
    from tests.watch.runs.loop import cross_entropy

    p = _learnt(logits, labels).log_softmax(-1)
    return cross_entropy(logits, labels, model) + 0.05 * (p.exp() * p).sum()


def distilled(logits: Any, labels: Any, model: Any) -> Any:
    import torch

    own = _learnt(logits, labels).log_softmax(-1)
    teacher = torch.randn(own.shape, generator=torch.Generator().manual_seed(1)).softmax(-1)
    return -(teacher * own).sum()


def hidden_cap(logits: Any, labels: Any, model: Any) -> Any:
    """Cap the logits as no config says."""
    from tests.watch.runs.loop import cross_entropy

    return cross_entropy((logits * 20).tanh() * 3, labels, model)


def preferred(logits: Any, labels: Any, model: Any) -> Any:
    """Prefer the first row of two to the second, by the sum of its tokens."""
    import torch.nn.functional as F  # noqa: N812

    losses = F.cross_entropy(
        logits[:, :-1].float().transpose(1, 2), labels[:, 1:], reduction="none"
    ).sum(1)
    return F.softplus(0.1 * (losses[0] - losses[1]))


# ---- mistakes between backward and the next step
def lose_first_micro(model: Any, step: int, index: int) -> None:
    """A part of the step's gradient is thrown away."""
    if index == 0:
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(0.0 if parameter.dim() > 0 else 1.0)


def not_a_number(model: Any, step: int, index: int) -> None:
    if step == 1:
        next(model.parameters()).grad[0, 0] = float("nan")


def noise(model: Any, step: int, rank: int) -> None:
    import torch

    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.add_(torch.randn_like(parameter.grad) * parameter.grad.std())


def norm_elsewhere(model: Any, step: int, rank: int) -> None:
    """Gradients of the last layers are those of another step."""
    gradient = model.model.norm.weight.grad
    gradient.copy_(gradient.roll(1))


def shrink_weights(model: Any, optimizer: Any, step: int) -> None:
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.99)


def halve_first_layer(model: Any, step: int, rank: int) -> None:
    for parameter in model.model.layers[0].parameters():
        parameter.grad.mul_(0.5)


def clip_each(model: Any, step: int, rank: int) -> None:
    """Clip each part by itself, as adaptive and per-group clipping do."""
    import torch

    for part in (model.model.embed_tokens, *model.model.layers, model.lm_head):
        torch.nn.utils.clip_grad_norm_(part.parameters(), 0.01)


def average_weights(model: Any, optimizer: Any, step: int) -> None:
    """An average of weights is copied back into those that train."""
    import torch

    kept = model.__dict__.setdefault(
        "_kept", [parameter.detach().clone() for parameter in model.parameters()]
    )
    with torch.no_grad():
        for average, parameter in zip(kept, model.parameters(), strict=True):
            parameter.lerp_(average, 0.1)


def hook_after(change: Callable[[Any, Any, int], None]) -> Callable[[Any, Any], None]:
    """Do something at the end of each step, before anybody else looks at the weights."""

    def made(model: Any, optimizer: Any) -> None:
        inner = optimizer.step

        def step(*args: Any, **kwargs: Any) -> Any:
            out = inner(*args, **kwargs)
            change(model, optimizer, 0)
            return out

        optimizer.step = step

    return made


def post_hook(change: Callable[[Any, Any, int], None]) -> Callable[[Any, Any], None]:
    """Do something in a hook of the optimizer."""

    def made(model: Any, optimizer: Any) -> None:
        optimizer.register_step_post_hook(lambda *_: change(model, optimizer, 0))

    return made


def other_betas(model: Any, optimizer: Any) -> None:
    """Use other betas than the groups say."""
    own = optimizer.param_groups[0]["betas"]

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        optimizer.param_groups[0]["betas"] = (0.5, 0.5)

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        optimizer.param_groups[0]["betas"] = own

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)


def touch_frozen(model: Any, optimizer: Any, step: int) -> None:
    import torch

    with torch.no_grad():
        for parameter in model.model.layers[0].parameters():
            parameter.mul_(1.01)


def without_last_layer(model: Any) -> list[Any]:
    return [p for name, p in model.named_parameters() if "layers.1" not in name]


def without_norms(model: Any) -> list[Any]:
    return [p for name, p in model.named_parameters() if "norm" not in name]


def unused(model: Any) -> None:
    import torch

    model.extra = torch.nn.Linear(4, 4)


def new_head(model: Any, optimizer: Any) -> None:
    """Replace a part after the optimizer was made."""
    import torch

    old = model.model.layers[1].mlp.down_proj
    new = torch.nn.Linear(old.in_features, old.out_features, bias=False)
    model.model.layers[1].mlp.down_proj = new


def rate_of_nearly_nought(model: Any, optimizer: Any, step: int) -> None:
    if step >= 2:
        for group in optimizer.param_groups:
            group["lr"] = 1e-30


def own_seed(model: Any) -> None:
    """Draw new weights in each process."""
    import os

    import torch

    torch.manual_seed(os.getpid())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.02)


def summed_over_ranks(model: Any, step: int, rank: int) -> None:
    import torch.distributed as dist

    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)


def averaged_over_ranks(model: Any, step: int, rank: int) -> None:
    summed_over_ranks(model, step, rank)
    averaged_twice(model, step, rank)


def averaged_twice(model: Any, step: int, rank: int) -> None:
    import torch.distributed as dist

    for parameter in model.parameters():
        parameter.grad.div_(dist.get_world_size())


def padding_is_end(batch: Batch) -> Batch:
    """Mask each padding token, where the padding token is the end token."""
    labels = batch["labels"].clone()
    labels[labels == END] = -100
    ids = batch["input_ids"].clone()
    ids[ids == PAD] = END
    return batch | {"labels": labels, "input_ids": ids}


def new_weights(model: Any, optimizer: Any) -> None:
    """Replace every parameter after the optimizer was made, as `model.to()` of some libraries."""
    import torch

    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = torch.nn.Parameter(parameter.detach().clone())


def images_of_other_rows(model: Any) -> None:
    """Give each row of a batch the image of the next one."""
    inner = model.model.get_image_features

    def features(*given: Any, **named: Any) -> Any:
        out = inner(*given, **named)
        out.pooler_output = [*out.pooler_output[1:], out.pooler_output[0]]
        return out

    model.model.get_image_features = features
