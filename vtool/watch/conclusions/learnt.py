"""The tokens that are learnt, and what the loss is made of."""

from collections.abc import Sequence

from vtool.diagnostics import Diagnostic, Rule
from vtool.watch.conclusions.check import CheckOutcome, Unit, WatchCheck, found
from vtool.watch.conclusions.row_ends import known_padding, looked_at, unnamed_padding
from vtool.watch.facts import Facts
from vtool.watch.micro_pass import MicroPass

TARGETS = Rule(
    name="targets-not-next",
    code="VT901",
    summary="What is learnt at a position is not the next token of its row.",
    why=(
        "Labels that are shifted twice, or not at all, still give a loss that falls: the model"
        " learns to skip a token, or to copy one (trl#3091, transformers#46898)."
    ),
    bad="labels = input_ids[:, 1:], given to a model that shifts them again",
    good="labels = input_ids.clone(), with -100 where nothing is to be learnt",
    fix=(
        "Shift the labels once: transformers' models do it themselves; a loss of your own gets"
        " logits[:, :-1] and labels[:, 1:]."
    ),
)
PLACEHOLDER = Rule(
    name="placeholder-learnt",
    code="VT902",
    summary="Placeholders of images, videos or audio, or padding, are learnt as if they were text.",
    why=(
        "The model is taught to write <|image_pad|>. An image has hundreds of these tokens and an"
        " answer has few, so they dominate the loss. TRL does so by default with images."
    ),
    bad="labels = input_ids.clone() for a row with images",
    good="labels[labels == image_token_id] = -100",
    fix=(
        "Set the labels of these tokens to -100 in the collator. In TRL:"
        " assistant_only_loss=True, or rows of prompt and completion."
    ),
)
END_OF_TURN = Rule(
    name="end-of-turn-not-learnt",
    code="VT903",
    summary="The token that ends an answer is in the rows, and never learnt.",
    why=(
        "The model never learns to stop, and answers continue until the limit: a mask that ends one"
        " token early, or a padding token that is also the end token, looks the same in the loss"
        " (Megatron-Bridge#4265, verl#3287)."
    ),
    bad="tokenizer.pad_token = tokenizer.eos_token, and labels that are -100 for every pad token",
    good="a padding token of its own, or labels masked by attention_mask",
    fix=(
        "Let each answer's labels include its end token. If the rows are cut off or are no chats,"
        " nothing is wrong."
    ),
    severity="warning",
)
OTHER_TERM = Rule(
    name="loss-has-another-term",
    code="VT904",
    summary="The loss is cross entropy and something more, which was separated from it.",
    why=(
        "Label smoothing, a z-loss or an entropy bonus that nobody asked for changes what is"
        " learnt; where it is meant, this is its size."
    ),
    bad="label_smoothing_factor=0.1, left over from another recipe",
    good="label_smoothing_factor=0.0",
    fix="Nothing, if it is meant.",
    severity="note",
)
NOT_READ = Rule(
    name="loss-not-read",
    code="VT905",
    summary="A micro-batch's gradient is none of a token-level loss of the head that is known.",
    why=(
        "Of distillation, an unknown head, or a scale of the logits that is not in the config"
        " nothing is concluded; such tokens are never among what is right."
    ),
    bad="a loss between hidden states",
    good="cross entropy of the model's own logits",
    fix="Nothing: what could not be read is not judged.",
    severity="note",
)

_UNNAMED = (
    "labels[attention_mask == 0] = -100 in the collator: labels = input_ids.clone() has padding,"
    " too. Where the padding token is the end token, keep the first one of each text."
)

_LEFT_OUT = Rule(
    name="masked-tokens-learnt",
    code="VT913",
    summary="Text is learnt at positions that the batch's own attention_mask leaves out.",
    why=(
        "Where the mask is the wrong way round, padding is attended to and the text is not: each"
        " token is predicted from padding alone, and the loss still falls a little."
    ),
    bad="attention_mask = input_ids == pad_token_id",
    good="attention_mask = input_ids != pad_token_id",
    fix=(
        "Give the model a mask that is 1 at every token of the text and 0 at padding. Masks that"
        " count packed texts (1, 1, 2, 2, 0) are right as well."
    ),
)


CERTAIN_OF_EVERY = "the model is certain of every token: no weight can be measured"


def read_micros(facts: Facts) -> tuple[MicroPass, ...]:
    """Return the micro-batches whose loss is read: their weights and targets are known."""
    return tuple(micro for micro in facts.micros if micro.supervised and micro.is_read)


def nothing_read(facts: Facts) -> str | None:
    """Return why nothing can be concluded about what is learnt."""
    if facts.errors_of("learnt"):
        return facts.errors_of("learnt")[0]
    if read_micros(facts):
        return None
    reasons = (facts.skipped(what) for what in ("learnt", "head", "ranks"))
    passes = (str(one["why"]) for one in facts.of("micro") if one.get("why"))
    return next(filter(None, (*reasons, *passes)), "no supervised token was read")


