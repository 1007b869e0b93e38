from pathlib import Path

import pytest

from vtool.config.load import examine, load_run
from vtool.config.schema import Optim, Train


def test_a_length_or_a_warm_up_of_ones_own_takes_the_place_of_a_recipes() -> None:
    run = load_run("digits", ["train.epochs=0.5", "optim.warmup_steps=3"]).run
    assert (run.train.steps, run.train.epochs) == (None, 0.5)
    assert (run.optim.warmup_steps, run.optim.warmup_ratio) == (3, None)
    again = load_run("digits", ["train.steps=9", "optim.warmup_ratio=0.5"]).run
    assert (again.train.steps, again.optim.warmup(9)) == (9, 4)


def test_a_recipe_takes_the_place_of_the_one_it_extends(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("defaults: [digits, _self_]\ntrain: {epochs: 2}\noptim: {warmup_steps: 7}\n")
    run = load_run(str(recipe)).run
    assert (run.train.steps, run.train.epochs, run.optim.warmup(80)) == (None, 2, 7)
    typed = load_run(str(recipe), ["train.steps=30", "optim.warmup_ratio=0.1"]).run
    assert (typed.train.steps, typed.train.epochs, typed.optim.warmup(30)) == (30, None, 3)


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        (["train.steps=9", "train.epochs=1"], "steps-or-epochs"),
        (["train={steps: 9, epochs: 1}"], "steps-or-epochs"),
        (["optim.warmup_ratio=0.1", "optim.warmup_steps=2"], "two-warmups"),
    ],
)
def test_two_that_are_given_in_one_place_are_refused(given: list[str], rule: str) -> None:
    assert [found.rule for found in examine("digits", given).findings] == [rule]


def test_null_and_zero_turn_a_recipes_own_off() -> None:
    assert load_run("digits", ["optim.warmup_steps=0"]).run.optim.warmup(600) == 0
    assert load_run("digits", ["optim.warmup_ratio=null"]).run.optim.warmup(600) == 0
    (found,) = examine("digits", ["train.steps=null"]).findings
    assert found.rule == "steps-or-epochs"


def test_parts_of_an_epoch_end_with_the_next_whole_step() -> None:
    lengths = {0.5: 20, 0.51: 21, 1: 40, 1.5: 60, 0.001: 1, 0.1: 4, 0.3: 12}
    assert {epochs: Train(epochs=epochs).total(40) for epochs in lengths} == lengths
    assert Train(steps=7).total(40) == 7


def test_a_share_of_warm_up_is_never_the_whole_run() -> None:
    for total in range(1, 30):
        for share in (0.0, 0.03, 0.0833, 0.5, 0.99):
            warmup = Optim(lr=1.0, warmup_ratio=share).warmup(total)
            assert 0 <= warmup < total
            assert warmup == total - 1 or abs(warmup - share * total) <= 0.5
