"""Proofs of a recipe pass where it is healthy, on every family and engine, with derived tolerances.

`tests/zoo` breaks the code, so that they fail.
"""

import copy
import json
import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.each_family import EACH_FAMILY
from tests.engines.parity import base_model, windowed
from tests.rows import chat, mixed_rows, write_rows
from tests.runs import messages
from vtool.config.load import load_run
from vtool.diagnostics import Findings
from vtool.export.huggingface import write_export
from vtool.families import FAMILIES
from vtool.processes import Ended, run_processes
from vtool.training.optimizer import OPTIMIZERS
from vtool.training.session import Progress, restore_checkpoint
from vtool.verification import reference
from vtool.verification.context import ProofContext, build_proof_context
from vtool.verification.not_provable import NotProvable
from vtool.verification.proofs import FAST, PROOFS_ON_RANKS, resume_differs
from vtool.verification.proofs.proof import ONE_ROW
from vtool.verification.proofs.report import record_without_proofs
from vtool.verification.prove import prove, run_proofs
from vtool.verification.rounding import tolerances


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def context(folder: Path, *overrides: str) -> ProofContext:
    return build_proof_context(load_run("digits", overrides).run, folder)


@pytest.mark.parametrize("family", EACH_FAMILY)
def test_the_fast_proofs_of_a_healthy_recipe_pass(family: str) -> None:
    proved = prove(load_run("digits", [f"model.family={family}"]).run, fast=True)
    states = proved.checks()
    assert {
        rule: proof.finding
        for rule, proof in zip(states, proved.proofs, strict=True)
        if proof.state == "failed"
    } == {}
    missed = {rule for rule, state in states.items() if state == "not-run"}
    refused = {"gradient-depends-on-packing"} if family == "qwen3_5" else set()
    assert missed == set(PROOFS_ON_RANKS) - set(FAST) | refused
    assert all(proof.reason for proof in proved.proofs if proof.state == "not-run")


@pytest.mark.full
def test_rows_of_every_kind_pass_with_adapters_and_frozen_parts(tmp_path: Path) -> None:
    rows = messages(write_rows(tmp_path / "rows.jsonl", mixed_rows(tmp_path, 12, text_only=(0, 4))))
    for more in (
        ["model.freeze.vision=true"],
        ["lora.rank=4", "lora.dropout=0.1"],
        ["data.packing=token_budget", "data.micro_batch_tokens=200"],
    ):
        proved = prove(load_run("rows", [rows, *more]).run, fast=True)
        assert [proof.finding for proof in proved.proofs if proof.finding] == [], more


@pytest.mark.full
@pytest.mark.parametrize(
    ("budget", "window"),
    [
        pytest.param(None, 24, marks=pytest.mark.full),
        (40, 41),
        pytest.param(60, 400, marks=pytest.mark.full),
    ],
)
def test_a_model_with_windows_is_proved_with_packing(
    tmp_path: Path, budget: int | None, window: int
) -> None:
    """At full size, for the tiny model has no window."""
    model = windowed(base_model(tmp_path), tmp_path / "windowed", sliding_window=window)
    packed = ["data.packing=token_budget", f"data.micro_batch_tokens={budget}"] if budget else []
    given = [
        messages(tmp_path / "rows.jsonl"),
        f"model.path={model}",
        "model.size=null",
        f"run.dir={tmp_path / 'proved'}",
        *packed,
    ]
    proved = prove(load_run("rows", given).run, fast=True, full_size=True)
    assert [proof.finding for proof in proved.proofs if proof.finding] == []
    (proof,) = (proof for proof in proved.proofs if proof.rule == "gradient-depends-on-packing")
    assert proof.state == "passed"
    assert not any("data.packing" in change for change in proved.changes)


def test_what_needs_images_is_not_run_where_no_row_has_one(tmp_path: Path) -> None:
    rows = messages(
        write_rows(
            tmp_path / "rows.jsonl",
            [chat(f"What is {number}?", f"It is {number}.") for number in range(6)],
        )
    )
    proved = prove(load_run("rows", [rows]).run, fast=True)
    assert {
        proof.rule: proof.reason
        for proof in proved.proofs
        if proof.state == "not-run" and proof.rule in FAST
    } == {
        "text-only-differs": "no row has an image",
        "trained-set-differs": (
            "the tower is trained, and of the rows looked at no row has an image"
        ),
    }


