"""A loop of a user's own that knows nothing of the watch, with what may vary in it and go wrong."""

import random
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PAD, START, END, USER, ASSISTANT, NEWLINE, IMAGE = range(7)
WORDS, VOCABULARY = 20, 160
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
)
FAMILIES = {
    "qwen2": ("Qwen2", {}),
    "llama": ("Llama", {}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "phi3": ("Phi3", {"pad_token_id": PAD}),
    "gemma2": (
        "Gemma2",
        {"head_dim": 16, "final_logit_softcapping": 5.0, "tie_word_embeddings": True},
    ),
    "granite": ("Granite", {"logits_scaling": 8.0}),
    "cohere": ("Cohere", {"logit_scale": 0.25, "tie_word_embeddings": True}),
    "olmo2": ("Olmo2", {}),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "opt": ("OPT", {"ffn_dim": 64, "word_embed_proj_dim": 32, "dropout": 0.0}),
}
Row = dict[str, list[int]]
Batch = dict[str, Any]


def tokenizer(folder: Path) -> None:
    """Write the tokenizer of these rows: words, marks of turns, a template."""
    import json

    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    marks = {"<pad>": PAD, "<|im_start|>": START, "<|im_end|>": END, "<image>": IMAGE}
    words = {"user": USER, "assistant": ASSISTANT, "\n": NEWLINE}
    words |= {f"w{number}": number for number in range(7, VOCABULARY)}
    made = Tokenizer(models.WordLevel({**marks, **words}, unk_token="<pad>"))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(" +"), "removed"),
            pre_tokenizers.Split("\n", "isolated"),
        ]
    )
    made.decoder = decoders.Fuse()
    made.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in marks])
    folder.mkdir(parents=True, exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    config = {"chat_template": TEMPLATE, "eos_token": "<|im_end|>", "pad_token": "<pad>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def rows(count: int, turns: int = 1, seed: int = 0, image: bool = False) -> list[Row]:
    """Make chats; what is learnt is answers and their end tokens."""
    draw, made = random.Random(seed), []
    for _ in range(count):
        ids: list[int] = []
        labels: list[int] = []
        for _ in range(turns):
            asked = [draw.randrange(WORDS, VOCABULARY) for _ in range(draw.randint(2, 6))]
            if image:
                asked = [IMAGE] * 4 + asked
            prompt = [START, USER, NEWLINE, *asked, END, NEWLINE, START, ASSISTANT, NEWLINE]
            words = [draw.randrange(WORDS, VOCABULARY) for _ in range(draw.randint(2, 14))]
            ids += [*prompt, *words, END, NEWLINE]
            labels += [-100] * len(prompt) + [*words, END, -100]
        made.append({"input_ids": ids, "labels": labels})
    return made


@dataclass
class Recipe:
    """A run, with nothing wrong in it unless something is changed."""

    family: str = "qwen2"
    config: dict[str, Any] = field(default_factory=dict)
    dtype: str = "float32"
    autocast: bool = False
    attention: str = "sdpa"
    batch: int = 2
    accumulate: int = 2
    steps: int = 3
    padding: str = "right"
    packed: bool = False
    checkpointing: bool = False
    adapters: bool = False
    lora: dict[str, Any] = field(default_factory=dict)
    """Settings of the adapters."""
    trainer: str = "loop"
    """A loop of one's own, or `hf`: transformers' Trainer."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """The arguments of transformers' Trainer."""
    own_loss: Callable[..., Any] | None = None
    """Trainer's compute_loss_func."""
    engine: str = "ddp"
    world: int = 1
    lr: float = 1e-3
    clip: float | None = None
    turns: int = 1
    image: bool = False
    vision: bool = False
    """The model is a LLaVA, and is given the pixels of images."""
    grids: bool = False
    """The model is a Qwen2.5-VL, and is given images with their grids."""
    epochs: bool = False
    """Over the whole data, twice, instead of three steps."""
    shuffled: bool = False
    """The loader draws rows at random, as it says."""
    every: int = 0
    data: Callable[[list[Row]], list[Row]] = lambda rows: rows
    order: Callable[[int, int, int], list[int]] | None = None
    """A function that chooses a rank's rows: (rank, world, number of rows)."""
    collated: Callable[[Batch], Batch] = lambda batch: batch
    loss: Callable[[Any, Any, Any], Any] | None = None
    """The sum over tokens: (logits, labels, model)."""
    divide: Callable[[list[int], int, int, int], float] | None = None
    """The divisor: (tokens of this rank's micro-batches, index, tokens of all ranks, world)."""
    built: Callable[[Any], None] = lambda model: None
    parameters: Callable[[Any], list[Any]] = lambda model: [
        p for p in model.parameters() if p.requires_grad
    ]
    optimizer: Callable[[list[Any], float], Any] | None = None
    made: Callable[[Any, Any], None] = lambda model, optimizer: None
    reduced: bool = True
    """DDP reduces gradients over ranks."""
    reduce: str = ""
    """Passes whose gradients are reduced over ranks, by the engine's own switch.

    All of them; `at the last` of a step; `never`; `outside of layers`, for these at the last.
    """
    bucket_views: bool = False
    """DDP's gradients are views of its buckets."""
    mixed: tuple[str | None, str | None] = None, None
    """FSDP2's dtypes: to compute in, and to reduce gradients in."""
    mesh: tuple[int, int] | None = None
    """FSDP2's replicas, and the ranks of each."""
    ignored: Callable[[Any], set[Any]] = lambda model: set()
    """Parameters that FSDP2 is to ignore."""
    reshard: bool | None = None
    """FSDP2 frees whole weights after the forward pass."""
    after_backward: Callable[[Any, int, int], None] = lambda model, step, index: None
    before_step: Callable[[Any, int, int], None] = lambda model, step, rank: None
    after_step: Callable[[Any, Any, int], None] = lambda model, optimizer, step: None
    zero: bool = True


def build(recipe: Recipe, folder: Path) -> Any:
    """Build a tiny model of the recipe's family."""
    import torch
    import transformers

    from tests.watch.runs import grids

    name, config = FAMILIES[recipe.family]
    torch.manual_seed(0)
    settings = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "bos_token_id": START,
        "eos_token_id": END,
        "pad_token_id": PAD,
        "attn_implementation": "eager" if recipe.family == "gemma2" else recipe.attention,
    } | config
    made = getattr(transformers, f"{name}Config")(**settings)
    for key, value in recipe.config.items():
        setattr(made, key, value)
    made._name_or_path = str(folder)
    if recipe.image:
        made.image_token_id = IMAGE
    kind = f"{name}ForCausalLM"
    if recipe.vision:
        kind, made = "LlavaForConditionalGeneration", _llava(made)
    if recipe.grids:
        kind, made = "Qwen2_5_VLForConditionalGeneration", grids.config(settings)
    model = getattr(transformers, kind)(made).to(getattr(torch, recipe.dtype))
    model.config._name_or_path = str(folder)
    if recipe.adapters:
        from peft import LoraConfig, get_peft_model

        lora = {"r": 4, "target_modules": ["q_proj", "v_proj"], **recipe.lora}
        model = get_peft_model(model, LoraConfig(**lora))
    if recipe.checkpointing:
        model.gradient_checkpointing_enable()
    recipe.built(model)
    return model.train()


def _llava(text: Any) -> Any:
    """Return the config of a LLaVA around a language model: four places for each image."""
    from transformers import CLIPVisionConfig, LlavaConfig

    vision = CLIPVisionConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=28,
        patch_size=14,
    )
    return LlavaConfig(
        text_config=text,
        vision_config=vision,
        image_token_index=IMAGE,
        vision_feature_layer=-1,
        eos_token_id=END,
        pad_token_id=PAD,
    )


