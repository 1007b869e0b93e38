"""Rules about asking a model: `vtool evaluate`, `predict`, `chat` and `serve`."""

from vtool.diagnostics.rule import Rule

RULES = (
    Rule(
        name="metric-failed",
        code="VT830",
        summary="A metric raised an exception, or gave something else than a number.",
        why="Left out of the mean, the row would flatter the model or blame it: there is no score.",
        bad="--metric score.py:points, where points raises for an empty answer",
        good="a function that returns a number for every answer",
        fix="Fix the function for the row that is named; answers are kept, and not asked again.",
    ),
    Rule(
        name="reference-not-scorable",
        code="VT831",
        summary="A row's reference is none of the choices, or not of the metric's kind.",
        why="No answer to it can be right: the score says less than it could, whatever the model.",
        bad="--choices cat,dog with a row whose reference is fox",
        good="--choices cat,dog,fox",
        fix="Name every choice that the rows have, or correct the row.",
    ),
    Rule(
        name="evaluation-differs",
        code="VT832",
        summary="The folder has answers of another model, to other rows or with other options.",
        why="Answers of two models, rows or sets of options would be scored as one.",
        bad="--to FOLDER of an evaluation of another model",
        good="--to a folder that does not exist yet",
        fix="Name another folder, or remove this one: --to FOLDER.",
    ),
    Rule(
        name="answer-stopped",
        code="VT833",
        summary="Answers reached the longest that is asked for, and were stopped there.",
        why="What was to come may have been right: such a row is scored on half of an answer.",
        bad="--max-new-tokens 4 of a model that answers in sentences",
        good="--max-new-tokens 64",
        fix="Ask for longer answers: --max-new-tokens N.",
        severity="warning",
    ),
    Rule(
        name="vllm-failed",
        code="VT834",
        summary="vLLM did not answer: it could not load the model, ended, or read other tokens.",
        why="Answers to other prompts than the model was trained with would be scored as its own.",
        bad="--with vllm for a model whose attention heads vLLM's CPU kernels do not have",
        good="the same command without --with vllm",
        fix="Read vLLM's own words in the finding; without --with vllm, vtool generates itself.",
    ),
    Rule(
        name="beyond-context",
        code="VT835",
        summary="A chat and its answer have more tokens than the model has positions for.",
        why="Positions that no training has seen give answers that mean nothing, without an error.",
        bad="a chat of 2000 tokens and --max-new-tokens 64, of a model of 2048 positions",
        good="the same chat, started again",
        fix="Ask less at once: fewer or smaller images, a shorter chat, fewer new tokens.",
    ),
)