@pytest.mark.full
def test_of_one_row_two_are_made(tmp_path: Path) -> None:
    rows = messages(write_rows(tmp_path / "rows.jsonl", [chat("What is it?", "It is one.")]))
    proved = prove(load_run("rows", [rows]).run, fast=True)
    assert proved.rows == ("rows.jsonl:1", "rows.jsonl:1 with itself")
    assert {rule for rule, state in proved.checks().items() if state != "passed"} <= {
        *PROOFS_ON_RANKS
    }
    (written,) = (proof for proof in proved.proofs if proof.rule == "embeddings-written-in-place")
    assert "with images" not in written.what, "what was not looked at is not named"


def test_what_needs_two_rows_is_not_run_on_one(tmp_path: Path) -> None:
    small = context(tmp_path)
    alone = replace(small, rows=small.rows[:1], samples=small.samples[:1])
    asked = ["gradient-depends-on-packing", "padding-changes-row", "documents-see-each-other"]
    assert [(proof.state, proof.reason) for proof in run_proofs(alone, asked)] == [
        ("not-run", ONE_ROW)
    ] * 3


@pytest.mark.parametrize(
    ("dummy", "state"), [("auto", "passed"), ("never", "passed"), ("always", "not-run")]
)
def test_a_step_of_text_alone_is_proved_as_the_recipe_takes_it(dummy: str, state: str) -> None:
    proved = prove(
        load_run("digits", [f"model.dummy_visual={dummy}"]).run,
        only=["text-only-differs"],
        fast=True,
    )
    assert proved.checks() == {"text-only-differs": state}


