"""Runs of TRL's trainers of preferences: healthy ones, and ones with a mistake each."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from tests.watch.preferences import heirs, loops, made, mistakes
from tests.watch.preferences.mistakes import Setting

Plant = Callable[[Setting], None]


@dataclass(frozen=True)
class Run:
    """One training: a trainer, its arguments, and what is done to it before it trains."""

    kind: str = "dpo"
    arguments: Mapping[str, Any] = field(default_factory=dict)
    lora: str = ""
    """`new`: adapters that the trainer makes; `old`: a model that has some already."""
    ranks: int = 1
    plant: Plant | None = None
    images: bool = False
    """A vision-language model, and an image in each prompt."""
    reference: str = ""
    """`copy`: a copy is given to the trainer; `other`: another model."""
    heir: Callable[[type], type] | None = None
    """Changes the trainer's class."""
    rows: Callable[[list[dict[str, Any]]], Any] | None = None
    """Changes the pairs, or makes a data set of another kind of them."""
    before: Mapping[str, Any] | None = None
    """Arguments of another trainer of the same model, which trains before and stays alive."""


@dataclass(frozen=True)
class Planted:
    """A run with a mistake, and the rule that finds it."""

    run: Run
    rule: str
    severity: str = "error"
    also: tuple[str, ...] = ()
    """Other rules that find it as well."""


@dataclass(frozen=True)
class Unseen:
    """A run in which some rules must not pass, though they need not find anything."""

    run: Run
    rules: tuple[str, ...]


def _dpo(kind: str, **arguments: Any) -> Run:
    return Run(arguments={"loss_type": kind, **arguments})


