"""Proof that each row is in one batch of an epoch, with its own tokens."""

from typing import TYPE_CHECKING

from vtool.diagnostics import Rule
from vtool.verification.proofs.proof import (
    SHIPPED_PASS,
    Proof,
    ProofContext,
    ProofResult,
    failed,
    list_first,
    passed,
)

if TYPE_CHECKING:
    from vtool.data.plan import SourceShare

RULE = Rule(
    name="rows-lost",
    code="VT726",
    summary=(
        "A row is in no batch of an epoch or in several, the order is the same in each epoch, or a"
        " batch has another row's tokens."
    ),
    holds="Every row is in one batch of each epoch, with its own tokens, in a new order.",
    why=(
        "A sampler that is not given the epoch repeats its order; one that rounds loses rows; a"
        " collator that replaces a bad row by another says nothing (ms-swift's random row,"
        " torchtitan's and verl's resume)."
    ),
    bad="the same order of rows in every epoch",
    good="each row once an epoch, in an order of its own",
    fix=SHIPPED_PASS + "report it with this line.",
)
PLANNED = 97  # rows of a plan that no batch, rank or micro-batch divides
WORLDS = (1, 2, 3)


def compute(context: ProofContext) -> ProofResult:
    """Count the rows of two epochs of a plan on 1, 2 and 3 ranks, and compare batches with rows."""
    what = (
        f"{PLANNED} rows over two epochs on {list_first([str(world) for world in WORLDS])} ranks;"
        " the tokens of each batch"
    )
    if _parts(context):
        what += "; three epochs of the recipe's mixture"
    problem = _plan_problem(context) or _mixture_problem(context) or _batch_problem(context)
    return failed(RULE, what, problem) if problem else passed(RULE, what)


def _plan_problem(context: ProofContext) -> str:
    import numpy as np

    from vtool.data.loader import micro_batches_for_step
    from vtool.data.plan import Plan

    plan = Plan(PLANNED, min(context.asked_batch, PLANNED), context.run.run.seed)
    lengths = tuple(int(one) for one in np.random.RandomState(0).randint(4, 64, PLANNED))
    data = context.run.data
    if data.micro_batch_tokens is not None:
        data = data.model_copy(update={"micro_batch_tokens": max(data.micro_batch_tokens, 64)})
    orders = []
    for epoch in (0, 1):
        steps = range(epoch * plan.steps_per_epoch + 1, (epoch + 1) * plan.steps_per_epoch + 1)
        orders.append([row for step in steps for row in plan.step(step).tolist()])
        for world in WORLDS:
            rows = [
                row
                for step in steps
                for rank in range(world)
                for micro_batch in micro_batches_for_step(
                    data, plan, range(PLANNED), lengths, step, rank, world
                )
                if micro_batch.counts
                for row in micro_batch.rows
            ]
            if sorted(rows) != list(range(PLANNED)):
                twice, never = len(rows) - len(set(rows)), PLANNED - len(set(rows))
                return (
                    f"epoch {epoch + 1} on {world} ranks: of {PLANNED} rows {never} are in no"
                    f" batch, and {twice} are in one more than once"
                )
    same = orders[0] == orders[1]
    return "the second epoch has its rows in the order of the first" if same else ""


def _parts(context: ProofContext) -> "tuple[SourceShare, ...]":
    """Return the parts of an epoch of the recipe's mixture, of as many rows as are planned."""
    from vtool.data.mixture import parts_of_epoch

    entries = context.run.data.train
    kept = [PLANNED // len(entries) + 5 * number for number in range(len(entries))]
    return parts_of_epoch(entries, kept)


def _mixture_problem(context: ProofContext) -> str:
    import numpy as np

    from vtool.data.plan import Plan

    parts = _parts(context)
    if not any(part.samples for part in parts):
        return ""
    ends = np.cumsum([part.rows for part in parts])
    given = [part.samples for part in parts]
    batch = max(context.asked_batch, sum(given) // 20)  # of sources that come very often
    plan = Plan(int(ends[-1]), batch, context.run.run.seed, parts)
    times = np.zeros(plan.rows, np.int64)
    for epoch in range(3):
        steps = range(epoch * plan.steps_per_epoch + 1, (epoch + 1) * plan.steps_per_epoch + 1)
        counts = sum(np.bincount(plan.step(step), minlength=plan.rows) for step in steps)
        times += counts
        own = [int(part.sum()) for part in np.split(counts, ends[:-1])]
        if own != given:
            return f"epoch {epoch + 1} of a mixture has {own} samples of its sources, not {given}"
        for part in np.split(times, ends[:-1]):
            if part.max() - part.min() > 1:
                return (
                    f"after epoch {epoch + 1} of a mixture, rows of a source have come"
                    f" {part.min()} to {part.max()} times"
                )
    return ""


def _batch_problem(context: ProofContext) -> str:
    session, _ = context.open()
    last = len(context.rows) - 1
    for rows in (range(last + 1), (last, 0)):
        batch = context.batch(session, rows)
        for line, row in enumerate(rows):
            expected = context.samples[row].input_ids
            tokens = batch.inputs["input_ids"][line, : len(expected)]
            if batch.indices[line] != row or tokens.tolist() != expected.tolist():
                return f"a batch of row {row + 1} has the tokens of another row"
    return ""


PROOF = Proof(
    rule=RULE,
    compute=compute,
    section="What goes in",
    method=(
        "Of a plan of 97 rows each is in exactly one batch of an epoch, on 1, 2 and 3 ranks,"
        " packed where the recipe packs, in another order in the next epoch; of a mixture, each"
        " source gives what the recipe says, and none of its rows again before all others; and a"
        " batch has the tokens of the rows that it names."
    ),
    catches=(
        "an epoch that never reaches the sampler (DALLE-pytorch#230), rows that fit into no pack"
        " and are dropped (trl#4554), rows replaced by random others (ms-swift)."
    ),
    upstream="DALLE-pytorch#230",
)
