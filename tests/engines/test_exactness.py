"""The contract between the loop and an engine:

the gradient of a global step does not depend on how it is cut or spread.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor

from tests.engines.ranks import run_ranks
from tests.engines.state import model_of, optimizer_of
from tests.rows import mixed_rows, write_rows
from tests.runs import gradients, messages, relative_difference, request, session
from vtool.data.chat import IGNORED
from vtool.data.collate import collate
from vtool.data.loader import load_steps, micro_batches
from vtool.engines.ranks import Ranks
from vtool.training.session import RunRequest, Session
from vtool.training.step import micro_batch_nll

ROWS = 32
TEXT_ONLY = (1, 4, 5, 11, 12, 13, 14, 30)
ENGINES = ("ddp", "fsdp2")
BOTH = pytest.mark.parametrize("engine", ENGINES)


def made_run(
    folder: Path, micro: int, dtype: str, text_only: Sequence[int] = TEXT_ONLY, *more: str
) -> RunRequest:
    rows = write_rows(folder / "rows.jsonl", mixed_rows(folder, ROWS, text_only))
    batch = [
        f"data.global_batch_size={ROWS}",
        f"data.micro_batch_size={micro}",
        "data.image={min_pixels:784,max_pixels:3136}",
    ]
    return request(
        "rows",
        messages(rows),
        f"run.dir={folder / 'run'}",
        f"model.dtype={dtype}",
        "optim.warmup_steps=0",
        *batch,
        *more,
    )


def step_gradients(ranks: Ranks, made: RunRequest) -> dict[str, Any]:
    """Return the gradients that an engine has after the first global step."""
    torch.set_num_threads(1)
    opened, _ = session(made, ranks)
    run, kept = opened.run, opened.ledgers["train"].kept

    def plan(step):
        return micro_batches(
            opened.plan, kept, step, ranks.rank, ranks.world, run.data.micro_batch_size
        )

    (batches,) = load_steps(opened.rows["train"], range(1, 2), plan, 0)
    counts = ranks.all_gather(
        [sum(batch.supervised for batch in batches), sum(batch.images for batch in batches)]
    )
    supervised, images = (int(sum(column)) for column in zip(*counts, strict=True))
    opened.engine.forward_backward(
        batches, micro_batch_nll(opened, dummy=images > 0), supervised, every_parameter=images > 0
    )
    return {
        "gradients": gradients(opened.engine.module),
        "sizes": [len(batch.indices) for batch in batches],
    }


def reference(made: RunRequest) -> dict[str, torch.Tensor]:
    """Row by row, by the definition: Σ −log softmax(logits at t)[token t + 1] over supervised
    tokens, divided by their number N.

    Two things in transformers are float32 even in a float64 model. Its own loss, which so cannot be
    the reference (1.4e-8 off); and its RMSNorm, whose backward rounds alike only where the loss is
    divided by N before it, not the gradient after it.
    """
    torch.set_num_threads(1)
    opened, _ = session(made)
    rows = opened.rows["train"]
    samples = [rows.sample(index) for index in opened.ledgers["train"].kept]
    total = sum(int((sample.labels[1:] != IGNORED).sum()) for sample in samples)
    for sample in samples:
        logits = opened.engine.module(**collate([sample], rows.processor).inputs).logits[0]
        places = [
            place for place in range(1, len(sample.labels)) if sample.labels[place] != IGNORED
        ]
        nll = -torch.stack(
            [torch.log_softmax(logits[place - 1], -1)[sample.labels[place]] for place in places]
        ).sum()
        (nll / total).backward()
    return gradients(opened.engine.module)


@pytest.mark.parametrize(
    ("engine", "dtype", "tolerance"),
    [
        pytest.param("ddp", "float32", 1e-6, marks=pytest.mark.full),
        ("ddp", "float64", 1e-12),
        pytest.param("fsdp2", "float64", 1e-12, marks=pytest.mark.full),
    ],
)
def test_every_cut_of_a_global_batch_gives_the_same_gradient(
    tmp_path: Path, engine: str, dtype: str, tolerance: float
) -> None:
    wanted = reference(made_run(tmp_path, ROWS, dtype))
    differences = {}
    for micro, world in ((32, 1), (16, 1), (8, 1), (1, 1), (16, 2), (5, 2)):
        first, *others = run_ranks(
            step_gradients, world, made_run(tmp_path, micro, dtype, TEXT_ONLY, f"engine={engine}")
        )
        differences[f"{ROWS // world}x{world} by {micro}"] = relative_difference(
            first["gradients"], wanted
        )
        for other in others:
            # ranks agree to the bit
            assert relative_difference(other["gradients"], first["gradients"]) == 0
    print(engine, dtype, {cut: f"{difference:.1e}" for cut, difference in differences.items()})
    assert max(differences.values()) <= tolerance, differences


@BOTH
@pytest.mark.parametrize("count", [3, pytest.param(1, marks=pytest.mark.full)])
def test_ranks_with_unequal_work_give_the_same_gradient(
    tmp_path: Path, engine: str, count: int
) -> None:
    """Three rows on two ranks, one a micro-batch:

    two micro-batches against one. One row on two ranks: one against none.
    """
    rows = write_rows(tmp_path / "rows.jsonl", mixed_rows(tmp_path, count))
    overrides = [
        messages(rows),
        f"run.dir={tmp_path / 'run'}",
        "model.dtype=float64",
        "optim.warmup_steps=0",
    ]
    made = request(
        "rows", *overrides, "data.image={min_pixels:784,max_pixels:3136}", f"engine={engine}"
    )
    first, second = run_ranks(step_gradients, 2, made)
    assert [sum(first["sizes"]), sum(second["sizes"])] == [(count + 1) // 2, count // 2]
    assert relative_difference(first["gradients"], reference(made)) <= 1e-12
    assert relative_difference(first["gradients"], second["gradients"]) == 0


@BOTH
def test_a_rank_without_images_gets_the_gradient_of_one_process(
    tmp_path: Path, engine: str
) -> None:
    # a single row has an image
    made = made_run(tmp_path, 4, "float64", tuple(range(ROWS - 1)), f"engine={engine}")
    first, second = run_ranks(step_gradients, 2, made)
    assert relative_difference(first["gradients"], second["gradients"]) == 0
    assert relative_difference(first["gradients"], reference(made)) <= 1e-12


@pytest.mark.parametrize(
    ("engine", "world"),
    [("ddp", 1), ("ddp", 2), ("fsdp2", 1), pytest.param("fsdp2", 2, marks=pytest.mark.full)],
)
def test_without_any_image_the_tower_gets_no_gradient(
    tmp_path: Path, engine: str, world: int
) -> None:
    results = run_ranks(
        step_gradients,
        world,
        made_run(tmp_path, 8, "float64", tuple(range(ROWS)), f"engine={engine}"),
    )
    for result in results:
        assert result["gradients"]
        assert not [name for name in result["gradients"] if "visual" in name]
    assert relative_difference(results[0]["gradients"], results[-1]["gradients"]) == 0


def test_the_dummy_leaves_the_other_gradients_as_they_were_to_the_bit(tmp_path: Path) -> None:
    def after(dummy: bool) -> tuple[dict[str, torch.Tensor], Session]:
        opened, _ = session(made_run(tmp_path, ROWS, "float32", tuple(range(ROWS))))
        rows = opened.rows["train"]
        batch = collate([rows.sample(index) for index in range(ROWS)], rows.processor)
        opened.engine.forward_backward(
            [batch], micro_batch_nll(opened, dummy=dummy), batch.supervised, every_parameter=dummy
        )
        return gradients(opened.engine.module), opened

    without, _ = after(False)
    with_dummy, opened = after(True)
    tower = {name for name, _ in opened.engine.module.named_parameters() if "visual" in name}
    assert with_dummy.keys() - without.keys() == tower
    for name, gradient in with_dummy.items():
        assert torch.equal(
            gradient, torch.zeros_like(gradient) if name in tower else without[name]
        ), name


@pytest.mark.full
@BOTH
def test_recomputed_activations_give_the_same_gradient_to_the_bit(
    tmp_path: Path, engine: str
) -> None:
    plain, recomputed = (
        run_ranks(
            step_gradients,
            2,
            made_run(
                tmp_path,
                8,
                "float32",
                TEXT_ONLY,
                f"engine={engine}",
                f"model.gradient_checkpointing={on}",
            ),
        )
        for on in ("false", "true")
    )
    assert relative_difference(recomputed[0]["gradients"], plain[0]["gradients"]) == 0


@BOTH
def test_each_block_is_recomputed_where_it_is_asked_for(tmp_path: Path, engine: str) -> None:
    """A recomputed block's forward pass runs twice a step: forwards, and on the way back."""
    for on, runs in (("false", 1), ("true", 2)):
        opened, _ = session(
            made_run(
                tmp_path,
                8,
                "float32",
                TEXT_ONLY,
                f"engine={engine}",
                f"model.gradient_checkpointing={on}",
            )
        )
        rows = opened.rows["train"]
        batch = collate([rows.sample(index) for index in range(8)], rows.processor)
        ran: list[str] = []
        for place, block in enumerate(opened.family.blocks(opened.engine.module)):
            if block is not opened.engine.module.model.visual:
                block.mlp.register_forward_pre_hook(
                    lambda *_, name=str(place), ran=ran: ran.append(name)
                )
        opened.engine.forward_backward(
            [batch], micro_batch_nll(opened, dummy=True), batch.supervised, every_parameter=True
        )
        assert {ran.count(name) for name in ran} == {runs}