def _pixels(row: Row) -> Any:
    """Draw the image of a row, [3, 28, 28]: always the same one."""
    import torch

    draw = torch.Generator().manual_seed(sum(row["input_ids"]))
    return torch.rand(3, 28, 28, generator=draw)


def batches(recipe: Recipe, made: list[Row], order: list[int]) -> Iterator[Batch]:
    """Yield micro-batches."""
    import torch

    from tests.watch.runs import grids

    for begin in range(0, len(order) - recipe.batch + 1, recipe.batch):
        taken = [made[at] for at in order[begin : begin + recipe.batch]]
        batch = (_pack if recipe.packed else _pad(recipe.padding))(taken)
        if recipe.vision:
            batch["pixel_values"] = torch.stack([_pixels(row) for row in taken])
        if recipe.grids:
            batch |= grids.of_rows(taken, batch["input_ids"])
        yield recipe.collated(batch)


def _pad(side: str) -> Callable[[list[Row]], Batch]:
    import torch

    def collate(taken: list[Row]) -> Batch:
        longest = max(len(row["input_ids"]) for row in taken)
        out: dict[str, list[list[int]]] = {"input_ids": [], "labels": [], "attention_mask": []}
        for row in taken:
            n = len(row["input_ids"])
            fill = longest - n
            for key, value, empty in (
                ("input_ids", row["input_ids"], PAD),
                ("labels", row["labels"], -100),
                ("attention_mask", [1] * n, 0),
            ):
                rest = [empty] * fill
                out[key].append([*rest, *value] if side == "left" else [*value, *rest])
        return {key: torch.tensor(value) for key, value in out.items()}

    return collate


