"""A plain loop under the watch: what the facts say, and that the run is not changed by it."""

import copy
import errno
import gc
import io
import os
import pickle
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from tests.watch.inject import tiny
from vtool.watch.inject.vtool_watch import alive, batches, capture, watch
from vtool.watch.inject.vtool_watch.install import Process
from vtool.watch.inject.vtool_watch.settings import WatchSettings

LENGTHS = [[9, 5], [12, 12], [4, 7]]


class Loop:
    """Trains a model for some steps, watched where there is a folder."""

    def __init__(self, folder: Path | None, model: Any = None, **settings: Any) -> None:
        self.model = model if model is not None else tiny.make()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.process = None
        if folder is not None:
            self.process = Process(WatchSettings(str(folder), **settings))
            self.process.made(self.optimizer)
        self.steps_made = 0

    def backward(self, mean_of_means: bool = False) -> None:
        batches = [
            tiny.batch(lengths, seed=10 * self.steps_made + k) for k, lengths in enumerate(LENGTHS)
        ]
        total = sum(n - 2 for lengths in LENGTHS for n in lengths)
        for inputs in batches:
            loss, tokens = tiny.loss_of(self.model, inputs)
            (loss / tokens / len(batches) if mean_of_means else loss / total).backward()

    def update(self) -> None:
        if self.process is not None:
            self.process.before_step(self.optimizer)
        self.optimizer.step()
        if self.process is not None:
            self.process.after_step(self.optimizer)
        self.steps_made += 1

    def run(self, steps: int = 2, **how: Any) -> "Loop":
        for _ in range(steps):
            self.backward(**how)
            self.update()
            self.optimizer.zero_grad()
        if self.process is not None:
            self.process.end()
        return self

    def weights(self) -> bytes:
        return b"".join(p.detach().numpy().tobytes() for p in self.model.parameters())


def test_what_is_learnt_is_written(tmp_path: Path) -> None:
    Loop(tmp_path).run(2)
    micro = tiny.facts(tmp_path, "micro")
    assert [(f["step"], f["index"]) for f in micro] == [(s, k) for s in range(2) for k in range(3)]
    for f, lengths in zip(micro, LENGTHS * 2, strict=True):
        tokens = sum(n - 2 for n in lengths)
        assert (f["supervised"], f["solved"], f["measured"], f["read"]) == (tokens,) * 4
        assert (f["not_next"], f["odd"]) == (0, 0)
        assert f["ends"] == {"in_inputs": len(lengths), "learnt": len(lengths), "behind": 0}
        assert [row["n"] for row in f["per_row"]] == [n - 2 for n in lengths]
        for row in f["per_token"]:
            assert row["target"] == row["next"]
    for step in range(2):
        assert sum(f["sum"] for f in micro if f["step"] == step) == pytest.approx(1, abs=1e-6)
    assert tiny.facts(tmp_path, "error") == []
    assert tiny.facts(tmp_path)[0]["kind"] == "process"
    assert tiny.facts(tmp_path)[-1]["kind"] == "ended"


def test_a_mean_of_means_has_other_weights(tmp_path: Path) -> None:
    Loop(tmp_path).run(1, mean_of_means=True)
    weights = [f["measured_weight"] for f in tiny.facts(tmp_path, "micro")]
    expected = [1 / 3 / sum(n - 2 for n in lengths) for lengths in LENGTHS]
    assert [w[1] for w in weights] == pytest.approx(expected, rel=1e-5)