@pytest.mark.full
def test_weights_that_stay_gathered_between_the_passes_change_no_gradient(tmp_path: Path) -> None:
    plain, kept = (
        run_ranks(
            step_gradients,
            2,
            made_run(
                tmp_path,
                8,
                "float32",
                TEXT_ONLY,
                "engine=fsdp2",
                f"engine.reshard_after_forward={freed}",
            ),
        )
        for freed in ("true", "false")
    )
    assert relative_difference(kept[0]["gradients"], plain[0]["gradients"]) == 0


@pytest.mark.parametrize(("kind", "reported"), [("auto", True), ("cpu", False)])
def test_offloading_to_the_cpu_that_computes_is_said_to_change_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, reported: bool
) -> None:
    """With device.kind=cpu, the rules of settings have reported it already."""
    session(
        made_run(
            tmp_path,
            8,
            "float32",
            TEXT_ONLY,
            "engine=fsdp2",
            "engine.cpu_offload=true",
            f"device.kind={kind}",
        )
    )
    assert (
        "note[ignored-setting VT211]: engine.cpu_offload is true" in capsys.readouterr().out
    ) == reported


def gathered_after_forward(ranks: Ranks, made: RunRequest) -> dict[str, bool]:
    """Return whose weights are whole after the forward pass: a layer's, the tower's, the head's."""
    torch.set_num_threads(1)
    opened, _ = session(made, ranks)
    rows, module = opened.rows["train"], opened.engine.module
    batch = collate([rows.sample(index) for index in range(8)], rows.processor)
    assert all(isinstance(parameter, DTensor) for parameter in module.parameters())
    micro_batch_nll(opened, dummy=True)(module, batch)
    parts = {
        "layer": module.model.language_model.layers[0],
        "tower": module.model.visual,
        "head": module,
    }
    return {
        name: not isinstance(next(iter(part.parameters())), DTensor)
        for name, part in parts.items()
        if name != "head"
    } | {"head": not isinstance(module.get_input_embeddings().weight, DTensor)}


