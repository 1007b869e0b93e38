"""In bfloat16 small updates arrive as they do in float32."""

from pathlib import Path

import pytest

from tests.engines.parity import base_model, changed, largest_relative, made_run, traced

pytest.importorskip("megatron.core", reason="megatron-core is not installed")
SMALL_STEPS = ("train.steps=20", "optim.lr=1e-5", "optim.schedule=constant")
SPREAD = {
    "sp": ("engine.parallel.tensor=2", "engine.parallel.sequence=true"),
    "distributed": ("engine.wrap_config.use_distributed_optimizer=true",),
}


@pytest.mark.soak
@pytest.mark.parametrize("spread", SPREAD)
def test_bfloat16_changes_as_many_elements_as_float32(tmp_path: Path, spread: str) -> None:
    model = base_model(tmp_path)
    dtypes = ("float32", "bfloat16")
    found = traced(
        2,
        {
            dtype: made_run(tmp_path, "megatron", dtype, model, *SMALL_STEPS, *SPREAD[spread])
            for dtype in dtypes
        },
        digested=False,
    )
    exact, rounded = (found[dtype][0] for dtype in dtypes)
    assert largest_relative(rounded.losses[:1], exact.losses[:1]) <= 5e-3
    assert rounded.losses != exact.losses  # it did compute in bfloat16
    assert changed(exact) > 0.5
    assert abs(changed(rounded) / changed(exact) - 1) <= 0.01