def _seen(micros: Sequence[MicroPass]) -> dict[Unit, int]:
    """Count what was compared: tokens of which the model is certain show no target."""
    return {"micro-batches": len(micros), "tokens": sum(micro.measured for micro in micros)}


def _targets(facts: Facts) -> CheckOutcome:
    if why := nothing_read(facts):
        return CheckOutcome(not_run=why)
    looked = [micro for micro in read_micros(facts) if micro.not_next is not None]
    if not looked:
        return CheckOutcome(not_run="the ids of the rows were not seen")
    if not any(micro.measured for micro in looked):
        return CheckOutcome(not_run=CERTAIN_OF_EVERY)
    tokens = sum(micro.supervised for micro in looked)
    wrong = sum(micro.not_next or 0 for micro in looked)
    measured = {"tokens": tokens, "not the next": wrong}
    if not wrong:
        return CheckOutcome(looked_at=_seen(looked), measured=measured)
    shifts = {
        "the token itself": sum(micro.shifted.get(0, 0) for micro in looked),
        "the one after the next": sum(micro.shifted.get(2, 0) for micro in looked),
        "two after the next": sum(micro.shifted.get(3, 0) for micro in looked),
        "what the next row of the batch begins with": sum(micro.of_next_row for micro in looked),
    }
    likely = max(shifts, key=lambda name: shifts[name])
    what = f"; {shifts[likely]} are {likely}" if shifts[likely] * 2 > wrong else ""
    first = next(micro for micro in looked if micro.not_next)
    return CheckOutcome(
        (
            found(
                TARGETS,
                f"{wrong} of {tokens} learnt tokens are not the next token of their row{what}"
                f" (first in {first})",
            ),
        ),
        measured=measured | shifts,
    )


def _placeholders(facts: Facts) -> CheckOutcome:
    if why := nothing_read(facts):
        return CheckOutcome(not_run=why)
    special = facts.placeholders
    looked = [micro for micro in read_micros(facts) if micro.fact["specials"] is not None]
    if not looked:
        return CheckOutcome(not_run="the ids of the rows were not seen")
    learnt = {}
    if padding := max(_padding(facts), known_padding(facts, looked)):
        learnt["padding"] = padding
    for micro in looked:
        for token, times in micro.learnt_of(special).items():
            name = f"{special[token]} ({token})"
            learnt[name] = learnt.get(name, 0) + times
    rows = looked_at(looked)
    measured = {"placeholders": sorted(special.values()), "row ends": rows}
    if learnt:
        tokens = sum(micro.supervised for micro in read_micros(facts))
        counts = ", ".join(f"{times} x {name}" for name, times in learnt.items())
        message = f"of {tokens} learnt tokens, {counts}: they stand for other things than text"
        return CheckOutcome((found(PLACEHOLDER, message),), measured={**measured, "learnt": learnt})
    if unnamed := unnamed_padding(facts, looked):
        message = unnamed.says(facts)
        return CheckOutcome(
            (found(PLACEHOLDER, message, help=_UNNAMED, severity="warning"),), measured=measured
        )
    if not special and not facts.padding:
        why = "the model's config names no placeholder, and no padding token"
        return CheckOutcome(not_run=why, measured=measured)
    return CheckOutcome(looked_at={**_seen(looked), "rows": rows}, measured=measured)


def _padding(facts: Facts) -> int:
    """Count padding that is learnt after padding: one such token may end a document.

    Of a token that ends turns too, the second may be one more end: it counts from the third on.
    """
    count = 0
    for tokens in (tokens for micro in read_micros(facts) for tokens in micro.tokens):
        pairs = dict(zip(tokens.position, tokens.target, strict=True))
        pads = {at for at, target in pairs.items() if target in facts.padding}
        count += sum(at - 1 in pads and (at - 2 in pads or pairs[at] in facts.pads) for at in pads)
    return count


def _left_out(facts: Facts) -> CheckOutcome:
    if why := nothing_read(facts):
        return CheckOutcome(not_run=why)
    looked = [micro for micro in read_micros(facts) if micro.left_out is not None]
    if not looked:
        return CheckOutcome(not_run="no batch has an attention_mask of its ids' shape")
    tokens = sum(micro.measured for micro in looked)
    count = sum(micro.left_out or 0 for micro in looked)
    measured = {"tokens": tokens, "left out": count}
    if not count:
        prompts = _prompts_left_out(looked)
        found_in = (prompts,) if prompts else ()
        return CheckOutcome(found_in, looked_at=_seen(looked), measured=measured)
    message = f"{count} of {tokens} learnt tokens are where their attention_mask leaves text out"
    if count * 2 > tokens:
        message += ": it is the wrong way round, or another batch's"
        return CheckOutcome((found(_LEFT_OUT, message),), measured=measured)
    if padding := sum(micro.given_of(facts.pads) for micro in looked if micro.left_out):
        message += f", and {padding} of padding are where it has text: it is another row's"
        return CheckOutcome((found(_LEFT_OUT, message, severity="warning"),), measured=measured)
    help = "nothing, if tokens are left out of attention on purpose"
    note = found(_LEFT_OUT, message, help=help, severity="note")
    return CheckOutcome((note,), looked_at=_seen(looked), measured=measured)