@pytest.mark.full
@pytest.mark.parametrize("freed", [True, False])
def test_weights_are_freed_after_a_blocks_forward_pass_as_the_setting_says(
    tmp_path: Path, freed: bool
) -> None:
    made = made_run(
        tmp_path,
        8,
        "float32",
        TEXT_ONLY,
        "engine=fsdp2",
        f"engine.reshard_after_forward={str(freed).lower()}",
    )
    for gathered in run_ranks(gathered_after_forward, 2, made):
        assert gathered == {"layer": not freed, "tower": not freed, "head": True}


@pytest.mark.full
def test_views_of_the_buckets_give_the_same_gradient(tmp_path: Path) -> None:
    plain = run_ranks(step_gradients, 2, made_run(tmp_path, 8, "float32"))[0]
    viewed = run_ranks(
        step_gradients,
        2,
        made_run(tmp_path, 8, "float32", TEXT_ONLY, "engine.gradient_as_bucket_view=true"),
    )[0]
    assert relative_difference(viewed["gradients"], plain["gradients"]) == 0


@BOTH
def test_bfloat16_computes_in_bfloat16_and_keeps_weights_and_gradients_in_float32(
    tmp_path: Path, engine: str
) -> None:
    opened, _ = session(made_run(tmp_path, 8, "bfloat16", TEXT_ONLY, f"engine={engine}"))
    rows = opened.rows["train"]
    batch = collate([rows.sample(index) for index in range(8)], rows.processor)
    seen: list[torch.dtype] = []
    opened.engine.module.get_submodule(
        "model.language_model.layers.0.mlp.up_proj"
    ).register_forward_hook(lambda _module, _inputs, output: seen.append(output.dtype))
    opened.engine.forward_backward(
        [batch], micro_batch_nll(opened, dummy=True), batch.supervised, every_parameter=True
    )
    assert {gradient.dtype for gradient in gradients(opened.engine.module).values()} == {
        torch.float32
    }
    opened.engine.optimizer_step(1e-5)
    assert seen == [torch.bfloat16]
    assert {tensor.dtype for tensor in model_of(opened.engine).values()} == {torch.float32}
    assert {tensor.dtype for tensor in optimizer_of(opened.engine).values()} == {torch.float32}
