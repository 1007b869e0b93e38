"""The rows of a forward pass where `data.micro_batch_size` is `auto`, by an estimate of memory.

What a backward pass needs is kept by the forward pass: of each token in each layer, what goes into
its products and norms (as counted in arXiv 2205.05198, with a gated MLP). The head's loss comes on
top, with the logits of a block alone (`vtool.data.head_nll`). That is an estimate, from above for
most rows: a padded batch of the longest rows, of images alone.
"""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vtool.config.schema import Ddp, Fsdp2, Megatron, Run
from vtool.config.schema.megatron import Parallel
from vtool.data.audit import Ledger
from vtool.data.head_nll import rows_of_block, rows_of_chunk
from vtool.engines.ranks import Ranks
from vtool.families.family import load_family
from vtool.models.nf4 import packed_bytes
from vtool.models.observe_model import measure_config
from vtool.training.eight_bit import bytes_of_means

SHARE_TAKEN = 0.6
"""The part of the free memory that is planned with; the rest is for what the estimate leaves out.
"""
_MOST_ROWS = 64
# Bytes of a value that a pass keeps; with bfloat16, norms keep what they get in float32.
_WIDTH = {"float32": 4, "bfloat16": 3, "float64": 8}


def choose_micro_batch(run: Run, model: nn.Module, ledger: Ledger, ranks: Ranks) -> Run:
    """Return the run with a micro-batch of a number, the same on all ranks; rank 0 says it."""
    if run.data.micro_batch_size != "auto":
        return run
    tokens, facts = max(ledger.lengths, default=1), load_family(run.model.family).facts
    if facts.is_learnt:
        if ranks.rank == 0:
            what = f"the memory of images is not estimated for {facts.name}"
            print(f"data.micro_batch_size: 1 (auto): {what}", flush=True)
        data = run.data.model_copy(update={"micro_batch_size": 1})
        return run.model_copy(update={"data": data})
    merged = facts.patches.merge_size**2
    patches = merged * tokens if ledger.images + ledger.videos else 0
    whole = not load_family(run.model.family).computes_as_known(model)
    needed = partial(
        bytes_of_pass, run, model.config, tokens=tokens, patches=patches, whole_logits=whole
    )
    free = free_memory(ranks) - bytes_kept(run, model, ranks)
    room = min(own for (own,) in ranks.all_gather([max(0.0, free * SHARE_TAKEN)]))
    size = min(run.rows_of_rank(ranks.world), _MOST_ROWS)
    size = 1 << (size.bit_length() - 1)
    while size > 1 and needed(size) > room:
        size //= 2
    if ranks.rank == 0:
        print(
            f"data.micro_batch_size: {size} (auto): about {size_in_words(needed(size))} for {size}"
            f" of the longest rows, of {tokens} tokens; {size_in_words(max(0.0, free))} are free",
            flush=True,
        )
    data = run.data.model_copy(update={"micro_batch_size": size})
    return run.model_copy(update={"data": data})


