"""A loop of a user's own: vocabulary, width, arithmetic, class weights and divisor as arguments.

python vocabulary_loop.py VOCABULARY HIDDEN float32|bfloat16|autocast CLASS_WEIGHT means|step
"""

import random
import sys

import torch
import torch.nn.functional as F  # noqa: N812
from transformers import LlamaConfig, LlamaForCausalLM


def main(vocabulary: int, hidden: int, arithmetic: str, weight: float, divisor: str) -> None:
    torch.manual_seed(0)
    draw = random.Random(vocabulary + hidden)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=4,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config)
    if arithmetic == "bfloat16":
        model = model.bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    words = [draw.randrange(20, vocabulary) for _ in range(60)]
    weights = torch.ones(vocabulary)
    weights[[*words[::10], 13]] = weight
    for _ in range(2):
        # lengths as of answers: some micro-batches are short, and end tokens a larger part of them
        batches = []
        for length in (6, 24, 12, 17):
            rows = [[*draw.choices(words, k=length - 1), 13] for _ in range(2)]
            batches.append(torch.tensor(rows))
        everything = sum(float(weights[ids[:, 1:]].sum()) for ids in batches)
        for ids in batches:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=arithmetic == "autocast"):
                logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
            mean = divisor == "means"
            loss = F.cross_entropy(
                logits.float().flatten(0, 1),
                ids[:, 1:].flatten(),
                weight=weights,
                reduction="mean" if mean else "sum",
            )
            (loss / (len(batches) if mean else everything)).backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], float(sys.argv[4]), sys.argv[5])
