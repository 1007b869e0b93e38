"""A process in which tensors say that they are on an NPU, so that what looks at their device takes
its way there; they are on the CPU.

What stands for torch_npu is `npu_emulator`, and nothing has run on hardware. `python -m
tests.models.on_npu` computes each case as on an NPU, and prints the largest difference from
transformers' own attention on the CPU, and how the operator was called. It is a process of its own
because a name that torch was once given for its private device stays.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tests.engines.megatron.tiny import tiny_batch
from tests.engines.megatron.tiny import tiny_model as large_weights
from tests.models.npu_emulator import npu_fusion_attention
from tests.models.rows import packed as packed_rows
from tests.models.rows import row
from tests.models.tiny import VOCABULARY, tiny_model
from tests.runs import request
from vtool.families import FAMILIES
from vtool.models import attention as ours
from vtool.models.masks import to_sdpa
from vtool.models.observe_model import observe_layers
from vtool.models.spans import Spans
from vtool.training.model_and_engine import prepare_model

CPU = torch.device("cpu")
LENGTHS = (5, 1, 6)
Case = tuple[str, Callable[[], Tensor], Tensor, Tensor]
"""The case's name, the computation on an NPU, the expected result, and the tokens it is of."""


class OnNpu(TorchFunctionMode):
    """Tensors' `device` is an NPU; what is asked to be made there is made on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.npu = torch.device("npu", 0)

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func == torch.Tensor.device.__get__:  # type: ignore[attr-defined]
            return self.npu
        given = {
            name: CPU if value == self.npu else value for name, value in (kwargs or {}).items()
        }
        return func(*(CPU if isinstance(one, torch.device) else one for one in args), **given)


def main() -> None:
    torch.utils.rename_privateuse1_backend("npu")
    torch._register_device_module("npu", _module())
    calls: list[list[Any]] = []

    def operator(
        query: Tensor, key: Tensor, value: Tensor, head_num: int, input_layout: str, **given: Any
    ) -> tuple[Tensor, ...]:
        assert query.device.type == "npu"
        calls.append(
            [
                input_layout,
                given["sparse_mode"],
                None if (mask := given["atten_mask"]) is None else list(mask.shape),
                given["keep_prob"],
            ]
        )
        return npu_fusion_attention(query, key, value, head_num, input_layout, **given)

    cases = [*functions(), *models()]
    assert not calls, "the CPU has no such operator"
    # Not earlier: transformers and accelerate look for an installed one when they are imported.
    sys.modules["torch_npu"] = SimpleNamespace(npu_fusion_attention=operator)  # type: ignore[assignment]

    def difference(case: Case) -> float:
        _, compute, expected, compared = case
        with OnNpu(), torch.no_grad():
            here = compute()
        return float((here - expected)[compared].abs().max() / expected[compared].abs().max())

    found = {}
    for case in cases:
        found[case[0]] = {"difference": difference(case), "calls": list(calls)}
        calls.clear()
    ours.to_npu_dense = to_sdpa  # the other polarity
    turned = {case[0]: difference(case) for case in cases if "padding on" in case[0]}
    print(
        json.dumps(
            {
                "cases": found,
                "turned": turned,
                "read back": [
                    [one.name, one.value] for one in observe_layers(_prepared("qwen2_5_vl"))
                ],
            }
        )
    )


def functions() -> Iterator[Case]:
    """The function that layers call, itself."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(1, heads, 12, 16, dtype=torch.float64, generator=generator)
        for heads in (4, 2, 2)
    )
    module: Any = nn.Module()
    module.num_key_value_groups, module.is_causal = 2, True
    keep = torch.arange(12)[None] >= 3  # padding on the left

    def attended(keep: Tensor | None, more: dict[str, Any]) -> Tensor:
        mask = (
            None
            if keep is None
            else ours.row_mask(batch_size=1, q_length=12, kv_length=12, attention_mask=keep)
        )
        torch.manual_seed(7)  # what is drawn for dropout is the same
        return ours.attention(module, q, k, v, mask, **more)[0]

    for name, kept, more in (
        ("documents", None, {"documents": Spans.of(LENGTHS)}),
        ("causal", None, {}),
        ("padding on the left", keep, {}),
    ):
        for kind, other in (
            ("", {}),
            (", scaled", {"scaling": 0.5}),
            (", dropout", {"dropout": 0.25}),
        ):
            compute = partial(attended, kept, more | other)
            yield f"function: {name}{kind}", compute, compute(), torch.ones(1, 12, dtype=torch.bool)


