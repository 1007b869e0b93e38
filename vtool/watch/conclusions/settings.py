"""Settings that do something else than they are hardly ever meant to: the optimizer's, and ties."""

from vtool.diagnostics import Rule
from vtool.watch.conclusions.check import CheckOutcome, Unit, WatchCheck, found
from vtool.watch.facts import Facts
from vtool.watch.micro_pass import not_null

DECAY = Rule(
    name="decay-on-norms",
    code="VT932",
    summary="Weight decay is on norms and biases, which most recipes leave out.",
    why=(
        "Decay pulls a weight toward 0. The weight of a norm belongs near 1, and one number scales"
        " a whole channel: with the decay of a pre-training recipe, 0.1, a long run loses what the"
        " norms had learnt. transformers, Megatron-core and LLaMA-Factory leave them out."
    ),
    bad="AdamW(model.parameters(), weight_decay=0.1)",
    good="two groups: matrices with a decay, vectors with weight_decay=0",
    fix="Give norms and biases a group with weight_decay=0. If it is meant, nothing is wrong.",
    severity="note",
)
UNTIED = Rule(
    name="head-not-tied",
    code="VT933",
    summary="The config says that head and embeddings are one matrix, or two; it is the other way.",
    why=(
        "Two that train under a tied config are both saved. Whoever loads the model by its config"
        " (servers, converters, earlier releases of transformers) takes one of them for the other:"
        " what the head has learnt is lost. One that trains under an untied config is saved once,"
        " without the head: transformers draws a new one at random when it loads."
    ),
    bad="model.lm_head.weight = model.model.embed_tokens.weight, and tie_word_embeddings=False",
    good="config.tie_word_embeddings as the model is, before the optimizer is made",
    fix=(
        "Set config.tie_word_embeddings to what the model does, or, for a tie that was lost, call"
        " tie_weights(), before the optimizer is made."
    ),
    severity="warning",
)

_UNCHOSEN = 0.01
"""The decay of torch's AdamW where nobody chose one: it is too small to report."""


def _decay(facts: Facts) -> CheckOutcome:
    stepped = facts.of("stepped")
    known = [group for one in stepped for group in one["groups"]]
    if not known:
        return CheckOutcome(not_run="the optimizer's groups were not seen")
    if not any(group["vectors"] for group in known):
        return CheckOutcome(not_run="the optimizer has no norms or biases of the model")
    if not any("weight_decay" in group for group in known):
        return CheckOutcome(not_run="the optimizer's groups have no weight_decay: it may be named")
    looked_at: dict[Unit, int] = {
        "groups": len(stepped[0]["groups"]),
        "tensors": max(int(group["vectors"]) for group in known),
    }
    decayed = [
        group for group in known if group["vectors"] and float(group["weight_decay"]) > _UNCHOSEN
    ]
    if not decayed:
        return CheckOutcome(looked_at=looked_at, measured={"groups": len(stepped[0]["groups"])})
    most = max(decayed, key=lambda group: int(group["vectors"]))
    decay = float(most["weight_decay"])
    message = f"{most['vectors']} norms and biases are in a group with weight_decay={decay:g}"
    measured = {"weight_decay": decay}
    return CheckOutcome((found(DECAY, message),), looked_at=looked_at, measured=measured)


def _untied(facts: Facts) -> CheckOutcome:
    model = facts.model
    if model["tie_meant"] is None:
        return CheckOutcome(not_run="the model's config does not say whether its head is tied")
    if not_null(model, "sharded") or model["mesh"]:
        return CheckOutcome(not_run="weights are in pieces")
    if bool(model["tie_meant"]) == bool(not_null(model, "tied")):
        return CheckOutcome(
            looked_at={"models": 1}, measured={"tied": bool(not_null(model, "tied"))}
        )
    if model["tied"]:
        does, says = "is the matrix of the embeddings", "tie_word_embeddings=False"
    else:
        does, says = "is a matrix of its own", "tie_word_embeddings=True"
    return CheckOutcome((found(UNTIED, f"{model.get('head')} {does}, and the config has {says}"),))


CHECKS = (
    WatchCheck(DECAY, "arrived", _decay, {"groups": 1, "tensors": 1}),
    WatchCheck(UNTIED, "arrived", _untied, {"models": 1}),
)