_SIGMOIDS = ("hinge", "ipo", "nca_pair", "bco_pair", "sppo_hard", "apo_zero", "apo_down")
HEALTHY: Mapping[str, Run] = {
    "DPO": Run(),
    "DPO, one micro-batch": Run(arguments={"gradient_accumulation_steps": 1}),
    "DPO, four micro-batches": Run(arguments={"gradient_accumulation_steps": 4}),
    "DPO, one pair a micro-batch": Run(arguments={"per_device_train_batch_size": 1}),
    "DPO, a short step": Run(arguments={"gradient_accumulation_steps": 5, "max_steps": 6}),
    "DPO, bfloat16 autocast": Run(arguments={"bf16": True}),
    "DPO, beta 0.5": Run(arguments={"beta": 0.5}),
    "DPO, a small rate": Run(arguments={"learning_rate": 1e-6}),
    "DPO, a warm-up": Run(arguments={"warmup_steps": 2}),
    "DPO, clipped": Run(arguments={"max_grad_norm": 1e-3}),
    "DPO, LoRA": Run(lora="new"),
    "DPO, LoRA, bfloat16 autocast": Run(lora="new", arguments={"bf16": True}),
    "DPO, LoRA, a small rate": Run(lora="new", arguments={"learning_rate": 1e-6}),
    "DPO, adapters that were trained": Run(lora="old"),
    "DPO, a reference that is given": Run(reference="copy"),
    "DPO, another model as its reference": Run(reference="other"),
    "DPO, a reference that follows": Run(
        arguments={"sync_ref_model": True, "ref_model_sync_steps": 1}
    ),
    "DPO, reference computed before": Run(arguments={"precompute_ref_log_probs": True}),
    "DPO, rows cut off": Run(arguments={"max_length": 12}),
    "DPO, no gradient checkpointing": Run(arguments={"gradient_checkpointing": False}),
    "DPO, evaluated": Run(plant=mistakes.evaluate),
    "DPO, two ranks": Run(ranks=2),
    "DPO, images": Run(images=True),
    "DPO, images, LoRA": Run(images=True, lora="new"),
    **{f"DPO, {kind}": _dpo(kind) for kind in _SIGMOIDS},
    "DPO, aot": _dpo("aot"),
    "DPO, aot_unpaired": _dpo("aot_unpaired"),
    "DPO, discopop": _dpo("discopop"),
    "DPO, sigmoid_norm": _dpo("sigmoid_norm"),
    "DPO, robust": _dpo("robust", label_smoothing=0.1),
    "DPO, exo_pair": _dpo("exo_pair", label_smoothing=1e-3),
    "DPO, label smoothing": Run(arguments={"label_smoothing": 0.1}),
    "DPO, a loss of three (MPO)": Run(
        arguments={"loss_type": ["sigmoid", "bco_pair", "sft"], "loss_weights": [0.8, 0.2, 1.0]}
    ),
    "DPO, with another divergence": Run(arguments={"f_divergence_type": "js_divergence"}),
    "DPO, LD-DPO": Run(arguments={"ld_alpha": 0.5}),
    "DPO, WPO": Run(arguments={"use_weighting": True}),
    "KTO": Run("kto"),
    "KTO, four micro-batches": Run("kto", {"gradient_accumulation_steps": 4}),
    "KTO, LoRA": Run("kto", lora="new"),
    "KTO, weights by label": Run("kto", {"desirable_weight": 1.5, "undesirable_weight": 0.5}),
    "KTO, apo_zero_unpaired": Run("kto", {"loss_type": "apo_zero_unpaired"}),
    "KTO, bfloat16 autocast": Run("kto", {"bf16": True}),
    "CPO": Run("cpo"),
    "CPO, four micro-batches": Run("cpo", {"gradient_accumulation_steps": 4}),
    "CPO, answers are not copied": Run("cpo", {"cpo_alpha": 0.0}),
    "CPO, SimPO": Run("cpo", {"loss_type": "simpo", "cpo_alpha": 0.0}),
    "CPO, SimPO and copied answers": Run("cpo", {"loss_type": "simpo"}),
    "CPO, ipo": Run("cpo", {"loss_type": "ipo"}),
    "CPO, hinge": Run("cpo", {"loss_type": "hinge"}),
    "CPO, AlphaPO": Run("cpo", {"loss_type": "alphapo", "alpha": 0.1}),
    "CPO, label smoothing": Run("cpo", {"label_smoothing": 0.1}),
    "CPO, bfloat16 autocast": Run("cpo", {"bf16": True}),
    "ORPO": Run("orpo"),
    "ORPO, four micro-batches": Run("orpo", {"gradient_accumulation_steps": 4}),
    "ORPO, LoRA": Run("orpo", lora="new"),
    "DPO, a pass for each side": Run(heir=heirs.a_pass_for_each_side),
    "DPO, a pass for each side, a template": Run(
        heir=heirs.a_pass_for_each_side, rows=made.with_a_template
    ),
    "DPO, a pass for each side, a begin token": Run(
        heir=heirs.a_pass_for_each_side, rows=made.with_a_begin
    ),
    "DPO, a pass for each side, one micro-batch": Run(
        arguments={"gradient_accumulation_steps": 1}, heir=heirs.a_pass_for_each_side
    ),
    "DPO, a pass for each side, more rows": Run(
        arguments={"per_device_train_batch_size": 4},
        heir=heirs.a_pass_for_each_side,
        rows=made.with_a_template,
    ),
    "DPO, sides in turn": Run(heir=heirs.sides_in_turn),
    "DPO, sides in turn, a template, streamed": Run(
        heir=heirs.sides_in_turn,
        rows=lambda rows: made.with_a_template(rows).to_iterable_dataset(),
    ),
    "DPO, one pair a step": Run(
        arguments={"per_device_train_batch_size": 1, "gradient_accumulation_steps": 1}
    ),
    "DPO, one pair a step, another model as its reference": Run(
        arguments={"per_device_train_batch_size": 1, "gradient_accumulation_steps": 1},
        reference="other",
    ),
    "DPO, another trainer before": Run(arguments={"beta": 0.5}, before={"beta": 0.1}),
    "DPO, copied answers in a loss of its own": Run(heir=heirs.copies_too),
    "DPO, copied answers in a loss of its own, one pass": Run(heir=heirs.copies_in_one_pass),
    "DPO, streamed": Run(rows=made.streamed),
    "DPO, the same loss in an heir": Run(heir=heirs.equal),
    "DPO, LoRA, bfloat16 weights": Run(heir=heirs.in_bfloat16, lora="new"),
    "DPO, dropout": Run(arguments={"disable_dropout": False}, heir=heirs.drops_out),
    "DPO, LoRA, dropout": Run(
        arguments={"disable_dropout": False}, heir=heirs.drops_out, lora="new"
    ),
    "DPO, prompts that come again": Run(rows=made.with_few_prompts),
    "DPO, answers on both sides": Run(rows=made.with_answers_of_both_sides),
    "DPO, answers of a word": Run(rows=made.with_short_answers),
    "DPO, answers of one length": Run(rows=made.with_even_answers),
    "DPO, no prompt of its own": Run(rows=made.with_implicit_prompts),
    "DPO, copied answers": Run(arguments={"loss_type": ["sigmoid", "sft"]}),
    "DPO, cut at the begin": Run(arguments={"max_length": 12, "truncation_mode": "keep_end"}),
    "DPO, alpha_divergence": Run(arguments={"f_divergence_type": "alpha_divergence"}),
    "DPO, LoRA, reference computed before": Run(
        arguments={"precompute_ref_log_probs": True}, lora="new"
    ),
    "DPO, LoRA, two ranks": Run(ranks=2, lora="new"),
    "DPO, tied embeddings": Run(heir=heirs.ties),
    "KTO, reference computed before": Run("kto", {"precompute_ref_log_probs": True}),
    "KTO, one micro-batch": Run("kto", {"gradient_accumulation_steps": 1}),
    "KTO, streamed": Run("kto", rows=lambda rows: made.data("kto", rows).to_iterable_dataset()),
    "KTO, answers of both labels": Run(
        "kto", rows=lambda rows: made.data("kto", [*made.with_answers_of_both_sides(rows)])
    ),
    "KTO, two ranks": Run("kto", ranks=2),
    "CPO, LoRA": Run("cpo", lora="new"),
    "CPO, one pair a step": Run(
        "cpo", {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 1}
    ),
    "ORPO, bfloat16 autocast": Run("orpo", {"bf16": True}),
    "ORPO, one pair a step": Run(
        "orpo", {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 1}
    ),
    "CPO, two ranks": Run("cpo", ranks=2),
    "DPO, very many rows": Run(rows=made.many),
    "DPO, 80 rows": Run(arguments={"per_device_train_batch_size": 40}, rows=made.many),
    "GRPO": Run("grpo"),
    "RLOO": Run("rloo"),
}

