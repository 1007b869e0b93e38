"""Classes that an order, a seed, or a name in the midst of a path used to hide."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.loading import models
from vtool.cli.load_check import _not_asked
from vtool.cli.load_check_text import counts_table, describe_subjects, last_line
from vtool.diagnostics import Findings
from vtool.loading import check_load_weights
from vtool.loading.probe.audit import judged_facts, run_checks
from vtool.loading.probe.facts import CheckFacts, SubjectFacts
from vtool.loading.probe.file_host import subject_of_factory
from vtool.loading.probe.places import belongs
from vtool.loading.probe.state import compare_states
from vtool.loading.verdict import judge


def rules(factory: Callable[[], object], checkpoint: dict[str, Tensor]) -> set[str]:
    """Return the rules of errors, and those of warnings where there are no errors."""
    try:
        return {one.rule for one in check_load_weights(factory, checkpoint).findings}
    except Findings as found:
        return {one.rule for one in found.diagnostics}


class Tied(nn.Module):
    """An embedding and a head of one memory: whichever comes last is in both."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(8, 4)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 8, bias=False)
        self.head.weight = self.embed.weight

    def load_weights(self, weights: models.Weights) -> None:
        places = dict(self.named_parameters(remove_duplicate=False))
        for name, tensor in weights:
            with torch.no_grad():
                places[name].copy_(tensor)


def test_tied_weights_with_a_head_of_its_own_depend_on_the_order() -> None:
    checkpoint = {
        "embed.weight": torch.randn(8, 4),
        "norm.weight": torch.randn(4),
        "norm.bias": torch.randn(4),
        "head.weight": torch.randn(8, 4),
    }
    assert "order-dependent" in rules(Tied, checkpoint)
    checkpoint["head.weight"] = checkpoint["embed.weight"].clone()
    assert rules(Tied, checkpoint) == set()