@pytest.fixture(scope="module")
def with_dropout(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """A folder's model that draws at random while it trains."""
    folder = tmp_path_factory.mktemp("dropout")
    small = context(folder)
    write_export(
        small.bare, small.bare.state_dict(), small.processor, "qwen2_5_vl", folder / "model"
    )
    config = json.loads((folder / "model/config.json").read_text())
    config["text_config"]["attention_dropout"] = 0.1
    (folder / "model/config.json").write_text(json.dumps(config))
    return ("model.size=null", f"model.path={folder / 'model'}")


@pytest.mark.full
@pytest.mark.parametrize("full_size", [False, True])
def test_dropout_of_the_model_is_off_and_that_is_reported(
    with_dropout: tuple[str, ...], full_size: bool
) -> None:
    proved = prove(load_run("digits", with_dropout).run, fast=True, full_size=full_size)
    assert {rule for rule, state in proved.checks().items() if state != "passed"} <= {
        *PROOFS_ON_RANKS
    }
    assert (
        "attention_dropout 0.1 of the model → 0, as lora.dropout is: each draw is another number"
        in proved.changes
    )
    assert all((proof.tolerance or 0) < 1e-3 for proof in proved.proofs)


def test_a_model_that_draws_at_random_all_the_same_is_not_proved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    language = type(context(tmp_path).bare.model.language_model)  # type: ignore[union-attr]
    forward = language.forward

    def draws(self: Any, *args: Any, inputs_embeds: torch.Tensor, **more: Any) -> Any:
        return forward(
            self, *args, inputs_embeds=inputs_embeds * (1 + 0.01 * torch.randn(())), **more
        )

    monkeypatch.setattr(language, "forward", draws)
    with pytest.raises(
        NotProvable,
        match=r"draws at random: the logits of row 1, asked for twice, are \S+ of their norm apart",
    ):
        prove(load_run("digits").run, fast=True)


def test_nothing_passes_where_rounding_is_all_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vtool.verification.reference.LARGEST_ROUNDING", 1e-12)
    one, other = run_proofs(context(tmp_path), ["padding-changes-row", "rows-lost"])
    assert one.state == "not-run"
    assert "rounding alone" in one.reason
    assert other.state == "passed"


def test_rows_that_cannot_be_used_are_a_finding(tmp_path: Path) -> None:
    rows = messages(
        write_rows(tmp_path / "rows.jsonl", [{"messages": [{"role": "user", "content": "?"}]}])
    )
    with pytest.raises(Findings) as raised:
        prove(load_run("rows", [rows]).run, fast=True)
    assert [finding.rule for finding in raised.value.diagnostics] == ["no-rows"]


def test_a_run_that_resumes_from_another_step_takes_other_rows_and_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forgetful(engine: Any, checkpoint: Path) -> Progress:
        return replace(restore_checkpoint(engine, checkpoint), step=0)

    monkeypatch.setattr("vtool.training.session.restore_checkpoint", forgetful)
    proof = resume_differs.compute(context(tmp_path))
    assert proof.state == "failed"
    assert proof.finding is not None
    assert "resumes from step 0" in proof.finding.message


class TestTolerance:
    """A tolerance is above the rounding error against float64, and far below a wrong number."""

    def test_the_gradient_of_float64_is_within_it_and_a_wrong_one_is_not(
        self, tmp_path: Path
    ) -> None:
        small = context(tmp_path)
        model = small.model()
        single, _ = reference.gradient_and_logits(small, model)
        allowed = tolerances(
            model,
            sum(small.lengths),
            lambda one: reference.gradient_and_logits(small, one)[0],
            single,
        )
        double, _ = reference.gradient_and_logits(small, copy.deepcopy(model).double())
        for name, gradient in double.items():
            assert float((gradient - single[name].double()).norm()) <= allowed[name], name
        large = [name for name, gradient in double.items() if float(gradient.norm()) > 1e-3]
        assert len(large) > len(double) / 2
        assert all(allowed[name] < 1e-3 * float(double[name].norm()) for name in large), (
            "a wrong factor of 1.001 is seen"
        )

    def test_a_loss_of_other_tokens_is_far_above_it(self, tmp_path: Path) -> None:
        small = context(tmp_path)
        model = small.model()
        logits = reference.row_logits(small, model)
        allowed = tolerances(
            model, sum(small.lengths), lambda one: reference.row_logits(small, one), logits
        )
        assert max(allowed.values()) / small.supervised < 1e-3 * reference.mean_loss(small, logits)


class TestReference:
    """The references are computations of their own; here they are held against transformers'."""

    @pytest.mark.parametrize("family", EACH_FAMILY)
    def test_positions_are_those_of_transformers(self, tmp_path: Path, family: str) -> None:
        rows = messages(
            write_rows(tmp_path / "rows.jsonl", mixed_rows(tmp_path, 6, text_only=(1,)))
        )
        small = build_proof_context(
            load_run("rows", [rows, f"model.family={family}"]).run, tmp_path
        )
        model: Any = small.model()
        assert any(sample.images > 1 for sample in small.samples)
        for sample in small.samples:
            if sample.images:
                given = reference.model_inputs(small, sample)
                found, _ = model.model.get_rope_index(
                    given["input_ids"],
                    mm_token_type_ids=given["mm_token_type_ids"],
                    image_grid_thw=given["image_grid_thw"],
                )
                assert torch.equal(found[-3:, 0], reference.mrope_positions(small, sample))

    @pytest.mark.parametrize("family", EACH_FAMILY)
    def test_without_token_types_transformers_does_what_the_rule_says(
        self, tmp_path: Path, family: str
    ) -> None:
        small = context(tmp_path, f"model.family={family}")
        model: Any = small.model()
        sample = small.samples[small.rows_with_images()[0]]
        given = reference.model_inputs(small, sample)
        wanted = torch.arange(len(sample.input_ids)).expand(3, 1, -1)
        assert not torch.equal(given.pop("position_ids"), wanted)
        del given["mm_token_type_ids"]
        if FAMILIES[family].text_positions_without_token_types:
            assert torch.equal(
                model(**given, use_cache=False).logits,
                model(**given, position_ids=wanted, use_cache=False).logits,
            )
        else:
            with pytest.raises(ValueError, match="mm_token_type_ids"):
                model(**given, use_cache=False)

    def test_the_loss_is_that_of_transformers_own(self, tmp_path: Path) -> None:
        small = context(tmp_path)
        model: Any = small.model()
        total = 0.0
        for sample in small.samples:
            given = dict(reference.model_inputs(small, sample).items())
            with torch.no_grad():
                total += (
                    float(model(**given, labels=sample.labels[None], use_cache=False).loss)
                    * sample.supervised
                )
        assert reference.mean_loss(small, reference.row_logits(small, model)) == pytest.approx(
            total / small.supervised, rel=1e-5
        )


def test_a_proof_that_cannot_be_computed_has_failed_and_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = context(tmp_path)

    def broken(*_: Any) -> Any:
        raise RuntimeError("a model that does not run")

    monkeypatch.setattr(reference, "logits", broken)
    found = run_proofs(small, ["rows-lost", "gradient-depends-on-split"])
    assert [proof.state for proof in found] == ["passed", "failed"]
    finding = found[1].finding
    assert finding is not None
    assert finding.message == "could not be computed: RuntimeError: a model that does not run"
    assert finding.origin is not None
    assert finding.origin.file == __file__


def test_an_in_place_write_is_named_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = context(tmp_path)
    model: Any = small.bare
    language = type(model.model.language_model)
    forward = language.forward

    def adds(self: Any, *args: Any, inputs_embeds: torch.Tensor, **more: Any) -> Any:
        inputs_embeds.add_(0.0)  # as verl's dummy did: the line that is to be named
        return forward(self, *args, inputs_embeds=inputs_embeds, **more)

    monkeypatch.setattr(language, "forward", adds)
    (proof,) = run_proofs(small, ["embeddings-written-in-place"])
    assert proof.state == "failed"
    assert proof.finding is not None
    assert proof.finding.origin is not None
    line = Path(__file__).read_text().splitlines()[(proof.finding.origin.line or 0) - 1]
    assert "as verl's dummy did" in line


@pytest.mark.full
def test_a_process_that_ends_without_a_result_is_reported_with_its_last_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here_alone = types.ModuleType("here_alone")
    task = type("Task", (), {"__module__": "here_alone"})
    here_alone.Task = task  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "here_alone", here_alone)
    (ended,) = run_processes("vtool.verification.prove", task(), 1, bool)
    assert ended == Ended(
        "ended with exit status 1: ModuleNotFoundError: No module named 'here_alone'"
    )


