"""Proof that each row is in one batch of an epoch, with its own tokens."""

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

RULE = Rule(
    name="rows-lost",
    code="VT726",
    summary=(
        "A row is in no batch of an epoch or in several, the order is the same in each epoch, or a"
        " batch has another row's tokens."
    ),
    holds="Every row is in one batch of each epoch, with its own tokens, in a new order.",
    why=(
        "A sampler that is not told the epoch repeats its order; one that rounds loses rows; a"
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
    problem = _plan_problem(context) or _batch_problem(context)
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
        " packed where the recipe packs, in another order in the next epoch; and a batch has the"
        " tokens of the rows that it names."
    ),
    catches=(
        "an epoch that never reaches the sampler (DALLE-pytorch#230), rows that fit into no pack"
        " and are dropped (trl#4554), rows replaced by random others (ms-swift)."
    ),
    upstream="DALLE-pytorch#230",
)
