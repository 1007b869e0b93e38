"""The devices of tensors, old and new: errors here end a process on a GPU."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.watch.inject import tiny
from tests.watch.inject.losses import make
from tests.watch.inject.test_watch import Loop
from vtool.watch.inject.vtool_watch import alone
from vtool.watch.inject.vtool_watch.digests import tensor_bytes
from vtool.watch.inject.vtool_watch.learnt import PassRecord, rounding
from vtool.watch.inject.vtool_watch.places import (
    evenly_spaced,
    multiplies_in_tf32,
    random_states_kept,
)
from vtool.watch.inject.vtool_watch.rows import Document, documents

CUDA, CPU = torch.device("cuda"), torch.device("cpu")


class OnCuda:
    """Stands for a tensor of a GPU, of which only its device is asked."""

    device = CUDA


def forked(run: Callable[[], bool]) -> bool:
    """Run something in a fork, since its settings are torch's for the whole process."""
    child = os.fork()
    if not child:
        status = 2
        try:
            status = int(run())
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 1), "it raised"
    return status == 1


def same_facts(one: Path, other: Path) -> None:
    """Assert that two runs say the same, but for times and the process."""
    others = {"seconds", "seconds_to_find", "pid", "time", "argv"}
    left, right = (
        [{k: v for k, v in fact.items() if k not in others} for fact in tiny.facts(folder)]
        for folder in (one, other)
    )
    assert [fact for fact in right if fact["kind"] in ("error", "skipped")] == []
    assert left == right


def test_bytes_are_those_of_another_device_moved() -> None:
    class Far(Tensor):
        """Says where it was asked to go."""

        def cpu(self, *_: Any, **__: Any) -> Tensor:
            return self.as_subclass(Tensor) + 1

    assert tensor_bytes(torch.zeros(2, dtype=torch.uint8).as_subclass(Far)) == b"\1\1"


def test_a_default_device_changes_nothing(tmp_path: Path) -> None:
    """A trainer may call `torch.set_default_device("cuda")`: meta has no values at all."""
    plain = Loop(tmp_path / "plain")
    plain.run(1)
    other = Loop(tmp_path / "other")
    update = other.update

    def with_default() -> None:
        with torch.device("meta"):
            update()

    other.update = with_default  # type: ignore[method-assign]
    other.run(1)
    same_facts(tmp_path / "plain", tmp_path / "other")


def test_packed_rows_are_cut_whatever_the_default_device() -> None:
    given = {"position_ids": torch.tensor([[0, 1, 2, 0, 1]])}
    with torch.device("meta"):
        found = documents(given, torch.arange(5, device="cpu")[None])
        assert [each.columns.tolist() for each in found] == [[0, 1, 2], [3, 4]]
        assert Document(0, 2, 4).columns.tolist() == [2, 3]


def test_places_are_even_and_there_whatever_the_default_dtype() -> None:
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert evenly_spaced(2049, 256, CPU).max() == 2048
        assert evenly_spaced(5, 256, CPU).tolist() == [0, 1, 2, 3, 4]
        assert evenly_spaced(5, 3, CPU).tolist() == [0, 2, 4]
        assert evenly_spaced(5, 1, CPU).tolist() == [0]
        assert evenly_spaced(0, 3, CPU).tolist() == []
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_guess_that_the_head_does_not_have_is_searched_for() -> None:
    """The id of an image's place is such a guess: on a GPU, to read such a row ends the process."""
    case = make(dtype=torch.float64)
    beyond = make(dtype=torch.float64)
    guess = beyond.target.clone()
    guess[:3] = torch.tensor([10**6, case.head.weight.shape[0], -200])
    got = type(case)(case.h, case.g, case.head, guess, case.weight, case.u).solved()
    assert torch.equal(got.target, case.target)