def models() -> Iterator[Case]:
    """The model that a run on an NPU trains, against the one that it was made of."""
    for family in FAMILIES:
        plain, text = (
            tiny_model(family, torch.float64).eval(),
            torch.randint(7, VOCABULARY, (2, 12), generator=torch.Generator().manual_seed(0)),
        )
        for name, hole in (
            ("no padding", slice(0, 0)),
            ("padding on the left", slice(0, 3)),
            ("padding on the right", slice(9, None)),
        ):
            mask = torch.ones_like(text)
            mask[1, hole] = 0
            given = {
                "input_ids": text,
                "attention_mask": mask,
                "mm_token_type_ids": torch.zeros_like(text),
            }
            yield (
                f"{family}: {name}",
                partial(_logits, _prepared(family), given),
                _logits(plain, given),
                mask.bool(),
            )
    plain = large_weights(tied=True, dtype=torch.float64)
    for name, left in (("left", True), ("right", False)):
        given = tiny_batch(left=left)
        yield (
            f"images: padding on the {name}",
            partial(_logits, _prepared(None), given),
            _logits(plain, given),
            given["attention_mask"].bool(),
        )
    rows = torch.randint(
        2, 150, (1, sum(LENGTHS)), generator=torch.Generator().manual_seed(0)
    ).split(LENGTHS, 1)
    packed = {
        "input_ids": torch.cat(rows, 1),
        "position_ids": torch.cat([torch.arange(length) for length in LENGTHS]).expand(3, 1, -1),
        "documents": Spans.of(LENGTHS),
    }
    alone = torch.cat([_logits(plain, {"input_ids": row}) for row in rows], 1)
    model = _prepared(None, "data.packing=token_budget", "data.micro_batch_tokens=64")
    yield (
        "packed",
        partial(_logits, model, packed),
        alone,
        torch.ones(1, sum(LENGTHS), dtype=torch.bool),
    )

    packing = ("data.packing=token_budget", "data.micro_batch_tokens=64")
    small = tiny_model("qwen2_5_vl", torch.float64)
    # one by one: Python 3.12.1 loses sight of `row` in a comprehension here
    own = [row(small, 5, [(12, 20), (8, 8)], 5), row(small, 3, [], 3)]
    prepared = _prepared("qwen2_5_vl", "model.attention=varlen", *packing)
    yield (
        "packed: tower by lengths",
        partial(_logits, prepared, packed_rows(prepared, own).arguments()),
        torch.cat([_logits(small, one.inputs) for one in own], 1),
        torch.ones(1, sum(one.length for one in own), dtype=torch.bool),
    )


def _prepared(family: str | None, *more: str) -> Any:
    given = ["device.kind=npu", *([f"model.family={family}"] if family else []), *more]
    model = (
        tiny_model(family, torch.float64)
        if family
        else large_weights(tied=True, dtype=torch.float64)
    )
    return prepare_model(request("digits", *given).run, model).eval()


@torch.no_grad()
def _logits(model: Any, given: Mapping[str, Any]) -> Tensor:
    found: Tensor = model(**given, use_cache=False).logits
    return found


def _module() -> ModuleType:
    """`torch.npu`, of which autocast asks for its dtypes though it be switched off."""
    made: Any = ModuleType("torch.npu")
    made.get_amp_supported_dtype = lambda: [torch.bfloat16]
    return made


if __name__ == "__main__":
    main()
