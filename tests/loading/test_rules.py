"""Each rule of a class that is given weights: a class that it finds, and one that it does not."""

import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

from tests.loading import models
from vtool.diagnostics import Diagnostic, Findings
from vtool.diagnostics.result import Result
from vtool.diagnostics.rules_loading import CLASS_RULES
from vtool.loading import check_load_weights
from vtool.loading.probe.audit import run_checks
from vtool.loading.probe.errors import LoadFailed
from vtool.loading.probe.file_host import facts_of, subject_of_factory
from vtool.loading.verdict import judge

WRONG = {
    "stale-reference": models.KeepsAll,
    "iterator-not-exhausted": models.StopsEarly,
    "unwritten-parameter": models.HasMore,
    "never-loaded": models.SkipsBias,
    "partly-written-parameter": models.SkipsV,
    "wrong-place": models.ExchangesNorms,
    "unconsumed-tensor": models.SkipsBuffer,
    "order-dependent": models.ByOrder,
    "chunk-dependent": models.CachesInCall,
    "reload-dependent": models.Adds,
    "aliased-parameter": models.Aliases,
    "nondeterministic": models.Random,
    "partly-loaded-tensor": models.OneRowForAll,
}
NO_ERRORS = ("retained-memory", "lossy-cast")
"""Checks whose findings are milder, and have tests of their own below."""


def errors(factory: type, **more: object) -> list[Diagnostic]:
    checkpoint = getattr(factory, "checkpoint", models.checkpoint)
    return errors_of(factory, checkpoint(), **more)


def errors_of(
    factory: type, checkpoint: dict[str, torch.Tensor], **more: object
) -> list[Diagnostic]:
    with pytest.raises(Findings) as raised:
        check_load_weights(factory, checkpoint, **more)
    return list(raised.value.diagnostics)


@pytest.mark.parametrize("factory", [models.Good, models.KeepsClones])
def test_a_class_that_copies_or_clones_is_clean(factory: type) -> None:
    result = check_load_weights(factory, models.checkpoint())
    assert result.verdict == "clean"
    assert result.checks == dict.fromkeys(CLASS_RULES, "passed")


def test_each_check_of_a_class_has_a_class_that_breaks_it() -> None:
    assert {*WRONG, *NO_ERRORS} == set(CLASS_RULES)


@pytest.mark.parametrize("rule", WRONG)
def test_a_rule_finds_the_class_that_breaks_it(rule: str) -> None:
    assert rule in {finding.rule for finding in errors(WRONG[rule])}


def test_the_line_that_keeps_a_tensor_is_named() -> None:
    (finding,) = errors(models.KeepsAll, checks=["stale-reference"])
    assert finding.origin is not None
    lines = Path(models.__file__).read_text().splitlines()
    assert lines[(finding.origin.line or 0) - 1].endswith("# the line that keeps them")
    assert set(finding.tensors or ()) == set(models.checkpoint())


def test_a_function_that_is_called_does_not_take_the_blame_of_the_line_that_calls_it() -> None:
    class Renames(models.Good):
        def load_weights(self, weights: models.Weights) -> None:
            kept = [self.renamed(*pair) for pair in weights]  # the line that keeps them
            super().load_weights(kept)

        def renamed(self, name: str, tensor: torch.Tensor) -> tuple[str, torch.Tensor]:
            return name.strip(), tensor

    lines = Path(__file__).read_text().splitlines()
    for finding in errors(Renames, checks=["stale-reference"]):
        assert finding.origin is not None
        text = lines[(finding.origin.line or 0) - 1]
        assert text.endswith("# the line that keeps them")


def test_views_of_the_memory_are_found_as_the_tensors_are() -> None:
    (finding,) = errors(models.KeepsViews, checks=["stale-reference"])
    assert "qkv.weight" in finding.message


def test_the_smallest_ring_that_is_safe_is_reported() -> None:
    result = check_load_weights(
        models.LooksOneAhead, models.checkpoint(), slots=2, checks=["stale-reference"]
    )
    assert result.checks == {"stale-reference": "passed"}
    assert (
        "needs 2 of 6 tensors"
        in errors(models.LooksOneAhead, checks=["stale-reference"])[0].message
    )


def test_a_class_that_is_right_however_long_tensors_stay_is_asked_with_one_slot() -> None:
    assert (
        check_load_weights(
            models.Good, models.checkpoint(), slots=1, checks=["stale-reference"]
        ).verdict
        == "clean"
    )


def test_the_missing_part_of_a_fused_weight_is_counted_by_element() -> None:
    found = {finding.rule: finding for finding in errors(models.SkipsV)}
    assert found["partly-written-parameter"].parameter == "qkv.weight"
    assert "64 of 192 elements" in (found["partly-written-parameter"].seen or "")
    assert found["unconsumed-tensor"].tensors == ("v.weight",)


