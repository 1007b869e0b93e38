"""Proof that the labels of a row supervise its answers, found in two independent ways."""

from vtool.diagnostics import Rule
from vtool.verification.proofs.proof import (
    Proof,
    ProofContext,
    ProofResult,
    failed,
    not_run,
    passed,
)

RULE = Rule(
    name="label-masks-disagree",
    code="VT719",
    summary="Two independent ways to find the supervised tokens of a row disagree.",
    holds="Two independent ways find the same supervised tokens in every row.",
    why=(
        "Labels that are off by one, that leave out the token that ends a turn, or that have the"
        " user's words, train without an error (verl#3287, Megatron-Bridge#4265,"
        " transformers#34172)."
    ),
    bad="labels that begin one token late",
    good="labels for each answer and the token that ends it, and for nothing else",
    fix=(
        "`vtool verify RECIPE --row ROW` shows the supervised spans of the row. Often it is the"
        " chat template."
    ),
)


def compute(context: ProofContext) -> ProofResult:
    """Compare the labels of each row with the characters of its answers in the whole chat."""
    context = context.as_encoded()
    what = f"labels of {len(context.rows)} rows against the characters of their answers"
    reasons = []
    for place in range(len(context.rows)):
        found = _compare_row(context, place, what)
        if isinstance(found, ProofResult):
            return found
        reasons += [found] if found else []
    if len(reasons) == len(context.rows):
        return not_run(RULE, what, reasons[0])
    return passed(RULE, what)


def _compare_row(context: ProofContext, place: int, what: str) -> ProofResult | str | None:
    """Return the failure that a row is, or why it cannot be compared, or None where it is right."""
    from vtool.data.chat import IGNORED
    from vtool.data.labels import same_text
    from vtool.models.template_limits import LimitedTemplate
    from vtool.verification import reference

    row, sample, tokenizer = context.rows[place], context.samples[place], context.tokenizer
    if context.processor.whole is not None:
        with LimitedTemplate():
            prompts = reference.find_answers_by_prompts(context, place)
        if isinstance(prompts, str):
            return prompts
        whole, inside, text = prompts
        ids, supervised = sample.input_ids.tolist(), (sample.labels != IGNORED).tolist()
    else:
        with LimitedTemplate():
            answers = reference.find_answers_by_offsets(context, place)
            messages = list(row.messages)
            chat = tokenizer.apply_chat_template(messages, tools=row.tools, tokenize=False)
        if isinstance(answers, str):
            return answers
        inside, text = answers
        ids, supervised = reference.collapse_visual_tokens(context, sample)
        whole = tokenizer(chat, add_special_tokens=False).input_ids
    if whole == ids or (sample.truncated and whole[: len(ids)] == ids):
        wrong = [
            at
            for at, (ours, theirs) in enumerate(zip(supervised, inside, strict=False))
            if ours != theirs
        ]
        if not wrong:
            return None
        kind = (
            "is supervised, and is not of an answer"
            if supervised[wrong[0]]
            else "is of an answer, and is not supervised"
        )
        more = f", and so are {len(wrong) - 1} more" if len(wrong) > 1 else ""
        token = tokenizer.decode([ids[wrong[0]]])
        return failed(RULE, what, f"{row.id}: token {wrong[0]}, {token!r}, {kind}{more}")
    # A chat that is tokenized in pieces may have other tokens than the whole: compare the text.
    labels = sample.labels[sample.labels != IGNORED].tolist()
    decoded = tokenizer.decode(
        labels, skip_special_tokens=False, clean_up_tokenization_spaces=False
    )
    if same_text(decoded, text, truncated=sample.truncated):
        return None
    return failed(
        RULE,
        what,
        f"{row.id}: what is supervised is not what the answers are",
        expected=repr(text),
        seen=repr(decoded),
    )


PROOF = Proof(
    rule=RULE,
    compute=compute,
    section="What goes in",
    method=(
        "Labels are made while a chat is tokenized piece by piece. Here the whole chat is"
        " tokenized at once, and a token is to be supervised where its *characters* lie between"
        " the prompt that the template writes for an answer and the end of the token that ends"
        " it; where both ways give other tokens, their texts are compared."
    ),
    catches=(
        "labels off by one (verl#3287), a turn's end that is never learnt (Megatron-Bridge#4265)."
    ),
    upstream="ArcticTraining#339",
)
