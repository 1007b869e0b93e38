"""Writes checkpoint folders of a Llama of any size, seeded, whose tensors are all different.

    python -m tests.loading.large_folder FOLDER [--layers 32] [--hidden 4096] [--sparse]

With no more than the folder it writes 8.03 billion parameters, 16.1 GB. `--sparse` writes headers
over holes: for tests of headers and of memory alone, since every value is then the same.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

SHARD = 4 * 2**30
CHUNK = 32 * 2**20


def llama_shapes(
    layers: int, hidden: int, vocabulary: int
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the tensors of a Llama with grouped keys and an untied head."""
    inner, key = hidden * 7 // 2, hidden // 4
    yield "model.embed_tokens.weight", (vocabulary, hidden)
    for layer in range(layers):
        for name, shape in {
            "input_layernorm": (hidden,),
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (key, hidden),
            "self_attn.v_proj": (key, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "post_attention_layernorm": (hidden,),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }.items():
            yield f"model.layers.{layer}.{name}.weight", shape
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (vocabulary, hidden)


def write_llama(
    folder: Path,
    layers: int = 32,
    hidden: int = 4096,
    vocabulary: int = 128256,
    *,
    sparse: bool = False,
    seed: int = 0,
    without: tuple[str, ...] = (),
    shard: int = SHARD,
) -> int:
    """Write a folder in bfloat16, and return the bytes of its tensors.

    Args:
        sparse: leave holes instead of values.
        without: tensors that are left out.
        shard: bytes of a file, where one tensor does not take more.
    """
    folder.mkdir(parents=True, exist_ok=True)
    heads = hidden // 128 if hidden >= 512 else hidden // 32
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "hidden_size": hidden,
        "intermediate_size": hidden * 7 // 2,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 4,
        "num_hidden_layers": layers,
        "vocab_size": vocabulary,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    groups: list[dict[str, tuple[int, ...]]] = [{}]
    taken = 0
    for name, shape in llama_shapes(layers, hidden, vocabulary):
        size = 2 * int(np.prod(shape))
        if name in without:
            continue
        if groups[-1] and taken + size > shard:
            groups.append({})
            taken = 0
        groups[-1][name] = shape
        taken += size
    random = np.random.Generator(np.random.SFC64(seed))
    weight_map, total = {}, 0
    for number, group in enumerate(groups, 1):
        file = f"model-{number:05}-of-{len(groups):05}.safetensors"
        total += _write(folder / file, group, random, sparse)
        weight_map |= dict.fromkeys(group, file)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return total


def _write(
    file: Path, group: dict[str, tuple[int, ...]], random: np.random.Generator, sparse: bool
) -> int:
    header, at = {}, 0
    for name, shape in group.items():
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        if sparse:
            stream.truncate(8 + len(text) + at)
            return at
        for begin in range(0, at, CHUNK):
            words = random.integers(0, 2**63, -(-min(CHUNK, at - begin) // 8), dtype=np.uint64)
            # signs and digits by chance, and an exponent of numbers from 0.5 to 1
            values = (words.view(np.uint16) & 0x807F) | 0x3F00
            stream.write(memoryview(values)[: min(CHUNK, at - begin) // 2])
    return at


def main() -> None:
    """Write the folder that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--sparse", action="store_true")
    given = parser.parse_args()
    size = write_llama(given.folder, given.layers, given.hidden, sparse=given.sparse)
    print(f"{given.folder}: {size:,} bytes of tensors")


if __name__ == "__main__":
    main()
