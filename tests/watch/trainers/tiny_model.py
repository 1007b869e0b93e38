"""Makes a tiny model with a byte tokenizer and chats for it, for the Python of any trainer.

usage: tiny_model.py FOLDER     makes FOLDER/model, and rows as each trainer wants them
"""

import json
import random
import sys
from pathlib import Path

import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

MARKS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WORDS = (
    "the",
    "square",
    "is",
    "red",
    "green",
    "blue",
    "what",
    "color",
    "hello",
    "fine",
    "no",
    "yes",
)


def make_model(folder: Path) -> None:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE({letter: at for at, letter in enumerate(letters)}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(list(MARKS))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        initializer_range=0.1,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)


def make_chats(folder: Path) -> None:
    draw = random.Random(0)

    def text(most: int) -> str:
        return " ".join(draw.choice(WORDS) for _ in range(draw.randint(1, most)))

    triples = [(text(6), text(20), text(20)) for _ in range(48)]
    chats = [{"instruction": q, "input": "", "output": a} for q, a, _ in triples]
    pairs = [{"instruction": q, "input": "", "chosen": a, "rejected": b} for q, a, b in triples]
    (folder / "chats.json").write_text(json.dumps(chats))
    (folder / "pairs.json").write_text(json.dumps(pairs))
    columns = {"prompt": "instruction", "query": "input", "chosen": "chosen"}
    labels = [
        {"instruction": q, "input": "", "output": each, "good": each is a}
        for q, a, b in triples
        for each in (a, b)
    ]
    (folder / "labels.json").write_text(json.dumps(labels))
    known = {
        "labels": {
            "file_name": "labels.json",
            "columns": {
                "prompt": "instruction",
                "query": "input",
                "response": "output",
                "kto_tag": "good",
            },
        },
        "chats": {"file_name": "chats.json"},
        "pairs": {
            "file_name": "pairs.json",
            "ranking": True,
            "columns": {**columns, "rejected": "rejected"},
        },
    }
    (folder / "dataset_info.json").write_text(json.dumps(known))
    messages = [
        [{"role": "user", "content": q}, {"role": "assistant", "content": a}] for q, a, _ in triples
    ]
    Dataset.from_list([{"messages": one} for one in messages]).to_parquet(folder / "chats.parquet")
    judged = [
        {"messages": one, "rejected_response": b}
        for one, (_, _, b) in zip(messages, triples, strict=True)
    ]
    for name, rows in (("chats", [{"messages": one} for one in messages]), ("pairs", judged)):
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(lines)


if __name__ == "__main__":
    made = Path(sys.argv[1])
    make_model(made / "model")
    make_chats(made)
