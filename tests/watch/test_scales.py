"""Scales and rules of weights other than the usual ones, and what one step alone does not say."""

from pathlib import Path

import pytest

from tests.watch.made import LENGTHS, Change, Fact, changed, healthy, micro
from tests.watch.test_conclusions import conclude, on, rules, weigh

MEAN = 1 / 36  # of the 36 learnt tokens of a step


def clipped(
    times: float, norms: tuple[float, ...] = (1.0, 1.0, 1.0), changes: int | None = 1
) -> list[Fact]:
    """Return facts of steps whose loss is some times a mean, each clipped by a factor of its own.

    A step whose norm is below 1 is left as it is.
    """

    def clip(fact: Fact) -> None:
        if fact["kind"] == "arrived":
            step = fact["step"]
            factor = 1 / (3.3 + step) if norms[step] >= 1 else 1.0
            fact |= {"norm": norms[step], "changes": changes}
            fact["norm_gradient"] = [factor * value for value in fact["norm_sum"]]

    return changed(changed(healthy(), weigh(lambda fact: times * MEAN)), clip)


@pytest.mark.parametrize(
    ("times", "norms", "found", "state"),
    [
        (1.0, (1.0, 1.0, 1.0), None, "passed"),
        (2.0, (1.0, 1.0, 1.0), "warning", "failed"),
        (2.0, (1.0, 0.4, 1.0), "error", "failed"),  # one step is not clipped: it is certain
        (36.0, (1.0, 1.0, 1.0), None, "not-run"),  # a sum, which may be divided before clipping
    ],
)
def test_a_scale_that_clipping_hides_is_no_pass(
    tmp_path: Path, times: float, norms: tuple[float, ...], found: str | None, state: str
) -> None:
    result = conclude(tmp_path, clipped(times, norms))
    assert rules(result) == ({"gradient-scaled": found} if found else {})
    assert result.checks["gradient-scaled"] == state


@pytest.mark.parametrize("changes", [0, 2, None])
def test_gradients_that_may_be_divided_before_they_are_clipped_are_not_judged(
    tmp_path: Path, changes: int | None
) -> None:
    """`for p in ...: p.grad /= 2`, and then clip_grad_norm_: nothing is wrong with that."""
    result = conclude(tmp_path, clipped(2.0, changes=changes))
    assert (rules(result), result.checks["gradient-scaled"]) == ({}, "not-run")


def scaled(of_loss: float, times: float, scalers: list[float]) -> list[Fact]:
    """Return facts of a loss that is some times a mean, and of gradients that are other times."""

    def arrive(fact: Fact) -> None:
        if fact["kind"] == "arrived":
            fact["scalers"] = scalers
            fact["norm_gradient"] = [times / of_loss * value for value in fact["norm_sum"]]

    return changed(changed(healthy(), weigh(lambda fact: of_loss * MEAN)), arrive)


@pytest.mark.parametrize(
    ("of_loss", "times", "scalers", "found", "message"),
    [
        (1024, 1, [1024.0], None, ""),
        (1024, 1024, [1024.0], "error", "nothing divides by it"),
        (1024, 1024, [8.0, 1024.0], "error", "nothing divides by it"),
        (1024**2, 1024, [1024.0], "error", "does so twice"),
        (1024, 1 / 1024, [1024.0], "error", "gradients are divided by it twice"),
        (36, 36, [1024.0], "note", "36 times"),  # a sum over the tokens
        (1024, 1024, [], "note", "1024 times"),
    ],
)
def test_a_loss_scaler_is_to_be_divided_by_once(
    tmp_path: Path,
    of_loss: float,
    times: float,
    scalers: list[float],
    found: str | None,
    message: str,
) -> None:
    result = conclude(tmp_path, scaled(of_loss, times, scalers))
    assert rules(result) == ({"gradient-scaled": found} if found else {})
    assert message in "".join(one.message for one in result.findings)


@pytest.mark.parametrize(("limit", "found"), [(1.0, "warning"), (102.4, None), (0.8165, None)])
def test_gradients_are_to_be_divided_before_they_are_clipped(
    tmp_path: Path, limit: float, found: str | None
) -> None:
    """A limit of 102.4 before is one of 0.1 after the division, which somebody may have meant."""
    facts = changed(clipped(1024), on("arrived", norm=limit / 1024, scalers=[1024.0]))
    assert rules(conclude(tmp_path, facts)) == ({"gradient-scaled": found} if found else {})


