"""The micro-batch that is chosen: what a pass really keeps, and the memory that there is."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.distributed._tools.mem_tracker import MemTracker

from tests.engines.ranks import run_ranks
from tests.rows import chat, mixed_rows, picture, write_rows
from tests.runs import messages, request, session
from vtool.config.schema.megatron import Parallel
from vtool.data import head_nll
from vtool.data.head_nll import summed_nll_of_hidden
from vtool.data.loss import summed_nll
from vtool.data.packing import with_positions
from vtool.engines.ranks import Ranks
from vtool.training import micro_batch
from vtool.training.micro_batch import bytes_of_head, bytes_of_pass, choose_micro_batch, print_state
from vtool.training.model_and_engine import TRAINED_DTYPES
from vtool.training.session import RunRequest, Session


def made(folder: Path, *more: str) -> RunRequest:
    if not (folder / "rows.jsonl").exists():
        write_rows(folder / "rows.jsonl", mixed_rows(folder, 12, text_only=(1,)))
    common = ("data.image={min_pixels:784,max_pixels:12544}", "device.kind=cpu", "train.steps=2")
    rows = messages(folder / "rows.jsonl")
    return request("rows", rows, *common, f"run.dir={folder / 'run'}", *more)


def kept(opened: Session) -> tuple[int, int, int]:
    """Bytes that the first forward pass keeps, the tokens of its row, and its patches."""
    (batch,) = next([one] for one in opened.micro_batches(1))
    loaded = with_positions(opened.rows["train"][batch], opened.engine.module)
    storages: dict[int, int] = {}
    weights = {each.untyped_storage().data_ptr() for each in opened.engine.module.parameters()}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = summed_nll(opened.engine.module, loaded, opened.engine.module)
    held = sum(storages.values())
    patches = len(loaded.inputs.get("pixel_values", ()))
    del loss
    return held, loaded.inputs["input_ids"].numel(), patches


@pytest.mark.parametrize("side", [28, 112])
def test_the_estimate_is_no_less_than_a_pass_keeps_and_not_many_times_it(
    tmp_path: Path, side: int
) -> None:
    image = picture(tmp_path / "one.png", side, side)
    question = [{"type": "image", "image": str(image)}, {"type": "text", "text": "What is it?"}]
    rows = [chat(question, "It is a square. " * 9)]
    write_rows(tmp_path / "rows.jsonl", rows)
    opened, _ = session(made(tmp_path, "data.global_batch_size=1", "data.micro_batch_size=1"))
    held, tokens, patches = kept(opened)
    estimate = bytes_of_pass(opened.run, opened.engine.module.config, 1, tokens, patches)
    assert held <= 1.2 * estimate
    assert estimate <= 4 * held


def test_a_block_that_computes_again_keeps_what_goes_into_it(tmp_path: Path) -> None:
    image = picture(tmp_path / "one.png", 112, 112)
    question = [{"type": "image", "image": str(image)}, {"type": "text", "text": "What is it?"}]
    write_rows(tmp_path / "rows.jsonl", [chat(question, "It is a square. " * 9)])
    alone = ("data.global_batch_size=1", "data.micro_batch_size=1")
    found = []
    for asked in ("none", 2, 4, 5, "full"):
        opened, _ = session(made(tmp_path, *alone, f"model.gradient_checkpointing={asked}"))
        held, tokens, patches = kept(opened)
        estimate = bytes_of_pass(opened.run, opened.engine.module.config, 1, tokens, patches)
        assert held <= 1.2 * estimate, asked
        found.append((held, estimate))
    held, estimates = zip(*found, strict=True)
    assert list(held) == sorted(held, reverse=True)
    # the last layer of all is there once in any case, kept or computed again
    assert all(one < estimates[0] for one in estimates[1:])
    assert held[-1] < 0.6 * held[0]


def kept_when_spread(ranks: Ranks, asked: RunRequest) -> tuple[int, float]:
    opened, _ = session(asked, ranks)
    held, tokens, patches = kept(opened)
    return held, bytes_of_pass(opened.run, opened.engine.module.config, 1, tokens, patches)


@pytest.mark.full
@pytest.mark.parametrize("sequence", ["false", "true"])
def test_a_rank_of_two_that_share_a_row_keeps_what_the_estimate_says(
    tmp_path: Path, sequence: str
) -> None:
    write_rows(tmp_path / "rows.jsonl", [chat("What is it? " * 20, "It is a square. " * 40)])
    asked = made(
        tmp_path,
        *("data.global_batch_size=1", "data.micro_batch_size=1", "engine=megatron"),
        f"engine.parallel={{tensor:2,sequence:{sequence}}}",
    )
    for held, estimate in run_ranks(kept_when_spread, 2, asked):
        assert held <= 1.2 * estimate
        assert estimate <= 4 * held


def test_a_row_that_is_spread_needs_less_on_each_rank_and_stages_keep_several(
    tmp_path: Path,
) -> None:
    opened, _ = session(made(tmp_path, "data.micro_batch_size=1"))
    config, tokens, patches = opened.engine.module.config, 600, 400
    text = config.get_text_config()

    def head(share: int) -> float:
        """A chunk's logits and softmax, and the gradients of the head's weight and input."""
        entries, hidden = text.vocab_size / share, text.hidden_size
        return 4 * ((2 * tokens + hidden) * entries + tokens * hidden)

    def estimate(**parallel: object) -> float:
        run = made(tmp_path, "engine=megatron").run
        engine = run.engine.model_copy(update={"parallel": Parallel.model_validate(parallel)})
        run = run.model_copy(update={"engine": engine})
        return bytes_of_pass(run, config, 1, tokens, patches)

    tower, none = (bytes_of_pass(opened.run, config, 1, tokens, each) for each in (patches, 0))
    alone, tower = estimate() - head(1), tower - none
    half = estimate(tensor=2, sequence=True) - head(2)
    assert half - tower == pytest.approx((alone - tower) / 2), "the tower is not spread"
    assert half < estimate(tensor=2) - head(2) < alone
    # of two stages, the first keeps two micro-batches of half of the layers, and has no head
    assert estimate(pipeline=2) == pytest.approx(alone + tower)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("frozen", [False, True])
def test_the_estimate_of_the_head_is_the_peak_of_its_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, frozen: bool
) -> None:
    monkeypatch.setattr(head_nll, "_BLOCK_BYTES", 2**22)
    monkeypatch.setattr(head_nll, "_CHUNK_BYTES", 2**21)
    settings = (f"model.dtype={dtype}", f"model.freeze.language={frozen}".lower())
    run = made(tmp_path, *settings).run
    text = SimpleNamespace(vocab_size=5000, hidden_size=128, num_hidden_layers=0)
    config = SimpleNamespace(get_text_config=lambda: text)
    weight = torch.nn.Parameter(torch.zeros(5000, 128), requires_grad=not frozen)
    tracker = MemTracker()
    tracker.track_external(weight)
    with tracker:
        hidden = torch.zeros(1, 1024, 128, dtype=TRAINED_DTYPES[dtype], requires_grad=True)
        with torch.autocast("cpu", enabled=dtype == "bfloat16"):
            nll = summed_nll_of_hidden(hidden, weight, torch.zeros(1, 1024, dtype=torch.long))
        nll.backward()
    found = tracker.get_tracker_snapshot("peak")
    peak = sum(kinds["Total"] for kinds in found.values())
    given = weight.nbytes + hidden.nbytes
    assert bytes_of_head(run, config, 1024) == pytest.approx(peak - given, rel=0.2)
    assert bytes_of_head(run, config, 1024, whole_logits=True) == 12 * 1024 * 5000


@pytest.mark.parametrize(("rows", "wanted"), [(0.5, 1), (1.5, 1), (5, 4), (1000, 8)])
def test_it_is_a_power_of_two_that_the_free_memory_has_room_for(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    rows: float,
    wanted: int,
) -> None:
    run = made(tmp_path, "data.global_batch_size=12")
    opened, _ = session(made(tmp_path, "data.micro_batch_size=1", "data.global_batch_size=12"))
    module, ledger = opened.engine.module, opened.ledgers["train"]
    tokens = max(ledger.lengths)
    one, two = (bytes_of_pass(run.run, module.config, each, tokens, 4 * tokens) for each in (1, 2))
    state = micro_batch.bytes_kept(run.run, module, Ranks())
    # what is of a row, and what is of the head's weight
    needed = one + (rows - 1) * (two - one)
    free = state + needed / micro_batch.SHARE_TAKEN + 1
    monkeypatch.setattr(micro_batch, "free_memory", lambda ranks: free)
    capsys.readouterr()
    assert choose_micro_batch(run.run, module, ledger, Ranks()).data.micro_batch_size == wanted
    assert f"data.micro_batch_size: {wanted} (auto): about" in capsys.readouterr().out


def test_what_is_kept_has_the_states_as_they_will_be(tmp_path: Path) -> None:
    """2 bytes and two scales of a block for what has blocks, else 8."""
    module = torch.nn.ParameterDict(
        {
            "wide": torch.nn.Parameter(torch.zeros(64, 256)),
            "bias": torch.nn.Parameter(torch.ones(9)),
        }
    )
    module.get_input_embeddings = torch.nn.Module  # type: ignore[assignment]
    sizes = {
        states: micro_batch.bytes_kept(
            made(tmp_path, f"optim.states={states}").run, module, Ranks()
        )
        for states in ("float32", "8bit")
    }
    wide, bias = 64 * 256, 9
    assert sizes["float32"] == 12 * (wide + bias)
    assert sizes["8bit"] == (4 + 2) * wide + 2 * 4 * 64 + 12 * bias
    double = made(tmp_path, "model.dtype=float64").run
    assert micro_batch.bytes_kept(double, module, Ranks()) == 24 * (wide + bias)


def test_a_run_takes_what_was_chosen_and_a_number_stays(tmp_path: Path) -> None:
    opened, _ = session(made(tmp_path, "data.global_batch_size=12"))
    assert [len(batch.rows) for batch in opened.micro_batches(1)] == [8, 4]
    other, _ = session(made(tmp_path, "data.global_batch_size=12", "data.micro_batch_size=5"))
    assert [len(batch.rows) for batch in other.micro_batches(1)] == [5, 5, 2]


def test_what_is_free_is_no_more_than_the_machine_has() -> None:
    assert 2**20 < micro_batch.free_memory(Ranks()) < 2**50
    two = Ranks(world=2, local_world=2)
    assert micro_batch.free_memory(two) == pytest.approx(
        micro_batch.free_memory(Ranks()) / 2, rel=0.2
    )


@pytest.mark.parametrize(("engine", "shares"), [("ddp", 1), ("fsdp2", 4)])
def test_what_a_rank_keeps_is_printed_before_it_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], engine: str, shares: int
) -> None:
    run = made(tmp_path, f"engine={engine}", "data.global_batch_size=4").run
    model = torch.nn.ModuleList([torch.nn.Linear(1024, 2048), torch.nn.Linear(1024, 1024)])
    model[1].requires_grad_(requires_grad=False)
    print_state(run, model, Ranks(1, 4))
    assert capsys.readouterr().out == ""
    print_state(run, model, Ranks(0, 4))
    weights, trained = 3 * 2**20 + 3072, 2 * 2**20 + 2048
    mib = [round(each / shares / 2**20) for each in (4 * weights, 12 * trained)]
    said = capsys.readouterr().out
    assert f"weights {mib[0]} MiB, gradients and the optimizer's state {mib[1]} MiB" in said