_SCALED, _SIDES, _REFERENCE = "preference-scaled", "preference-sides", "preference-reference"
_FOUR = {"gradient_accumulation_steps": 4}
_BOTH = ("placeholder-learnt",)


def _scaled(kind: str, plant: Plant, severity: str = "error", **more: Any) -> Planted:
    arguments = {**_FOUR, **more.pop("arguments", {})}
    return Planted(Run(kind, arguments, plant=plant, **more), _SCALED, severity)


def _edited(
    heir: Callable[[type], type], arguments: Mapping[str, Any] = MappingProxyType({})
) -> Planted:
    return Planted(Run(arguments={**_FOUR, **arguments}, heir=heir), _SCALED, "warning")


PLANTED: Mapping[str, Planted] = {
    "DPO, not divided by its micro-batches": _scaled("dpo", mistakes.not_divided),
    "DPO, bfloat16, not divided by its micro-batches": _scaled(
        "dpo", mistakes.not_divided, arguments={"bf16": True}
    ),
    "DPO, LoRA, not divided by its micro-batches": _scaled("dpo", mistakes.not_divided, lora="new"),
    "DPO, divided twice": _scaled("dpo", mistakes.divided_twice),
    "DPO, hinge, not divided by its micro-batches": _scaled(
        "dpo", mistakes.not_divided, arguments={"loss_type": "hinge"}
    ),
    "DPO, ipo, not divided by its micro-batches": _scaled(
        "dpo", mistakes.not_divided, arguments={"loss_type": "ipo"}
    ),
    "DPO, two ranks, multiplied by them": _scaled("dpo", mistakes.times_ranks, ranks=2),
    "DPO, another beta": _scaled("dpo", mistakes.another_beta, "warning"),
    "DPO, bfloat16, another beta in the loss": _scaled(
        "dpo", mistakes.beta_in_the_loss, "warning", arguments={"bf16": True}
    ),
    "DPO, references crossed": _edited(heirs.references_crossed),
    "DPO, divided by its tokens": _edited(heirs.divided_by_tokens),
    "DPO, divided by its pairs twice": _edited(heirs.divided_by_pairs),
    "KTO, weights exchanged": Planted(
        Run(
            "kto",
            {"desirable_weight": 1.5, "undesirable_weight": 0.5},
            heir=heirs.weights_exchanged,
        ),
        _SCALED,
        "error",
    ),
    "DPO, a sum over pairs": _scaled("dpo", mistakes.sum_over_pairs, "warning"),
    "KTO, not divided by its micro-batches": _scaled("kto", mistakes.not_divided),
    "KTO, another beta": _scaled("kto", mistakes.another_beta, "warning"),
    "CPO, not divided by its micro-batches": _scaled("cpo", mistakes.not_divided),
    "CPO, another beta": _scaled("cpo", mistakes.another_beta, "warning"),
    "CPO, SimPO, not divided by its micro-batches": _scaled(
        "cpo", mistakes.not_divided, arguments={"loss_type": "simpo", "cpo_alpha": 0.0}
    ),
    "ORPO, not divided by its micro-batches": _scaled("orpo", mistakes.not_divided),
    "ORPO, another beta": _scaled("orpo", mistakes.another_beta, "warning"),
    "DPO, sides swapped by the collator": Planted(Run(plant=mistakes.swapped), _SIDES),
    "DPO, sides swapped in the loss": Planted(Run(plant=mistakes.negated), _SIDES),
    "DPO, both sides up": Planted(Run(plant=mistakes.both_up), _SIDES),
    "DPO, means for sums": Planted(Run(plant=mistakes.means), _SIDES),
    "DPO, bfloat16, means for sums": Planted(
        Run(arguments={"bf16": True}, plant=mistakes.means), _SIDES
    ),
    "DPO, means in the stock loss": Planted(Run(heir=heirs.means), _SIDES),
    "DPO, sides swapped in some micro-batches": Planted(
        Run(arguments=_FOUR, plant=mistakes.sometimes_swapped), _SIDES
    ),
    "DPO, very many rows, sides swapped": Planted(
        Run(rows=made.many, plant=mistakes.swapped), _SIDES
    ),
    "DPO, one side twice": Planted(
        Run(plant=mistakes.one_side_twice), _SIDES, "warning", also=(_SCALED,)
    ),
    "DPO, prompts judged": Planted(Run(plant=mistakes.prompts), _SIDES),
    "DPO, padding judged": Planted(Run(plant=mistakes.padding), _SIDES, also=_BOTH),
    "DPO, images of another pair": Planted(Run(images=True, plant=mistakes.images_crossed), _SIDES),
    "DPO, each image twice running": Planted(
        Run(images=True, plant=mistakes.images_repeated), _SIDES, "warning"
    ),
    "DPO, one image for all": Planted(
        Run(images=True, plant=mistakes.one_image), _SIDES, "warning"
    ),
    "DPO, images of one side alone": Planted(
        Run(images=True, plant=mistakes.other_images), _SIDES, "warning"
    ),
    "DPO, the chosen answer on both sides": Planted(
        Run(plant=mistakes.chosen_twice), _SIDES, "warning"
    ),
    "KTO, labels swapped": Planted(Run("kto", plant=mistakes.labels_swapped), _SIDES),
    "KTO, means for sums": Planted(Run("kto", plant=mistakes.means), _SIDES),
    "KTO, prompts judged": Planted(Run("kto", plant=mistakes.prompts), _SIDES),
    "KTO, padding judged": Planted(Run("kto", plant=mistakes.padding), _SIDES, also=_BOTH),
    "KTO, some prompts judged": Planted(Run("kto", plant=mistakes.some_prompts), _SIDES),
    "DPO, some prompts judged": Planted(Run(plant=mistakes.some_prompts), _SIDES),
    "DPO, prompts judged in some micro-batches": Planted(
        Run(arguments=_FOUR, plant=mistakes.sometimes_prompts), _SIDES
    ),
    "DPO, another beta in the trainer of an heir": Planted(
        Run(heir=heirs.beta_of_its_own), _SCALED, "warning"
    ),
    "DPO, means in a loss of its own": Planted(Run(heir=heirs.means_in_its_own), _SIDES, "warning"),
    "DPO, sides swapped in a loss of its own": Planted(Run(heir=heirs.swaps), _SIDES),
    "DPO, prompts of one side judged": Planted(Run(plant=mistakes.prompts_of_chosen), _SIDES),
    "DPO, LoRA, sides swapped": Planted(Run(lora="new", plant=mistakes.swapped), _SIDES),
    "DPO, bfloat16, sides swapped": Planted(
        Run(arguments={"bf16": True}, plant=mistakes.swapped), _SIDES
    ),
    "DPO, ipo of sums": Planted(
        Run(arguments={"loss_type": "ipo"}, heir=heirs.ipo_of_sums), _SIDES
    ),
    "DPO, hinge, means for sums": Planted(
        Run(arguments={"loss_type": "hinge"}, heir=heirs.means), _SIDES
    ),
    "CPO, sides swapped": Planted(Run("cpo", plant=mistakes.columns_swapped), _SIDES),
    "ORPO, sides swapped": Planted(Run("orpo", plant=mistakes.columns_swapped), _SIDES),
    "CPO, SimPO, sides swapped": Planted(
        Run("cpo", {"loss_type": "simpo"}, plant=mistakes.columns_swapped), _SIDES
    ),
    "CPO, prompts judged": Planted(Run("cpo", plant=mistakes.labels_of_prompts), _SIDES),
    "CPO, means for sums": Planted(Run("cpo", {"cpo_alpha": 0.0}, heir=heirs.means_of_cpo), _SIDES),
    "ORPO, sums for means": Planted(Run("orpo", heir=heirs.sums_of_orpo), _SCALED, "warning"),
    "CPO, SimPO of sums": Planted(
        Run("cpo", {"loss_type": "simpo", "cpo_alpha": 0.0}, plant=mistakes.simpo_of_sums), _SIDES
    ),
    "DPO, the policy as its reference": Planted(Run(plant=mistakes.itself), _REFERENCE),
    "DPO, a reference that shares layers": Planted(Run(plant=mistakes.shares), _REFERENCE),
    "DPO, a reference that is copied anew": Planted(Run(plant=mistakes.copied_anew), _REFERENCE),
    "DPO, a reference that is trained": Planted(Run(plant=mistakes.trained), _REFERENCE),
    "DPO, a reference that drifts": Planted(Run(plant=mistakes.drifts), _REFERENCE, "warning"),
    "DPO, the policy's own log-probabilities": Planted(Run(plant=mistakes.own_logps), _REFERENCE),
    "KTO, bfloat16, another beta": Planted(
        Run("kto", {"bf16": True}, plant=mistakes.beta_in_the_loss), _SCALED, "warning"
    ),
    "CPO, bfloat16, not divided by its micro-batches": _scaled(
        "cpo", mistakes.not_divided, arguments={"bf16": True}
    ),
    "DPO, half of beta": Planted(Run(heir=heirs.beta_is(0.5)), _SCALED, "error"),
    "DPO, four micro-batches, beta a fifth too large": _edited(heirs.beta_is(1.2)),
    "DPO, LoRA, one pair a step, another beta": Planted(
        Run(
            arguments={"per_device_train_batch_size": 1, "gradient_accumulation_steps": 1},
            lora="new",
            heir=heirs.beta_is(3),
        ),
        _SCALED,
        "warning",
    ),
    "DPO, LoRA, norms trained beside": Planted(
        Run(lora="new", plant=mistakes.norms_trained), _REFERENCE
    ),
    "DPO, LoRA, a reference with its adapters": Planted(
        Run(lora="new", plant=mistakes.adapters_on), _REFERENCE
    ),
    "KTO, LoRA, a reference with its adapters": Planted(
        Run("kto", lora="new", plant=mistakes.adapters_on), _REFERENCE
    ),
    "KTO, the policy as its reference": Planted(Run("kto", plant=mistakes.itself), _REFERENCE),
}

