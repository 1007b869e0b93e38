"""Trainers that write weights between two steps."""

from typing import Any


def _first(model: Any) -> list[Any]:
    """Return copies of the weights as they were when this was called first."""
    kept: list[Any] = model.__dict__.setdefault(
        "_first", [parameter.detach().clone() for parameter in model.parameters()]
    )
    return kept


def remember(model: Any, optimizer: Any) -> None:
    _first(model)


def write_back(model: Any, optimizer: Any, step: int) -> None:
    """Write the weights of the beginning back."""
    import torch

    with torch.no_grad():
        for old, parameter in zip(_first(model), model.parameters(), strict=True):
            parameter.copy_(old)


def write_back_once(model: Any, optimizer: Any, step: int) -> None:
    if step == 1:
        write_back(model, optimizer, step)


def leave_a_layer_out(model: Any, optimizer: Any) -> None:
    """Step no more what is in the first layer, from the second step on (pytorch#115607)."""
    import torch

    layer = list(model.model.layers[0].parameters())
    before: list[Any] = []
    steps: list[int] = []

    def remember_layer(*_: Any) -> None:
        steps.append(1)
        before[:] = [parameter.detach().clone() for parameter in layer]

    def put_back(*_: Any) -> None:
        if len(steps) > 1:
            with torch.no_grad():
                for old, parameter in zip(before, layer, strict=True):
                    parameter.copy_(old)

    optimizer.register_step_pre_hook(remember_layer)
    optimizer.register_step_post_hook(put_back)


def swap(model: Any, optimizer: Any, step: int) -> None:
    """Evaluate old weights, as those of an average, and put the new ones in again."""
    import torch

    new = [parameter.detach().clone() for parameter in model.parameters()]
    write_back(model, optimizer, step)
    with torch.no_grad():
        model(input_ids=torch.ones(1, 8, dtype=torch.long))
        for own, parameter in zip(new, model.parameters(), strict=True):
            parameter.copy_(own)


def merge(model: Any, optimizer: Any, step: int) -> None:
    """Merge adapters for an evaluation, and take them out again."""
    import torch

    model.merge_adapter()
    with torch.no_grad():
        model(input_ids=torch.ones(1, 8, dtype=torch.long))
    model.unmerge_adapter()


def average(model: Any, optimizer: Any, step: int) -> None:
    """Write an average with the weights of the beginning, as Lookahead does."""
    import torch

    with torch.no_grad():
        for old, parameter in zip(_first(model), model.parameters(), strict=True):
            parameter.lerp_(old, 0.5)


def untie(model: Any) -> None:
    """Give a tied head a matrix of its own, as some ways to load or to resize do."""
    import torch

    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())


def tie(model: Any) -> None:
    """Give the head the embeddings' matrix, which the config knows nothing of."""
    model.lm_head.weight = model.model.embed_tokens.weight


def resize(model: Any) -> None:
    model.resize_token_embeddings(192, mean_resizing=False)