class OwnEmbeddings(tiny.Model):
    """Makes embeddings itself, of ids that its table does not have, as the first LLaVA did."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        embedded = self.model.embed(input_ids.clamp_min(0))
        out = self.model(inputs_embeds=embedded, attention_mask=attention_mask)
        return self.lm_head(out.last_hidden_state)  # type: ignore[no-any-return]


class EmbeddingsGiven(tiny.Base):
    """A backbone that takes ids or embeddings."""

    def forward(  # type: ignore[override]
        self, input_ids: Tensor | None = None, inputs_embeds: Tensor | None = None, **given: Any
    ) -> Any:
        if inputs_embeds is None:
            return super().forward(input_ids, **given)  # type: ignore[arg-type]
        kept, self.embed = self.embed, nn.Identity()  # type: ignore[assignment]
        try:
            return super().forward(inputs_embeds, **given)
        finally:
            self.embed = kept


@pytest.mark.parametrize("image", [4, -200])
def test_ids_that_no_embedding_has_are_never_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, image: int
) -> None:
    torch.manual_seed(0)
    model = OwnEmbeddings()
    base = EmbeddingsGiven()
    base.load_state_dict(model.model.state_dict())
    model.model = base
    made = tiny.batch

    def with_image(lengths: list[int], seed: int = 0) -> dict[str, Tensor]:
        batch = made(lengths, seed)
        batch["input_ids"][:, 1] = image
        return batch

    monkeypatch.setattr(tiny, "batch", with_image)
    Loop(tmp_path, model).run(1)
    assert tiny.facts(tmp_path, "error") == []
    why = [f["why"] for f in tiny.facts(tmp_path, "skipped") if f["what"] == "alone"]
    assert [("embeddings do not have" in each) for each in why] == [True] * (image < 0)
    assert bool(tiny.facts(tmp_path, "alone")) == (image > 0)
    assert tiny.facts(tmp_path, "causal")


class Pruned(tiny.Base):
    """Gives fewer hidden states than it was given ids."""

    def forward(self, input_ids: Tensor, **given: Any) -> Any:
        return tiny.Output(super().forward(input_ids, **given).last_hidden_state[:, 1:])


def test_hidden_states_of_other_places_than_the_ids_are_not_compared(tmp_path: Path) -> None:
    model = tiny.make()
    model.model = Pruned()
    loop = Loop(tmp_path, model)
    for lengths in ([9, 5], [12, 12]):
        model(**tiny.batch(lengths)).sum().backward()
    loop.update()
    assert tiny.facts(tmp_path, "error") == []
    why = [f["why"] for f in tiny.facts(tmp_path, "skipped") if f["what"] == "alone"]
    assert why == ["the backbone gives hidden states of other places than those of the ids"]


MATMUL = torch.backends.cuda.matmul
SET: dict[str, tuple[Callable[[], object], bool]] = {
    "allow_tf32": (lambda: setattr(MATMUL, "allow_tf32", True), True),
    "no allow_tf32": (lambda: setattr(MATMUL, "allow_tf32", False), False),
    "tf32": (lambda: setattr(MATMUL, "fp32_precision", "tf32"), True),
    "ieee": (lambda: setattr(MATMUL, "fp32_precision", "ieee"), False),
    "tf32 of all": (lambda: setattr(torch.backends, "fp32_precision", "tf32"), True),
    "high": (lambda: torch.set_float32_matmul_precision("high"), True),
    "highest": (lambda: torch.set_float32_matmul_precision("highest"), False),
    "nothing": (lambda: None, False),
}


@pytest.mark.parametrize("name", SET)
def test_tf32_is_known_by_whichever_setting(name: str) -> None:
    """Torch has two ways to set it, and the older one cannot be read where the newer was used."""
    setting, expected = SET[name]
    newer = hasattr(torch.backends, "fp32_precision")
    if not newer and name in ("tf32", "ieee", "tf32 of all"):
        pytest.skip("this torch has the older setting alone")

    def run() -> bool:
        setting()
        assert not multiplies_in_tf32(CPU)
        return multiplies_in_tf32(CUDA)

    assert forked(run) is expected


@pytest.mark.parametrize("allowed", [True, False])
def test_tf32_is_a_rounding_of_float32_on_a_gpu_alone(allowed: bool) -> None:
    record = PassRecord(0, (1, 4), None, [], None, None, dtype="torch.float32")
    record.h = OnCuda()  # type: ignore[assignment]
    base = nn.Linear(2, 2)
    convolved = nn.Sequential(nn.Conv2d(1, 1, 2), base)

    def run() -> bool:
        MATMUL.allow_tf32 = allowed
        single = rounding(record, torch.float32, torch.float64)
        assert single == (2.0**-11 if allowed else 2.0**-24)
        assert alone.coarsest(base, None, CUDA) == (2.0**-10 if allowed else 2.0**-23)
        assert alone.coarsest(base, None, CPU) == 2.0**-23
        assert alone.coarsest(base, "torch.bfloat16", CUDA) == 2.0**-7
        assert alone.coarsest(convolved, None, CUDA) == 2.0**-10  # cuDNN's default
        return True

    assert forked(run)


def test_random_states_of_a_device_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices other than CUDA count too; the stand-in for one here has a state for each of two."""
    states = {torch.device("xpu", 0): "a", torch.device("xpu", 1): "b"}

    class Module:
        @staticmethod
        def get_rng_state(device: torch.device) -> str:
            return states[device]

        @staticmethod
        def set_rng_state(state: str, device: torch.device) -> None:
            states[device] = state

    before = dict(states)
    monkeypatch.setattr(torch, "xpu", Module)
    drawn = torch.random.get_rng_state()
    with random_states_kept([*states, CPU]):
        states.update(dict.fromkeys(states, "drawn"))
        torch.rand(3)
    assert states == before
    assert torch.equal(torch.random.get_rng_state(), drawn)
