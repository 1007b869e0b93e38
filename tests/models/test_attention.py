"""Documents in one row:

each computes what it does in a row of its own, and nothing of one reaches another.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.engines.megatron.tiny import IMAGE, tiny_model
from tests.runs import messages, request
from vtool.data.collate import Batch, Documents
from vtool.data.packing import with_positions
from vtool.families import FAMILIES
from vtool.models import attention
from vtool.models.attention import use_document_attention
from vtool.models.masks import allowed_in_rows, to_npu_dense
from vtool.models.spans import Spans
from vtool.training.model_and_engine import prepare_model

LENGTHS, IMAGES = (19, 7, 1, 23), (1, 0, 0, 2)


def document(length: int, images: int, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(2, 150, (1, length), generator=generator)
    for number in range(images):
        ids[0, 1 + 9 * number : 9 + 9 * number] = torch.tensor([153, *[IMAGE] * 6, 154])
    inputs = {"input_ids": ids, "mm_token_type_ids": (ids == IMAGE).long()}
    if images:
        pixels = torch.randn(24 * images, 1176, generator=generator, dtype=torch.float64)
        inputs |= {"pixel_values": pixels, "image_grid_thw": torch.tensor([[1, 4, 6]] * images)}
    return inputs


def packed(model: Any, documents: list[dict[str, Tensor]]) -> dict[str, Any]:
    joined = {
        name: torch.cat([one[name] for one in documents], 1)
        for name in ("input_ids", "mm_token_type_ids")
    }
    joined |= {
        name: torch.cat([one[name] for one in documents if name in one])
        for name in ("pixel_values", "image_grid_thw")
    }
    nothing = torch.zeros(0, dtype=torch.long)
    batch = with_positions(
        Batch(
            joined,
            nothing,
            nothing,
            (),
            0,
            0,
            0,
            0,
            Documents(LENGTHS, IMAGES, (0,) * len(LENGTHS)),
        ),
        model,
    )
    return {**batch.inputs, "documents": Spans.of(LENGTHS), "use_cache": False}


@pytest.fixture(scope="module")
def model() -> Any:
    made = tiny_model(tied=True, dtype=torch.float64)
    use_document_attention(made)
    return made


def documents(first: int = 10) -> list[dict[str, Tensor]]:
    return [
        document(length, images, first if number == 0 else number)
        for number, (length, images) in enumerate(zip(LENGTHS, IMAGES, strict=True))
    ]


def test_each_document_has_the_logits_of_a_row_of_its_own(model: Any) -> None:
    plain = tiny_model(tied=True, dtype=torch.float64)
    with torch.no_grad():
        together = model(**packed(model, documents())).logits[0]
        alone = torch.cat([plain(**one, use_cache=False).logits[0] for one in documents()])
    assert float((together - alone).abs().max()) <= 1e-12 * float(alone.abs().max())


def test_another_first_document_moves_nothing_of_the_others(model: Any) -> None:
    with torch.no_grad():
        one, other = (model(**packed(model, documents(first))).logits[0] for first in (10, 99))
    assert torch.equal(one[LENGTHS[0] :], other[LENGTHS[0] :])
    assert not torch.isclose(one[: LENGTHS[0]], other[: LENGTHS[0]]).all()


def test_without_their_lengths_documents_see_each_other(model: Any) -> None:
    """The call that leaks silently: what the test above would find."""
    with torch.no_grad():
        one, other = (
            model(**{**packed(model, documents(first)), "documents": None}).logits[0]
            for first in (10, 99)
        )
    assert float((one - other)[LENGTHS[0] :].abs().max()) > 1e-3


def test_gradients_are_those_of_rows_of_their_own(model: Any) -> None:
    plain = tiny_model(tied=True, dtype=torch.float64)
    weight = torch.randn(
        sum(LENGTHS), 160, generator=torch.Generator().manual_seed(3), dtype=torch.float64
    )
    model.zero_grad()
    (model(**packed(model, documents())).logits[0] * weight).sum().backward()
    for one, own in zip(documents(), weight.split(LENGTHS), strict=True):
        (plain(**one, use_cache=False).logits[0] * own).sum().backward()
    for (name, ours), theirs in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert theirs.grad is not None, name
        assert float((ours.grad - theirs.grad).abs().max()) <= 1e-11 * float(
            theirs.grad.abs().max()
        ), name


def test_rows_without_documents_are_transformers_own(model: Any) -> None:
    plain = tiny_model(tied=True, dtype=torch.float64)
    ids = torch.randint(2, 150, (2, 9), generator=torch.Generator().manual_seed(0))
    for mask in (
        torch.ones_like(ids),
        torch.tensor([[1] * 9, [0] * 3 + [1] * 6]),
        torch.tensor([[1] * 9, [1] * 6 + [0] * 3]),
    ):
        with torch.no_grad():
            ours, theirs = (
                one(input_ids=ids, attention_mask=mask, use_cache=False).logits
                for one in (model, plain)
            )
        assert torch.equal(ours[mask.bool()], theirs[mask.bool()])
    asked = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "do_sample": False,
        "max_new_tokens": 4,
        "eos_token_id": None,
    }
    assert torch.equal(model.generate(**asked), plain.generate(**asked))


def test_a_prompt_that_is_padded_on_the_left_is_one_that_an_npu_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The operator's converter wants each token to see itself, and transformers lets padding see
    nothing.
    """
    keep = torch.tensor([[1] * 9, [0] * 3 + [1] * 6]).bool()
    mask = attention.row_mask(batch_size=2, q_length=9, kv_length=9, attention_mask=keep)
    assert mask is not None
    assert torch.equal(to_npu_dense(mask), ~allowed_in_rows(keep))
    # one more token of an answer
    last = attention.row_mask(
        batch_size=2, q_length=1, kv_length=9, q_offset=8, attention_mask=keep
    )
    assert last is not None
    assert torch.equal(last[:, 0, 0], keep)
    whole = keep | True
    assert attention.row_mask(batch_size=2, q_length=9, kv_length=9, attention_mask=whole) is None
    monkeypatch.setattr("transformers.masking_utils.sdpa_mask", lambda **_: ~allowed_in_rows(keep))
    with pytest.raises(ValueError, match="Is this a mask in which True is masked"):
        attention.row_mask(batch_size=2, q_length=9, kv_length=9, attention_mask=keep)


