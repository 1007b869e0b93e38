"""A tiny model, a tokenizer, and pairs to train them on by TRL's trainers of preferences."""

import random
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

VOCABULARY = 128


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of words w3 … w127."""
    words = {"<pad>": 0, "<unk>": 1, "<end>": 2, **{f"w{k}": k for k in range(3, VOCABULARY)}}
    inner = Tokenizer(models.WordLevel(words, "<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<end>", pad_token="<pad>")


def save(folder: Path) -> None:
    """Save the model and its tokenizer, from where a trainer loads a reference."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.1,
        eos_token_id=2,
        pad_token_id=0,
    )
    model = Qwen2ForCausalLM(config)
    model.generation_config.eos_token_id = 2
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)


def _text(draw: random.Random, low: int, high: int) -> str:
    return " ".join(f"w{draw.randrange(4, VOCABULARY)}" for _ in range(draw.randrange(low, high)))


def pairs(count: int = 24, prompt: int = 3, seed: int = 0) -> list[dict[str, Any]]:
    """Return pairs whose answers have different lengths."""
    draw = random.Random(seed)
    return [
        {
            "prompt": _text(draw, prompt, prompt + 5),
            "chosen": " " + _text(draw, 3, 15),
            "rejected": " " + _text(draw, 3, 15),
        }
        for _ in range(count)
    ]


def with_a_template(rows: list[dict[str, Any]]) -> Dataset:
    """Return pairs whose prompts begin with the same words."""
    shared = " ".join(f"w{k}" for k in range(20, 32))
    return Dataset.from_list([{**row, "prompt": f"{shared} {row['prompt']}"} for row in rows])


def with_a_begin(rows: list[dict[str, Any]]) -> Dataset:
    """Return pairs whose prompts begin with one word that is the same."""
    return Dataset.from_list([{**row, "prompt": f"w20 {row['prompt']}"} for row in rows])


def with_few_prompts(rows: list[dict[str, Any]]) -> Dataset:
    """Return pairs of which three have one prompt."""
    return Dataset.from_list(
        [{**row, "prompt": rows[k // 3]["prompt"]} for k, row in enumerate(rows)]
    )


def with_answers_of_both_sides(rows: list[dict[str, Any]]) -> Dataset:
    """Return pairs whose good answer is the bad one of another pair with the same prompt."""
    return Dataset.from_list(
        [
            {**two, "prompt": one["prompt"], **change}
            for one, two in zip(rows[::2], rows[1::2], strict=True)
            for change in ({}, {"chosen": two["rejected"], "rejected": one["chosen"]})
        ]
    )


def with_short_answers(rows: list[dict[str, Any]]) -> Dataset:
    """Return pairs whose answers are of one or two words."""
    return Dataset.from_list(
        [
            {
                **row,
                "chosen": " " + row["chosen"].split()[0],
                "rejected": " " + " ".join(row["rejected"].split()[:2]),
            }
            for row in rows
        ]
    )


def with_even_answers(rows: list[dict[str, Any]]) -> Dataset:
    """Return pairs whose answers have four words each."""
    return Dataset.from_list(
        [
            {n: " ".join([*row[n].split(), *(4 * ["w9"])][:4]) for n in row}
            | {
                n: " " + " ".join([*row[n].split(), *(4 * ["w9"])][:4])
                for n in row
                if n != "prompt"
            }
            for row in rows
        ]
    )


def with_implicit_prompts(rows: list[dict[str, Any]]) -> Dataset:
    """Return pairs whose sides begin with their prompts."""
    return Dataset.from_list(
        [{side: row["prompt"] + row[side] for side in ("chosen", "rejected")} for row in rows]
    )


def streamed(rows: list[dict[str, Any]]) -> Any:
    """Return a data set that is read once, from which the watch reads nothing."""
    return Dataset.from_list(rows).to_iterable_dataset()


def many(rows: list[dict[str, Any]]) -> Dataset:
    """Return very many pairs."""
    return Dataset.from_list(pairs(12_000))


def with_images(rows: list[dict[str, Any]]) -> Dataset:
    """Return pairs about a picture each, as chats."""
    draw = random.Random(1)

    def turn(role: str, text: str) -> list[dict[str, str]]:
        return [{"role": role, "content": text}]

    return Dataset.from_list(
        [
            {
                "images": [
                    Image.new("RGB", (56, 56), tuple(draw.randrange(256) for _ in range(3)))
                ],
                "prompt": turn("user", row["prompt"]),
                "chosen": turn("assistant", row["chosen"]),
                "rejected": turn("assistant", row["rejected"]),
            }
            for row in rows
        ]
    )


def data(kind: str, rows: list[dict[str, Any]]) -> Dataset:
    """Return the data set of a trainer: pairs, or single answers with their labels."""
    if kind not in ("kto", "bco"):
        return Dataset.from_list(rows)
    answers = [
        {"prompt": row["prompt"], "completion": row[side], "label": side == "chosen"}
        for row in rows
        for side in ("chosen", "rejected")
    ]
    return Dataset.from_list(answers)