@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize(
    ("of_loss", "found"), [(1 / len(LENGTHS), "warning"), (1.0, None), (0.41, None)]
)
def test_a_step_of_fewer_micro_batches_is_divided_by_its_own(
    tmp_path: Path, of_loss: float, found: str | None, clips: bool
) -> None:
    """transformers#39659: the last step of an epoch, divided by gradient_accumulation_steps."""

    def end(fact: Fact) -> list[Fact] | None:
        if fact["step"] < 2 or fact["kind"] not in ("micro", "rows"):
            return None
        if fact.get("index", fact.get("micro")):
            return []
        one = micro(0, LENGTHS[0], of_loss / sum(LENGTHS[0]))
        return [{**fact, **one}] if fact["kind"] == "micro" else [fact]

    result = conclude(tmp_path, changed(clipped(1.0) if clips else healthy(), end))
    assert rules(result) == ({"gradient-scaled": found} if found else {})
    assert not found or f"1/{len(LENGTHS)} of" in result.findings[0].message


@pytest.mark.parametrize("name", ["parameter-stopped-moving", "layers-scaled-apart"])
def test_one_step_alone_is_no_pass_where_it_takes_two(tmp_path: Path, name: str) -> None:
    result = conclude(tmp_path, healthy(steps=1))
    assert (rules(result), result.checks[name]) == ({}, "not-run")


def groups(*each: dict[str, float]) -> Change:
    return on("stepped", groups=[{"tensors": 4, "vectors": 0, **group} for group in each])


@pytest.mark.parametrize(
    ("steps", "change", "found"),
    [
        (1, groups({"lr": 0.0, "initial_lr": 0.0}), True),
        (3, groups({"lr": 0.0}, {"lr": 0.0}), True),
        (2, groups({"lr": 0.0}), False),  # a rate that is raised by hand
        (2, groups({"lr": 0.0, "initial_lr": 1e-4}), False),  # a schedule that begins at zero
        (3, groups({"lr": 0.0, "initial_lr": 1e-4}), True),
    ],
)
def test_a_rate_that_is_nought_for_good_is_found(
    tmp_path: Path, steps: int, change: Change, found: bool
) -> None:
    def unmoved(fact: Fact) -> None:
        if fact["kind"] == "stepped":
            fact["reference"] = {}
        if fact["kind"] == "drift":
            fact["digest"] = "the same"

    moved = changed(healthy(steps=steps), change)
    result = conclude(tmp_path, changed(moved, unmoved))
    assert rules(result) == ({"parameter-stopped-moving": "warning"} if found else {})


def test_a_rate_of_nought_is_no_finding_where_weights_move_all_the_same(tmp_path: Path) -> None:
    facts = changed(healthy(steps=3), groups({"lr": 0.0, "initial_lr": 0.0}))
    numbers = iter(range(100))

    def moving(fact: Fact) -> None:
        if fact["kind"] == "stepped":
            fact["reference"] = {}
        if fact["kind"] == "drift":
            fact["digest"] = str(next(numbers))

    assert "parameter-stopped-moving" not in rules(conclude(tmp_path, changed(facts, moving)))


def test_decay_of_norms_is_no_pass_where_the_optimizer_has_none(tmp_path: Path) -> None:
    facts = changed(healthy(), groups({"lr": 1e-3, "weight_decay": 0.1}))
    assert conclude(tmp_path, facts).checks["decay-on-norms"] == "not-run"


@pytest.mark.parametrize("meant", [True, False])
@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({}, "passed"),
        ({"mesh": {"dp": 2}}, "not-run"),
        ({"tie_meant": None}, "not-run"),
    ],
)
def test_a_tie_is_not_missed_where_it_is_there_or_cannot_be_seen(
    tmp_path: Path, meant: bool, fields: dict[str, object], state: str
) -> None:
    other = {"tied": meant if state == "passed" else not meant, "tie_meant": meant}
    result = conclude(tmp_path, changed(healthy(), on("model", **{**other, **fields})))
    assert (rules(result), result.checks["head-not-tied"]) == ({}, state)