@pytest.mark.full
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_proofs_on_two_processes_pass_on_the_recipes_engine(optimizer: str) -> None:
    """Sharded tensors are what an optimizer's fused form may lack an operator for."""
    run = load_run("digits_lora", ["engine=fsdp2", f"optim.name={optimizer}"]).run
    proved = prove(run, only=PROOFS_ON_RANKS)
    assert {proof.rule: (proof.state, proof.finding) for proof in proved.proofs} == dict.fromkeys(
        PROOFS_ON_RANKS, ("passed", None)
    )
    assert "fsdp2 with 2 processes" in proved.details()["resume-differs"]["what"]


@pytest.mark.soak
@pytest.mark.parametrize("family", EACH_FAMILY)
@pytest.mark.parametrize("engine", ["ddp", "fsdp2"])
def test_all_proofs_of_a_healthy_recipe_pass(family: str, engine: str) -> None:
    proved = prove(load_run("digits", [f"model.family={family}", f"engine={engine}"]).run)
    assert [proof.finding for proof in proved.proofs if proof.finding] == []
    refused = {"gradient-depends-on-packing"} if family == "qwen3_5" else set()
    assert {rule for rule, state in proved.checks().items() if state != "passed"} == refused


@pytest.mark.soak
@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl"])
@pytest.mark.parametrize("parallel", ["{tensor:2,sequence:true}", "{pipeline:2}", "{}"])
@pytest.mark.parametrize("lora", [False, True])
def test_all_proofs_pass_on_megatron(family: str, parallel: str, lora: bool) -> None:
    recipe = "digits_lora" if lora else "digits"
    proved = prove(
        load_run(
            recipe, [f"model.family={family}", "engine=megatron", f"engine.parallel={parallel}"]
        ).run,
        only=PROOFS_ON_RANKS,
    )
    assert [proof.finding for proof in proved.proofs if proof.finding] == []
    assert set(proved.checks().values()) == {"passed"}


def test_a_run_keeps_what_was_proved_and_what_was_not_asked() -> None:
    assert record_without_proofs()["preflight"] is False
    assert set(record_without_proofs()["checks"].values()) == {"not-run"}


@pytest.mark.parametrize("part", ["weight", "repeat"])
def test_a_mixture_is_planned_as_the_recipe_says(
    tmp_path: Path, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [write_rows(tmp_path / f"{n}.jsonl", mixed_rows(tmp_path, 4)) for n in range(2)]
    sources = [
        f"{{format: messages, path: '{file}', {part}: {value}}}"
        for file, value in zip(files, (2.5, 1), strict=True)
    ]
    small = context(tmp_path, f"data.train=[{', '.join(sources)}]")
    (found,) = run_proofs(small, ["rows-lost"])
    assert (found.state, "the recipe's mixture" in found.what) == ("passed", True)

    def drawn(places: Any, size: int, key: Any) -> Any:
        return np.random.RandomState(list(key)).randint(size, size=len(places))

    monkeypatch.setattr("vtool.data.plan.permute", drawn)
    (found,) = run_proofs(small, ["rows-lost"])
    assert found.state == "failed"
    assert found.finding is not None
    assert "of a mixture" in found.finding.message
