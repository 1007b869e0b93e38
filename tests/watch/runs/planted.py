"""Runs with one mistake each, and the rule that is for it."""

from tests.watch.runs import (
    attention,
    changes,
    engines,
    frozen,
    grids,
    losses,
    masks,
    optimizers,
    orders,
    padding,
    scalers,
    scales,
    steps,
    values,
    weights,
)
from tests.watch.runs.expected import Planted, error, note, warning
from tests.watch.runs.loop import END, START

RUNS: dict[str, Planted] = {
    **scales.PLANTED,
    **attention.PLANTED,
    **frozen.PLANTED,
    **engines.PLANTED,
    "labels shifted twice": error("targets-not-next", collated=changes.shifted_labels),
    "labels shifted twice, bfloat16 autocast": error(
        "targets-not-next", collated=changes.shifted_labels, autocast=True
    ),
    "labels of another row": error("targets-not-next", collated=masks.labels_of_another_row),
    "labels not shifted": error("targets-not-next", loss=changes.unshifted),
    "rows flattened before they are shifted": error(
        "targets-not-next", loss=losses.flattened, data=changes.whole_rows
    ),
    "rows flattened before they are shifted, padded on the left": error(
        "targets-not-next", loss=losses.flattened, data=changes.whole_rows, padding="left", batch=3
    ),
    "the sign of gradients alone": warning(
        "gradients-clipped-by-value", before_step=values.sign_alone
    ),
    "gradients clipped by value, far below their size": warning(
        "gradients-clipped-by-value", before_step=values.clip_values(1e-6)
    ),
    "LoRA, with a tied head and its embedding trained as two": warning(
        "head-not-tied",
        config={"tie_word_embeddings": True},
        adapters=True,
        lora={"modules_to_save": ["embed_tokens", "lm_head"]},
    ),
    "a row of the embedding is zero, and clipped": warning(
        "token-without-values", built=values.row_of_zeros(START), clip=1.0
    ),
    "two rows of the embedding are zero": warning(
        "gradient-in-one-part",
        built=lambda model: [values.row_of_zeros(one)(model) for one in (START, END)],
        lr=1e-4,
    ),
    "a row of the embedding is zero, beneath adapters": warning(
        "token-without-values", built=values.row_of_zeros(START), adapters=True
    ),
    "a new token's row stays as a resize made it": warning(
        "token-without-values", built=values.row_at_mean(START), adapters=True
    ),
    "the gradient of one norm is ten thousand times what it was": warning(
        "gradient-in-one-part", before_step=values.one_tensor_times(1e4), clip=1.0
    ),
    "evaluation mode after a first evaluation": warning(
        "dropout-off", config={"attention_dropout": 0.1}, after_step=values.eval_after(0)
    ),
    "the tokens of an image learnt": error(
        "placeholder-learnt", data=changes.image_learnt, image=True
    ),
    "whole rows learnt, images too": error(
        "placeholder-learnt", data=changes.whole_rows, image=True
    ),
    "padding learnt": error("placeholder-learnt", collated=changes.padding_learnt),
    "padding learnt in rows that are filled up with a token that no config names": warning(
        "placeholder-learnt", config=padding.NO_PAD, collated=padding.all_learnt
    ),
    "the same, padded on the left": warning(
        "placeholder-learnt", config=padding.NO_PAD, collated=padding.all_learnt, padding="left"
    ),
    "the same, transformers' Trainer": warning(
        "placeholder-learnt", config=padding.NO_PAD, collated=padding.all_learnt, trainer="hf"
    ),
    "end tokens learnt that fill rows up": warning(
        "placeholder-learnt", config=padding.NO_PAD, collated=padding.filled_with(END)
    ),
    "end tokens learnt that fill rows up, without a mask": warning(
        "placeholder-learnt",
        config=padding.NO_PAD,
        collated=padding.filled_with(END, masked=False),
    ),
    "end tokens learnt that fill rows up, batches of four rows, bfloat16 autocast": warning(
        "placeholder-learnt",
        config=padding.NO_PAD,
        collated=padding.filled_with(END, masked=False),
        batch=4,
        autocast=True,
    ),
    "rows of one width, and what fills them up is learnt": warning(
        "placeholder-learnt",
        config=padding.NO_PAD,
        collated=padding.filled_with(9, masked=False, width=40),
    ),
    "rows of one width, one at a time, and what fills them up is learnt": warning(
        "placeholder-learnt",
        config=padding.NO_PAD,
        collated=padding.filled_with(9, masked=False, width=40),
        batch=1,
        accumulate=4,
    ),
    "padding learnt that the config calls by another name": warning(
        "placeholder-learnt", collated=padding.filled_with(END)
    ),
    "padding learnt that is the end token by the config": error(
        "placeholder-learnt", config=padding.PAD_IS_END, collated=padding.filled_with(END)
    ),
    "the mask the wrong way round": error("masked-tokens-learnt", collated=masks.mask_turned_round),
    "the mask the wrong way round, rows padded on the left": error(
        "masked-tokens-learnt", collated=masks.mask_turned_round, padding="left"
    ),
    "transformers' Trainer, the mask the wrong way round": error(
        "masked-tokens-learnt", trainer="hf", collated=masks.mask_turned_round
    ),
    "transformers' Trainer, the mask of another row": warning(
        "masked-tokens-learnt", trainer="hf", collated=masks.mask_of_another_row
    ),
    "the mask made from the labels": warning(
        "masked-tokens-learnt", collated=masks.without_prompts
    ),
    "each text begins twice": warning("special-token-doubled", data=masks.begin_twice),
    "each answer ends twice": warning("special-token-doubled", data=masks.end_twice),
    "nothing learnt on a rank, DDP": warning(
        "rank-learns-nothing", world=2, data=masks.nothing_of_every_second
    ),
    "of each batch the first row alone learnt": warning(
        "rank-learns-nothing", loss=losses.of_first_row
    ),
    "half of each answer left out": note("answer-partly-learnt", data=masks.half_of_answers),
    "the end token masked": warning("end-of-turn-not-learnt", data=changes.no_end),
    "each row cut off within its answer": warning("end-of-turn-not-learnt", data=masks.cut_off),
    "most rows cut off within their answer": note("answer-partly-learnt", data=masks.most_cut_off),
    "padding is the end token, and masked": warning(
        "end-of-turn-not-learnt", collated=changes.padding_is_end
    ),
    "the mask one token late": warning("answer-partly-learnt", data=changes.late_mask),
    "the mask one token early": warning("answer-partly-learnt", data=changes.early_mask),
    "parts of prompts learnt": warning("prompt-learnt", data=changes.part_of_prompt),
    "the header of answers learnt": warning("prompt-learnt", data=masks.headers_learnt),
    "whole rows learnt": note("prompt-learnt", data=changes.whole_rows),
    "the first answer alone": warning("answers-left-out", turns=3, data=changes.only_answer(0)),
    "the last answer alone": note("answers-left-out", turns=3, data=changes.only_answer(-1)),
    "a mean of means": error("token-weights-differ", divide=changes.mean_of_micro),
    "a mean of means, batches of one row": error(
        "token-weights-differ", divide=changes.mean_of_micro, batch=1, accumulate=3
    ),
    "a mean of means, rows of one length in each micro-batch": error(
        "token-weights-differ", divide=changes.mean_of_micro, data=changes.lengths_in_pairs
    ),
    "a mean of means, label smoothing": error(
        "token-weights-differ", loss=changes.with_smoothing, divide=changes.mean_of_micro
    ),
    "a mean of means, bfloat16 autocast": error(
        "token-weights-differ", divide=changes.mean_of_micro, autocast=True
    ),
    "a mean of means, bfloat16 weights": error(
        "token-weights-differ", divide=changes.mean_of_micro, dtype="bfloat16", lr=0.05
    ),
    "a mean of means, LoRA": error(
        "token-weights-differ", divide=changes.mean_of_micro, adapters=True
    ),
    "a mean of means, DDP": error("token-weights-differ", divide=changes.mean_of_micro, world=2),
    "a mean of each rank, DDP": error("token-weights-differ", divide=changes.mean_of_rank, world=2),
    "a mean of each rank, FSDP2": error(
        "token-weights-differ", divide=changes.mean_of_rank, world=2, engine="fsdp2"
    ),
    "transformers' Trainer, a loss that averages each micro-batch": error(
        "token-weights-differ", trainer="hf", own_loss=changes.hf_mean_of_means
    ),
    "transformers' Trainer, labels shifted twice": error(
        "targets-not-next", trainer="hf", collated=changes.shifted_labels
    ),
    "transformers' Trainer, the end token masked": warning(
        "end-of-turn-not-learnt", trainer="hf", data=changes.no_end
    ),
    "transformers' Trainer, label smoothing left over": note(
        "loss-has-another-term", trainer="hf", arguments={"label_smoothing_factor": 0.1}
    ),
    "transformers' Trainer, packed, a mask of ones": error(
        "row-changes-in-batch", trainer="hf", packed=True, collated=changes.mask_of_ones
    ),
    "transformers' Trainer, a mean over every position": error(
        "token-weights-differ", trainer="hf", own_loss=losses.hf_mean_of_all_positions
    ),
    "a mean of each row": note("token-weights-differ", loss=changes.mean_of_rows),
    "micro-batches not divided by their number": error(
        "gradient-scaled", divide=changes.not_divided
    ),
    "micro-batches divided twice": error("gradient-scaled", divide=changes.divided_twice),
    "not divided by ranks, DDP": error("gradient-scaled", divide=changes.not_by_world, world=2),
    "transformers' Trainer, not divided by accumulation, clipped": warning(
        "gradient-scaled",
        trainer="hf",
        own_loss=losses.hf_not_divided,
        data=losses.three_learnt,
        arguments={"max_grad_norm": 0.1},
    ),
    "not divided by micro-batches, clipped": warning(
        "gradient-scaled", divide=changes.not_divided, clip=0.1
    ),
    "not divided by micro-batches, clipped, DDP": warning(
        "gradient-scaled", divide=changes.not_divided, clip=0.1, world=2
    ),
    "gradients doubled on the way": error(
        "gradient-scaled", before_step=changes.scale_gradients(2.0)
    ),
    "a scaler applied twice": error("gradient-scaled", loss=scalers.scaled(2), made=scalers.steps),
    "a scaler whose gradients nobody divides": error("gradient-scaled", loss=scalers.scaled()),
    "a scaler's gradients divided twice": error(
        "gradient-scaled", loss=scalers.scaled(), made=scalers.steps, before_step=scalers.divide
    ),
    "a scaler's gradients clipped before they are divided": warning(
        "gradient-scaled", loss=scalers.scaled(), made=scalers.steps, clip=1.0
    ),
    "summed over ranks": error(
        "gradient-scaled", world=2, reduced=False, before_step=changes.summed_over_ranks
    ),
    "averaged over ranks twice": error(
        "gradient-scaled", world=2, before_step=changes.averaged_twice
    ),
    "the loss negated": error("tokens-unlearnt", loss=changes.negated),
    "the loss negated, bfloat16 autocast": error(
        "tokens-unlearnt", loss=changes.negated, autocast=True
    ),
    "the loss negated, a mean of means, DDP": error(
        "tokens-unlearnt", loss=changes.negated, divide=changes.mean_of_micro, world=2
    ),
    "the loss negated, LoRA": error("tokens-unlearnt", loss=changes.negated, adapters=True),
    "gradients negated": error("tokens-unlearnt", before_step=changes.scale_gradients(-1.0)),
    "gradients negated, DDP, clipped": error(
        "tokens-unlearnt", before_step=changes.scale_gradients(-1.0), world=2, clip=0.1
    ),
    "an optimizer that maximizes": error("tokens-unlearnt", optimizer=optimizers.maximizes),
    "label smoothing left over": note("loss-has-another-term", loss=changes.with_smoothing),
    "a z-loss": note("loss-has-another-term", loss=changes.with_z),
    "an entropy bonus": note("loss-has-another-term", loss=changes.with_entropy),
    "distillation": note("loss-not-read", loss=changes.distilled),
    "a cap that no config names": note("loss-not-read", loss=changes.hidden_cap),
    "the loss negated on a rank, DDP": warning(
        "rows-judged", world=2, loss=losses.negated_on_a_rank
    ),
    "a preference": note("rows-judged", loss=changes.preferred),
    "a rank's gradients changed": error(
        "gradients-differ-between-ranks", world=2, before_step=changes.scale_gradients(1.01, 1)
    ),
    "stale gradients on a rank": error(
        "gradients-differ-between-ranks", world=2, before_step=optimizers.of_step_before_on_a_rank
    ),
    "stale gradients on a rank, reduced with the others": error(
        "gradient-of-other-rows", world=2, made=optimizers.stale_on_a_rank
    ),
    "gradients never reduced": error("gradients-differ-between-ranks", world=2, reduced=False),
    "replicas drawn apart": error(
        "replicas-drift",
        world=2,
        reduced=False,
        built=changes.own_seed,
        before_step=changes.averaged_over_ranks,
    ),
    "zero_grad forgotten": error("gradient-of-other-rows", zero=False),
    "a micro-batch lost": error(
        "gradient-of-other-rows", after_backward=changes.lose_first_micro, accumulate=3
    ),
    "each rank clipped by its own norm before ranks are reduced": error(
        "gradient-of-other-rows", world=2, reduced=False, before_step=steps.clip_own
    ),
    "noise on gradients": error("gradient-of-other-rows", before_step=changes.noise),
    "a gradient of other coordinates": error(
        "gradient-of-other-rows", before_step=changes.norm_elsewhere
    ),
    "gradients of the first layer halved": warning(
        "layers-scaled-apart", before_step=changes.halve_first_layer
    ),
    "gradients of the first layer halved, bfloat16 weights": warning(
        "layers-scaled-apart", before_step=changes.halve_first_layer, dtype="bfloat16", lr=0.05
    ),
    "gradients of the first layer halved, DDP, clipped": warning(
        "layers-scaled-apart", before_step=changes.halve_first_layer, world=2, clip=0.1
    ),
    "a gradient that is not a number": error(
        "gradient-not-finite", after_backward=changes.not_a_number
    ),
    "transformers' Trainer, a loss that is not a number, which its log hides": error(
        "gradient-not-finite",
        trainer="hf",
        batch=1,
        accumulate=1,
        steps=3,
        own_loss=losses.hf_mean_by_mask,
        data=masks.nothing_of_some_rows,
    ),
    "weights shrunk in a hook": error(
        "step-not-the-optimizers", made=changes.post_hook(changes.shrink_weights)
    ),
    "an average copied back": error(
        "step-not-the-optimizers", made=changes.post_hook(changes.average_weights)
    ),
    "an average copied back between steps": warning(
        "step-not-the-optimizers", made=steps.remember_first, after_step=steps.average_back
    ),
    "an average copied back between steps, that begins as a copy": warning(
        "step-not-the-optimizers", after_step=steps.average_back, steps=6
    ),
    "weights shrunk between steps": note(
        "step-not-the-optimizers", after_step=changes.shrink_weights
    ),
    "moments thrown away after each step": warning(
        "step-not-the-optimizers", after_step=steps.throw_moments_away
    ),
    "each gradient stepped twice": error("gradient-stepped-twice", made=steps.twice, steps=4),
    "all parameters in two optimizers": error("gradient-stepped-twice", made=steps.by_another_too),
    "betas dropped": error("step-not-the-optimizers", made=changes.other_betas),
    "bfloat16 weights, a small rate": warning(
        "updates-lost-in-rounding", dtype="bfloat16", lr=1e-5
    ),
    "a frozen layer moved": error(
        "frozen-parameter-moved",
        built=changes.freeze_first_layer,
        made=changes.post_hook(changes.touch_frozen),
    ),
    "a layer in no group": error("parameter-in-no-group", parameters=changes.without_last_layer),
    "norms in no group": error("parameter-in-no-group", parameters=changes.without_norms),
    "a part replaced behind the optimizer": error("parameter-in-no-group", made=changes.new_head),
    "all weights replaced behind the optimizer": error(
        "parameter-in-no-group", made=changes.new_weights
    ),
    "a part that nothing uses": note("parameter-without-gradient", built=changes.unused),
    "a layer without a gradient": warning(
        "parameter-without-gradient", built=steps.layer_without_gradient
    ),
    "images that no gradient comes to": warning(
        "parameter-without-gradient", image=True, vision=True, built=steps.detach_images
    ),
    "the head cut off from the layers": warning(
        "parameter-without-gradient", built=steps.detach_head
    ),
    "a function of the loss that gives hidden states no gradient": error(
        "parameter-without-gradient", built=steps.head_without_gradient
    ),
    "LoRA, the second matrix frozen at zero": warning(
        "parameter-without-gradient", adapters=True, built=steps.freeze_second_matrix
    ),
    "an optimizer of a copy of the model": warning(
        "parameter-without-gradient", parameters=steps.of_a_copy
    ),
    "LoRA, the second matrix set to zero again": warning(
        "parameter-stopped-moving", adapters=True, after_step=steps.no_second_matrix
    ),
    "a group without a learning rate": note(
        "parameter-stopped-moving", optimizer=steps.group_without_rate
    ),
    "old weights written back": warning(
        "parameter-stopped-moving", made=weights.remember, after_step=weights.write_back
    ),
    "old weights written back, FSDP2": warning(
        "parameter-stopped-moving",
        made=weights.remember,
        after_step=weights.write_back,
        world=2,
        engine="fsdp2",
    ),
    "old weights written back, LoRA": warning(
        "parameter-stopped-moving",
        made=weights.remember,
        after_step=weights.write_back,
        adapters=True,
    ),
    "old weights written back once": note(
        "parameter-stopped-moving", made=weights.remember, after_step=weights.write_back_once
    ),
    "a layer stepped once and no more": error(
        "step-not-the-optimizers", made=weights.leave_a_layer_out
    ),
    "a rate that falls to nearly nought": warning(
        "parameter-stopped-moving",
        epochs=True,
        batch=1,
        accumulate=2,
        every=1,
        after_step=changes.rate_of_nearly_nought,
    ),
    "a rate of nought": warning("parameter-stopped-moving", lr=0.0),
    "decay on norms": note("decay-on-norms", optimizer=optimizers.decays_all),
    "a tied head that is a matrix of its own": warning(
        "head-not-tied", config={"tie_word_embeddings": True}, built=weights.untie
    ),
    "a head that is the embeddings, and no config says so": warning(
        "head-not-tied", config={"tie_word_embeddings": False}, built=weights.tie
    ),
    "padding on the left that the mask has not": error(
        "row-changes-in-batch", padding="left", collated=changes.mask_of_ones
    ),
    "padding seen": error("row-changes-in-batch", padding="left", collated=changes.no_mask),
    "a mask of four dimensions that forgets the padding": error(
        "row-changes-in-batch", built=masks.padding_unmasked, padding="left"
    ),
    "packed, a mask of four dimensions, positions further apart from text to text": error(
        "row-positions-differ", packed=True, collated=masks.blocks_of_wide_positions
    ),
    "packed, a mask of ones": error(
        "row-changes-in-batch", packed=True, collated=changes.mask_of_ones
    ),
    "packed, a mask of ones, bfloat16 autocast": error(
        "row-changes-in-batch", packed=True, collated=changes.mask_of_ones, autocast=True
    ),
    "images of other rows": error(
        "row-changes-in-batch", image=True, vision=True, built=changes.images_of_other_rows
    ),
    "images without mm_token_type_ids": error(
        "image-positions-differ", image=True, grids=True, collated=grids.without_types
    ),
    "text behind an image at other positions": error(
        "image-positions-differ", image=True, grids=True, built=grids.text_behind_moved
    ),
    "every position 0": error("row-positions-differ", collated=masks.positions_of_nought),
    "a mask of four dimensions that is not causal": error(
        "targets-seen", collated=masks.seen_both_ways
    ),
    "attention that is not causal": error(
        "targets-seen", built=masks.not_causal, collated=changes.no_mask, batch=1
    ),
    "positions two apart": error("row-positions-differ", collated=changes.stretched_positions),
    "a position twice": error("row-positions-differ", collated=changes.one_position_twice),
    "rows drawn with replacement": warning(
        "rows-seen-unevenly", epochs=True, order=changes.with_replacement, batch=1
    ),
    "a row repeated in one of two epochs, and another left out": warning(
        "rows-seen-unevenly", epochs=True, order=orders.one_for_another
    ),
    "a row repeated in each epoch, and another left out": warning(
        "rows-seen-unevenly", epochs=True, order=orders.always_one_for_another
    ),
    "the same rows left out of three epochs": warning(
        "rows-seen-unevenly", epochs=True, order=orders.never_the_last
    ),
    "half of the data twice": note(
        "rows-seen-unevenly", epochs=True, data=changes.repeated, order=changes.shuffled
    ),
    "two epochs in one shuffled order": warning(
        "epochs-in-one-order", epochs=True, shuffled=True, order=changes.shuffled
    ),
    "each row twice in an epoch, and half of them left out": warning(
        "rows-seen-unevenly", epochs=True, order=orders.pairs_of_half
    ),
    "shares of ranks that overlap": warning(
        "ranks-see-same-rows", world=2, steps=6, order=orders.overlapping
    ),
    "the same rows on each rank": error("ranks-see-same-rows", world=2, order=changes.all_rows),
}
