"""Facts of a healthy run, written by hand from docs/watch-facts.md, and changes to them."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Fact = dict[str, Any]
Change = Callable[[Fact], Iterable[Fact] | None]
U = 2.0**-24
LENGTHS = ((5, 7), (11, 13))
"""Learnt tokens of each row of each micro-batch of a rank."""
LOOKS = ("micro", "arrived", "alone", "causal", "stepped", "drift", "rows")
"""Kinds of facts that checks cannot do without."""


_UNDONE = {"to": None, "tensors": 9, "back": [], "written": None}


ADAPTERS: Fact = {
    "modules": 2,
    "trained": 2,
    "base_trained": [],
    "n_base_trained": 0,
    "beside": [],
    "n_beside": 0,
    "merged": [],
    "n_merged": 0,
    "moved": [],
    "n_moved": 0,
    "share": None,
    "anew": False,
    "unknown": 0,
}


def q(value: float) -> list[float]:
    return [value] * 4


def model(rank: int) -> Fact:
    return {
        "kind": "model",
        "class": "TinyForCausalLM",
        "model_type": "tiny",
        "name_or_path": "",
        "optimizer": "AdamW",
        "dtype": "torch.float32",
        "parameters": 9,
        "trainable": 9,
        "in_no_group": [],
        "n_in_no_group": 0,
        "head": "lm_head",
        "vocabulary": 100,
        "hidden": 8,
        "tied": False,
        "tie_meant": False,
        "cap": None,
        "scale": 1.0,
        "ends": [2],
        "begins": [1],
        "specials": {"image": [90], "pad": [0]},
        "norm": "model.norm",
        "sharded": False,
        "mesh": None,
        "adapters": False,
        "compiled": False,
        "seconds_to_find": 0.1,
    }


def micro(index: int, lengths: tuple[int, ...], weight: float) -> Fact:
    n = sum(lengths)
    return {
        "kind": "micro",
        "index": index,
        "shape": [len(lengths), 20],
        "supervised": n,
        "solved": n,
        "why": None,
        "dtype": "torch.float32",
        "autocast": None,
        "u": U,
        "names": ["input_ids"],
        "loss_scale": 1.0,
        "sum": weight * n,
        "weight": q(weight),
        "misfit": q(2e-7),
        "plain_misfit": q(2e-7),
        "resolved": q(1.0),
        "measured": n,
        "measured_weight": q(weight),
        "tolerance": q(32 * U),
        "uneven": 0,
        "by_target": {"7": [n, weight, 32 * U, 0.0]},
        "read": n,
        "odd": 0,
        "dropout": "on",
        "batch": "plain",
        "smooth": None,
        "z": None,
        "entropy": None,
        "not_next": 0,
        "left_out": 0,
        "is_plus": {"0": 0, "2": 0, "3": 0},
        "of_next_row": 0,
        "borders": {"texts": 2, "learnt": 0},
        "ends": {"in_inputs": 2, "learnt": 2, "behind": 0},
        "row_ends": {
            "rows": len(lengths),
            "to_the_end": len(lengths),
            "ends": [],
            "begins": [],
            "within": {},
        },
        "text_left_out": [0, 2],
        "specials": {
            "90": {"in_inputs": 4, "learnt": 0},
            "0": {"in_inputs": 0, "learnt": 0},
        },
        "rows": [],
        "per_row": [
            {
                "row": row,
                "n": length,
                "solved": length,
                "sum": weight * length,
                "least": weight,
                "greatest": weight,
                "positive": length,
                "negative": 0,
            }
            for row, length in enumerate(lengths)
        ],
        "per_token": [],
    }


def healthy(world: int = 1, steps: int = 3) -> list[Fact]:
    """Return the facts of a run of one epoch in which nothing is wrong."""
    facts: list[Fact] = []
    rows = 2 * len(LENGTHS) * world * steps
    tokens = world * sum(map(sum, LENGTHS))
    for rank in range(world):
        mine: list[Fact] = [
            {
                "kind": "process",
                "model": None,
                "format": 1,
                "pid": 10 + rank,
                "world": world,
                "steps": steps,
            },
            model(rank),
        ]
        for step in range(steps):
            of_step: list[Fact] = []
            for index, lengths in enumerate(LENGTHS):
                loader = {"loader": "DataLoader", "rows": rows, "batch": 2, "drop_last": False}
                data = [
                    {**loader, "sampler": "None", "shuffled": False, "packed": None, "copies": None}
                ]
                of_step.append(
                    {
                        "kind": "rows",
                        "micro": index,
                        "rows": [f"{rank}-{step}-{index}-{row}" for row in range(2)],
                        "lengths": [20, 20],
                        "pixels": None,
                        "data": data if step + index == 0 else None,
                        "inputs": [[1, *range(30, 49)]] * 2 if index == 0 else None,
                    }
                )
                of_step.append(micro(index, lengths, world / tokens))
            of_step.append(
                {
                    "kind": "arrived",
                    "norm": 1.0,
                    "digest": f"g{step}",
                    "tensors": {"a": f"a{step}", "b": f"b{step}"},
                    "sharded": False,
                    "whole": None,
                    "largest": {
                        "tensor": "a",
                        "share": 0.4,
                        "elements": 80,
                        "of": 900,
                        "tensors": 9,
                        "rows": [[7, 0.2, 1.0], [5, 0.01, 1.0]],
                    },
                    "tokens": {"ids": 20, "trained": True, "zero": [], "at_mean": None},
                    "hooked": {"names": [], "count": 0},
                    "no_gradient": [],
                    "n_no_gradient": 0,
                    "zero_gradient": [],
                    "n_zero_gradient": 0,
                    "trained": 9,
                    "owned": 9,
                    "kept_by": None,
                    "waiting": None,
                    "reduced_in": None,
                    "scalers": [],
                    "accumulating": None,
                    "inner": None,
                    "of_images": {"layers": 0, "idle": 0},
                    "left": {"tensors": 9, "gone": [], "n_gone": 0},
                    "idle": [],
                    "nonfinite": [],
                    "n_nonfinite": 0,
                    "norm_name": "model.norm",
                    "norm_at": [0, 1, 2],
                    "norm_sum": [1.0 + rank, -2.0, 0.5],
                    "norm_gradient": [
                        sum(1.0 + other for other in range(world)) / world,
                        -2.0,
                        0.5,
                    ],
                    "engine_factor": 1.0 if world == 1 else None,
                    "engine_misfit": 1e-7 if world == 1 else None,
                    "changes": 0 if world == 1 else 1,
                    "gradients_before": None,
                    "undone": {**_UNDONE} if step else None,
                    "layers": {
                        f"layers.{layer}": {
                            "left": [(1.0 + step) * x for x in range(1, 17)],
                            "arrived": [(1.0 + step) * x for x in range(1, 17)],
                            "dtype": "torch.float32",
                        }
                        for layer in range(4)
                    },
                }
            )
            of_step.append(
                {
                    "kind": "alone",
                    "documents": [
                        {
                            "row": row,
                            "begin": 0,
                            "tokens": 20,
                            "apart": 1e-7,
                            "tolerance": 1e-5,
                            "first_apart": None,
                            "positions_wrong": 0,
                            "images": 0,
                        }
                        for row in range(2)
                    ],
                    "worst_over_tolerance": 0.01,
                    "precision": "torch.float32",
                    "dropout": False,
                    "repeats": None,
                    "batch": "plain",
                    "micro": 0,
                }
            )
            of_step.append(
                {
                    "kind": "causal",
                    "batch": "plain",
                    "micro": 0,
                    "dropout": False,
                    "rows": 2,
                    "tokens": 6,
                    "replaced": 5,
                    "apart": 0.0,
                    "tolerance": 1e-7,
                    "certain": 4e-7,
                    "repeats": True,
                }
            )
            placed = [{"row": row, "tokens": 20, "wrong": 0, "as_text": False} for row in range(2)]
            of_step.append({"kind": "placed", "documents": placed})
            of_step.append(
                {
                    "kind": "stepped",
                    "reference": {
                        "norm.weight": {
                            "off": 1.0,
                            "moved": 1.0,
                            "elements": 8,
                            "dtype": "torch.float32",
                            "age": step,
                        }
                    },
                    "frozen_that_moved": [],
                    "n_frozen_that_moved": 0,
                    "n_frozen": 1,
                    "moved": True,
                    "n_frozen_late": 0,
                    "n_frozen_pushed": 0,
                    "in_no_group": [],
                    "n_in_no_group": 0,
                    "adapters": {**ADAPTERS},
                    "groups": [{"tensors": 9, "vectors": 2, "weight_decay": 0.0}],
                    "schedule": None,
                    "others": {},
                }
            )
            of_step.append(
                {
                    "kind": "drift",
                    "digest": f"w{step}",
                    "tensors": {"a": f"wa{step}"},
                    "sharded": False,
                    "stuck": [],
                    "n_stuck": 0,
                    "compared": 6 if step else 0,
                }
            )
            mine += [{**fact, "step": step} for fact in of_step]
        mine.append({"kind": "ended", "steps": steps, "rows": rows, "reason": "exit"})
        facts += [{"step": 0, "model": 0, **fact, "rank": rank} for fact in mine]
    return facts


def changed(facts: list[Fact], change: Change) -> list[Fact]:
    """Return the facts after each was given to `change`, which may replace it by several."""
    copies: list[Fact] = json.loads(json.dumps(facts))
    out: list[Fact] = []
    for fact in copies:
        instead = change(fact)
        out += [fact] if instead is None else list(instead)
    return out


def write(folder: Path, facts: list[Fact]) -> Path:
    """Write facts as the processes do, a file for each rank."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in {fact["rank"] for fact in facts}:
        lines = [json.dumps(fact) for fact in facts if fact["rank"] == rank]
        (folder / f"rank{rank}-{10 + rank}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def cut_layers(fact: Fact) -> Fact:
    """Return the layers of `arrived`, each element of a gradient cut to one size."""
    return {name: {**one, "arrived": [1e-6] * 16} for name, one in fact["layers"].items()}


def on(kind: str, **fields: object) -> Change:
    """Set fields in all facts of a kind; a function is given the fact."""

    def change(fact: Fact) -> None:
        if fact["kind"] == kind:
            for name, value in fields.items():
                fact[name] = value(fact) if callable(value) else value

    return change