def _prompts_left_out(looked: Sequence[MicroPass]) -> Diagnostic | None:
    """Return whether the mask leaves out most text before what is learnt, in most rows."""
    pairs = [micro.fact["text_left_out"] for micro in looked]
    without, rows = sum(pair[0] for pair in pairs), sum(pair[1] for pair in pairs)
    if rows < 2 or without * 2 < rows:
        return None
    message = (
        f"in {without} of {rows} rows the attention_mask leaves out most of the text before what is"
        " learnt: answers are learnt without their prompts"
    )
    help = "make the mask from the padding, not from the labels"
    return found(_LEFT_OUT, message, help=help, severity="warning")


def _end_of_turn(facts: Facts) -> CheckOutcome:
    if why := nothing_read(facts):
        return CheckOutcome(not_run=why)
    looked = [micro for micro in read_micros(facts) if micro.ends is not None]
    present = sum(micro.ends[0] for micro in looked if micro.ends)
    learnt = sum(micro.ends[1] for micro in looked if micro.ends)
    if not looked or not present:
        return CheckOutcome(not_run="no row has an end token that the model's config names")
    if not learnt and any(micro.solved < micro.supervised for micro in looked):
        return CheckOutcome(not_run="only some of the learnt tokens were solved (--tokens)")
    measured = {"in the rows": present, "learnt": learnt}
    if learnt:
        return CheckOutcome(looked_at={**_seen(looked), "end tokens": present}, measured=measured)
    behind = [micro.ends_behind for micro in looked]
    cut = None not in behind and not any(behind) and not any(micro.not_next for micro in looked)
    if cut and facts.is_judged:  # completions that reached their limit
        return CheckOutcome(
            not_run="no row that was judged goes up to an end token", measured=measured
        )
    message = f"{present} end tokens are in the rows that were read, and none of them is learnt"
    message += ": no row goes from what is learnt on to an end token, it is cut off" if cut else ""
    return CheckOutcome((found(END_OF_TURN, message),), measured=measured)


def _other_term(facts: Facts) -> CheckOutcome:
    if why := nothing_read(facts):
        return CheckOutcome(not_run=why)
    terms: dict[str, float] = {}
    for micro in read_micros(facts):
        for name, part in micro.terms.items():
            if abs(part) > abs(terms.get(name, 0.0)):
                terms[name] = part
    looked_at = _seen(read_micros(facts))
    if not terms:
        return CheckOutcome(looked_at=looked_at)
    parts = ", ".join(f"{name} {part:+.4g}" for name, part in terms.items())
    message = f"beside cross entropy, as parts of a token's weight: {parts}"
    return CheckOutcome((found(OTHER_TERM, message),), looked_at=looked_at, measured=terms)


def _not_read(facts: Facts) -> CheckOutcome:
    tried = [micro for micro in facts.micros if micro.supervised]
    off = [micro for micro in tried if not micro.is_read]
    if not tried:
        return CheckOutcome(not_run="no supervised token was read")
    looked_at: dict[Unit, int] = {
        "micro-batches": len(tried),
        "tokens": sum(micro.solved for micro in tried),
    }
    if not off:
        return CheckOutcome(looked_at=looked_at, measured={"micro-batches": len(tried)})
    if any(one["nonfinite"] for one in facts.of("arrived")):
        return CheckOutcome(not_run="gradients are not finite")
    worst = max(off, key=lambda micro: micro.misfit)
    message = (
        f"{len(off)} of {len(tried)} micro-batches leave a gradient that is none of cross entropy"
        f" over this head (misfit {worst.misfit:.2g} in {worst}): nothing is concluded from them"
    )
    measured = {"not read": len(off)}
    return CheckOutcome((found(NOT_READ, message),), looked_at=looked_at, measured=measured)


CHECKS = (
    WatchCheck(TARGETS, "learnt", _targets, {"tokens": 1}),
    WatchCheck(PLACEHOLDER, "learnt", _placeholders, {"tokens": 1, "rows": 1}),
    WatchCheck(_LEFT_OUT, "learnt", _left_out, {"tokens": 1}),
    WatchCheck(END_OF_TURN, "learnt", _end_of_turn, {"tokens": 1, "end tokens": 1}),
    WatchCheck(OTHER_TERM, "learnt", _other_term, {"tokens": 1}),
    WatchCheck(NOT_READ, "learnt", _not_read, {"tokens": 1}),
)
