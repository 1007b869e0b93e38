"""The fewest blocks that compute again, such that a rank fits."""

from pathlib import Path

import pytest

from tests.planning.test_micro_batch import run_of
from vtool.config.schema import Run
from vtool.planning.plan import ERROR, OVERHEAD, MemoryPlan, PlanQuestion, make_plan
from vtool.planning.recompute import MOST_MEASURED, as_setting, fewest_blocks
from vtool.planning.text import lines

pytestmark = pytest.mark.usefixtures("no_process_group")


@pytest.mark.parametrize(("tower", "layers"), [(32, 28), (4, 2), (0, 3), (5, 0), (1, 1), (32, 80)])
@pytest.mark.parametrize(("of_tower", "of_layer"), [(3, 17), (17, 3)])
@pytest.mark.parametrize("jump", [0, 40, -2])
def test_the_fewest_blocks_that_fit_are_found_in_few_plans(
    tower: int, layers: int, of_tower: int, of_layer: int, jump: int
) -> None:
    """Sizes fall by block, those of a tower's otherwise than of a layer's; the last may not."""
    of = tower + layers

    def size(blocks: int) -> int:
        kept = of_tower * max(0, tower - blocks) + of_layer * min(layers, of - blocks)
        return 100 + kept + jump * (blocks < of)

    for room in range(95, size(0) + 5, 5):
        asked: list[int] = []

        def measure(blocks: int, asked: list[int] = asked) -> int:
            asked.append(blocks)
            return size(blocks)

        fitting = [blocks for blocks in range(of + 1) if size(blocks) <= room]
        found = fewest_blocks(measure, tower, of, room)
        assert found == min(fitting, default=None)
        assert found is None or found in asked
        assert len(asked) <= MOST_MEASURED


def test_a_number_is_said_as_the_setting_has_it() -> None:
    assert [as_setting(blocks, 6) for blocks in (0, 1, 5, 6)] == ["none", 1, 5, "full"]


def plan_of(run: Run, device: int | None) -> MemoryPlan:
    """The plan of one rank on a GPU with so many bytes for it."""
    memory = None if device is None else device + OVERHEAD
    return make_plan(run, PlanQuestion(1, memory, images=4))


@pytest.mark.full
def test_a_plan_recomputes_no_more_blocks_than_it_has_to(tmp_path: Path) -> None:
    sizes = ("data.max_length=512", "data.global_batch_size=1", "engine=ddp")
    asked = {
        each: run_of(tmp_path, *sizes, f"model.gradient_checkpointing={each}")
        for each in ("none", 3, "full", "auto")
    }
    devices = {each: plan_of(run, None).device for each, run in asked.items() if each != "auto"}
    assert devices["none"] > devices[3] > devices["full"]
    # as much as 3 blocks and the plan's own error take: two would not do
    three = plan_of(asked["auto"], int(devices[3] * (1 + ERROR)) + 1)
    assert three.choice is not None
    assert (three.choice.setting, three.choice.of, three.choice.tower) == (3, 6, 4)
    assert three.device == devices[3]
    assert three.choice.without == devices["none"]
    assert three.fits
    text = "\n".join(lines(three))
    assert "model.gradient_checkpointing=auto is 3: 3 of 6 blocks compute again" in text
    # all of them fit by less than that error, and then by nothing
    near = plan_of(asked["auto"], devices["full"])
    assert (near.choice and near.choice.setting, near.fits) == ("full", True)
    short = plan_of(asked["auto"], devices["full"] - 1)
    assert (short.choice and short.choice.setting, short.fits) == ("full", False)
    assert short.changes
    # not asked
    unasked = plan_of(asked["auto"], None)
    assert (unasked.device, unasked.fits) == (devices["full"], None)
    assert "is planned as full" in "\n".join(lines(unasked))