@pytest.mark.parametrize("pair", [(0, 1), (0, 5), (2, 3), (3, 5), (4, 5)])
def test_of_two_names_of_one_parameter_the_last_one_wins(pair: tuple[int, int]) -> None:
    names = [f"part{number}.weight" for number in range(6)]

    class LastWins(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for number in range(6):
                if number != pair[1]:
                    self.add_module(f"part{number}", nn.Linear(3, 3, bias=False))

        def load_weights(self, weights: models.Weights) -> None:
            for name, tensor in weights:
                place = names[pair[0]] if name == names[pair[1]] else name
                self.get_parameter(place).data.copy_(tensor)

    assert "order-dependent" in rules(LastWins, {name: torch.randn(3, 3) for name in names})


@pytest.mark.parametrize(
    "noise",
    [
        lambda shape: torch.randn(shape) * 1e-3,
        lambda shape: torch.tensor(np.random.standard_normal(shape), dtype=torch.float32),
        lambda shape: torch.full(shape, random.random()),
    ],
    ids=["torch", "numpy", "python"],
)
def test_values_drawn_from_a_global_generator_are_nondeterministic(
    noise: Callable[[torch.Size], Tensor],
) -> None:
    class Noisy(models.Good):
        def __init__(self) -> None:
            super().__init__()
            random.seed(0)
            np.random.seed(0)

        def put(self, name: str, tensor: Tensor) -> None:
            super().put(name, tensor + noise(tensor.shape) if name == "o.bias" else tensor)

    assert "nondeterministic" in rules(Noisy, models.checkpoint())


def test_a_check_leaves_the_global_generators_as_they_were() -> None:
    random.seed(5)
    np.random.seed(5)
    expected = random.Random(5).random(), np.random.RandomState(5).random()
    check_load_weights(models.Good, models.checkpoint(), checks=["nondeterministic"])
    assert (random.random(), np.random.random()) == expected


class Packed(nn.Module):
    """Whole numbers that go through another dtype."""

    through = torch.int32

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("codes", torch.zeros(4, dtype=torch.int32))

    def load_weights(self, weights: models.Weights) -> None:
        for name, tensor in weights:
            self.get_buffer(name).copy_(tensor.to(self.through))


@pytest.mark.parametrize(
    ("through", "largest", "found"),
    [
        (torch.float32, 2**24 + 1, {"lossy-cast"}),
        (torch.float32, 2**24, set()),
        (torch.float64, 2**31 - 1, set()),
        (torch.bfloat16, 257, {"lossy-cast"}),
        (torch.int8, 200, {"lossy-cast"}),
        (torch.int64, 2**31 - 1, set()),
    ],
)
def test_integers_through_a_dtype_that_cannot_hold_them(
    through: torch.dtype, largest: int, found: set[str]
) -> None:
    class Through(Packed):
        pass

    Through.through = through
    codes = torch.tensor([1, 2, 3, largest], dtype=torch.int32)
    assert rules(Through, {"codes": codes}) == found


def test_fresh_objects_that_are_filled_with_nan_are_alike() -> None:
    one, other = torch.tensor([0x7FC00000, 5]), torch.tensor([0x7FC00001, 5])
    first, second = (bits.to(torch.int32).view(torch.float32) for bits in (one, other))
    assert compare_states({"a": first}, {"a": second}) == {}
    assert compare_states({"a": first}, {"a": torch.tensor([1.0, 0.0])}).keys() == {"a"}


MOVED = [
    (
        "model.layers.1.mlp.experts.e_score_correction_bias",
        "model.layers.1.mlp.experts.routed_experts.e_score_correction_bias",
    ),
    (
        "model.visual.blocks.0.mlp.fc1.weight",
        "visual.blocks.0.mlp.linear_fc1.weight",
    ),
    ("model.norm.weight", "norm.weight"),
    (
        "model.layers.0.feed_forward.experts.gate_up_proj",
        "model.layers.0.feed_forward.experts.w13_weight",
    ),
]
APART = [
    ("model.layers.0.mlp.fc1.weight", "model.layers.1.mlp.fc1.weight"),
    ("model.layers.0.norm1.weight", "model.layers.0.norm2.weight"),
    ("model.layers.0.mlp.fc1.weight", "model.layers.0.mlp.fc1.bias"),
    ("model.layers.0.q_proj.weight", "model.layers.0.k_proj.weight"),
    ("experts.0.up.weight", "experts.1.moved.up.weight"),
    ("layers.0.experts.gate_up_proj", "layers.1.experts.w13_weight"),
    ("layers.0.norm.weight", "layers.0.norm.bias"),
]


@pytest.mark.parametrize("names", MOVED)
def test_a_tensor_belongs_where_its_module_has_moved(names: tuple[str, str]) -> None:
    assert belongs(names[0], 8, names[1], 8)
    assert not belongs(names[0], 8, names[1], 4)


@pytest.mark.parametrize("names", APART)
def test_a_tensor_does_not_belong_into_another_module(names: tuple[str, str]) -> None:
    assert not belongs(names[0], 8, names[1], 8)


class NoBias(models.Good):
    """A projection that is built without the bias that the checkpoint has."""

    def __init__(self) -> None:
        super().__init__()
        self.o = nn.Linear(8, 8, bias=False)

    def load_weights(self, weights: models.Weights) -> None:
        super().load_weights(pair for pair in weights if pair[0] != "o.bias")


class ConfigDecidesBias(NoBias):
    """One whose real config may have the field that a tiny twin's config lacks."""

    def __init__(self) -> None:
        super().__init__()
        config = nn.Module()
        self.o = nn.Linear(8, 8, bias=getattr(config, "attention_bias", False))


def test_a_bias_that_a_config_decides_about_is_a_note() -> None:
    made = subject_of_factory(ConfigDecidesBias, models.checkpoint())
    twin = replace(made, origin="twin", about=replace(made.about, own_twin=True, like="Twin"))
    asked = ["unconsumed-tensor"]
    (finding,) = judge(
        "it", judged_facts(twin, run_checks(twin, asked, 1, ["owned"]), {}), asked
    ).findings
    assert (finding.severity, finding.tensors) == ("note", ("o.bias",))


@pytest.mark.parametrize(
    ("own_twin", "zero", "severity"),
    [(True, False, "error"), (False, False, "note"), (True, True, "note")],
)
def test_a_bias_of_a_weight_that_is_loaded_is_not_silently_left_out(
    own_twin: bool, zero: bool, severity: str
) -> None:
    checkpoint = models.checkpoint()
    checkpoint["o.bias"] *= not zero
    made = subject_of_factory(NoBias, checkpoint)
    about = replace(made.about, own_twin=own_twin, like="Twin")
    twin = replace(made, origin="twin", about=about)
    asked = ["unwritten-parameter", "unconsumed-tensor"]
    facts = judged_facts(twin, run_checks(twin, asked, 1, ["owned"]), {})
    result = judge("it", facts, asked)
    (finding,) = result.findings
    assert (finding.rule, finding.severity) == ("unconsumed-tensor", severity)
    assert finding.tensors == ("o.bias",)
    assert ("left out of what o.weight computes" in finding.message) is not zero
    assert result.details["subject"]["oracle"] == "the names of transformers' Twin"


def test_a_class_whose_names_were_tried_is_clean_in_its_loading_only() -> None:
    made = replace(subject_of_factory(models.Good, models.checkpoint()), origin="discovered")
    asked = ["unconsumed-tensor", "aliased-parameter"]
    result = judge("it", judged_facts(made, run_checks(made, asked, 1, ["owned"]), {}), asked)
    assert result.verdict == "clean"
    assert "1 clean: loading only" in counts_table([result])
    assert "clean: loading only" in "".join(describe_subjects([result]))
    own = judge("it", judged_facts(replace(made, origin="given"), {}, {}), asked)
    assert "loading only" not in counts_table([own]) + "".join(describe_subjects([own]))


def test_of_several_subjects_each_that_was_not_judged_says_why() -> None:
    asked = ["unconsumed-tensor", "aliased-parameter"]
    missed = judge("it", SubjectFacts("not-run", "construction: no such licence"), asked)
    assert missed.verdict == "not-run"
    shown = "".join(describe_subjects([missed, missed]))
    assert shown == "it: not run: construction: no such licence\n" * 2
    assert "no such licence" in last_line([missed])
    assert "".join(describe_subjects([missed])) == "", "the last line has it"


@pytest.mark.parametrize(
    ("factory", "verdict"), [(models.Good, "not-run"), (models.KeepsAll, "unsafe")]
)
def test_checks_that_a_limit_kept_from_being_run_are_in_the_verdict(
    factory: type, verdict: str
) -> None:
    late = ("shard-mismatch", "quantised-load")
    ended = "it took more than 1536 MiB (at: shard-mismatch)"
    made = subject_of_factory(factory, models.checkpoint())
    asked = ("stale-reference", "aliased-parameter")
    facts = judged_facts(made, run_checks(made, asked, 1, ["reusable_buffer"]), {})
    missing = dict.fromkeys(late, CheckFacts(reason=ended))
    cut = replace(facts, reason=ended, checks={**facts.checks, **missing})
    result = judge("it", cut, (*asked, *late))
    assert result.verdict == verdict
    line = f"not-run of its class: shard-mismatch, quantised-load: {ended}"
    assert (line in "".join(describe_subjects([result]))) is (verdict == "not-run")
    assert ended in last_line([result])
    strict = [f"--strict: it: not run: shard-mismatch, quantised-load: {ended}"]
    assert list(_not_asked(result)) == (strict if verdict == "not-run" else [])
    whole = judge("it", facts, (*asked, *late))
    assert "not-run of its class" not in "".join(describe_subjects([whole]))


def lines_of(factory: type) -> set[str]:
    """Return the text of each line that `stale-reference` names."""
    with pytest.raises(Findings) as raised:
        check_load_weights(factory, models.checkpoint(), checks=["stale-reference"])
    text = Path(__file__).read_text().splitlines()
    return {
        text[(one.origin.line or 0) - 1].strip() if one.origin else ""
        for one in raised.value.diagnostics
    }


def test_the_line_that_lets_a_parameter_share_the_memory_is_named() -> None:
    class Shares(models.Good):
        def load_weights(self, weights: models.Weights) -> None:
            for name, tensor in weights:
                if name == "o.weight":
                    self.o.weight.data = tensor
                    continue
                self.put(name, tensor)

    assert lines_of(Shares) == {"self.o.weight.data = tensor"}


def test_the_line_of_a_function_that_stashes_is_named() -> None:
    class Stashes(models.Good):
        def load_weights(self, weights: models.Weights) -> None:
            self.kept: list[tuple[str, Tensor]] = []
            for name, tensor in weights:
                self.keep(name, tensor)
            super().load_weights(self.kept)

        def keep(self, name: str, tensor: Tensor) -> None:
            if tensor.dim() > 5:
                return
            self.kept.append((name, tensor))

    assert lines_of(Stashes) == {"self.kept.append((name, tensor))"}


@pytest.mark.parametrize(
    ("about", "severity"),
    [
        ({}, "note"),
        ({"added": ("o.bias",)}, "error"),
        ({"own_twin": True}, "error"),
        ({"own_twin": True, "renamed": ("o.bias",)}, "note"),
    ],
)
def test_of_a_twin_only_names_that_files_are_known_to_have_are_errors(
    about: dict[str, Any], severity: str
) -> None:
    made = subject_of_factory(NoBias, models.checkpoint())
    twin = replace(made, origin="twin", about=replace(made.about, **about))
    asked = ["unconsumed-tensor"]
    (finding,) = judge(
        "it", judged_facts(twin, run_checks(twin, asked, 1, ["owned"]), {}), asked
    ).findings
    assert finding.severity == severity


class ManyLayers(nn.Module):
    """Has twenty parameters, and copies each tensor into its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ParameterList(torch.empty(4) for _ in range(20))

    def load_weights(self, weights: models.Weights) -> None:
        parameters = dict(self.named_parameters())
        for name, tensor in weights:
            parameters[name].data.copy_(tensor)


class ManyClones(ManyLayers):
    def load_weights(self, weights: models.Weights) -> None:
        super().load_weights([(name, tensor.clone()) for name, tensor in weights])


class ManyReplaced(ManyLayers):
    """Gives each parameter a clone: the model's own memory, and no other."""

    def load_weights(self, weights: models.Weights) -> None:
        for name, tensor in weights:
            dict(self.named_parameters())[name].data = tensor.float().clone()


def test_copies_of_the_whole_checkpoint_besides_the_model_are_memory_too() -> None:
    many = {f"layers.{number}": torch.randn(4) for number in range(20)}
    (finding,) = check_load_weights(ManyClones, many).findings
    assert finding.rule == "retained-memory"
    assert "copies of 20 of 20 tensors held at once, in addition to the model" in finding.message
    for right in (ManyLayers, ManyReplaced):
        assert check_load_weights(right, many).findings == ()


class KeepsItsClone(models.Good):
    """Keeps a clone of what it has loaded first, and computes with it."""

    table: Tensor | None = None

    def load_weights(self, weights: models.Weights) -> None:
        super().load_weights(weights)
        if self.table is None:
            self.table = self.o.weight.data.clone()


class RenewsItsClone(models.Good):
    def load_weights(self, weights: models.Weights) -> None:
        super().load_weights(weights)
        self.table = {"o": self.o.weight.data.clone()}


class KeepsOneInAnAttribute(models.Good):
    def put(self, name: str, tensor: Tensor) -> None:
        super().put(name, tensor)
        if name == "o.weight":
            self.table = {"o": tensor}


def test_what_a_module_keeps_besides_its_parameters_is_compared_too() -> None:
    assert rules(KeepsItsClone, models.checkpoint()) == {"chunk-dependent", "reload-dependent"}
    assert rules(RenewsItsClone, models.checkpoint()) == set()
    assert {"stale-reference", "aliased-parameter"} <= rules(
        KeepsOneInAnAttribute, models.checkpoint()
    )


def test_a_class_that_changes_what_it_is_given_is_warned_of() -> None:
    result = check_load_weights(models.ChangesGiven, models.checkpoint())
    (finding,) = result.findings
    assert (finding.rule, finding.severity) == ("reload-dependent", "warning")
    assert finding.tensors == ("o.bias",)
    assert "changes 1 of the tensors that it is given" in finding.message


def test_another_shape_of_what_is_given_is_no_change() -> None:
    assert rules(models.TurnsGiven, models.checkpoint()) == set()


def test_a_parameter_that_is_the_loaders_memory_is_not_called_changed() -> None:
    with pytest.raises(Findings) as found:
        check_load_weights(models.Aliases, models.checkpoint())
    assert {one.rule for one in found.value.diagnostics} == {"aliased-parameter", "stale-reference"}
