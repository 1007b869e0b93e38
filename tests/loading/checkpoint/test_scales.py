"""Quantized weights without scales, and heads of zeros."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.loading.checkpoint.folders import Entry, f32, folder
from vtool.loading.checkpoint import audit_folder

FP8: Entry = ("F8_E4M3", (4, 4), bytes(range(16)))
INT8: Entry = ("I8", (4, 4), bytes(range(16)))
PACKED: Entry = ("I32", (4, 1), bytes(range(16)))
ZEROS: Entry = ("F32", (4, 4), np.zeros((4, 4), np.float32).tobytes())


@pytest.mark.parametrize(
    "tensors",
    [
        {"q.weight": FP8, "q.weight_scale": f32(4, 1)},
        {"q.weight": FP8, "q.weight_scale_inv": f32(1, 1)},
        {"q.weight": FP8, "q.scale_weight": f32(1)},
        {"experts.gate_up_proj": FP8, "experts.gate_up_proj_scale": f32(1)},
        {"q.weight": INT8, "q.SCB": f32(4)},
        {"q.qweight": PACKED, "q.scales": f32(1, 4), "q.qzeros": PACKED},
        {"q.weight_packed": PACKED, "q.weight_scale": f32(4, 1)},
        {"table": INT8},
        {"q.weight": ("U8", (4, 4), bytes(16)), "q.weight_scale": FP8},
    ],
)
def test_weights_with_their_scales_are_clean(tensors: dict[str, Entry], tmp_path: Path) -> None:
    assert audit_folder(folder(tmp_path / "model", model=tensors)).findings == ()


@pytest.mark.parametrize(
    ("tensors", "config", "severity"),
    [
        ({"q.weight": FP8, "k.weight": FP8, "k.weight_scale": f32(1)}, {}, "error"),
        ({"q.weight": FP8}, {"quantization_config": {"quant_method": "fp8"}}, "error"),
        ({"q.weight": FP8, "q.input_scale": f32(1)}, {"quantization_config": {}}, "error"),
        ({"q.qweight": PACKED, "q.qzeros": PACKED}, {}, "error"),
        ({"q.weight_packed": PACKED}, {}, "error"),
        ({"q.weight": FP8}, {}, "warning"),
    ],
)
def test_a_weight_without_its_scale_is_found(
    tensors: dict[str, Entry], config: dict[str, object], severity: str, tmp_path: Path
) -> None:
    model = folder(tmp_path / "model", model=tensors)
    (model / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    (finding,) = audit_folder(model).findings
    assert (finding.rule, finding.severity) == ("missing-scale", severity)
    assert (finding.tensors or ("",))[0].startswith("q.")


@pytest.mark.parametrize("name", ["lm_head.weight", "model.embed_tokens.weight", "output.weight"])
def test_a_head_or_an_embedding_of_zeros_is_an_error(name: str, tmp_path: Path) -> None:
    (finding,) = audit_folder(folder(tmp_path / "model", model={name: ZEROS})).findings
    assert (finding.rule, finding.severity) == ("all-zero-weight", "error")
    almost = ("F32", (4, 4), bytes(63) + b"\x01")
    for entries in ({name: almost}, {"gate.weight": ZEROS}, {"lm_head.bias": ZEROS}):
        assert audit_folder(folder(tmp_path / "right", model=entries)).findings == ()


@pytest.mark.parametrize(("zeros", "others", "found"), [(4, 3, True), (4, 4, False), (3, 0, False)])
def test_most_matrices_of_zeros_are_an_error(
    zeros: int, others: int, found: bool, tmp_path: Path
) -> None:
    values = ("F32", (4, 4), bytes(63) + b"\x01")
    entries = {f"layers.{n}.up_proj.weight": ZEROS for n in range(zeros)}
    entries |= {f"layers.{n}.q_proj.weight": values for n in range(others)}
    findings = audit_folder(folder(tmp_path / "model", model=entries)).findings
    assert [(one.rule, one.severity) for one in findings] == (
        [("all-zero-weight", "error")] if found else []
    )
    assert not found or f"{zeros} of {zeros + others} matrices" in findings[0].message


LAYER = ("self_attn.q_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj")


@pytest.mark.parametrize(
    ("zeros", "found"),
    [
        (["layers.1.mlp.down_proj.weight"], ["layers.1.mlp.down_proj.weight"]),
        (["layers.0.self_attn.q_proj.weight"], ["layers.0.self_attn.q_proj.weight"]),
        # a whole layer that was not written
        ([f"layers.2.{one}.weight" for one in LAYER], [f"layers.2.{one}.weight" for one in LAYER]),
        (["layers.1.mlp.experts.gate_up_proj"], ["layers.1.mlp.experts.gate_up_proj"]),
        # a block that was added (LLaMA Pro)
        (["layers.1.mlp.down_proj.weight", "layers.1.self_attn.o_proj.weight"], []),
        # all of them begin at zero, or only the last does not
        ([f"layers.{n}.gate.weight" for n in range(4)], []),
        ([f"layers.{n}.gate.weight" for n in range(3)], []),
        (["layers.1.norm.weight", "layers.1.self_attn.q_proj.bias"], []),
        (["layers.1.self_attn.relative_attention_bias.weight"], []),
        (["layers.1.qzeros"], []),
    ],
)
def test_a_matrix_of_zeros_is_named_where_its_namesakes_have_values(
    zeros: list[str], found: list[str], tmp_path: Path
) -> None:
    values = ("F32", (4, 4), bytes(63) + b"\x01")
    entries = {f"layers.{n}.{one}.weight": values for n in range(4) for one in (*LAYER, "gate")}
    entries |= {f"layers.{n}.mlp.experts.gate_up_proj": values for n in range(4)}
    for n in range(4):
        entries[f"layers.{n}.self_attn.relative_attention_bias.weight"] = values
        entries[f"layers.{n}.norm.weight"] = ("F32", (16,), values[2])
        entries[f"layers.{n}.self_attn.q_proj.bias"] = ("F32", (16,), values[2])
        entries[f"layers.{n}.qzeros"] = ("I32", (4, 4), values[2])
    entries |= {name: (*entries[name][:2], bytes(64)) for name in zeros}
    findings = audit_folder(folder(tmp_path / "model", model=entries)).findings
    assert [(one.rule, one.severity) for one in findings] == [
        ("all-zero-weight", "warning") for _ in found
    ]
    assert sorted(one.parameter or "" for one in findings) == sorted(found)
    assert all("unlike its namesakes in 3 other layers" in one.message for one in findings)