@pytest.mark.parametrize("wrong", ["a mask", "two rows", "other lengths"])
def test_what_would_be_ignored_with_documents_is_refused(wrong: str) -> None:
    rows = 2 if wrong == "two rows" else 1
    q = k = v = torch.zeros(rows, 2, 6, 4)
    mask = torch.ones(1, 1, 6, 6, dtype=torch.bool) if wrong == "a mask" else None
    lengths = (2, 3) if wrong == "other lengths" else (2, 4)
    with pytest.raises(
        ValueError, match="one row is wanted, its documents without padding, and no mask"
    ):
        attention.attention(torch.nn.Module(), q, k, v, mask, documents=Spans.of(lengths))


@pytest.fixture(scope="module")
def on_npu() -> dict[str, Any]:
    """Return the results of a process with tensors on an NPU, by its emulation alone."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.models.on_npu"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.full
def test_on_an_npu_the_operator_is_given_the_same_attention(on_npu: dict[str, Any]) -> None:
    assert {
        name: case["difference"]
        for name, case in on_npu["cases"].items()
        if case["difference"] > 1e-12
    } == {}


@pytest.mark.full
def test_on_an_npu_each_kind_of_row_has_the_mask_that_the_operator_wants(
    on_npu: dict[str, Any],
) -> None:
    """Packed or not, of each family: the way goes from a run's settings to the operator."""
    for name, case in on_npu["cases"].items():
        assert case["calls"], name
        if "tower" in name:  # its images and windows see both ways: no mask at all
            assert {(layout, mode, str(shape)) for layout, mode, shape, _ in case["calls"]} == {
                ("TND", 0, "None"),
                ("TND", 3, "[2048, 2048]"),
            }
            continue
        for layout, mode, shape, keep in case["calls"]:
            masked = "padding on" in name
            assert (layout, mode) == (
                "TND" if "packed" in name or "documents" in name else "BNSD",
                0 if masked else 3,
            ), name
            assert (shape == [2048, 2048]) != masked, name
            assert keep == (0.75 if "dropout" in name else 1.0), name
    assert {name.split(":")[0] for name in on_npu["turned"]} == {*FAMILIES, "images", "function"}


@pytest.mark.full
def test_on_an_npu_a_mask_of_the_other_polarity_would_be_seen(on_npu: dict[str, Any]) -> None:
    assert min(on_npu["turned"].values()) > 0.1


@pytest.mark.full
def test_on_an_npu_the_attention_of_rows_is_read_back_as_sdpa_without_packing(
    on_npu: dict[str, Any],
) -> None:
    assert ["data.packing", "none"] in on_npu["read back"]
    assert {value for name, value in on_npu["read back"] if name == "model.attention"} == {"sdpa"}


@pytest.mark.parametrize(
    ("packed", "name"), [(False, attention.ROW_ATTENTION), (True, attention.DOCUMENT_ATTENTION)]
)
def test_the_shipped_recipe_for_npus_trains_with_this_attention(
    tmp_path: Path, packed: bool, name: str
) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "qwen2_5_vl", "vision_config": {}})
    )
    (tmp_path / "rows.jsonl").touch()
    more = ("data.packing=token_budget", "data.micro_batch_tokens=8192") if packed else ()
    made = tiny_model(tied=True)
    prepare_model(
        request(
            "qwen2_5_vl_7b_npu", f"model.path={tmp_path}", messages(tmp_path / "rows.jsonl"), *more
        ).run,
        made,
    )
    assert made.config.get_text_config()._attn_implementation == name


@pytest.mark.parametrize(("kind", "given"), [("npu", "eager"), ("cpu", "sdpa")])
def test_elsewhere_or_where_another_is_asked_for_rows_have_transformers_attention(
    kind: str, given: str
) -> None:
    made = tiny_model(tied=True)
    asked = made.config.get_text_config()._attn_implementation
    prepare_model(request("digits", f"device.kind={kind}", f"model.attention={given}").run, made)
    assert made.config.get_text_config()._attn_implementation == asked
