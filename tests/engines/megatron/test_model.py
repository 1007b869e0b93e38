"""With its language part in megatron-core, a model computes what transformers' own does."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.engines.megatron.tiny import tiny_batch, tiny_model, whole_weights, with_megatron
from tests.engines.ranks import run_ranks
from vtool.config.schema.megatron import Parallel
from vtool.engines.megatron.gpt_model import heeds_masks, unsupported
from vtool.engines.megatron.groups import start_groups
from vtool.engines.megatron.shim import silence
from vtool.engines.ranks import Ranks

pytest.importorskip("megatron.core", reason="megatron-core is not installed")
SPREADS = {
    "tp1": Parallel(),
    "tp2": Parallel(tensor=2),
    "tp2+sp": Parallel(tensor=2, sequence=True),
    "pp2": Parallel(pipeline=2),
}


def logits(one: Any, inputs: dict[str, Tensor], keep: Any = 0) -> Tensor:
    with torch.no_grad():
        result: Tensor = one(**inputs, logits_to_keep=keep, use_cache=False).logits
    return result


def differs(own: Any, model: Any, inputs: dict[str, Tensor]) -> float:
    used = inputs["attention_mask"].bool()
    return float((logits(own, inputs) - logits(model, inputs))[used].abs().max())


def compared(ranks: Ranks, family: str, vocabulary: int, tied: bool) -> dict[str, Any]:
    """For each way of spreading it, the largest differences from transformers' own model."""
    found: dict[str, Any] = {}
    for name, parallel in SPREADS.items():
        groups = start_groups(parallel, ranks)
        own, other = (tiny_model(tied=tied, vocabulary=vocabulary, family=family) for _ in range(2))
        model = with_megatron(other, groups, sequence=parallel.sequence)
        batch, prompt = tiny_batch(), tiny_batch(left=True)
        columns = torch.tensor([3, 11, 15])

        flat = {key: value for key, value in batch.items() if key != "mm_token_type_ids"}
        if family == "qwen2_vl":  # it asks for the types of tokens, or for positions
            flat["position_ids"] = torch.arange(21).expand(3, 2, 21)
        text = {
            "input_ids": batch["input_ids"].clamp(max=149),
            "attention_mask": batch["attention_mask"],
        }
        answers = [
            one.generate(
                **prompt, max_new_tokens=6, do_sample=False, use_cache=cache, eos_token_id=None
            )[:, 21:].tolist()
            for one, cache in ((own, True), (model, False))
        ]
        whole = own.state_dict()
        back = whole_weights(model, groups)
        found[name] = {
            "largest": float(logits(own, batch).abs().max()),
            "padded on the right": differs(own, model, batch),
            "padded on the left": differs(own, model, prompt),
            "some columns": float(
                (logits(own, batch, columns) - logits(model, batch, columns)).abs().max()
            ),
            "text only": differs(own, model, text),
            "plain positions": differs(own, model, flat),
            "control": float(
                (logits(own, batch) - logits(model, flat))[batch["attention_mask"].bool()]
                .abs()
                .max()
            ),
            "answers": answers,
            "back": all(torch.equal(back[key], whole[key]) for key in back) and len(back),
        }
    return found


@pytest.mark.parametrize(
    ("family", "vocabulary", "tied"),
    [
        pytest.param("qwen2_5_vl", 160, False, marks=pytest.mark.full),
        ("qwen2_5_vl", 161, True),
        pytest.param("qwen2_vl", 160, True, marks=pytest.mark.full),
    ],
)
def test_logits_and_answers_are_those_of_transformers(
    family: str, vocabulary: int, tied: bool
) -> None:
    """161 does not divide by two: the vocabulary is padded in megatron-core, and nobody sees it."""
    first, second = run_ranks(compared, 2, family, vocabulary, tied)
    tensors = 2 + 4 * 12 + (not tied)  # q, k, v with biases, o, gate, up, down, two norms
    for name, found in first.items():
        print(
            name, {key: f"{value:.1e}" for key, value in found.items() if isinstance(value, float)}
        )
        assert found["largest"] > 1
        for case in (
            "padded on the right",
            "padded on the left",
            "some columns",
            "text only",
            "plain positions",
        ):
            assert found[case] <= 1e-5, (name, case)
        # positions matter: without the types of tokens they are plain ones
        assert found["control"] > 0.1
        assert found["answers"][0] == found["answers"][1] == second[name]["answers"][1], name
        assert found["back"] == tensors, name


@pytest.mark.parametrize(
    ("device", "installed", "own", "fused", "context", "heeded"),
    [
        ("cpu", False, False, False, 1, True),
        ("cpu", True, False, False, 1, True),
        ("cuda", False, False, False, 1, True),
        ("cuda", False, False, True, 1, False),
        ("cuda", True, False, False, 1, False),
        ("cuda", True, True, False, 1, True),
        ("cuda", True, True, True, 1, False),
        ("cuda", True, True, False, 2, False),
    ],
)
def test_masks_are_heeded_by_layers_without_transformer_engine_and_fusion_alone(
    device: str,
    installed: bool,
    own: bool,
    fused: bool,
    context: int,
    heeded: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from megatron.core.extensions import transformer_engine

    monkeypatch.setattr(transformer_engine, "HAVE_TE", installed)
    config = SimpleNamespace(masked_softmax_fusion=fused, context_parallel_size=context)
    assert heeds_masks(config, torch.device(device), own) is heeded


def test_a_model_whose_layers_heed_no_mask_says_so_and_refuses_rows_padded_on_the_left() -> None:
    silence()
    groups = start_groups(Parallel(), Ranks())
    assert with_megatron(tiny_model(tied=True), groups).heeds_masks is True
    model = with_megatron(tiny_model(tied=True), groups, masked_softmax_fusion=True)
    assert model.heeds_masks is False
    assert logits(model, tiny_batch()).isfinite().all()
    with pytest.raises(AssertionError, match="one by one"):
        logits(model, tiny_batch(left=True))


def test_what_is_not_built_is_said() -> None:
    config = tiny_model(tied=True).config.get_text_config()
    assert unsupported(config) == []
    config.attention_dropout, config.hidden_act, config.use_sliding_window = 0.1, "gelu", True
    config.rope_parameters = {"rope_type": "yarn", "rope_theta": 1e4}
    assert [line.split()[0].rstrip(":") for line in unsupported(config)] == [
        "rope_parameters",
        "hidden_act",
        "use_sliding_window",
        "attention_dropout",
    ]
