"""Every engine begins with the weights of a folder to the bit, and each rank reads its share."""

import importlib.util
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.engines.parity import base_model, made_run
from tests.engines.ranks import run_ranks
from tests.models.published import WHOLE, as_loaded, publish, untie
from tests.runs import session
from vtool.engines.ranks import Ranks, SharedFindings
from vtool.families.family import load_family
from vtool.models.adapters import is_adapter_name, saved_name
from vtool.models.build import load_model
from vtool.training.model_and_engine import prepare_model
from vtool.training.session import RunRequest

pytestmark = pytest.mark.full

SPREAD = {
    "ddp": ("ddp",),
    "fsdp2": ("fsdp2",),
    "tp2": ("megatron", "engine.parallel={tensor: 2}"),
    "pp2": ("megatron", "engine.parallel={pipeline: 2}"),
}
LORA = ("lora={rank: 2}",)
MORE: dict[str, tuple[str, ...]] = {
    "tied": (),
    "untied": (),
    "adapters": LORA,
    "frozen": ("model.freeze.vision=true", "model.freeze.projector=true"),
}
HEAD_OF_ITS_OWN = ("lora={rank: 2, modules_to_save: [lm_head]}",)
DORA = ("lora={rank: 2, dora: true}",)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`tied` and `untied`, in bfloat16; `broken`, without one of its files."""
    made = tmp_path_factory.mktemp("load")
    model = base_model(made)
    publish(model, made / "tied")
    (embedding,) = (
        one
        for name, one in load_model(model, "qwen2_5_vl", torch.float32, "sdpa").named_parameters()
        if name.endswith("embed_tokens.weight")
    )
    publish(model, made / "untied", lm_head_weight=torch.randn(embedding.shape).bfloat16())
    untie(made / "untied")
    shutil.copytree(made / "tied", made / "broken")
    (made / "broken/model-00002-of-00002.safetensors").unlink()
    assert not (made / "tied" / WHOLE).exists()
    return made


def of_engine(ranks: Ranks, made: Mapping[str, RunRequest]) -> dict[str, dict[str, Tensor]]:
    """All tensors that each run's engine begins with."""
    torch.set_num_threads(1)
    found = {}
    for name, each in made.items():
        engine = session(each, ranks)[0].engine
        found[name] = {
            **{one: tensor.clone() for one, tensor in engine.iter_hf_weights("none")},
            **{one: tensor.clone() for one, tensor in engine.iter_hf_weights("only")},
        }
    return found


def expected(made: RunRequest) -> dict[str, Tensor]:
    """Return the parameters of a model that transformers has loaded whole, in one process."""
    path = made.run.model.path
    assert path is not None
    model: Any = as_loaded(Path(path), load_family("qwen2_5_vl").model_class())
    prepare_model(made.run, model)
    return {saved_name(name): one.detach() for name, one in model.named_parameters()}


def runs(folder: Path) -> dict[str, RunRequest]:
    megatron = importlib.util.find_spec("megatron") is not None
    cases = [(spread, name, more) for spread in SPREAD for name, more in MORE.items()]
    cases += [
        (spread, "untied", more) for spread in ("ddp", "fsdp2") for more in (HEAD_OF_ITS_OWN,)
    ]
    cases += [(spread, "tied", DORA) for spread in ("ddp", "fsdp2")]
    return {
        f"{spread}, {name} {more}": made_run(
            folder,
            SPREAD[spread][0],
            "float32",
            folder / ("untied" if name == "untied" else "tied"),
            *SPREAD[spread][1:],
            *more,
            f"run.dir={folder}/runs/{number}",
        )
        for number, (spread, name, more) in enumerate(cases)
        if megatron or SPREAD[spread][0] != "megatron"
    }


def test_weights_and_new_adapters_are_those_of_a_model_loaded_whole(folder: Path) -> None:
    made = runs(folder)
    found = run_ranks(of_engine, 2, made)
    for name, each in made.items():
        wanted = expected(each)
        assert any(map(is_adapter_name, wanted)) == (each.run.lora is not None), name
        for rank in found:
            own = rank[name]
            assert own.keys() == wanted.keys(), name
            assert all(torch.equal(own[one], wanted[one]) for one in wanted), name
            assert all(one.dtype == torch.float32 for one in own.values()), name


def findings_at_load(ranks: Ranks, made: list[RunRequest]) -> list[str]:
    torch.set_num_threads(1)
    try:
        session(made[ranks.rank], ranks)
    except SharedFindings as findings:
        return [f"{finding.rule}: {finding.message}" for finding in findings.diagnostics]
    return []


def test_a_folder_that_one_rank_cannot_load_ends_all_of_them(folder: Path) -> None:
    made = [
        made_run(folder, "fsdp2", "float32", folder / name, f"run.dir={folder}/runs/broken")
        for name in ("tied", "broken")
    ]
    first, second = run_ranks(findings_at_load, 2, made)
    (message,) = first
    assert first == second
    assert message.startswith("model-does-not-load: rank 1: ")
    assert "model-00002-of-00002.safetensors" in message