def test_the_engines_factor_is_read_from_the_last_norm(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    loop.backward()
    torch.nn.utils.clip_grad_norm_(loop.model.parameters(), 1e-3)
    loop.update()
    (arrived,) = tiny.facts(tmp_path, "arrived")
    assert arrived["engine_factor"] < 0.5
    assert arrived["engine_misfit"] < 1e-6
    assert arrived["norm"] == pytest.approx(1e-3, rel=1e-3)


def test_the_reference_step_is_the_optimizers(tmp_path: Path) -> None:
    Loop(tmp_path).run(3)
    for f in tiny.facts(tmp_path, "stepped"):
        assert f["reference"]
        assert all(r["off"] < 8 and r["moved"] == 1 for r in f["reference"].values())


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_final_weights_are_those_without_a_watch(
    tmp_path: Path, dtype: torch.dtype, dropout: float
) -> None:
    def run(folder: Path | None) -> tuple[list[torch.Tensor], torch.Tensor]:
        loop = Loop(folder, tiny.make(dropout, dtype), every=2).run(5)
        return [p.detach().clone() for p in loop.model.parameters()], torch.get_rng_state()

    (plain, state), (watched, after) = run(None), run(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
    assert torch.equal(state, after)
    assert len(tiny.facts(tmp_path, "alone")) > 0
    assert tiny.facts(tmp_path, "error") == []


def test_after_the_watched_steps_only_the_ledger_continues(tmp_path: Path) -> None:
    Loop(tmp_path, steps=1).run(4)
    assert {f["step"] for f in tiny.facts(tmp_path, "micro")} == {0}
    rows = [(f["step"], f["micro"]) for f in tiny.facts(tmp_path, "rows")]
    assert rows == [(step, micro) for step in range(4) for micro in range(3)]


def test_few_batches_wait_for_the_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_LEDGER_SECONDS", 1e9)
    loop = Loop(tmp_path, steps=1)
    for _ in range(25):
        loop.backward()
        loop.update()
    assert len(tiny.facts(tmp_path, "rows")) == 3 * 24  # 66 waited before the 24th
    monkeypatch.setattr(watch, "_LEDGER_SECONDS", 0.0)
    loop.backward()
    loop.update()
    assert len(tiny.facts(tmp_path, "rows")) == 3 * 26


def test_every_looks_again(tmp_path: Path) -> None:
    Loop(tmp_path, steps=1, every=3).run(6)
    assert sorted({f["step"] for f in tiny.facts(tmp_path, "micro")}) == [0, 2, 5]


def test_positions_beyond_the_bound_are_sampled(tmp_path: Path) -> None:
    Loop(tmp_path, tokens=12).run(2)
    for step in range(2):
        micro = [f for f in tiny.facts(tmp_path, "micro") if f["step"] == step]
        assert sum(f["solved"] for f in micro) <= 12
        assert [f["supervised"] for f in micro] == [sum(n - 2 for n in x) for x in LENGTHS]
        assert all(f["not_next"] == 0 for f in micro)


def test_no_ids_of_inputs_without_text(tmp_path: Path) -> None:
    Loop(tmp_path, text=False).run(1)
    assert not any("inputs" in f for f in tiny.facts(tmp_path, "rows"))
    assert tiny.facts(tmp_path, "micro")[0]["per_token"][0]["next"] is None


def test_padding_that_is_seen_moves_the_row(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    packed = {
        "input_ids": torch.randint(4, tiny.VOCABULARY, (1, 9)),
        "position_ids": torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]]),
    }
    loop.model.model.leak = True
    loss, n = tiny.loss_of(loop.model, packed)
    (loss / n).backward()
    loop.update()
    (alone,) = tiny.facts(tmp_path, "alone")
    assert [d["tokens"] for d in alone["documents"]] == [4, 5]
    assert alone["documents"][0]["apart"] <= alone["documents"][0]["tolerance"]
    assert alone["worst_over_tolerance"] > 100
    assert alone["documents"][1]["first_apart"] == 0


