"""Changes to facts that are mistakes of what is frozen, packed or shown again and again."""

from collections.abc import Iterable

from tests.watch.made import ADAPTERS, Change, Fact, on


def the_same_batch(fact: Fact) -> Iterable[Fact] | None:
    """Show the rows of the first step in every one, and in three more."""
    if fact["kind"] != "rows":
        return None
    first = {**fact, "rows": [f"{fact['micro']}-{row}" for row in range(2)]}
    more = [{**first, "step": 3 + step, "data": None} for step in range(3)]
    return [first, *(more if fact["step"] == 2 else [])]


LARGEST: Fact = {"tensor": "a", "share": 0.99, "elements": 8, "of": 900, "tensors": 9, "rows": None}


PLANTED: dict[str, tuple[int, Change, str, str]] = {
    "a frozen part moved": (
        1,
        on("stepped", frozen_that_moved=["a"], n_frozen_that_moved=1),
        "frozen-parameter-moved",
        "error",
    ),
    "the base of adapters trained": (
        1,
        on("stepped", adapters={**ADAPTERS, "base_trained": ["a"], "n_base_trained": 1}),
        "base-trained-beside-adapters",
        "warning",
    ),
    "a matrix trained beside adapters": (
        1,
        on("stepped", adapters={**ADAPTERS, "beside": ["a"], "n_beside": 1}),
        "base-trained-beside-adapters",
        "warning",
    ),
    "adapters merged into the base": (
        1,
        on("stepped", adapters={**ADAPTERS, "moved": ["a"], "n_moved": 1, "share": 1.0}),
        "frozen-parameter-moved",
        "error",
    ),
    "unfrozen later, in no group": (
        1,
        on("stepped", in_no_group=["a"], n_in_no_group=1),
        "parameter-in-no-group",
        "error",
    ),
    "targets across documents": (
        1,
        on("micro", borders={"texts": 3, "learnt": 2}),
        "targets-cross-documents",
        "warning",
    ),
    "one row of the embedding": (
        1,
        on("arrived", largest={**LARGEST, "elements": 800, "rows": [[7, 0.6, 0.05]]}),
        "gradient-in-one-part",
        "warning",
    ),
    "one small tensor": (1, on("arrived", largest=LARGEST), "gradient-in-one-part", "warning"),
    "a token whose row is zero": (
        1,
        on("arrived", tokens={"ids": 20, "trained": True, "zero": [[7, 3]], "at_mean": None}),
        "token-without-values",
        "warning",
    ),
    "a token whose frozen row is the mean": (
        1,
        on("arrived", tokens={"ids": 20, "trained": False, "zero": [], "at_mean": [[7, 3]]}),
        "token-without-values",
        "warning",
    ),
    "the same rows in every step": (1, the_same_batch, "same-batch-every-step", "warning"),
}