def test_holding_the_whole_checkpoint_is_a_warning() -> None:
    many = {f"layers.{number}": torch.randn(4) for number in range(20)}

    class Hoards(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ParameterList(torch.zeros(4) for _ in range(20))

        def load_weights(self, weights: models.Weights) -> None:
            for name, tensor in dict(weights).items():
                self.get_parameter(name).data.copy_(tensor)

    class Streams(Hoards):
        def load_weights(self, weights: models.Weights) -> None:
            for name, tensor in weights:
                self.get_parameter(name).data.copy_(tensor)

    hoarded = check_load_weights(Hoards, many, checks=["retained-memory"])
    assert [(finding.rule, finding.severity) for finding in hoarded.findings] == [
        ("retained-memory", "warning")
    ]
    assert hoarded.details["retained-memory"]["measured"]["most_tensors"] == 20
    assert check_load_weights(Streams, many, checks=["retained-memory"]).findings == ()


def test_a_narrower_parameter_is_a_warning_and_an_equal_one_is_not() -> None:
    found = check_load_weights(models.Narrow, models.checkpoint()).findings
    assert [(finding.rule, finding.severity) for finding in found] == [("lossy-cast", "warning")]
    assert set(found[0].tensors or ()) == {"o.weight", "o.bias"}
    half = {name: tensor.bfloat16() for name, tensor in models.checkpoint().items()}
    assert check_load_weights(models.Good, half).findings == ()  # into a wider one nothing is lost


def test_a_copy_that_is_narrowed_and_numbers_that_end_too_early_are_found() -> None:
    (found,) = check_load_weights(models.NarrowClone, models.checkpoint()).findings
    assert (found.rule, found.severity, set(found.tensors or ())) == (
        "lossy-cast",
        "warning",
        {"o.weight", "o.bias"},
    )
    large = {name: (tensor * 1e6).bfloat16() for name, tensor in models.checkpoint().items()}
    findings = check_load_weights(models.HalfRange, large, checks=["lossy-cast"]).findings
    assert [finding.rule for finding in findings] == ["lossy-cast"]
    assert set(findings[0].tensors or ()) == set(large)


def test_a_buffer_that_is_loaded_is_looked_at_as_parameters_are() -> None:
    written, loaded = errors(models.HalfBuffer)
    assert (written.rule, written.parameter) == ("partly-written-parameter", "mean")
    assert "2 of 4 elements" in (written.seen or "")
    assert (loaded.rule, loaded.tensors) == ("partly-loaded-tensor", ("mean",))


@pytest.mark.parametrize("factory", [models.ChanceBuffer, models.EmptyBuffer])
def test_a_buffer_of_chance_is_a_note_and_is_not_compared(factory: type) -> None:
    result = check_load_weights(factory, models.checkpoint())
    assert [(finding.rule, finding.severity, finding.parameter) for finding in result.findings] == [
        ("nondeterministic", "note", "scratch")
    ]
    assert result.verdict == "clean"


def test_an_inner_loader_that_stops_early_is_found() -> None:
    found = {finding.rule: finding for finding in errors(models.InnerStopsEarly)}
    assert found["never-loaded"].parameter == "o.bias"
    assert found["never-loaded"].tensors == ("o.bias",)


@pytest.mark.parametrize(
    ("factory", "state"), [(models.MindsTheMark, "passed"), (models.KeepsAll, "failed")]
)
def test_a_class_that_minds_sglangs_mark_is_right_with_it_and_only_with_it(
    factory: type, state: str
) -> None:
    assert judged(factory, ["owned", "sglang_marked"]).checks == {"stale-reference": state}
    assert judged(factory, ["owned", "reusable_buffer"]).checks == {"stale-reference": "failed"}


def test_a_loader_that_is_asked_for_and_is_not_there_is_not_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("MEMORY_LIMIT", "CONCURRENCY", "DIST", "DIST_BUFFER_MIN_BYTESIZE"):
        monkeypatch.setenv(f"RUNAI_STREAMER_{name}", "1")  # set by the loader: put back afterwards
    monkeypatch.setitem(sys.modules, "runai_model_streamer", None)
    result = judged(models.Good, ["owned", "runai"])
    assert (result.verdict, result.checks) == ("not-run", {"stale-reference": "not-run"})
    assert "runai" in result.details["stale-reference"]["reason"]
    assert judged(models.Good, ["owned", "reusable_buffer", "safetensors"]).checks == {
        "stale-reference": "passed"
    }


def judged(factory: type, sources: list[str]) -> Result:
    asked = ["stale-reference"]
    return judge("it", facts_of(factory, models.checkpoint(), asked, 1, sources), asked)


def test_what_is_allowed_is_not_reported() -> None:
    assert (
        check_load_weights(models.SkipsBias, models.checkpoint(), allow=["o.bias"]).verdict
        == "clean"
    )
    with pytest.raises(Findings):  # of what is left out, and of nothing else
        check_load_weights(models.KeepsAll, models.checkpoint(), allow=["*"])


def test_a_copy_of_a_tensor_that_is_read_may_be_left_out() -> None:
    tied = models.checkpoint()
    tied["spare.weight"] = tied["o.weight"].clone()

    class Tied(models.Good):
        def load_weights(self, weights: models.Weights) -> None:
            super().load_weights(
                (name, tensor) for name, tensor in weights if name != "spare.weight"
            )

    assert [finding.severity for finding in check_load_weights(Tied, tied).findings] == ["note"]


def test_a_tensor_that_is_read_outside_of_torch_counts_as_read() -> None:
    class ThroughNumpy(models.Good):
        def put(self, name: str, tensor: torch.Tensor) -> None:
            super().put(name, torch.from_numpy(tensor.numpy().copy()))

    assert check_load_weights(ThroughNumpy, models.checkpoint()).verdict == "clean"


class Counts(torch.nn.Module):
    """Whole numbers, in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("places", torch.zeros(4, dtype=torch.int32))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def load_weights(self, weights: models.Weights) -> None:
        for name, tensor in weights:
            self.put(name, torch.from_numpy(tensor.numpy().copy()))

    def put(self, name: str, tensor: torch.Tensor) -> None:
        self.get_buffer(name).copy_(tensor)


WHOLE_NUMBERS = {"places": torch.arange(4, dtype=torch.int32), "seen": torch.tensor(7)}


def test_whole_numbers_that_are_read_outside_of_torch_count_as_read() -> None:
    assert not check_load_weights(Counts, WHOLE_NUMBERS).findings


def test_whole_numbers_that_no_load_may_change_are_read_too() -> None:
    class Strict(Counts):
        def put(self, name: str, tensor: torch.Tensor) -> None:
            if name == "places" and tensor.tolist() != [0, 1, 2, 3]:
                raise ValueError("not in order")
            super().put(name, tensor)

    assert not check_load_weights(Strict, WHOLE_NUMBERS).findings


def test_whole_numbers_of_the_load_before_are_found() -> None:
    class KeepsTheFirst(Counts):
        def put(self, name: str, tensor: torch.Tensor) -> None:
            if not self.get_buffer(name).any():
                super().put(name, tensor)

    assert "reload-dependent" in {
        finding.rule for finding in errors_of(KeepsTheFirst, WHOLE_NUMBERS)
    }


def test_an_exception_on_the_way_is_loud_and_so_a_warning() -> None:
    class WholeOnly(models.Good):
        def load_weights(self, weights: models.Weights) -> None:
            weights = [(name, tensor.clone()) for name, tensor in weights]
            if len(weights) < 6:
                raise ValueError("a part is missing")
            super().load_weights(weights)

    found = check_load_weights(WholeOnly, models.checkpoint(), checks=["chunk-dependent"]).findings
    assert {finding.severity for finding in found} == {"warning"}
    assert "a part is missing" in found[0].message


def test_a_check_that_does_not_exist_is_not_passed() -> None:
    with pytest.raises(ValueError, match="`stale-referense`; did you mean `stale-reference`"):
        check_load_weights(models.KeepsAll, models.checkpoint(), checks=["stale-referense"])
    with pytest.raises(ValueError, match="names no check"):
        check_load_weights(models.KeepsAll, models.checkpoint(), checks=[])


def test_arguments_that_check_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="`slots` is 0"):
        check_load_weights(models.Good, models.checkpoint(), slots=0)
    with pytest.raises(ValueError, match="`checkpoint` has no tensors"):
        check_load_weights(models.Good, {})


@pytest.mark.parametrize(
    ("factory", "words"),
    [(models.raises, "no such luck"), (models.not_a_model, "no load_weights()")],
)
def test_what_is_no_model_is_a_finding(factory: type, words: str) -> None:
    (finding,) = errors(factory)
    assert finding.rule == "load-failed"
    assert words in finding.message


class OtherNames(torch.nn.Module):
    """A fused projection: a checkpoint has three tensors for its one."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(4, 12, bias=False)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        for name, tensor in weights:
            at = ["q.weight", "k.weight", "v.weight"].index(name)
            self.qkv.weight.data[4 * at : 4 * at + 4] = tensor


def test_a_class_that_takes_other_names_than_its_own_needs_a_checkpoint() -> None:
    subject = subject_of_factory(OtherNames, None)
    with pytest.raises(LoadFailed, match=r"'qkv.weight' is not in list .*--checkpoint FOLDER"):
        run_checks(subject, ["unwritten-parameter"], 1, ["owned"])
    own = {name: torch.ones(4, 4) for name in ("q.weight", "k.weight", "v.weight")}
    assert check_load_weights(OtherNames, own).verdict == "clean"


def test_a_class_that_cannot_be_made_again_has_not_passed() -> None:
    made = []

    def once() -> models.Good:
        made.append(1)
        assert len(made) < 3, "no more of them"
        return models.Good()

    with pytest.raises(Findings, match=r"load-failed .* no more of them"):
        check_load_weights(once, models.checkpoint())


@pytest.mark.full
def test_a_fixture_is_there_for_model_authors(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import torch
        class Model(torch.nn.Linear):
            def load_weights(self, weights):
                for name, tensor in list(weights):
                    self.get_parameter(name).data.copy_(tensor)
        def test_it(check_load_weights):
            checkpoint = {"weight": torch.randn(2, 2), "bias": torch.randn(2)}
            check_load_weights(lambda: Model(2, 2), checkpoint)
        """)
    result = pytester.runpytest_subprocess()  # pytest finds the plugin by its entry point
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*stale-reference*"])