def _pack(taken: list[Row]) -> Batch:
    import torch

    ids = [token for row in taken for token in row["input_ids"]]
    labels = [label for row in taken for label in [-100, *row["labels"][1:]]]
    positions = [at for row in taken for at in range(len(row["input_ids"]))]
    made = {"input_ids": [ids], "labels": [labels], "position_ids": [positions]}
    return {key: torch.tensor(value) for key, value in made.items()}


def cross_entropy(logits: Any, labels: Any, model: Any) -> Any:
    """Return the sum over learnt tokens."""
    import torch.nn.functional as F  # noqa: N812

    flat = logits[:, :-1].float().flatten(0, 1)
    return F.cross_entropy(flat, labels[:, 1:].flatten(), reduction="sum")


def over_all(tokens: list[int], index: int, everyone: int, world: int) -> float:
    """Divide by the tokens of all ranks: what makes a mean over the step."""
    return everyone / world


def train(recipe: Recipe, folder: Path, rank: int = 0) -> None:
    """Train as a user would."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    if recipe.world > 1:
        store = f"file://{folder}/store"
        dist.init_process_group("gloo", store, rank=rank, world_size=recipe.world)
    model = build(recipe, folder.parent)
    run = _engine(recipe, model)
    make = recipe.optimizer or (lambda own, lr: torch.optim.AdamW(own, lr=lr))
    optimizer = make(recipe.parameters(model), recipe.lr)
    recipe.made(model, optimizer)
    per_step = recipe.batch * recipe.accumulate
    count = 12 * recipe.world if recipe.epochs else per_step * recipe.steps * recipe.world
    made = recipe.data(rows(count, recipe.turns, image=recipe.image))
    loader = torch.utils.data.DataLoader(made, recipe.batch, shuffle=recipe.shuffled)
    take = recipe.order or (lambda rank, world, n: list(range(rank, n, world)))
    order = take(rank, recipe.world, count)
    order *= 2 if recipe.epochs and len(order) <= count else 1
    waiting: list[Batch] = []
    step = 0
    for batch in batches(recipe, made, order):
        waiting.append(batch)
        if len(waiting) == recipe.accumulate:
            _step(recipe, model, run, optimizer, waiting, step, rank)
            waiting, step = [], step + 1
    del loader


def train_hf(recipe: Recipe, folder: Path) -> None:
    """Train with transformers' Trainer, as a user would."""
    import torch
    from transformers import Trainer, TrainingArguments

    torch.set_num_threads(1)
    model = build(recipe, folder.parent)
    given = {
        "output_dir": str(folder / "out"),
        "per_device_train_batch_size": recipe.batch,
        "gradient_accumulation_steps": recipe.accumulate,
        "max_steps": recipe.steps,
        "learning_rate": recipe.lr,
        "bf16": recipe.autocast,
        "use_cpu": True,
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
        "remove_unused_columns": False,
        **recipe.arguments,
    }
    made = recipe.data(rows(recipe.batch * recipe.accumulate * recipe.steps, recipe.turns))
    collate = _pack if recipe.packed else _pad(recipe.padding)
    Trainer(
        model=model,
        args=TrainingArguments(**given),
        train_dataset=made,
        data_collator=lambda taken: recipe.collated(collate(taken)),
        compute_loss_func=recipe.own_loss,
    ).train()


