"""Rules VT685 and VT686, about tokens of rows that the embedding has no values for."""

from vtool.diagnostics.rule import Rule

RULES = (
    Rule(
        name="zero-embedding-used",
        code="VT685",
        summary="Rows have tokens whose row of the embedding is zero.",
        why=(
            "A norm multiplies the gradient of a row of zeros by 1/√eps: it takes nearly all that"
            " clipping leaves, and the rest hardly learns (Automodel#3136)."
        ),
        bad="<|im_start|> in each row, and a checkpoint that has never trained it",
        good="rows with tokens that have values",
        fix=(
            "Give these rows of the embedding values before training, such as the mean of all"
            " others, or use no text that has these tokens."
        ),
        severity="warning",
        stage="split",
    ),
    Rule(
        name="token-not-learnable",
        code="VT686",
        summary="Rows have tokens that the model has never learnt, and their embedding is frozen.",
        why="Whatever it is trained for, the model never sees which token that is.",
        bad="lora: {rank: 8}, and chat tokens that were added with resize_token_embeddings",
        good="lora: {rank: 8, modules_to_save: [embed_tokens]}",
        fix="Train the embedding too, or give the new rows the values of tokens that mean it.",
        severity="warning",
        stage="split",
    ),
)