@pytest.mark.parametrize("adapters", [True, False])
@pytest.mark.parametrize("meant", [True, False])
def test_a_head_that_is_not_as_its_config_says_is_found(
    tmp_path: Path, meant: bool, adapters: bool
) -> None:
    change = on("model", tied=not meant, tie_meant=meant, adapters=adapters)
    result = conclude(tmp_path, changed(healthy(), change))
    assert rules(result) == {"head-not-tied": "warning"}
    assert f"the config has tie_word_embeddings={meant}" in result.findings[0].message


@pytest.mark.parametrize(
    ("without", "severity"), [(["a"], "note"), (["b"], "error"), ([], "error")]
)
def test_a_head_that_nobody_uses_may_be_in_no_group(
    tmp_path: Path, without: list[str], severity: str
) -> None:
    facts = changed(healthy(), on("model", in_no_group=["a"], n_in_no_group=1))
    facts = changed(facts, on("arrived", no_gradient=without, n_no_gradient=len(without)))
    assert rules(conclude(tmp_path, facts))["parameter-in-no-group"] == severity


def test_a_mean_over_every_position_is_named(tmp_path: Path) -> None:
    def over_positions(fact: Fact) -> list[Fact] | None:
        if fact["kind"] != "micro":
            return None
        index, positions = fact["index"], 2 * (20 + 7 * fact["index"])
        return [
            {**fact, **micro(index, LENGTHS[index], 1 / positions), "shape": [2, positions // 2]}
        ]

    result = conclude(tmp_path, changed(healthy(), over_positions))
    assert rules(result)["token-weights-differ"] == "error"
    assert "1/n of the n positions of its own micro-batch" in result.findings[0].message


@pytest.mark.parametrize(("world", "own"), [(1, "micro-batch"), (2, "rank")])
def test_labels_that_are_counted_before_they_are_shifted_are_named(
    tmp_path: Path, world: int, own: str
) -> None:
    """Each of two rows has a label more than it has targets: its first token's."""

    def by_labels(fact: Fact) -> list[Fact] | None:
        if fact["kind"] != "micro":
            return None
        index, more = fact["index"], 4 * fact["rank"]  # ranks have rows of other lengths
        lengths = [tuple(n + more for n in row) for row in LENGTHS]
        counts = [sum(row) + 2 for row in lengths]
        labels = counts[index] if world == 1 else sum(counts)
        return [{**fact, **micro(index, lengths[index], 1 / labels)}]

    result = conclude(tmp_path, changed(healthy(world), by_labels))
    assert rules(result)["token-weights-differ"] == "error"
    (message,) = (one.message for one in result.findings if one.rule == "token-weights-differ")
    assert f"1/n of the n labels, first tokens among them, of its own {own}" in message


@pytest.mark.parametrize(("padding", "severity"), [(0, "note"), (3, "warning")])
def test_a_mask_of_another_row_has_padding_where_it_leaves_text_out(
    tmp_path: Path, padding: int, severity: str
) -> None:
    specials = {"0": {"in_inputs": padding, "learnt": 0}}
    result = conclude(tmp_path, changed(healthy(), on("micro", left_out=2, specials=specials)))
    assert rules(result) == {"masked-tokens-learnt": severity}


@pytest.mark.parametrize(
    ("accumulating", "times", "found"),
    [
        ((True, True, False), 0.2, "warning"),
        ((True, True, False), 1.0, None),  # whatever accelerate holds it for, it is the mean
        ((False, False, False), 1.0, None),
        ((None, None, None), 1.0, None),  # accelerate is not used
    ],
)
def test_steps_in_the_middle_of_an_accumulation_are_found_where_the_loss_is_divided_for_all_of_it(
    tmp_path: Path, accumulating: tuple[bool | None, ...], times: float, found: str | None
) -> None:
    """accelerator.prepare(model) without the optimizer: it steps after each micro-batch."""

    def hold(fact: Fact) -> None:
        if fact["kind"] == "arrived":
            fact["accumulating"] = accumulating[fact["step"]]

    result = conclude(tmp_path, changed(changed(healthy(), weigh(lambda _: times * MEAN)), hold))
    assert rules(result) == ({"gradient-scaled": found} if found else {})
    if found:
        assert "2 of 3 steps" in result.findings[0].message
        assert "prepare the optimizer too" in str(result.findings[0].help)
