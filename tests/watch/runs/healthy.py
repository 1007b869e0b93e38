"""Runs in which nothing is wrong: neither an error nor a warning may be found in them."""

from tests.watch.runs import (
    attention,
    changes,
    copies,
    engines,
    frozen,
    masks,
    optimizers,
    orders,
    padding,
    scalers,
    steps,
    values,
    weights,
)
from tests.watch.runs.loop import FAMILIES, IMAGE, PAD, START, Recipe

RUNS: dict[str, Recipe] = {
    **engines.HEALTHY,
    **{f"{family}, float32": Recipe(family=family) for family in FAMILIES},
    **{
        f"{family}, bfloat16 autocast": Recipe(family=family, autocast=True)
        for family in ("qwen2", "gemma2", "granite", "llama", "mixtral")
    },
    "bfloat16 weights, a large rate": Recipe(dtype="bfloat16", lr=0.05),
    "float64 weights": Recipe(dtype="float64"),
    "one micro-batch a step": Recipe(accumulate=1),
    "five micro-batches a step": Recipe(accumulate=5),
    "batches of one row": Recipe(batch=1, accumulate=3),
    "batches of four rows": Recipe(batch=4),
    "left padding": Recipe(padding="left", collated=changes.positions_of_mask),
    "left padding, whole rows learnt": Recipe(
        padding="left", collated=changes.positions_of_mask, data=changes.whole_rows
    ),
    "a mask that counts texts": Recipe(collated=masks.mask_that_counts),
    "a mask of four dimensions": Recipe(collated=masks.mask_of_four_dimensions),
    "a mask of four dimensions, left padding": Recipe(
        collated=masks.mask_of_four_dimensions, padding="left"
    ),
    "packed rows, a mask of four dimensions": Recipe(packed=True, collated=masks.blocks),
    "left padding, bfloat16 autocast": Recipe(
        padding="left", collated=changes.positions_of_mask, autocast=True
    ),
    "packed rows": Recipe(packed=True),
    "packed rows, bfloat16 autocast": Recipe(packed=True, autocast=True),
    "packed rows, eager attention": Recipe(packed=True, attention="eager"),
    "packed rows, bfloat16 weights": Recipe(packed=True, dtype="bfloat16", lr=0.05),
    "eager attention": Recipe(attention="eager"),
    "gradient checkpointing": Recipe(checkpointing=True),
    "gradient checkpointing, packed": Recipe(checkpointing=True, packed=True),
    "clipped": Recipe(clip=0.1),
    "clipped, bfloat16 weights": Recipe(clip=0.1, dtype="bfloat16", lr=0.05),
    "clipped, accumulated, bfloat16 autocast": Recipe(clip=0.1, accumulate=3, autocast=True),
    "a few values clipped": Recipe(before_step=values.clip_values(0.01)),
    "with dropout": Recipe(config={"attention_dropout": 0.1}),
    "whole rows, padded on the left, three at once": Recipe(
        data=changes.whole_rows, padding="left", batch=3
    ),
    "each part clipped by itself": Recipe(before_step=changes.clip_each),
    "each part clipped by itself, bfloat16 weights": Recipe(
        before_step=changes.clip_each, dtype="bfloat16", lr=0.05
    ),
    "a loss scaler": Recipe(loss=scalers.scaled(), made=scalers.steps),
    "a loss scaler, bfloat16 autocast": Recipe(
        loss=scalers.scaled(), made=scalers.steps, autocast=True
    ),
    "a loss scaler, divided and then clipped": Recipe(
        loss=scalers.scaled(),
        made=scalers.steps_and_clips,
        before_step=scalers.clip_unscaled(0.1),
    ),
    "gradients divided, then clipped": Recipe(
        divide=changes.not_divided, before_step=optimizers.divide_and_clip
    ),
    "gradients divided, then clipped, DDP": Recipe(
        divide=changes.not_divided, before_step=optimizers.divide_and_clip, world=2
    ),
    "the loss a sum, gradients divided and then clipped": Recipe(
        divide=lambda tokens, index, everyone, world: 1.0,
        before_step=optimizers.divide_and_clip,
    ),
    "clipped element by element": Recipe(before_step=optimizers.clip_elements),
    "old weights evaluated, and the new ones put back": Recipe(
        made=weights.remember, after_step=weights.swap
    ),
    "adapters merged for an evaluation": Recipe(adapters=True, after_step=weights.merge),
    "adapters merged for an evaluation, bfloat16 weights": Recipe(
        adapters=True,
        dtype="bfloat16",
        lr=0.05,
        built=frozen.first_values,
        after_step=weights.merge,
    ),
    "DoRA, merged for an evaluation": Recipe(
        adapters=True, lora={"use_dora": True}, after_step=weights.merge
    ),
    "two adapters, merged for an evaluation": Recipe(
        adapters=True, built=frozen.second_adapter, after_step=frozen.merge_both
    ),
    "adapters switched off for a reference": Recipe(
        adapters=True, after_step=frozen.reference_pass
    ),
    "adapters merged and begun anew, as of ReLoRA": Recipe(
        adapters=True, after_step=frozen.merge_and_begin_anew
    ),
    "LoRA, head and embeddings trained whole": Recipe(
        adapters=True, lora={"modules_to_save": ["embed_tokens", "lm_head"]}
    ),
    "LoRA, with its layers' biases": Recipe(adapters=True, lora={"bias": "lora_only"}),
    "LoRA, matrices of a layer trained whole": Recipe(
        adapters=True, lora={"modules_to_save": ["down_proj"]}
    ),
    "LoRA, and norms": Recipe(adapters=True, built=frozen.thaw_norms),
    "LoRA, and some tokens": Recipe(adapters=True, lora={"trainable_token_indices": [30, 31]}),
    "a layer frozen in mid-run": Recipe(after_step=frozen.freeze_without_gradients),
    "two optimizers, each with the other's part frozen": Recipe(
        parameters=changes.without_last_layer, made=frozen.parts_in_turn, steps=6
    ),
    "a schedule that begins at nought": Recipe(made=frozen.warms_up, after_step=frozen.next_rate),
    "a schedule that begins at nought, stepped once an epoch": Recipe(
        made=frozen.warms_up, after_step=frozen.next_rate_after_an_epoch, steps=12
    ),
    "packed, whole texts learnt but for their first token": Recipe(
        packed=True, collated=frozen.first_tokens_masked
    ),
    "packed as one long text": Recipe(packed=True, collated=frozen.without_positions),
    "a data set of one step's rows": Recipe(
        data=frozen.first_rows, order=frozen.one_batch, steps=5
    ),
    "an average with older weights, as of Lookahead": Recipe(
        made=weights.remember, after_step=weights.average
    ),
    "an average with older weights every second step": Recipe(
        made=steps.remember_first, after_step=steps.average_every(2), steps=7
    ),
    "a frozen layer": Recipe(built=changes.freeze_first_layer),
    "frozen embeddings": Recipe(built=changes.freeze_embeddings),
    "LoRA": Recipe(adapters=True),
    "LoRA, bfloat16 autocast": Recipe(adapters=True, autocast=True),
    "LoRA, packed": Recipe(adapters=True, packed=True),
    "tied embeddings": Recipe(config={"tie_word_embeddings": True}),
    "embeddings that are not tied": Recipe(config={"tie_word_embeddings": False}),
    "chats of three turns": Recipe(turns=3),
    "chats of three turns, packed": Recipe(turns=3, packed=True),
    "images masked": Recipe(image=True),
    "LLaVA, an image in each row": Recipe(image=True, vision=True),
    "LLaVA, bfloat16 autocast": Recipe(image=True, vision=True, autocast=True),
    "LLaVA, packed": Recipe(image=True, vision=True, packed=True),
    "Qwen2.5-VL, an image in each row": Recipe(image=True, grids=True),
    "Qwen2.5-VL, left padding": Recipe(image=True, grids=True, padding="left"),
    "LLaVA, two epochs": Recipe(image=True, vision=True, epochs=True, order=changes.shuffled),
    "two epochs in two orders": Recipe(epochs=True, shuffled=True, order=orders.two_orders),
    "whole rows learnt": Recipe(data=changes.whole_rows),
    "the loss a sum, gradients divided": Recipe(
        divide=lambda tokens, index, everyone, world: 1.0,
        before_step=changes.divide_gradients(1 / 40),
    ),
    "SGD": Recipe(optimizer=optimizers.sgd),
    "Muon for matrices, AdamW for the rest": Recipe(optimizer=optimizers.muon_and_adamw),
    "a rate that begins at nought": Recipe(
        optimizer=optimizers.from_nought, after_step=optimizers.faster
    ),
    "a gain that is maximized": Recipe(loss=changes.negated, optimizer=optimizers.maximizes),
    "two groups, decay on matrices alone": Recipe(optimizer=optimizers.two_groups),
    "an optimizer with one flat copy, as of ZeRO": Recipe(
        made=copies.flat_copy,
        before_step=copies.gradients_to_copy,
        after_step=copies.weights_from_copy,
    ),
    "two epochs": Recipe(epochs=True, accumulate=2),
    "rows shuffled, two epochs": Recipe(epochs=True, order=changes.shuffled),
    "zero_grad that keeps zeros": Recipe(zero=False, after_step=changes.zeros),
    "looked at again later": Recipe(epochs=True, batch=1, accumulate=2, every=2),
    "transformers' Trainer": Recipe(trainer="hf"),
    "transformers' Trainer, bfloat16 autocast": Recipe(trainer="hf", autocast=True),
    "transformers' Trainer, gradient checkpointing": Recipe(
        trainer="hf", arguments={"gradient_checkpointing": True}
    ),
    "transformers' Trainer, LoRA": Recipe(trainer="hf", adapters=True),
    "transformers' Trainer, packed": Recipe(trainer="hf", packed=True),
    "transformers' Trainer, batches of one row, accumulation of 4": Recipe(
        trainer="hf", batch=1, accumulate=4
    ),
    "transformers' Trainer, llama": Recipe(trainer="hf", family="llama"),
    "transformers' Trainer, Adafactor": Recipe(trainer="hf", arguments={"optim": "adafactor"}),
    "transformers' Trainer, NEFTune": Recipe(trainer="hf", arguments={"neftune_noise_alpha": 5.0}),
    "transformers' Trainer, a warm-up": Recipe(
        trainer="hf", steps=4, arguments={"warmup_steps": 2}
    ),
    "transformers' Trainer, every step clipped": Recipe(
        trainer="hf", arguments={"max_grad_norm": 0.01}
    ),
    "transformers' Trainer, tied embeddings, resized": Recipe(
        trainer="hf", config={"tie_word_embeddings": True}, built=weights.resize
    ),
    "transformers' Trainer, rows of which nothing is learnt": Recipe(
        trainer="hf", data=masks.nothing_of_some_rows
    ),
    "two optimizers that take turns": Recipe(made=steps.in_turn, steps=4),
    "one layer trained in turn": Recipe(after_step=steps.one_layer_in_turn),
    "LoRA, with a tied head and its embedding trained as one": Recipe(
        config={"tie_word_embeddings": True},
        adapters=True,
        lora={"modules_to_save": ["embed_tokens", "lm_head"], "ensure_weight_tying": True},
    ),
    "the row of padding is zero": Recipe(built=values.row_of_zeros(PAD)),
    "the row of a token that no text has is zero": Recipe(built=values.row_of_zeros(IMAGE)),
    "a new token's row at the mean, trained": Recipe(built=values.row_at_mean(START)),
    "a new token's row at the mean, trained beside LoRA": Recipe(
        adapters=True, built=values.row_at_mean(START), lora={"trainable_token_indices": [START]}
    ),
    "embeddings of new tokens alone": Recipe(built=steps.train_new_tokens),
    "a group whose rate a schedule raises later": Recipe(optimizer=steps.group_raised_later),
    "prompts seen both ways": Recipe(collated=masks.prompt_seen_both_ways),
    "one row in six ends in a word over and over": Recipe(
        data=padding.some_end_in_repeats, config=padding.NO_PAD
    ),
    "each answer ends in a word over and over": Recipe(
        data=padding.all_end_in_repeats, config=padding.NO_PAD
    ),
    "each answer ends in a word over and over, batches of one row": Recipe(
        data=padding.all_end_in_repeats, config=padding.NO_PAD, batch=1, accumulate=4
    ),
    "rows of one length, cut from a text with runs of a word": Recipe(
        data=padding.blocks_with_runs, config=padding.NO_PAD, batch=4
    ),
    "end tokens fill rows up, and one is learnt": Recipe(
        collated=padding.filled_with_ends, config=padding.NO_PAD
    ),
    "whole rows learnt, rows of one length": Recipe(
        data=lambda rows: padding.one_width(changes.whole_rows(rows)), config=padding.NO_PAD
    ),
    "no padding in the first step": Recipe(data=attention.first_step_of_one_length),
    "no padding in the first step, padded on the left": Recipe(
        data=attention.first_step_of_one_length, padding="left", collated=changes.positions_of_mask
    ),
    "eager attention, padded on the left, bfloat16 weights": Recipe(
        attention="eager",
        padding="left",
        collated=changes.positions_of_mask,
        dtype="bfloat16",
        lr=0.05,
    ),
    "mixtral, packed": Recipe(family="mixtral", packed=True),
    "attention dropout": Recipe(config={"attention_dropout": 0.1}),
    "DDP, 2 ranks": Recipe(world=2),
    "DDP, 2 ranks, bfloat16 autocast": Recipe(world=2, autocast=True),
    "DDP, 2 ranks, clipped": Recipe(world=2, clip=0.1),
    "DDP, 2 ranks, packed": Recipe(world=2, packed=True),
    "DDP, 2 ranks, LoRA": Recipe(world=2, adapters=True),
    "DDP, 2 ranks, four epochs of a DistributedSampler that fills up": Recipe(
        world=2, steps=6, order=orders.padded, data=lambda rows: rows[:-3]
    ),
    "DDP, 2 ranks, texts that are in the data twice": Recipe(
        world=2, steps=6, data=changes.repeated
    ),
    "DDP, 2 ranks, two epochs": Recipe(world=2, epochs=True, order=changes.shared),
    "FSDP2, 2 ranks": Recipe(world=2, engine="fsdp2"),
    "FSDP2, 2 ranks, packed": Recipe(world=2, engine="fsdp2", packed=True),
    "FSDP2, 2 ranks, clipped": Recipe(world=2, engine="fsdp2", clip=0.1),
}
