"""Generate greedy answers."""

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from vtool.families.tokens import CONTENT_TOKENS
from vtool.models.processor import Processor


def answer_greedily(
    model: Any, processor: Processor, inputs: dict[str, Tensor], max_new_tokens: int
) -> list[str]:
    """Return the texts of greedy answers: the most probable token each time, to the turn's end.

    Args:
        model: as `generate_tokens` takes it.
        processor: has the tokenizer, and the ids that end an answer and pad it.
        inputs: a batch of prompts, padded on the left.
        max_new_tokens: the longest answer, in tokens.
    """
    answers = generate_tokens(model, processor, inputs, max_new_tokens)
    return [shown_answer(processor.tokenizer, ids) for ids in answers.tolist()]


def shown_answer(tokenizer: Any, ids: Sequence[int]) -> str:
    """Return the text of an answer without its special tokens, but for those of its content."""
    added = tokenizer.added_tokens_decoder.items()
    content = {number for number, token in added if str(token) in CONTENT_TOKENS}
    return "".join(
        tokenizer.decode(list(some), skip_special_tokens=not shown)
        for shown, some in groupby(ids, content.__contains__)
    )


def generate_tokens(
    model: Any,
    processor: Processor,
    inputs: dict[str, Tensor],
    max_new_tokens: int,
    steps: Sequence[Any] = (),
    streamer: Any = None,
    stop: Callable[[], bool] | None = None,
) -> Tensor:
    """Return the tokens of greedy answers, padded on the right: [prompts, tokens].

    A folder's own generation settings are not used: Qwen's carry a repetition penalty, which is not
    what was trained.

    Args:
        model: used without a cache where its `generates_with_cache` is false.
        processor: has the ids that end an answer and pad it.
        inputs: a batch of prompts, padded on the left.
        max_new_tokens: the longest answer, in tokens.
        steps: functions of the tokens so far and the next one's scores, which return scores.
        streamer: one of transformers', which is given each token; for one prompt alone.
        stop: asked after each token; answers end where it returns true.
    """
    from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList

    def stopped(tokens: Tensor, scores: Any, **_: Any) -> Tensor:
        return torch.full((len(tokens),), stop is not None and stop(), device=tokens.device)

    greedy = GenerationConfig(
        do_sample=False,
        max_new_tokens=max_new_tokens,
        eos_token_id=[*processor.stop_texts.values()],
        pad_token_id=processor.ids.pad,
        use_cache=getattr(model, "generates_with_cache", True),
    )
    own = model.generation_config
    # given as an argument, it would be filled up from the folder's settings
    model.generation_config = greedy
    try:
        # Over sharded weights transformers has all ranks generate in step, and one with fewer
        # questions would be waited for, for ever.
        generated: Tensor = model.generate(
            **inputs,
            synced_gpus=False,
            logits_processor=LogitsProcessorList(steps),
            stopping_criteria=StoppingCriteriaList([stopped] if stop else []),
            streamer=streamer,
        )
    finally:
        model.generation_config = own
    return generated[:, inputs["input_ids"].shape[1] :]