def _engine(recipe: Recipe, model: Any) -> Any:
    import torch

    if recipe.world == 1:
        return model
    if recipe.engine == "ddp" and recipe.reduced:
        return torch.nn.parallel.DistributedDataParallel(
            model, gradient_as_bucket_view=recipe.bucket_views
        )
    if recipe.engine == "fsdp2":
        _shard(recipe, model)
    return model


def _shard(recipe: Recipe, model: Any) -> None:
    """Shard a model's weights over ranks with FSDP2."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    dtypes = [getattr(torch, name) if name else None for name in recipe.mixed]
    given: dict[str, Any] = {
        "mp_policy": MixedPrecisionPolicy(*dtypes),
        "ignored_params": recipe.ignored(model),
    }
    if recipe.reshard is not None:
        given["reshard_after_forward"] = recipe.reshard
    if recipe.mesh is not None:
        names = ("replicate", "shard")
        given["mesh"] = init_device_mesh("cpu", recipe.mesh, mesh_dim_names=names)
    for layer in model.model.layers:
        fully_shard(layer, **given)
    fully_shard(model, **given)


def _reduction(recipe: Recipe, run: Any, last: bool) -> Any:
    """Switch the reduction of a pass's gradients on or off, and return a context for the pass."""
    if recipe.world == 1 or not recipe.reduce:
        return nullcontext()
    on = last and recipe.reduce != "never"
    if recipe.engine == "ddp":
        return nullcontext() if on else run.no_sync()
    run.set_requires_gradient_sync(on)
    if recipe.reduce == "outside of layers":
        for layer in run.model.layers:
            layer.set_requires_gradient_sync(False)
    return nullcontext()


def _step(
    recipe: Recipe,
    model: Any,
    run: Any,
    optimizer: Any,
    waiting: list[Batch],
    step: int,
    rank: int,
) -> None:
    import torch
    import torch.distributed as dist

    tokens = [int((batch["labels"][:, 1:] >= 0).sum()) for batch in waiting]
    total = torch.tensor(sum(tokens))
    if recipe.world > 1:
        dist.all_reduce(total)
    for index, batch in enumerate(waiting):
        given = {key: value for key, value in batch.items() if key != "labels"}
        divisor = (recipe.divide or over_all)(tokens, index, int(total), recipe.world)
        with _reduction(recipe, run, last=index == len(waiting) - 1):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=recipe.autocast):
                logits = run(**given, use_cache=False).logits
            summed = (recipe.loss or cross_entropy)(logits, batch["labels"], model)
            (summed / divisor).backward()
        recipe.after_backward(model, step, index)
    if recipe.clip:
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
    recipe.before_step(model, step, rank)
    optimizer.step()
    recipe.after_step(model, optimizer, step)
    if recipe.zero:
        optimizer.zero_grad()
