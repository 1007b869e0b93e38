"""Targets of packed rows that are the first token of the next text."""

from vtool.diagnostics import Rule
from vtool.watch.conclusions.check import CheckOutcome, WatchCheck, found
from vtool.watch.conclusions.learnt import nothing_read, read_micros
from vtool.watch.facts import Facts

CROSSES = Rule(
    name="targets-cross-documents",
    code="VT944",
    summary="In packed rows the first token of a text is learnt from the end of the one before it.",
    why=(
        "The two have nothing to do with each other, and attention does not go from one to the"
        " other: after its end token the model learns to begin something else, and the number of"
        " learnt tokens, by which the loss is divided, counts these too."
    ),
    bad="labels = input_ids of packed rows, with positions that begin again at each text",
    good="labels that are -100 at the first token of each text",
    fix=(
        "Set the label of each text's first token to -100 when rows are packed, as"
        " DataCollatorWithFlattening does: labels[position_ids == 0] = -100."
    ),
    severity="warning",
)


def _crosses(facts: Facts) -> CheckOutcome:
    if why := nothing_read(facts):
        return CheckOutcome(not_run=why)
    micros = [m for m in read_micros(facts) if m.fact["borders"] is not None]
    if any(micro.not_next for micro in micros):
        return CheckOutcome(not_run="what is learnt is not the next token")
    texts = sum(int(micro.fact["borders"]["texts"]) for micro in micros)
    learnt = sum(int(micro.fact["borders"]["learnt"]) for micro in micros)
    if not texts:
        return CheckOutcome(not_run="no row has several texts that something separates")
    measured = {"learnt": learnt, "of": texts}
    if not learnt:
        return CheckOutcome(looked_at={"texts": texts}, measured=measured)
    first = next(micro for micro in micros if micro.fact["borders"]["learnt"])
    message = (
        f"{first}: the first token of a text is learnt at the end of the text before it, in the"
        f" same packed row; in all watched steps, at {learnt} of {texts} such places"
    )
    return CheckOutcome((found(CROSSES, message),), measured=measured)


CHECKS = (WatchCheck(CROSSES, "learnt", _crosses, {"texts": 1}),)
