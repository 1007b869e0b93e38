"""Special tokens that are doubled: a text that begins, or an answer that ends, once too often."""

from collections.abc import Sequence

from vtool.diagnostics import Rule
from vtool.watch.conclusions.check import CheckOutcome, WatchCheck, found
from vtool.watch.conclusions.learnt import nothing_read, read_micros
from vtool.watch.facts import Facts

DOUBLED = Rule(
    name="special-token-doubled",
    code="VT915",
    summary="Texts begin with two beginning-of-text tokens, or answers end with two end tokens.",
    why=(
        "A chat template writes the token, and the tokenizer adds it once more. A server adds it"
        " once: the model is asked otherwise than it was taught, or ends an answer, and then"
        " continues (OpenRLHF#393, open-r1#462)."
    ),
    bad="tokenizer(tokenizer.apply_chat_template(messages, tokenize=False))",
    good="tokenizer(text, add_special_tokens=False), or apply_chat_template(..., tokenize=True)",
    fix="Tokenize rendered chats with add_special_tokens=False, and add no end token to them.",
    severity="warning",
)
_MOST = 0.9


def _begin_twice(ids: Sequence[int], begins: frozenset[int], pads: frozenset[int]) -> bool:
    own = [token for token in ids[:64] if token not in pads] if ids and ids[0] in pads else ids
    return len(own) > 2 and own[0] == own[1] and own[0] in begins


def _doubled(facts: Facts) -> CheckOutcome:
    begins = frozenset(map(int, facts.model["begins"])) - facts.padding - facts.ends
    if not begins and not facts.ends:
        return CheckOutcome(not_run="the model's config names no token that begins or ends a text")
    rows = [
        list(map(int, row))
        for one in facts.of("rows")
        for row in one.get("inputs") or ()
        if len(row) > 2
    ]
    if not rows:
        return CheckOutcome(
            not_run=nothing_read(facts) or "the ids of rows were not kept (--no-text)"
        )
    twice = sum(_begin_twice(row, begins, facts.pads) for row in rows)
    measured = {"rows": len(rows), "begin twice": twice}
    if len(rows) > 1 and twice >= _MOST * len(rows):
        message = f"{twice} of {len(rows)} rows begin with two of the token that begins a text"
        return CheckOutcome((found(DOUBLED, message),), measured=measured)
    ended, both = _ends_twice(facts)
    measured |= {"answers that end": ended, "end twice": both}
    if ended > 1 and both >= _MOST * ended:
        message = (
            f"{both} of {ended} times that an end token is learnt, another is learnt behind it"
        )
        return CheckOutcome((found(DOUBLED, message),), measured=measured)
    if not begins and not ended:
        why = "no end token is learnt, and the config names none that begins a text"
        return CheckOutcome(not_run=why, measured=measured)
    return CheckOutcome(looked_at={"rows": len(rows)}, measured=measured)


def _ends_twice(facts: Facts) -> tuple[int, int]:
    """Count the end tokens that are learnt after another token, and those of them that are two.

    More than two are padding, which another rule reports.
    """
    ended = both = 0
    for tokens in (tokens for micro in read_micros(facts) for tokens in micro.tokens):
        targets = dict(zip(tokens.position, tokens.target, strict=True))
        for at, target in targets.items():
            if target not in facts.ends or targets.get(at - 1) == target:
                continue
            run = 1
            while targets.get(at + run) == target:
                run += 1
            ended += 1
            both += run == 2
    return ended, both


CHECKS = (WatchCheck(DOUBLED, "learnt", _doubled, {"rows": 2}),)
