"""The setting with which a trainer of TRL trains on answers alone."""

from typing import Any

import pytest

from vtool.watch.inject.vtool_watch.alive import trainer_facts

trl = pytest.importorskip("trl")


@pytest.mark.full  # TRL is imported
@pytest.mark.parametrize(
    ("given", "asks"),
    [
        ({"assistant_only_loss": True}, "assistant_only_loss"),
        ({"completion_only_loss": True}, "completion_only_loss"),
        ({"completion_only_loss": False}, None),
        ({}, None),
    ],
)
def test_a_setting_of_trl_asks_for_answers_alone(given: dict[str, Any], asks: str | None) -> None:
    settings = trl.SFTConfig("out", use_cpu=True, bf16=False, report_to=[], **given)
    assert trainer_facts()["asks"] == asks, settings
