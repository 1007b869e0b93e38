"""The plans in the heads of the recipes for published models: write them again.

    python -m tests.planning.recipe_heads [RECIPE…]

takes a quarter to half an hour for all. No weights are needed: a model's folder is a config.json of
its published sizes.
"""

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.rows import chat, write_rows
from vtool.config.load import load_run
from vtool.config.shipped import shipped_folder

# Of 80 GB, torch finds 79.2 to 79.7 GiB.
MEMORY = 79
# hidden, intermediate, layers, heads, key heads, vocabulary, tied, the tower's intermediate
_QWEN2_5_VL = {
    "3b": (2048, 11008, 36, 16, 2, 151_936, True, 3420),
    "7b": (3584, 18944, 28, 28, 4, 152_064, False, 3420),
    "32b": (5120, 27648, 64, 40, 8, 152_064, False, 3456),
    "72b": (8192, 29568, 80, 64, 8, 152_064, False, 3456),
}
PUBLISHED = {
    "qwen2_5_vl_3b": 3_754_622_976,
    "qwen2_5_vl_7b": 8_292_166_656,
    "qwen2_5_vl_32b": 33_452_718_336,
    "qwen2_5_vl_72b": 73_410_777_344,
    "qwen3_vl_8b": 8_767_123_696,
}
"""The parameters of each model, as its page on the hub counts them in its files."""
RECIPES = tuple(f"{model}_{what}" for model in PUBLISHED for what in ("fsdp2", "lora", "qlora"))
GPUS = (1, 8, 24)
_TOKENS = {
    "image_token_id": 151655,
    "video_token_id": 151656,
    "vision_start_token_id": 151652,
    "vision_end_token_id": 151653,
}
_BEGIN = f"# GiB of each GPU, by `vtool plan … --memory {MEMORY}`:"
_LINE = re.compile(r"#   --gpus (\d+): ([\d.]+), ([^(\n]+?)(?: \((.+)\))?")
"""A line of a head: the GPUs, all of it, whether it fits, and its kinds."""


_TABLE = "| recipe | 1 GPU | 8 | 24 |"
_SHORT = {"fits": "", "fits, but for the plan's own error": " (closer than 20 %)"}
_SHORT["does not fit"] = ": does not fit"


@dataclass(frozen=True, slots=True)
class PlanLine:
    """The plan of a head for so many GPUs, in GiB."""

    together: float
    verdict: str
    kinds: dict[str, float]


def write_config(model: str, folder: Path) -> None:
    """Write the config.json of a published model."""
    import transformers

    family, _, size = model.rpartition("_")
    config: Any
    if family == "qwen2_5_vl":
        hidden, inner, layers, heads, keys, vocabulary, tied, between = _QWEN2_5_VL[size]
        config = transformers.Qwen2_5_VLConfig(
            text_config={
                **{"hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers},
                **{"num_attention_heads": heads, "num_key_value_heads": keys},
                **{"vocab_size": vocabulary, "tie_word_embeddings": tied},
                "rope_parameters": _rope(1e6, [16, 24, 24]),
            },
            vision_config={
                **{"depth": 32, "hidden_size": 1280, "intermediate_size": between, "num_heads": 16},
                **{"out_hidden_size": hidden, "fullatt_block_indexes": [7, 15, 23, 31]},
            },
            tie_word_embeddings=tied,
            **_TOKENS,
        )
    else:
        config = transformers.Qwen3VLConfig(
            text_config={
                **{"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36},
                **{"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128},
                **{"vocab_size": 151_936, "rope_parameters": _rope(5e6, [24, 20, 20])},
            },
            vision_config={
                **{"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16},
                **{"patch_size": 16, "out_hidden_size": 4096},
                **{"deepstack_visual_indexes": [8, 16, 24], "num_position_embeddings": 2304},
            },
            tie_word_embeddings=False,
            **_TOKENS,
        )
    config.dtype = "bfloat16"
    config.save_pretrained(folder)


def _rope(theta: float, sections: list[int]) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": theta, "mrope_section": sections}


def model_of_recipe(recipe: str) -> str:
    """Return the published model that a recipe is for."""
    return recipe.rpartition("_")[0]


@contextlib.contextmanager
def given(recipe: str) -> Iterator[list[str]]:
    """Yield the values that a recipe leaves open: its model's folder, without weights, and rows."""
    with tempfile.TemporaryDirectory() as folder:
        write_config(model_of_recipe(recipe), Path(folder) / "model")
        rows = write_rows(Path(folder) / "rows.jsonl", [chat("What?", "That.")])
        yield [f"model.path={folder}/model", f"data.train=[{{format: messages, path: {rows}}}]"]


def plan_lines(recipe: str, gpus: tuple[int, ...] = GPUS) -> list[str]:
    """Return the lines of a recipe's head about its plan, computed."""
    from vtool.planning.plan import GIB, PlanQuestion, make_plan
    from vtool.planning.text import verdict

    lines = []
    with given(recipe) as settings:
        run = load_run(recipe, settings).run
        for each in gpus:
            # what would make it fit is not asked: that takes as many plans again
            made = make_plan(run, PlanQuestion(each))
            made = replace(made, asked=replace(made.asked, memory=MEMORY * GIB))
            kinds = ", ".join(
                f"{kind} {size / GIB:.1f}"
                for kind, size in made.step.memory.items()
                if size >= GIB / 20
            )
            fits = verdict(made).partition(":")[0]
            lines.append(f"#   --gpus {each}: {made.step.peak / GIB:.1f}, {fits} ({kinds})")
    return lines


def head(recipe: str) -> dict[int, PlanLine]:
    """Return the figures in a recipe's head, by the number of GPUs."""
    text = (shipped_folder("recipes") / f"{recipe}.yaml").read_text(encoding="utf-8")
    lines = text.partition(f"{_BEGIN}\n")[2].splitlines()
    found = {}
    for line in lines:
        if not (match := _LINE.fullmatch(line)):
            break
        parts = (part.rpartition(" ") for part in (match[4] or "").split(", "))
        kinds = {name: float(size) for name, _, size in parts}
        found[int(match[1])] = PlanLine(float(match[2]), match[3], kinds)
    return found


def renew(recipe: str, lines: list[str]) -> str:
    """Return a recipe's text with these lines in its head, behind its first comments."""
    text = (shipped_folder("recipes") / f"{recipe}.yaml").read_text(encoding="utf-8")
    kept = [line for line in text.splitlines() if line != _BEGIN and not _LINE.fullmatch(line)]
    comments = next(number for number, line in enumerate(kept) if not line.startswith("#"))
    return "\n".join([*kept[:comments], _BEGIN, *lines, *kept[comments:], ""])


def with_table(page: str) -> str:
    """Return docs/engines.md with a line for each head."""
    lines = [_TABLE, "|---|---|---|---|"]
    for recipe in RECIPES:
        cells = [
            f"{plan.together:.1f}{_SHORT[plan.verdict.partition(' of ')[0]]}"
            for plan in head(recipe).values()
        ]
        lines.append(f"| `{recipe}` | {' | '.join(cells)} |")
    before, _, rest = page.partition(f"{_TABLE}\n")
    return f"{before}{chr(10).join(lines)}\n\n{rest.partition(chr(10) * 2)[2]}"


if __name__ == "__main__":
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    for name in sys.argv[1:] or RECIPES:
        lines = plan_lines(name)
        (shipped_folder("recipes") / f"{name}.yaml").write_text(
            renew(name, lines), encoding="utf-8"
        )
        print(name, *lines, sep="\n", flush=True)
