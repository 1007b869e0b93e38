"""Each row or packed document by itself, compared with the same row in its batch."""

from collections.abc import Sequence

from vtool.diagnostics import Rule
from vtool.watch.conclusions.ahead import is_seen, tested_batches
from vtool.watch.conclusions.check import CheckOutcome, Unit, WatchCheck, found
from vtool.watch.conclusions.kinds import kinds_seen, micro_batches_of
from vtool.watch.facts import Facts
from vtool.watch.micro_pass import Fact, not_null

CHANGES = Rule(
    name="row-changes-in-batch",
    code="VT941",
    summary="A row's hidden states are others in its batch than by itself, with the same weights.",
    why=(
        "Rows see each other, or padding, or another row's image: packed documents without their"
        " borders are the usual way (transformers#39400, #46634, LLaMA-Factory#10659)."
    ),
    bad="packing: true, with an attention that does not get the ends of documents",
    good="position_ids that begin anew and FlashAttention's lengths, or a block-diagonal mask",
    fix=(
        "Give the attention the end of each document (in LLaMA-Factory: neat_packing), and give"
        " padded rows their attention_mask. Experts with a capacity depend on their batch by"
        " design."
    ),
)
POSITIONS = Rule(
    name="row-positions-differ",
    code="VT942",
    summary="Tokens of a row have other positions in its batch than by itself.",
    why=(
        "With positions of text alone a picture is a long line, and with those of a neighbor"
        " distances are wrong; hidden states move by a few percent, and nothing looks broken"
        " (axolotl#3817, Automodel#2172)."
    ),
    bad="position_ids = torch.arange(n) for a row with images, in a model with M-RoPE",
    good="no position_ids, so that the model makes its own from image_grid_thw",
    fix=(
        "Let the model make them, or make them with its get_rope_index from the row's own grids;"
        " in packed rows for each document anew."
    ),
)


IMAGES = Rule(
    name="image-positions-differ",
    code="VT943",
    summary="Tokens of a row with images have other positions than the model's M-RoPE gives them.",
    why=(
        "Where mm_token_type_ids or the grids get lost on the way, transformers counts an image's"
        " places as text, and says nothing (trl#5279, verl#5909); where they are computed wrong,"
        " all text behind an image is moved (transformers#45325). The loss falls all the same, and"
        " a server uses other positions."
    ),
    bad="a collator that keeps input_ids and pixel_values of a processor's output, and no more",
    good="everything that the processor returns, handed to the model",
    fix=(
        "Hand mm_token_type_ids and image_grid_thw from the processor on to the model, or make"
        " position_ids by its get_rope_index; look for a release of transformers that mends it."
    ),
)


_LEFT = (
    "rows are padded on the left, and the model is given no position_ids: where it counts places"
    " itself (GPT-2), it counts the padding too. Give it position_ids ="
    " (attention_mask.cumsum(-1) - 1).clamp(min=0), and look at the mask as well"
)


def _documents(facts: Facts) -> list[tuple[Fact, Fact]]:
    return [(one, document) for one in facts.of("alone") for document in one["documents"]]


def _why_not(facts: Facts) -> str:
    errors = facts.errors_of("alone")
    return facts.skipped("alone") or (errors[0] if errors else "no row was computed by itself")


def _is_steady(one: Fact) -> bool:
    """Return whether the batch would be the same if computed once more."""
    return not not_null(one, "dropout") and one["repeats"] is not False


def _unsteady(one: Fact) -> str:
    if one["dropout"]:
        return "dropout was on"
    return (
        "the whole batch, computed once more, is another: noise in training (NEFTune), or weights"
        " that changed before this step"
    )


def _of(count: int, of: int, documents: str = "rows or documents") -> str:
    return f"{count} of {of} {documents}"


