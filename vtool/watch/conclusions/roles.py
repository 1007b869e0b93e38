"""The learnt tokens against the turns of the chat, as its template marks them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vtool.diagnostics import Diagnostic, Rule
from vtool.watch.conclusions.check import CheckOutcome, Unit, WatchCheck, found
from vtool.watch.conclusions.learnt import nothing_read
from vtool.watch.facts import Facts
from vtool.watch.turns import AnswerTokens

PROMPT = Rule(
    name="prompt-learnt",
    code="VT909",
    summary="Tokens of prompts are learnt: the model is taught to say what users say.",
    why=(
        "A mask that is off by a turn, or that a template does not give, teaches parts of the"
        " question besides the answer, or the header that stands before every answer when the model"
        " is asked (trl#4201). Whole rows may be meant; parts of a prompt hardly are."
    ),
    bad="assistant_only_loss=True with a template that marks too much as generation",
    good="labels of -100 for all that is not an answer",
    fix=(
        "Mask prompts in the collator: assistant_only_loss or rows of prompt and completion in TRL,"
        " train_on_prompt: false in LLaMA-Factory. TRL's assistant_only_loss needs a chat template"
        " that marks answers by {% generation %}."
    ),
    severity="warning",
)
PARTLY = Rule(
    name="answer-partly-learnt",
    code="VT910",
    summary="The first token of every answer, or its end token, is left out of what is learnt.",
    why=(
        "A mask that is one token off still gives a loss that falls. Without the end token answers"
        " do not end; without the first one, they do not begin as they should (verl#3287)."
    ),
    bad="labels[i] masked by the mask of token i + 1",
    good="a mask that is shifted together with its labels",
    fix="Shift mask and labels together, or not at all.",
    severity="warning",
)
_LEFT_OUT = Rule(
    name="answers-left-out",
    code="VT911",
    summary="Of chats with several answers only some are learnt, always by their place.",
    why="Where all turns are good, most of the data is thrown away; some tools do so by default.",
    bad="a chat of 6 turns of which only the last answer is learnt",
    good="every answer of the chat",
    fix="Nothing, if it is meant; in LLaMA-Factory it is mask_history.",
    severity="note",
)
_NOT_ARRIVED = (
    "look at what becomes of the mask: packing, a fused loss or a collator of one's own may leave"
    " it out (trl#3728, #3781)"
)
_ENOUGH, _LEAST_OUT = 0.95, 0.1
_MOST_TOKENS = 2048
"""Learnt tokens of a row that are written one by one; a row with as many may have more."""


@dataclass(frozen=True, slots=True)
class KnownRow:
    """A row whose ids and learnt positions are both known."""

    ids: tuple[int, ...]
    learnt: frozenset[int]
    """Positions of the tokens that are learnt."""
    answers: tuple[AnswerTokens, ...]
    framed: frozenset[int]
    """Positions of marks around answers, which may be learnt with them."""

    @property
    def prompt(self) -> tuple[int, ...]:
        """Positions of what is neither in an answer nor a mark around it."""
        inside = {at for answer in self.answers for at in range(answer.begin, answer.end)}
        return tuple(
            at for at in range(1, len(self.ids)) if at not in inside and at not in self.framed
        )


def answered_rows(facts: Facts) -> Iterator[KnownRow]:
    """Yield the rows whose every learnt token is known, and that have an answer."""
    if facts.turns is None:
        return
    silent = facts.pads | facts.placeholders.keys()
    for micro in facts.micros:
        if not micro.is_read or micro.solved < micro.supervised:
            continue
        for tokens in micro.tokens:
            ids = facts.ids_of(micro, tokens)
            if ids is None or len(tokens.position) >= _MOST_TOKENS:
                continue
            learnt = frozenset(at + 1 for at in tokens.position)
            answers = tuple(facts.turns.answers(ids))
            if not answers or not learnt or max(learnt) >= len(ids) + 1:
                continue
            framed = {at for at, token in enumerate(ids) if token in silent}
            for answer in answers:
                framed.update(range(answer.begin - len(facts.turns.header) - 2, answer.begin))
                framed.update(range(answer.end, answer.end + 2))
            yield KnownRow(ids, learnt, answers, frozenset(framed))


def _nothing(facts: Facts, rows: list[KnownRow]) -> str | None:
    if why := nothing_read(facts):
        return why
    if facts.turns is None:
        return facts.no_turns or "the tokenizer is not known: --tokenizer DIR"
    if not rows:
        return "no row has an answer as the chat template marks it, with all its learnt tokens"
    return None


def _prompt(facts: Facts) -> CheckOutcome:
    rows = list(answered_rows(facts))
    if why := _nothing(facts, rows):
        return CheckOutcome(not_run=why)
    prompt = sum(len(row.prompt) for row in rows)
    learnt = [at for row in rows for at in row.prompt if at in row.learnt]
    measured = {"rows": len(rows), "tokens of prompts": prompt, "learnt": len(learnt)}
    if not learnt:
        headers = _headers(facts, rows)
        looked_at: dict[Unit, int] = {"rows": len(rows), "tokens": prompt}
        return CheckOutcome((headers,) if headers else (), looked_at=looked_at, measured=measured)
    if len(learnt) >= _ENOUGH * prompt:
        message = f"whole rows are learnt: in {len(rows)} rows, {len(learnt)} tokens of prompts too"
        if facts.asks:
            message += f"; {facts.asks}=True does not arrive"
            return CheckOutcome((found(PROMPT, message, help=_NOT_ARRIVED),), measured=measured)
        help = "nothing, if it is meant; " + PROMPT.fix[0].lower() + PROMPT.fix[1:]
        return CheckOutcome(
            (found(PROMPT, message, help=help, severity="note"),),
            looked_at={"rows": len(rows), "tokens": prompt},
            measured=measured,
        )
    first = next(row for row in rows if any(at in row.learnt for at in row.prompt))
    assert facts.turns is not None
    text = facts.turns.text([first.ids[at] for at in first.prompt if at in first.learnt][:12])
    message = f"{len(learnt)} of {prompt} tokens of prompts are learnt, such as {text!r}"
    return CheckOutcome((found(PROMPT, message),), measured=measured)


def _headers(facts: Facts, rows: list[KnownRow]) -> Diagnostic | None:
    """Return a finding where the header before every answer that is learnt is learnt with it."""
    assert facts.turns is not None
    header = facts.turns.header
    # of some templates the mark before an answer begins with the end of the turn before it
    size = header[::-1].index(facts.turns.end) if facts.turns.end in header else len(header)
    taught = [
        (row, tuple(range(answer.begin - size, answer.begin)))
        for row in rows
        for answer in row.answers
        if answer.begin > size and any(at in row.learnt for at in range(answer.begin, answer.end))
    ]
    if not size or len(taught) < 2:
        return None
    if not all(at in row.learnt for row, places in taught for at in places):
        return None
    row, places = taught[0]
    text = facts.turns.text([row.ids[at] for at in places])
    message = (
        f"the header of each of {len(taught)} answers is learnt, such as {text!r}: when the model"
        " is asked, it is given"
    )
    help = "nothing, if it is meant; else render prompts with add_generation_prompt=True to mask it"
    return found(PROMPT, message, help=help)


def _partly(facts: Facts) -> CheckOutcome:
    rows = list(answered_rows(facts))
    if why := _nothing(facts, rows):
        return CheckOutcome(not_run=why)
    if facts.is_judged:
        return CheckOutcome(not_run="rows are judged, not copied")
    taught = [
        (row, answer)
        for row in rows
        for answer in row.answers
        if answer.end - answer.begin > 2
        and any(at in row.learnt for at in range(answer.begin, answer.end))
    ]
    ended = [(row, answer) for row, answer in taught if answer.ended]
    first = sum(answer.begin in row.learnt for row, answer in taught)
    last = sum(answer.end - 1 in row.learnt for row, answer in ended)
    measured = {"answers": len(taught), "first token learnt": first, "end token learnt": last}
    if len(taught) < 2:
        return CheckOutcome(not_run="fewer than two answers were seen whole", measured=measured)
    missing = [
        f"the {name} of none of {count} answers is learnt"
        for name, learnt, count in (
            ("first token", first, len(taught)),
            ("end token", last, len(ended)),
        )
        if not learnt and count > 1
    ]
    if missing:
        return CheckOutcome((found(PARTLY, "; ".join(missing)),), measured=measured)
    cut = len(taught) - len(ended)
    if len(taught) < 4 or cut * 2 < len(taught):
        return _inside(taught, measured)
    longest = max(len(row.ids) for row, _ in taught)
    message = (
        f"{cut} of {len(taught)} answers are cut off before their end token, in rows of up to"
        f" {longest} tokens"
    )
    help = "let rows be longer (max_length, cutoff_len), or leave out those that are too long"
    note = found(PARTLY, message, help=help, severity="note")
    return CheckOutcome((note,), looked_at={"answers": len(taught)}, measured=measured)


def _inside(
    taught: Sequence[tuple[KnownRow, AnswerTokens]], measured: dict[str, int]
) -> CheckOutcome:
    """Look for tokens within answers that are left out of what is learnt."""
    tokens = sum(answer.end - answer.begin for _, answer in taught)
    out = sum(
        at not in row.learnt for row, answer in taught for at in range(answer.begin, answer.end)
    )
    looked_at: dict[Unit, int] = {"answers": len(taught)}
    if out < _LEAST_OUT * tokens:
        return CheckOutcome(looked_at=looked_at, measured=measured)
    message = f"{out} of {tokens} tokens of {len(taught)} answers are not learnt"
    help = "nothing, if tokens are chosen on purpose"
    note = found(PARTLY, message, help=help, severity="note")
    return CheckOutcome((note,), looked_at=looked_at, measured=measured)


def _left_out(facts: Facts) -> CheckOutcome:
    rows = [row for row in answered_rows(facts) if len(row.answers) > 1]
    if why := _nothing(facts, list(answered_rows(facts))):
        return CheckOutcome(not_run=why)
    if not rows:
        return CheckOutcome(not_run="no row with several answers was read")
    taught = [
        [any(at in row.learnt for at in range(one.begin, one.end)) for one in row.answers]
        for row in rows
    ]
    measured = {"rows": len(rows), "learnt": sum(map(sum, taught)), "of": sum(map(len, taught))}
    looked_at: dict[Unit, int] = {"rows": len(rows), "answers": sum(map(len, taught))}
    if all(map(all, taught)):
        return CheckOutcome(looked_at=looked_at, measured=measured)
    if all(one[-1] and not any(one[:-1]) for one in taught):
        message = f"only the last answer is learnt, in all {len(rows)} rows with several"
    elif all(one[0] and not any(one[1:]) for one in taught):
        message = f"only the first answer is learnt, in all {len(rows)} rows with several"
        return CheckOutcome((found(_LEFT_OUT, message, severity="warning"),), measured=measured)
    else:
        message = f"{measured['learnt']} of {measured['of']} answers are learnt"
    return CheckOutcome((found(_LEFT_OUT, message),), looked_at=looked_at, measured=measured)


CHECKS = (
    WatchCheck(PROMPT, "learnt", _prompt, {"rows": 1, "tokens": 1}),
    WatchCheck(PARTLY, "learnt", _partly, {"answers": 2}),
    WatchCheck(_LEFT_OUT, "learnt", _left_out, {"rows": 1, "answers": 2}),
)