def bytes_of_pass(
    run: Run,
    config: Any,
    rows: int,
    tokens: int,
    patches: int,
    *,
    whole_logits: bool = False,
) -> float:
    """Return about how much the forward pass of some rows keeps for its backward pass.

    Of several stages of a pipeline, those of the stage that keeps most: by its schedule (1F1B), the
    first one of p keeps p micro-batches at once, and the last one has the head.

    Args:
        run: says in which dtype, with which attention, whether activations are kept, and over how
            many ranks a row is spread.
        config: of the model.
        rows: of the micro-batch.
        tokens: of each row.
        patches: that the vision tower is given for each.
        whole_logits: the loss is not that of the head's chunks.
    """
    size, spread = measure_config(config), _spread(run)
    eager = run.model.attention == "eager"
    # megatron-core's own attention has the scores of all pairs; Transformer Engine's has not
    scores = eager or (isinstance(run.engine, Megatron) and spread.context == 1)
    language = _Layers(
        -(-tokens // spread.context),
        size["layers"] // spread.pipeline,
        size["hidden"],
        size["intermediate"],
        size["heads"],
        scores,
        size.get("vision_depth", 0),
    )
    # the tower is whole on each rank of the first stage
    tower = _Layers(
        patches,
        size.get("vision_depth", 0),
        size.get("vision_hidden", size["hidden"]),
        size.get("vision_intermediate", size["intermediate"]),
        size.get("vision_heads", size["heads"]),
        eager,
    )
    own = language.kept(run, spread)
    first = spread.pipeline * (own + tower.kept(run, Parallel()))
    head = bytes_of_head(run, config, rows * tokens, whole_logits=whole_logits)
    width = rows * _WIDTH[run.model.dtype]
    if spread.pipeline == 1:
        return first * width + head
    earlier = language.layers * (spread.pipeline - 1)
    last = replace(language, before=language.before + earlier).kept(run, spread)
    return max(first * width, last * width + head)


def bytes_of_head(run: Run, config: Any, tokens: int, *, whole_logits: bool = False) -> float:
    """Return the bytes that the loss takes in addition to the layers, at its highest."""
    text, spread = config.get_text_config(), _spread(run)
    positions, entries = -(-tokens // spread.context), -(-text.vocab_size // spread.tensor)
    wide, narrow = (8 if run.model.dtype == "float64" else 4), 2 * (run.model.dtype == "bfloat16")
    if whole_logits:  # with their softmax and its gradient
        return float(3 * wide * positions * entries)
    own = narrow or wide
    block = min(positions, rows_of_block(entries, own))
    chunk = min(block, rows_of_chunk(entries, wide))
    trained = not run.model.freeze.language
    if run.lora is not None:
        trained = bool(run.lora.modules_to_save)
    # of the weight: its gradient; in bfloat16, itself again
    of_weight = text.hidden_size * entries * (narrow + trained * wide)
    of_logits = entries * (block * own + chunk * wide)
    return float(of_logits + positions * text.hidden_size * wide + of_weight)


@dataclass(frozen=True, slots=True)
class _Layers:
    """The layers of a tower or of a stage, and the row that they are given."""

    length: int
    layers: int
    hidden: int
    intermediate: int
    heads: int
    scores: bool
    """The attention keeps a value for each pair of places."""
    before: int = 0
    """Blocks that are computed before them."""

    def kept(self, run: Run, spread: Parallel) -> float:
        """Return the values that they keep of one row, on one of the ranks it is spread over.

        Matrices are spread, and what goes between them; norms and what is added up are whole,
        unless `sequence` spreads these too.
        """
        whole = self.length * 6 * self.hidden
        divided = self.length * (6 * self.hidden + 4 * self.intermediate)
        divided += 2 * self.heads * self.length**2 * self.scores
        by = spread.tensor if spread.sequence else 1
        layer = whole / by + divided / spread.tensor
        again = max(0, run.model.recomputed(self.before + self.layers) - self.before)
        # when the first ones are computed again, one by one, nothing is left of those behind them
        kept = max(self.layers - again, min(again, 1))
        return again * self.length * self.hidden / by + kept * layer


def print_state(run: Run, model: nn.Module, ranks: Ranks) -> None:
    """Print, on rank 0, what each rank keeps from step to step, before anything of it is there.

    Nothing is printed for an engine whose layouts are not planned, such as megatron-core's.
    """
    if ranks.rank != 0 or not isinstance(run.engine, Ddp | Fsdp2):
        return
    whole = {id(each): each for each in model.parameters()}.values()
    shares = ranks.world if isinstance(run.engine, Fsdp2) else 1
    weights, state = (
        sum(each.numel() * each.element_size() for each in whole) / shares,
        sum(_trained_bytes(each, run) for each in whole if each.requires_grad) / shares,
    )
    print(
        f"plan: each rank keeps {size_in_words(weights + state)}: weights {size_in_words(weights)},"
        f" gradients and the optimizer's state {size_in_words(state)}; a step's activations come on"
        " top (vtool plan)",
        flush=True,
    )


def _trained_bytes(parameter: nn.Parameter, run: Run) -> int:
    """Return the bytes of a trained parameter's gradient and of the optimizer's means."""
    if run.optim.states == "8bit":
        return 4 * parameter.numel() + bytes_of_means(parameter.shape, parameter.numel())
    return 3 * (8 if run.model.dtype == "float64" else 4) * parameter.numel()


def _spread(run: Run) -> Parallel:
    """Return over how many ranks a row is spread: one, of an engine that spreads only rows."""
    return run.engine.parallel if isinstance(run.engine, Megatron) else Parallel()


def bytes_kept(run: Run, model: nn.Module, ranks: Ranks) -> float:
    """Return the bytes that weights, gradients and optimizer will take on top of those taken now.

    Of a pipeline, on its first stage, which has the tower and the embeddings.
    """
    spread, component = _spread(run), load_family(run.model.family).component
    everyone = ranks.world if isinstance(run.engine, Fsdp2) else 1
    embeddings: Any = model.get_input_embeddings()  # type: ignore[operator]
    first = {id(each) for each in embeddings.parameters()}
    total, kept = 0.0, packed_bytes(model)
    for name, each in model.named_parameters():
        shares = everyone
        if component(name) == "language":
            shares *= spread.tensor * (1 if id(each) in first else spread.pipeline)
        there = 0 if ranks.device.type == "cpu" and not each.is_meta else kept[each]
        total += (there + _trained_bytes(each, run) * each.requires_grad) / shares
    return total


def free_memory(ranks: Ranks) -> float:
    """Return the bytes that are free for this rank, on its device."""
    if ranks.device.type != "cpu":
        free, _ = getattr(torch, ranks.device.type).mem_get_info(ranks.device)
        return float(free)
    found = [_available()]
    group = Path("/sys/fs/cgroup")
    try:
        most, now = ((group / f"memory.{name}").read_text() for name in ("max", "current"))
        found += [float(most) - float(now)] if most.strip() != "max" else []
    except (OSError, ValueError):
        pass  # no such group, or one of an older kernel
    return min(found) / ranks.local_world


def _available() -> float:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        kib = next(line.split()[1] for line in lines if line.startswith("MemAvailable:"))
        return float(kib) * 1024
    except (OSError, StopIteration, ValueError):
        return 0.0  # a micro-batch of 1 needs no more than any does


def size_in_words(size: float) -> str:
    """Return a number of bytes as MiB or GiB, for a line."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