def _padding_seen(facts: Facts) -> str | None:
    """Return which row begins with padding that no mask leaves out."""
    for one in facts.of("inputs"):
        place = int(one["step"]), int(one["rank"]), int(one["micro"])
        names = [
            name
            for micro in facts.micros
            if (micro.step, micro.rank, micro.index) == place
            for name in micro.fact["names"]
        ]
        if "input_ids" not in names or any("mask" in name or "seq" in name for name in names):
            continue
        for number, ids in enumerate(one.get("inputs") or (), 1):
            if len(ids) > 2 and ids[0] in facts.pads and ids[1] in facts.pads:
                return f"row {number} of step {place[0] + 1}"
    return None


_NO_BORDERS = frozenset(
    ("input_ids", "attention_mask", "inputs_embeds", "labels", "num_items_in_batch", "use_cache")
)
"""Inputs of a model that do not show where a text ends within a row."""


def _packed_without_boundaries(facts: Facts) -> int:
    """Return how many texts a packed row holds, by its data set, where no input separates them."""
    for one in facts.of("rows"):
        held = max((int(data["packed"] or 0) for data in one.get("data") or ()), default=0)
        place = int(one["step"]), int(one["rank"]), int(one["micro"])
        for micro in facts.micros:
            if held < 2 or (micro.step, micro.rank, micro.index) != place:
                continue
            given = set(micro.fact["names"])
            whole = len(one["rows"]) == micro.fact["shape"][0]
            plain = "attention_mask" not in given or one.get("mask_axes") == 2
            if given and given <= _NO_BORDERS and whole and plain:
                return held
    return 0


def _certain(facts: Facts) -> str | None:
    """Return the message about tokens that are seen and must not be, by the inputs alone."""
    if held := _packed_without_boundaries(facts):
        return (
            f"rows of the data set hold up to {held} texts each, whose lengths it has, and the"
            " model is given nothing that parts them: a text sees those before it"
        )
    if row := _padding_seen(facts):
        return (
            f"{row} begins with padding, and the model is given no attention_mask: what follows"
            " sees it"
        )
    for one in facts.of("ahead"):
        if one.get("padding"):
            return (
                f"{one['padding']} of {one['learnt']} learnt tokens are predicted by positions that"
                " see padding: the model is given a mask that leaves it out, and the mask of four"
                " dimensions that it makes of that does not"
            )
    return None


def _not_compared(facts: Facts, kinds: set[str]) -> str | None:
    """Return which kind of micro-batch was seen, and no row of it compared, with the reason."""
    missing = kinds_seen(facts) - kinds
    if None in missing:
        return "the ids of micro-batches were not seen: whether they are padded is not known"
    if not missing:
        return None
    kind = min(map(str, missing))
    of_kind = [one for one, _ in _documents(facts) if one["batch"] == kind]
    why = next((_unsteady(one) for one in of_kind if not _is_steady(one)), None)
    return (
        f"{micro_batches_of(kind)} were seen, and no row of them was computed by itself:"
        f" {why or _why_not(facts)}"
    )


def _explained(facts: Facts, wrong: Sequence[tuple[Fact, Fact]]) -> str | None:
    """Return the finding of another rule that explains why rows are others in their batch."""
    if all(document.get("positions_wrong") for _, document in wrong):
        return "other positions explain the difference"
    ahead = {one["batch"] for one in tested_batches(facts) if is_seen(one)}
    if all(one["batch"] in ahead for one, _ in wrong):  # by itself a row may be causal
        return "tokens that see what follows them explain the difference"
    return None


