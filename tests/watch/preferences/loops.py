"""A loop of its own that trains by DPO, without any trainer."""

import copy
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from tests.watch.preferences import made

BETA = 0.1
LAYOUTS = ("halves", "a pass for each side", "sides in turn", "prompts judged")


def _batch(texts: list[tuple[list[int], list[int]]], whole: bool) -> dict[str, torch.Tensor]:
    width = max(len(a) + len(b) for a, b in texts)
    ids = torch.zeros(len(texts), width, dtype=torch.long)
    shown, learnt = torch.zeros_like(ids), torch.zeros_like(ids)
    for row, (prompt, answer) in enumerate(texts):
        size = len(prompt) + len(answer)
        ids[row, :size] = torch.tensor(prompt + answer)
        shown[row, :size] = 1
        learnt[row, 0 if whole else len(prompt) : size] = 1
    return {"input_ids": ids, "attention_mask": shown, "learnt": learnt}


def _logps(model: Any, texts: list[tuple[list[int], list[int]]], whole: bool) -> torch.Tensor:
    batch = _batch(texts, whole)
    learnt = batch.pop("learnt")[:, 1:]
    logp = model(**batch).logits[:, :-1].log_softmax(-1)
    return (logp.gather(-1, batch["input_ids"][:, 1:, None])[..., 0] * learnt).sum(1)


def _sides(model: Any, pairs: list[Any], how: str) -> tuple[torch.Tensor, ...]:
    chosen = [(p, a) for p, a, _ in pairs]
    rejected = [(p, b) for p, _, b in pairs]
    if how == "a pass for each side":
        return _logps(model, chosen, False), _logps(model, rejected, False)
    if how == "sides in turn":
        both = _logps(
            model, [t for pair in zip(chosen, rejected, strict=True) for t in pair], False
        )
        return both[::2], both[1::2]
    return _logps(model, chosen + rejected, how == "prompts judged").chunk(2)


def train(model: Any, how: str) -> None:
    """Train three steps of two micro-batches of two pairs."""
    tokenizer = made.tokenizer()

    def ids(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    rows = [
        (ids(r["prompt"]), [*ids(r["chosen"]), 2], [*ids(r["rejected"]), 2]) for r in made.pairs()
    ]
    reference = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(3):
        for micro in range(2):
            pairs = rows[4 * step + 2 * micro :][:2]
            chosen, rejected = _sides(model, pairs, how)
            with torch.no_grad():
                kept = _sides(reference, pairs, how)
            x = (chosen - kept[0]) - (rejected - kept[1])
            (-F.logsigmoid(BETA * x).mean() / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
