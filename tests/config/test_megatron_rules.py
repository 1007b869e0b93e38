"""Recipes with engine=megatron:

what cannot be is found before anything starts, at its place, without megatron-core.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from vtool.config.load import examine
from vtool.diagnostics import Diagnostic


def found(*overrides: str) -> list[tuple[str, str | None]]:
    return [
        (finding.rule, finding.parameter)
        for finding in findings(*overrides)
        if finding.severity == "error"
    ]


def findings(*overrides: str) -> tuple[Diagnostic, ...]:
    return examine("digits", ["engine=megatron", *overrides]).findings


def model(folder: Path, heads: int, groups: int, layers: int) -> str:
    text = {
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "num_hidden_layers": layers,
    }
    config = {"model_type": "qwen2_5_vl", "vision_config": {}, "text_config": text}
    (folder / "config.json").write_text(json.dumps(config))
    return f"model={{family:qwen2_5_vl,path:'{folder}',size:null}}"


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ((), []),
        (("engine.parallel={tensor:2,sequence:true}", "launch.nproc=4"), []),
        (
            ("engine.parallel.tensor=2", "launch.nproc=3"),
            [("parallel-sizes", "engine.parallel.tensor")],
        ),
        (("engine.parallel={tensor:2,pipeline:2}", "launch.nproc=8"), []),
        (
            ("engine.parallel={tensor:2,pipeline:2}", "launch.nproc=6"),
            [("parallel-sizes", "engine.parallel.pipeline")],
        ),
        (("engine.parallel.pipeline=0",), [("out-of-range", "engine.parallel.pipeline")]),
        (("engine.parallel.context=2",), []),
        (("engine.parallel.context=2", "device.kind=cuda", "launch.nproc=2"), []),
        (
            ("engine.parallel.context=2", "device.kind=cpu"),
            [("needs-transformer-engine", "engine.parallel.context")],
        ),
        (
            ("engine.parallel={tensor:2,context:2}", "launch.nproc=6"),
            [("parallel-sizes", "engine.parallel.context")],
        ),
        (("engine.bridge=mbridge", "device.kind=cuda"), []),
        (
            ("engine.bridge=mbridge", "device.kind=cpu"),
            [("needs-transformer-engine", "engine.bridge")],
        ),
        (("engine.bridge=mbridge", "lora={}"), [("not-built-on-engine", "engine.bridge")]),
        (("engine.bridge=megatron_bridge",), [("unknown-choice", "engine.bridge")]),
        (("engine.parallel.sequence=true",), [("not-built-on-engine", "engine.parallel.sequence")]),
        (("model.dtype=float64",), [("not-built-on-engine", "model.dtype")]),
        (
            ("model.gradient_checkpointing=auto",),
            [("not-built-on-engine", "model.gradient_checkpointing")],
        ),
        (("device.kind=npu",), [("not-built-on-engine", "engine.kind")]),
        (("engine.transformer_config.apply_rope_fusion=true",), []),
        (
            ("engine.transformer_config.apply_rope_fusion=true", "device.kind=cpu"),
            [("not-built-on-engine", "engine.transformer_config.apply_rope_fusion")],
        ),
        (
            ("engine.ddp_config.overlap_param_gather=true",),
            [("megatron-ddp-conflict", "engine.ddp_config.overlap_param_gather")] * 2,
        ),
        (
            ("engine.wrap_config.wrap_with_ddp=false",),
            [("megatron-ddp-conflict", "engine.wrap_config.wrap_with_ddp")],
        ),
        (
            ("engine.ddp_config.use_distributd_optimizer=true",),
            [("unknown-key", "engine.ddp_config.use_distributd_optimizer")],
        ),
    ],
)
def test_what_cannot_be_is_found(
    overrides: tuple[str, ...], expected: list[tuple[str, str | None]]
) -> None:
    assert found(*overrides) == expected


def test_heads_are_those_of_the_model(tmp_path: Path) -> None:
    """Qwen2.5-VL 7B has 28 heads over 4."""
    given = model(tmp_path, 28, 4, 28)
    assert found(given, "engine.parallel.tensor=4", "launch.nproc=8") == []
    (one,) = [
        finding
        for finding in findings(given, "engine.parallel.tensor=7", "launch.nproc=7")
        if finding.severity == "error"
    ]
    assert (
        one.message
        == "engine.parallel.tensor is 7, which does not divide the model's 4 key and value heads"
    )
    assert one.help == "take one of 1, 2, 4"
    assert (
        found(given, "engine.parallel.tensor=3", "launch.nproc=4")
        == [("parallel-sizes", "engine.parallel.tensor")] * 3
    )


@pytest.mark.parametrize(
    ("size", "processes", "wholes"),
    [
        ("tensor", 3, ["4 heads", "2 key and value heads", "256 inner features of an MLP"]),
        ("tensor", 4, ["2 key and value heads"]),
        ("pipeline", 3, ["2 layers"]),
        ("tensor", 2, []),
        ("pipeline", 2, []),
    ],
)
def test_the_model_of_random_weights_has_its_sizes_too(
    size: str, processes: int, wholes: list[str]
) -> None:
    given = (f"engine.parallel.{size}={processes}", f"launch.nproc={processes}")
    assert [one.message for one in findings(*given) if one.severity == "error"] == [
        f"engine.parallel.{size} is {processes}, which does not divide the model's {whole}"
        for whole in wholes
    ]


def test_stages_have_as_many_layers(tmp_path: Path) -> None:
    """Qwen2.5-VL 7B has 28 layers."""
    given = model(tmp_path, 28, 4, 28)
    assert found(given, "engine.parallel={tensor:4,pipeline:7}", "launch.nproc=28") == []
    (one,) = [
        finding
        for finding in findings(given, "engine.parallel.pipeline=3", "launch.nproc=3")
        if finding.severity == "error"
    ]
    assert (one.rule, one.parameter) == ("parallel-sizes", "engine.parallel.pipeline")
    assert (
        one.message == "engine.parallel.pipeline is 3, which does not divide the model's 28 layers"
    )
    assert one.help == "take one of 1, 2, 4, 7, 14, 28"


@pytest.mark.parametrize("size", ["tensor", "pipeline"])
def test_processes_that_share_rows_get_all_of_them(size: str) -> None:
    """No note that a micro-batch of 32 is more than half of 32 rows:

    each of two processes of one row computes all.
    """
    assert "micro-batch-larger-than-share" not in [
        one.rule for one in findings(f"engine.parallel.{size}=2", "launch.nproc=2")
    ]
    assert "micro-batch-larger-than-share" in [one.rule for one in findings("launch.nproc=2")]


def test_the_shipped_recipe_is_clean_and_reads_no_torch() -> None:
    script = (
        "import sys\nfrom vtool.config.load import examine\nassert not [one for one in"
        " examine('digits_megatron', ['launch.nproc=2']).findings if one.severity !="
        " 'note']\nassert not {'torch', 'megatron'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
