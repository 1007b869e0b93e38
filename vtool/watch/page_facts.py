"""The part of the facts that a page shows, as plain values."""

from collections.abc import Mapping, Sequence
from typing import Any

from vtool.watch.conclusions.engine import engine_of
from vtool.watch.facts import Facts
from vtool.watch.micro_pass import MicroPass, Tokens
from vtool.watch.reading import Watched
from vtool.watch.token_texts import token_text, token_texts

_ROWS, _TOKENS, _BARS, _DOCUMENTS = 8, 600, 256, 64


def page_facts(facts: Facts, watched: Watched) -> dict[str, Any]:
    """Return the first rows token by token, weights by micro-batch, documents, and the rest."""
    model = facts.model
    process: Mapping[str, Any] = next(iter(watched.processes), {})
    solved = [float(one.get("seconds") or 0) for one in facts.of("solved")]
    return {
        "model": {
            name: model[name]
            for name in ("class", "name_or_path", "dtype", "optimizer", "head", "vocabulary")
            if model.get(name) is not None
        },
        "process": {
            name: process[name]
            for name in ("executable", "python", "torch", "transformers", "world")
            if process.get(name) is not None
        },
        "number": facts.number,
        "ranks": len(facts.ranks),
        "steps": len({micro.step for micro in facts.micros}),
        "micro_batches": len(facts.micros),
        "tokens": sum(micro.supervised for micro in facts.micros if micro.is_read),
        "seconds": round(sum(solved), 3),
        "bars": [_bar(micro) for micro in facts.micros if micro.supervised][:_BARS],
        "rows": _rows(facts)[:_ROWS],
        "documents": _documents(facts),
        "factors": {
            f"step {step + 1}": engine.factor
            for step, _ in facts.by_step("arrived")
            if (engine := engine_of(facts, step))
        },
        "errors": list(watched.errors),
        "damaged": watched.damaged,
        "processes": len(watched.processes),
        "unended": watched.unended,
    }


def _bar(micro: MicroPass) -> dict[str, Any]:
    return {
        "step": micro.step,
        "rank": micro.rank,
        "micro": micro.index,
        "tokens": micro.supervised,
        "read": micro.is_read,
        "measured": micro.measured,
        "weight": micro.weight,
        "sum": micro.total,
    }


def _rows(facts: Facts) -> list[dict[str, Any]]:
    found = []
    for micro in facts.micros:
        for tokens in micro.tokens:
            row = facts.ids_of(micro, tokens)
            found.append(
                {
                    "step": micro.step,
                    "rank": micro.rank,
                    "micro": micro.index,
                    "row": tokens.row,
                    "cut": len(row) > _TOKENS if row else False,
                    "tokens": _tokens(facts, tokens, row),
                }
            )
        if len(found) >= _ROWS:
            break
    return found


def _tokens(facts: Facts, tokens: Tokens, row: Sequence[int] | None) -> list[dict[str, Any]]:
    """Return the tokens of a row, each with its weight as a target, or None where it is none."""
    weights = dict(
        zip(
            (at + 1 for at in tokens.position),
            zip(tokens.target, tokens.weight, strict=True),
            strict=True,
        )
    )
    if row is None:
        shown = sorted(weights)[:_TOKENS]
        texts = token_texts(facts.tokenizer, [weights[at][0] for at in shown])
        return [
            {"text": text, "weight": weights[at][1]} for at, text in zip(shown, texts, strict=True)
        ]
    found: list[dict[str, Any]] = []
    ids = row[:_TOKENS]
    for at, (token, text) in enumerate(zip(ids, token_texts(facts.tokenizer, ids), strict=True)):
        target, weight = weights.get(at, (token, None))
        found.append({"text": text, "weight": weight})
        if target != token:
            found[-1]["learnt"] = token_text(facts.tokenizer, target)
    return found


def _documents(facts: Facts) -> list[dict[str, Any]]:
    return [
        {
            "step": int(one["step"]),
            "rank": int(one["rank"]),
            "dropout": bool(one.get("dropout")),
            **{
                name: document.get(name)
                for name in ("row", "begin", "tokens", "apart", "tolerance", "positions_wrong")
            },
        }
        for one in facts.of("alone")
        for document in one.get("documents") or ()
    ][:_DOCUMENTS]