def test_gradients_that_were_not_zeroed_are_seen(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    for _ in range(2):
        loop.backward()
        loop.update()
    first, second = tiny.facts(tmp_path, "arrived")
    assert first["gradients_before"] is None
    assert second["gradients_before"]


def test_passes_whose_gradients_were_thrown_away_are_left_out(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    loop.backward()
    loop.optimizer.zero_grad()  # as a GradScaler's skipped step
    loop.backward()
    loop.update()
    micro = tiny.facts(tmp_path, "micro")
    assert len(micro) == 3
    assert sum(f["sum"] for f in micro) == pytest.approx(1, abs=1e-6)
    assert "thrown away" in tiny.facts(tmp_path, "skipped")[0]["why"]


def test_a_frozen_weight_that_moves_is_named(tmp_path: Path) -> None:
    model = tiny.make()
    model.model.embed.weight.requires_grad_(False)
    loop = Loop(tmp_path, model)
    loop.backward()
    assert loop.process is not None
    loop.process.before_step(loop.optimizer)
    loop.optimizer.step()
    model.model.embed.weight.data.mul_(1.01)
    loop.process.after_step(loop.optimizer)
    (stepped,) = tiny.facts(tmp_path, "stepped")
    assert stepped["frozen_that_moved"] == ["model.embed.weight"]


def test_a_weight_that_stopped_moving_is_named(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    norm = loop.model.model.norm.bias
    keep = norm.detach().clone()

    def put_back(*_: Any) -> None:
        with torch.no_grad():
            norm.copy_(keep)

    loop.optimizer.register_step_post_hook(put_back)  # before ours, which the loop calls
    loop.run(3)
    names = [f["stuck"] for f in tiny.facts(tmp_path, "drift")]
    assert names == [[], ["model.norm.bias"], ["model.norm.bias"]]


def test_a_parameter_that_no_optimizer_owns_is_named(tmp_path: Path) -> None:
    model = tiny.make()
    loop = Loop(None, model)
    loop.optimizer = torch.optim.AdamW(
        [p for n, p in model.named_parameters() if n != "model.norm.bias"], lr=1e-2
    )
    loop.process = Process(WatchSettings(str(tmp_path)))
    loop.process.made(loop.optimizer)
    loop.run(1)
    (fact,) = tiny.facts(tmp_path, "model")
    assert fact["in_no_group"] == ["model.norm.bias"]


def test_another_optimizer_has_no_reference_and_says_so(tmp_path: Path) -> None:
    loop = Loop(None)
    loop.optimizer = torch.optim.SGD(loop.model.parameters(), lr=0.1)
    loop.process = Process(WatchSettings(str(tmp_path)))
    loop.process.made(loop.optimizer)
    loop.run(1)
    assert tiny.facts(tmp_path, "stepped")[0]["reference"] is None
    assert [f["what"] for f in tiny.facts(tmp_path, "skipped")] == ["reference"]


class CallsPart(tiny.Model):
    """A model that steps over its backbone, as OPT does."""

    def forward(self, **given: Any) -> torch.Tensor:
        return self.lm_head(self.model.forward(**given).last_hidden_state)  # type: ignore[no-any-return]


def test_a_model_that_steps_over_its_backbone_says_so(tmp_path: Path) -> None:
    Loop(tmp_path, CallsPart()).run(2)
    (skipped,) = (f["why"] for f in tiny.facts(tmp_path, "skipped") if f["what"] == "learnt")
    assert skipped.startswith("CallsPart does not call its Base but a part of it")


def test_an_optimizer_without_a_language_model_is_blind(tmp_path: Path) -> None:
    net = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    process = Process(WatchSettings(str(tmp_path)))
    process.made(optimizer)
    for _ in range(3):
        net(torch.ones(1, 2)).sum().backward()
        process.before_step(optimizer)
        optimizer.step()
        process.after_step(optimizer)
    assert [f["kind"] for f in tiny.facts(tmp_path)] == ["process", "blind"]


# ---- it never harms the run
def raise_(error: BaseException) -> Callable[..., Any]:
    def call(*_: Any, **__: Any) -> Any:
        raise error

    return call


PLACES = [
    (capture.Capture, "_enter"),
    (capture.Capture, "_leave"),
    (capture.Capture, "_read"),
    (watch, "solve"),
    (watch, "micro_facts"),
    (watch, "ledger"),
    (watch, "head_tensors"),
    (watch.arrival, "gradient_facts"),
    (watch.arrival, "AdamWReference"),
    (watch.Frozen, "look"),
    (watch.arrival, "group_facts"),
    (batches.alone, "compare_alone"),
    (batches.causal, "compare_replaced"),
    (capture, "kind_of_batch"),
]


ERRORS = {
    "error": RuntimeError("on purpose"),
    "oom": torch.cuda.OutOfMemoryError("CUDA out of memory"),
    "memory": MemoryError(),
}
CASES = [("error", *place) for place in PLACES]
CASES += [("oom", watch, "solve"), ("oom", capture.Capture, "_leave"), ("memory", watch, "ledger")]


@pytest.mark.parametrize(
    ("kind", "where", "name"), CASES, ids=[f"{kind} in {name}" for kind, _, name in CASES]
)
def test_an_error_of_the_watch_is_a_fact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, where: Any, name: str
) -> None:
    plain = Loop(None).run(2).weights()
    monkeypatch.setattr(where, name, raise_(ERRORS[kind]))
    assert Loop(tmp_path).run(2).weights() == plain
    errors = tiny.facts(tmp_path, "error")
    assert errors
    if kind != "error":
        assert [each["off"] for each in errors] == [True]
        assert tiny.facts(tmp_path, "ended")[0]["reason"] == "off"


def test_nothing_keeps_a_model_alive(tmp_path: Path) -> None:
    """A model is freed with its optimizer, at once: no cycle waits for the collector."""
    Loop(None).run(1)  # the first optimizer of a process is kept by torch itself
    loop = Loop(tmp_path).run(1)
    process, model = loop.process, weakref.ref(loop.model)
    gc.disable()
    try:
        del loop
        assert model() is None
    finally:
        gc.enable()
    assert process is not None
    assert process.watches == []
    assert tiny.facts(tmp_path, "error") == []


def test_models_trained_one_after_another_have_a_number_each(tmp_path: Path) -> None:
    process = Process(WatchSettings(str(tmp_path)))
    for _ in range(4):
        loop = Loop(None)
        loop.process = process
        process.made(loop.optimizer)
        loop.backward()
        loop.update()
        del loop
    assert [f["model"] for f in tiny.facts(tmp_path, "model")] == list(range(4))
    assert [f["model"] for f in tiny.facts(tmp_path, "solved")] == list(range(4))


def test_the_optimizer_of_the_backbone_is_followed_where_another_part_has_its_own(
    tmp_path: Path,
) -> None:
    process = Process(WatchSettings(str(tmp_path)))
    model = tiny.make()
    embed = list(model.model.embed.parameters())
    rest = [p for p in model.parameters() if all(p is not each for each in embed)]
    head = torch.optim.AdamW(model.lm_head.parameters())
    process.made(head)
    assert [w.driver for w in process.watches] == [id(head)]
    base = torch.optim.AdamW(p for p in rest if p is not model.lm_head.weight)
    process.made(base)
    assert [w.driver for w in process.watches] == [id(base)]
    later = torch.optim.AdamW(embed)
    process.made(later)
    assert [w.driver for w in process.watches] == [id(base)]


def test_a_full_disk_ends_the_facts_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = Loop(None).run(2).weights()
    monkeypatch.setattr(os, "write", raise_(OSError(errno.ENOSPC, "No space left on device")))
    watched = Loop(tmp_path).run(2).weights()
    monkeypatch.undo()
    assert watched == plain
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "No space left" in lines[0]


def test_a_folder_that_cannot_be_made_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    Loop(tmp_path / "file" / "facts").run(2)
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_copy_of_a_watched_model_is_not_watched(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    twin = copy.deepcopy(loop.model)
    inputs = tiny.batch([5, 4])
    assert torch.equal(twin(**inputs), loop.model(**inputs))
    before = len(tiny.facts(tmp_path))
    tiny.loss_of(twin, inputs)[0].backward()
    assert len(tiny.facts(tmp_path)) == before
    again = pickle.loads(pickle.dumps(loop.model))
    assert torch.equal(again(**inputs), loop.model(**inputs))
    saved = io.BytesIO()
    torch.save(loop.model, saved)
    assert b"vtool_watch" not in saved.getvalue()


def test_a_model_compiled_in_one_graph_still_compiles(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    compiled = torch.compile(loop.model, backend="eager", fullgraph=True)
    loss, n = tiny.loss_of(compiled, tiny.batch([6, 6]))
    (loss / n).backward()
    loop.update()
    assert tiny.facts(tmp_path, "micro") == []


def test_a_fork_writes_nothing(tmp_path: Path) -> None:
    loop = Loop(tmp_path).run(1)
    before = len(tiny.facts(tmp_path))
    pid = os.fork()
    if not pid:
        assert loop.process is not None
        loop.process.writer.write("error", where="child")
        os._exit(0)
    os.waitpid(pid, 0)
    assert len(tiny.facts(tmp_path)) == before


def test_the_folder_is_the_owners_alone(tmp_path: Path) -> None:
    Loop(tmp_path / "facts").run(1)
    assert (tmp_path / "facts").stat().st_mode & 0o777 == 0o700


def test_loaders_of_other_packages_are_known_by_their_name() -> None:
    class StatefulDataLoader:
        """Torchdata's loader, which verl uses: no class of torch's."""

        dataset, batch_size = range(7), 2

        def __iter__(self) -> Iterator[int]:
            return iter(self.dataset)

    kept = StatefulDataLoader()
    (one,) = [each for each in alive.loaders() if each["loader"] == "StatefulDataLoader"]
    assert (one["rows"], one["batch"]) == (7, kept.batch_size)


def test_a_stop_file_ends_the_looks(tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    loop = Loop(tmp_path, stop=str(stop))
    loop.backward()
    loop.update()
    stop.touch()
    loop.run(2)
    assert {f["step"] for f in tiny.facts(tmp_path, "micro")} <= {0, 1}
    assert tiny.facts(tmp_path, "ended")[0]["reason"] == "stopped"


def test_a_loss_of_all_tokens_of_some_rows_is_read(tmp_path: Path) -> None:
    """Targets that are not the next token are counted: labels shifted twice."""
    loop = Loop(tmp_path)
    inputs = tiny.batch([9, 9])
    z = loop.model(**inputs)[:, :-2].flatten(0, 1)
    cross_entropy(z, inputs["input_ids"][:, 2:].flatten()).backward()
    loop.update()
    (micro,) = tiny.facts(tmp_path, "micro")
    assert micro["not_next"] == micro["supervised"] == 14
    assert micro["is_plus"]["2"] == 14