def _changes(facts: Facts) -> CheckOutcome:
    if message := _certain(facts):
        return CheckOutcome((found(CHANGES, message),))
    documents = _documents(facts)
    compared = [
        (one, document)
        for one, document in documents
        if document["apart"] is not None and _is_steady(one)
    ]
    if not compared:
        why = next((_unsteady(one) for one, _ in documents if not _is_steady(one)), None)
        return CheckOutcome(not_run=why or _why_not(facts))
    ratio = [document["apart"] / max(document["tolerance"], 1e-30) for _, document in compared]
    measured = {"documents": len(compared), "largest": f"{max(ratio):.2g} of what rounding allows"}
    wrong = [
        (one, document) for one, document in compared if document["apart"] > document["tolerance"]
    ]
    if not wrong:
        why = _not_compared(facts, {str(one["batch"]) for one, _ in compared})
        noise = max(float(document["tolerance"]) for _, document in compared)
        looked_at: dict[Unit, int] = {"texts": len(compared)}
        return CheckOutcome(not_run=why, looked_at=looked_at, noise=noise, measured=measured)
    if why := _explained(facts, wrong):
        return CheckOutcome(not_run=why, measured=measured)
    one, document = max(wrong, key=lambda each: each[1]["apart"] / max(each[1]["tolerance"], 1e-30))
    at = document.get("first_apart")
    message = (
        f"{_of(len(wrong), len(compared))} are computed otherwise in their batch:"
        f" {document['apart']:.2g} apart in step {int(one['step']) + 1}, row {document['row'] + 1}"
        f"{f', from its token {at} on' if at is not None else ''} (rounding allows"
        f" {document['tolerance']:.1g})"
    )
    help = _LEFT if all(_lacks_positions(facts, *each) for each in wrong) else None
    return CheckOutcome((found(CHANGES, message, help=help),), measured=measured)


def _lacks_positions(facts: Facts, one: Fact, document: Fact) -> bool:
    """Return whether a row begins behind padding, with a mask and without positions."""
    names = {
        name
        for micro in facts.micros
        if (micro.step, micro.rank) == (int(one["step"]), int(one["rank"]))
        for name in micro.fact["names"]
    }
    behind = one["batch"] == "padded" and int(document["begin"]) > 0
    return behind and "attention_mask" in names and "position_ids" not in names


def _positions(facts: Facts) -> CheckOutcome:
    known = [
        (one, document)
        for one, document in _documents(facts)
        if document["positions_wrong"] is not None
    ]
    if not known:
        return CheckOutcome(not_run=facts.skipped("alone") or "no positions were seen")
    wrong = [(one, document) for one, document in known if document["positions_wrong"]]
    if not wrong:
        why = _not_compared(facts, {str(one["batch"]) for one, _ in known})
        return CheckOutcome(
            not_run=why, looked_at={"texts": len(known)}, measured={"documents": len(known)}
        )
    one, document = wrong[0]
    message = (
        f"{_of(len(wrong), len(known))} have other positions in their batch:"
        f" {document['positions_wrong']} of {document['tokens']} tokens in step"
        f" {int(one['step']) + 1}, row {document['row'] + 1}"
    )
    return CheckOutcome((found(POSITIONS, message),), measured={"documents": len(known)})


def _image_positions(facts: Facts) -> CheckOutcome:
    known = [(one, text) for one in facts.of("placed") for text in one["documents"]]
    if not known:
        why = "no row with images of a model with M-RoPE was looked at"
        return CheckOutcome(not_run=next(iter(facts.errors_of("placed")), why))
    wrong = [each for each in known if not_null(each[1], "wrong")]
    if not wrong:
        return CheckOutcome(looked_at={"texts": len(known)}, measured={"documents": len(known)})
    one, text = wrong[0]
    how = "the places of its images are counted as text" if text["as_text"] else "not M-RoPE's"
    message = (
        f"{_of(len(wrong), len(known))} with images have other positions than M-RoPE gives them:"
        f" {text['wrong']} of {text['tokens']} tokens in step {int(one['step']) + 1}, row"
        f" {int(text['row']) + 1}; {how}"
    )
    names = {name for micro in facts.micros for name in micro.fact["names"]}
    help = None
    if text["as_text"] and not names & {"mm_token_type_ids", "position_ids"}:
        help = "the model is given no mm_token_type_ids: hand them on from the processor"
    return CheckOutcome((found(IMAGES, message, help=help),), measured={"documents": len(known)})


CHECKS = (
    WatchCheck(CHANGES, "alone", _changes, {"texts": 1}, most_noise=0.3),
    WatchCheck(POSITIONS, "alone", _positions, {"texts": 1}),
    WatchCheck(IMAGES, "placed", _image_positions, {"texts": 1}),
)