_RULES = (_SCALED, _SIDES, _REFERENCE)
UNSEEN: Mapping[str, Unseen] = {
    **{f"a loop, {how}": Unseen(Run("loop", {"how": how}), _RULES) for how in loops.LAYOUTS},
    "DPO, the policy as the reference of a loss of its own": Unseen(
        Run(heir=heirs.of_itself), (_REFERENCE,)
    ),
    "DPO, a detached pass as the reference": Unseen(
        Run(heir=heirs.of_a_detached_pass), (_REFERENCE,)
    ),
    "DPO, bfloat16, a detached pass as the reference": Unseen(
        Run(arguments={"bf16": True}, heir=heirs.of_a_detached_pass), (_REFERENCE,)
    ),
    "DPO, another beta, label smoothing": Unseen(
        Run(arguments={"label_smoothing": 0.1}, heir=heirs.beta_is(0.8)), (_SCALED,)
    ),
    "DPO, reference of other rows": Unseen(
        Run(arguments={"precompute_ref_log_probs": True}, plant=mistakes.reference_of_others),
        (_SCALED, _REFERENCE),
    ),
    "DPO, sides swapped in some micro-batches, in a loss of its own": Unseen(
        Run(arguments=_FOUR, heir=heirs.equal, plant=mistakes.sometimes_swapped), (_SIDES,)
    ),
    "DPO, streamed, sides swapped": Unseen(
        Run(rows=made.streamed, plant=mistakes.swapped), (_SIDES,)
    ),
    "DPO, streamed, prompts judged": Unseen(
        Run(rows=made.streamed, plant=mistakes.prompts), (_SIDES,)
    ),
    "DPO, 80 rows, not divided": Unseen(
        Run(
            arguments={"per_device_train_batch_size": 40},
            rows=made.many,
            plant=mistakes.not_divided,
        ),
        (_SCALED,),
    ),
    "DPO, 80 rows, sides swapped": Unseen(
        Run(arguments={"per_device_train_batch_size": 40}, rows=made.many, plant=mistakes.swapped),
        (_SIDES,),
    ),
    "DPO, copied answers in a loss of its own": Unseen(
        Run(heir=heirs.copies_too), (_SCALED, _SIDES)
    ),
    "DPO, images of another pair on both sides": Unseen(
        Run(images=True, plant=mistakes.all_images_crossed), (_SIDES,)
    ),
}
