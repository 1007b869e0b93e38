"""Rules VT71x and VT72x: what `vtool verify RECIPE` proves of a recipe before it costs anything."""

from vtool.diagnostics.rule import Rule

_OURS = "vtool's own code passes this for every shipped recipe: where a recipe of yours fails it, "

RULES = (
    Rule(
        name="dummy-not-neutral",
        code="VT710",
        summary=(
            "The dummy visual forward changes a loss or a gradient, or leaves a trained parameter"
            " of the tower without a gradient of 0."
        ),
        why=(
            "It is there so that ranks without images take part in every reduction. What it adds is"
            " trained on, and what it leaves out is waited for by the other ranks (verl#5881: an"
            " in-place addition; outputs that are not unpacked as on the real path)."
        ),
        bad="inputs_embeds += 0.0 * visual(zeros).mean(), which is NaN where the tower's output is",
        good="embedded + one scalar that is a constant, and whose gradient is 0",
        fix=_OURS
        + "look at what has been changed in the family's tower, or report it with this line.",
    ),
    Rule(
        name="embeddings-written-in-place",
        code="VT711",
        summary="An operation of the forward pass writes into the embeddings in place.",
        why=(
            "The result of an embedding is needed in the backward pass, or is a view of a leaf:"
            " autograd raises, or, behind a wrapper that hides the view, gradients are silently"
            " those of other numbers (verl#5881)."
        ),
        bad="inputs_embeds += image_features",
        good="inputs_embeds = inputs_embeds.masked_scatter(mask, image_features)",
        fix="Make the named line return a new tensor.",
    ),
    Rule(
        name="padding-changes-row",
        code="VT712",
        summary="A row's logits depend on the padding beside it.",
        why=(
            "A mask of the wrong polarity, shape or side is no error: attention is paid to padding,"
            " and less to the row (verl#5904, verl#5942)."
        ),
        bad="attention_mask with 1 where there is padding",
        good="attention_mask with 0 where there is padding",
        fix=_OURS
        + "the attention implementation does not heed the mask that it is given. Compare with"
        " model.attention=eager.",
    ),
    Rule(
        name="gradient-depends-on-split",
        code="VT713",
        summary="The gradient of a step depends on how its rows are cut into micro-batches.",
        why=(
            "A mean of means weighs rows of few tokens more: the same recipe trains something else"
            " on another number of GPUs or with another micro-batch size (LLaMA-Factory#7443,"
            " transformers#37766)."
        ),
        bad="the mean loss of each micro-batch, averaged over micro-batches",
        good=(
            "the summed loss of each micro-batch, divided by the supervised tokens of the whole"
            " step"
        ),
        fix=_OURS
        + "its model computes a row differently beside other rows. `vtool verify RECIPE --only"
        " padding-changes-row` tells more.",
    ),
    Rule(
        name="gradient-depends-on-packing",
        code="VT714",
        summary="The gradient of packed rows is not that of the rows.",
        why=(
            "Positions that go on from one document into the next, or targets across their border,"
            " train on chats that nobody wrote (transformers#39400, axolotl#3817)."
        ),
        bad="position_ids = arange(length) over all documents of a row",
        good="position_ids that begin again in each document, in three dimensions for images",
        fix="Set data.packing=none, and report it with this line.",
    ),
    Rule(
        name="gradient-depends-on-ranks",
        code="VT715",
        summary=(
            "The gradient of a step on two ranks of the recipe's engine is not that of one process."
        ),
        why=(
            "A rank's share that is weighed by its rows in the place of its tokens, or a rank"
            " without images that is left out, is no error (transformers#34242, verl#5881)."
        ),
        bad="each rank's mean loss, averaged over ranks",
        good="the summed loss, divided by the supervised tokens of all ranks",
        fix=_OURS + "compare with engine=ddp: what differs then is the engine or its settings.",
    ),
    Rule(
        name="documents-see-each-other",
        code="VT716",
        summary="A row's logits move when the content of another row in its batch is replaced.",
        why=(
            "Attention, convolutions or states go on from one document into the next: answers are"
            " learnt from what is not there at inference (transformers#46634, LLaMA-Factory#10659)."
        ),
        bad="a packed row with one causal mask over all its documents",
        good="attention inside each document",
        fix=(
            "Set data.packing=none where it is the packed case; where it is the padded one, the"
            " model's tower mixes images: report it."
        ),
    ),
    Rule(
        name="trained-set-differs",
        code="VT717",
        summary="Two steps change other parameters than those that the recipe trains.",
        why=(
            "A frozen tower that is trained, or an adapter that is in no optimizer, raises nothing"
            " (LLaMA-Factory#10139, ms-swift#2640; verl's freeze_vision_tower was read by nothing)."
        ),
        bad="model.freeze.vision=true, and a tower that changes",
        good="model.freeze.vision=true, and a tower that stays as it is to the byte",
        fix=_OURS
        + "a parameter that gets no gradient at all is one that the model does not use for these"
        " rows.",
    ),
    Rule(
        name="text-only-differs",
        code="VT718",
        summary=(
            "A step without images changes the vision tower or its optimizer state, or trains"
            " nothing."
        ),
        why=(
            "Gradients of 0 still let AdamW decay weights and move them by old momentum"
            " (verl#7833); plain DDP waits for ever."
        ),
        bad="a dummy visual forward in every step",
        good="a dummy visual forward only in steps where some rank has an image",
        fix=_OURS + "report it with this line.",
    ),
    Rule(
        name="label-masks-disagree",
        code="VT719",
        summary="Two independent ways to find the supervised tokens of a row disagree.",
        why=(
            "Labels that are off by one, that leave out the token that ends a turn, or that have"
            " the user's words, train without an error (verl#3287, Megatron-Bridge#4265,"
            " transformers#34172)."
        ),
        bad="labels that begin one token late",
        good="labels for each answer and the token that ends it, and for nothing else",
        fix=(
            "`vtool verify RECIPE --row ROW` shows the supervised spans of the row. Often it is the"
            " chat template."
        ),
    ),
    Rule(
        name="resume-differs",
        code="VT720",
        summary=(
            "A run that goes on from a checkpoint is not, to the bit, the run that was never"
            " stopped."
        ),
        why=(
            "Optimizer state, a step count or a buffer that is not in the checkpoint changes every"
            " step after it (verl#7401, ms-swift#10050)."
        ),
        bad="a checkpoint without the optimizer's state",
        good="a checkpoint of weights, optimizer state and step",
        fix=_OURS + "report it with the name in this line.",
    ),
    Rule(
        name="export-differs",
        code="VT721",
        summary="What is exported and opened again computes something else than the trained model.",
        why=(
            "A merge that adds nothing, a scale that is lost or a tensor under another name is"
            " loaded without an error (verl#7285: `merged` is the base; verl#4553, ms-swift#6862)."
        ),
        bad="a merged model whose weights are the base's",
        good="a merged model that computes what base and adapter do",
        fix=_OURS + "report it with this line.",
    ),
    Rule(
        name="attention-differs",
        code="VT722",
        summary="The chosen attention computes something else than transformers' plain one.",
        why=(
            "A kernel that ignores a mask, a scale or grouped heads raises nothing; nor does one"
            " that lets tokens see what they are to predict (transformers#48769)."
        ),
        bad="an attention implementation that takes no mask",
        good="the same logits as with model.attention=eager, up to rounding",
        fix="Set model.attention=eager, and report it with the versions of torch and transformers.",
    ),
    Rule(
        name="loss-differs",
        code="VT723",
        summary=(
            "The loss of a step, its number of supervised tokens, or the NLL of an evaluation is"
            " not that of its rows."
        ),
        why=(
            "Targets that are shifted twice or not at all, or a loss divided by the wrong number,"
            " still falls (verl#3287, trl#3091)."
        ),
        bad="logits[:, :-1] against labels that have already been shifted",
        good="−log p of token t + 1 given those up to t, summed and divided once",
        fix=_OURS + "report it with this line.",
    ),
    Rule(
        name="positions-differ",
        code="VT725",
        summary="The language model is given other positions than M-RoPE's.",
        why=(
            "Without mm_token_type_ids, or with plain positions in packed rows, transformers counts"
            " an image's tokens as text, and says nothing (axolotl#3817)."
        ),
        bad="data.drop_model_inputs=[mm_token_type_ids]",
        good="data.drop_model_inputs=[]",
        fix=(
            "Take mm_token_type_ids out of data.drop_model_inputs; otherwise report it with this"
            " line."
        ),
    ),
    Rule(
        name="rows-lost",
        code="VT726",
        summary=(
            "A row is in no batch of an epoch or in several, the order is the same in each epoch,"
            " or a batch has another row's tokens."
        ),
        why=(
            "A sampler that is not told the epoch repeats its order; one that rounds loses rows; a"
            " collator that replaces a bad row by another says nothing (ms-swift's random row,"
            " torchtitan's and verl's resume)."
        ),
        bad="the same order of rows in every epoch",
        good="each row once an epoch, in an order of its own",
        fix=_OURS + "report it with this line.",
    ),
)
