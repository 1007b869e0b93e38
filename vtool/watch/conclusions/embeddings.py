"""Tokens whose row of the embedding has no values, and gradients of which one row is nearly all."""

from collections import Counter
from typing import Any

from vtool.diagnostics import Rule
from vtool.watch.conclusions.arrived import not_arrived
from vtool.watch.conclusions.check import CheckOutcome, Unit, WatchCheck, found
from vtool.watch.facts import Facts
from vtool.watch.micro_pass import not_null

ONE_PART = Rule(
    name="gradient-in-one-part",
    code="VT955",
    summary="One row of the embedding, or one small tensor, has nearly all of the gradient.",
    why=(
        "Where the norm is clipped, everything else is divided by it and hardly learns; the loss"
        " falls all the same, more slowly (Automodel#3136)."
    ),
    bad="a row of zeros under a norm, which multiplies its gradient by 1/√eps",
    good="values in each row that texts have; a part that needs it clipped by itself",
    fix=(
        "Give the row values before training, such as the mean of all others; of another tensor,"
        " look for what multiplies its gradient."
    ),
    severity="warning",
)
WITHOUT_VALUES = Rule(
    name="token-without-values",
    code="VT956",
    summary="Rows have tokens whose row of the embedding is zero, or is frozen as it was made.",
    why=(
        "A row of zeros takes nearly all of a clipped gradient. One that was added for a new token"
        " and is frozen never says which token it is: adapters alone do not train it."
    ),
    bad="LoRA without modules_to_save, and chat tokens that were added to the tokenizer",
    good="modules_to_save: [embed_tokens, lm_head], or trainable_token_indices of the new tokens",
    fix="Train those rows, or give them the values of tokens that mean the same.",
    severity="warning",
)
_MOST, _OF_SMALL_ROWS, _OF_LARGE = 0.8, 0.5, 0.999
"""Parts of the gradient's square. Healthy runs: up to 0.3 in four rows, 0.4 in a small tensor, 0.96
in a head.
"""
_SMALL_ROW, _SMALL_TENSOR = 0.1, 0.01
_FEWEST = 8
"""Trained tensors: with fewer of them one may well have nearly all."""
_SHOWN = 3


def _one_part(facts: Facts) -> CheckOutcome:
    if why := not_arrived(facts) or facts.no_gradients:
        return CheckOutcome(not_run=why)
    seen = [one for fact in facts.of("arrived") if (one := fact["largest"]) is not None]
    if not seen:
        return CheckOutcome(not_run="each process has shards of the gradient, or none at all")
    looked: dict[Unit, int] = {"steps": len({int(one["step"]) for one in facts.of("arrived")})}
    rows = [_row(one, facts) for one in seen]
    tensors = [_tensor(one) for one in seen]
    shares = [one[1] for one in rows if one]
    name = None
    if len(shares) == len(seen):
        name = rows[0][0] if rows[0] else None
    elif all(tensors) and len({str(one["tensor"]) for one in seen}) == 1:
        shares, name = [float(one["share"]) for one in seen], str(seen[0]["tensor"])
    measured = {"share of the largest tensor": max(float(one["share"]) for one in seen)}
    if name is None or looked["steps"] < 2:
        return CheckOutcome(looked_at=looked, measured=measured)
    message = (
        f"in each of {looked['steps']} steps {name} has most of the gradient: {min(shares):.2%} to"
        f" {max(shares):.2%} of the square of its norm; where that is clipped, the rest is divided"
        " by it too"
    )
    return CheckOutcome((found(ONE_PART, message),), measured=measured)


def _row(one: Any, facts: Facts) -> tuple[str, float] | None:
    """Return the rows of the embedding that have most of a gradient, in words, and their part."""
    if not (rows := one["rows"]):
        return None
    small = [row for row in rows if row[2] is not None and row[2] <= _SMALL_ROW and row[1] > 0.01]
    share = sum(float(row[1]) for row in small)
    if share >= _OF_SMALL_ROWS:
        ids = [int(row[0]) for row in small]
        return f"the embedding at {_tokens(facts, ids)}, whose values are small,", share
    first = rows[0]
    return (
        (f"the embedding at {_tokens(facts, first[:1])}", first[1]) if first[1] >= _MOST else None
    )


def _tensor(one: Any) -> bool:
    part = float(one["elements"]) / max(1, int(one["of"]))
    most = _MOST if part <= _SMALL_TENSOR else _OF_LARGE
    return int(one["tensors"]) >= _FEWEST and float(one["share"]) >= most


def _unlearnt(facts: Facts) -> CheckOutcome:
    seen = [one for fact in facts.of("arrived") if (one := fact["tokens"]) is not None]
    if not seen:
        why = "the embedding is sharded or quantized, or ids were not seen"
        return CheckOutcome(not_run=not_arrived(facts) or why)
    zero, mean = Counter[int](), Counter[int]()
    for one in seen:
        zero.update({int(token): int(count) for token, count in one["zero"]})
        mean.update({int(token): int(count) for token, count in one["at_mean"] or ()})
    trained = True in {bool(not_null(one, "trained")) for one in seen}
    looked: dict[Unit, int] = {"tokens": max(int(one["ids"]) for one in seen)}
    findings = []
    if zero:
        does = "which takes most of a clipped gradient" if trained else "and it is not trained"
        findings.append(
            found(
                WITHOUT_VALUES,
                f"rows have {zero.total()} places of {_tokens(facts, list(zero))}, whose row of the"
                f" embedding is zero, {does}",
            )
        )
    if mean:
        findings.append(
            found(
                WITHOUT_VALUES,
                f"rows have {mean.total()} places of {_tokens(facts, list(mean))}, whose row of the"
                " embedding is the mean of all, as a resize has made it, and it is not trained",
            )
        )
    return CheckOutcome(tuple(findings), looked_at=looked)


def _tokens(facts: Facts, ids: list[int]) -> str:
    """Return ids with their tokens, where the tokenizer is known."""
    words = []
    for one in ids[:_SHOWN]:
        token = facts.tokenizer.id_to_token(one) if facts.tokenizer is not None else None
        words.append(f"{one} ({token})" if token else f"id {one}")
    more = f" and {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else ""
    return ", ".join(words) + more


CHECKS = (
    WatchCheck(ONE_PART, "arrived", _one_part, {"steps": 2}),
    WatchCheck(WITHOUT_VALUES, "arrived", _unlearnt, {"tokens": 1}),
)
