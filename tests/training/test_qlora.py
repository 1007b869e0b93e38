"""Adapters over a base in NF4: what is computed, kept, exported, merged, and refused.

The reference is a base in float32 whose files have the numbers that NF4's table says.
"""

import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.commands import run_vtool
from tests.config.test_lora import found
from tests.each_family import EACH_FAMILY
from tests.engines.parity import base_model, made_run, traced
from tests.engines.ranks import run_ranks
from tests.models.test_nf4 import nearest
from tests.runs import read_lines, session, without_times
from tests.zoo.looks import Proved
from vtool.config.expected import expected_settings
from vtool.config.readback import compare_readback
from vtool.data.loader import load_steps
from vtool.diagnostics import Findings
from vtool.engines.ranks import Ranks, SharedFindings
from vtool.evaluation.exported import load_exported
from vtool.evaluation.subject import open_model
from vtool.evaluation.vllm import check_served
from vtool.families.family import load_family
from vtool.families.tokens import TokenIds
from vtool.models import nf4
from vtool.models.adapters import CONFIG, is_for_nf4
from vtool.models.build import load_model
from vtool.models.on_meta import parameters_on_meta
from vtool.serving.model import find_model
from vtool.training import setup
from vtool.training.export_run import about_export, export_run
from vtool.training.observe_run import observe_run
from vtool.training.session import RunRequest
from vtool.training.sft import train
from vtool.vllm_python import vllm_python

pytestmark = pytest.mark.skipif(
    find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed"
)
LANGUAGE = re.compile(r"(^|\.)layers\.\d+\.(self_attn|mlp)\.\w+_proj\.weight$")
NF4, RANK = "lora.base_dtype=nf4", 2
REFUSED = ("not-built-on-engine", "error", "lora.base_dtype")


def is_packed(name: str) -> bool:
    return LANGUAGE.search(name) is not None and "visual" not in name


def copied(model: Path, folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    folder.mkdir()
    for file in model.iterdir():
        if file.suffix != ".safetensors":
            (folder / file.name).write_bytes(file.read_bytes())
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`narrow`, a model in bfloat16; `unpacked`, the same in float32 by NF4's table."""
    made = tmp_path_factory.mktemp("qlora")
    whole = load_file(base_model(made) / "model.safetensors")
    narrow = {name: one.bfloat16() for name, one in whole.items()}
    copied(made / "model", made / "narrow", narrow)
    unpacked = {
        name: (nearest(one) if is_packed(name) else one).float() for name, one in narrow.items()
    }
    assert any(map(is_packed, unpacked))
    copied(made / "model", made / "unpacked", unpacked)
    return made


def run_of(folder: Path, name: str, *more: str, dtype: str = "float32") -> RunRequest:
    model = folder / ("narrow" if NF4 in more else "unpacked")
    lora = f"lora={{rank:{RANK},alpha:8}}"
    return made_run(folder, "ddp", dtype, model, lora, f"run.dir={folder / name}", *more)


@pytest.mark.full
@pytest.mark.parametrize(("dtype", "world"), [("float32", 1), ("float32", 2), ("bfloat16", 1)])
def test_loss_and_gradients_are_those_of_a_base_with_the_same_numbers(
    folder: Path, dtype: str, world: int
) -> None:
    """Both equal those of `unpacked` to the bit, and of float64 as near as float32 comes."""
    runs = {
        "nf4": run_of(folder, f"nf4-{dtype}-{world}", NF4, dtype=dtype),
        "plain": run_of(folder, f"plain-{dtype}-{world}", dtype=dtype),
        "wide": run_of(folder, f"wide-{dtype}-{world}", dtype="float64"),
    }
    near = 2e-2 if dtype == "bfloat16" else 1e-5
    by_run = traced(world, runs, digested=False)
    for ours, theirs, wide in zip(by_run["nf4"], by_run["plain"], by_run["wide"], strict=True):
        assert ours.losses == theirs.losses
        assert ours.losses == pytest.approx(wide.losses, rel=near)
        assert all(torch.equal(one, theirs.weights[name]) for name, one in ours.weights.items())
    ours, theirs, wide = (by_run[name][0] for name in runs)  # rank 0 has the gradients
    assert ours.gradients.keys() == theirs.gradients.keys() == wide.gradients.keys()
    for name, one in ours.gradients.items():
        assert torch.equal(one, theirs.gradients[name]), name
    apart, size = (
        sum(float(each.norm() ** 2) for each in several) ** 0.5
        for several in (
            [one.double() - wide.gradients[name] for name, one in ours.gradients.items()],
            wide.gradients.values(),
        )
    )
    assert size > 0
    assert apart <= near * size


def test_the_setting_arrives_in_the_language_model_alone(folder: Path) -> None:
    opened, _ = session(run_of(folder, "arrival", NF4, "lora.targets=[q_proj, attn.qkv]"))
    observed = observe_run(opened)
    assert not compare_readback(expected_settings(opened.run), observed)
    kept = {one.where: one.value for one in observed if one.name == "lora.base_dtype"}
    assert set(kept.values()) == {"nf4", "float32"}
    assert all((value == "float32") == ("visual" in where) for where, value in kept.items())
    # beneath adapters, and where there is none
    assert {"q_proj", "k_proj"} <= {where.rpartition(".")[2] for where in kept}
    others = run_of(folder, "arrival").run
    differs = compare_readback(expected_settings(others), observed)
    assert ("lora.base_dtype", "nf4") in {(one.parameter, one.seen) for one in differs}
    plain, _ = session(run_of(folder, "arrival-plain"))
    differs = compare_readback(expected_settings(opened.run), observe_run(plain))
    assert [(one.parameter, one.seen) for one in differs if "base_dtype" in str(one.parameter)] == [
        ("lora.base_dtype", "float32")
    ]


def test_half_a_byte_a_weight_is_kept_and_every_parameter_counted(folder: Path) -> None:
    packed, _ = session(run_of(folder, "counted", NF4))
    plain, _ = session(run_of(folder, "counted-plain"))
    assert (packed.engine.size, packed.engine.trained) == (plain.engine.size, plain.engine.trained)
    assert packed.parts == plain.parts
    layers = [each for each in packed.engine.module.modules() if isinstance(each, nf4.Nf4Linear)]
    numbers = sum(each.in_features * each.out_features for each in layers)
    kept = sum(
        each.weight.nbytes + each.absmax.nbytes for each in layers if each.absmax is not None
    )
    assert kept == pytest.approx(numbers * (0.5 + 4 / 64), rel=1e-3)
    assert numbers == sum(
        one.numel()
        for name, one in load_file(folder / "narrow/model.safetensors").items()
        if is_packed(name)
    )


def test_a_module_that_is_trained_whole_is_not_packed(folder: Path) -> None:
    whole = "model.language_model.layers.0.mlp.down_proj"
    opened, _ = session(
        run_of(folder, "whole", NF4, "lora.modules_to_save=[layers.0.mlp.down_proj]")
    )
    packed = {
        name
        for name, each in opened.engine.module.named_modules()
        if isinstance(each, nf4.Nf4Linear)
    }
    assert packed
    assert not [name for name in packed if whole in name or "lora_" in name]
    narrow = load_file(folder / "narrow/model.safetensors")
    merged = dict(opened.engine.iter_hf_weights("merged"))
    (own,) = [one for name, one in narrow.items() if name.endswith("layers.0.mlp.down_proj.weight")]
    assert torch.equal(merged[f"{whole}.weight"], own.float())
    assert json.loads(nf4.record([whole]))["llm_int8_skip_modules"][-1] == whole


@pytest.mark.parametrize("name", EACH_FAMILY)
def test_every_familys_language_model_is_packed_and_nothing_else(name: str) -> None:
    family = load_family(name)
    ids = TokenIds(image=1, video=2, vision_start=3, vision_end=4, end=5, pad=6)
    config = family.random_config("tiny", 64, ids)
    with parameters_on_meta():
        model = family.model_class()._from_config(config)
    linears = {path for path, each in model.named_modules() if isinstance(each, torch.nn.Linear)}
    nf4.keep_in_nf4(model, family)
    packed = {path for path, each in model.named_modules() if isinstance(each, nf4.Nf4Linear)}
    # what the export tells transformers not to pack
    skipped = tuple(json.loads(nf4.record([]))["llm_int8_skip_modules"])
    assert packed == {path for path in linears if not path.startswith(skipped)}
    assert packed


def finished(ranks: Ranks, *runs: RunRequest) -> None:
    torch.set_num_threads(1)
    for made in runs:
        assert train(made, ranks).status == "finished"


def files_of(folder: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in folder.glob("*.safetensors")}


@pytest.fixture(scope="module")
def trained(folder: Path) -> Path:
    """A run of 5 steps, `straight`, and `resumed`, which resumes from its step 2."""
    more = ("checkpoint={every_steps:1,keep_last:9}", "optim.lr=1e-2", "device.threads=1")
    finished(Ranks(), run_of(folder, "straight", NF4, *more))
    after = f"checkpoint.resume={folder / 'straight/checkpoints/step-000002'}"
    finished(Ranks(), run_of(folder, "resumed", NF4, after, *more))
    return folder


@pytest.mark.full
def test_a_run_that_resumes_is_one_that_was_not_stopped_to_the_bit(trained: Path) -> None:
    straight, resumed = trained / "straight", trained / "resumed"
    last = Path("checkpoints/step-000005")
    assert files_of(straight / last)
    assert files_of(straight / last) == files_of(resumed / last)
    assert files_of(straight / "export") == files_of(resumed / "export")
    lines = [without_times(read_lines(each / "metrics.jsonl")) for each in (straight, resumed)]
    assert lines[0][2:] == lines[1]


def logits_of(trained: Path, model: Any) -> torch.Tensor:
    opened, _ = session(run_of(trained, "logits", NF4))
    ((first, *_),) = load_steps(opened.rows["train"], range(1, 2), opened.micro_batches, 0)
    with torch.no_grad():
        logits: torch.Tensor = model(**first.inputs, use_cache=False).logits
    return logits


@pytest.mark.full
def test_what_is_merged_is_the_unpacked_base_with_the_adapter(trained: Path) -> None:
    merged, _ = export_run(trained / "straight", merge=True)
    ours = load_file(merged / "model.safetensors")
    base = load_file(trained / "unpacked/model.safetensors")
    adapter = load_file(trained / "straight/export/adapter_model.safetensors")
    short = {name.replace("language_model.", "").removeprefix("model."): name for name in base}
    seen = set()
    for key in (key for key in adapter if "lora_A" in key):
        stem = key.removeprefix("base_model.model.model.").replace(".lora_A", "")
        name = short[stem.replace("language_model.", "")]
        product = adapter[key.replace("lora_A", "lora_B")].double() @ adapter[key].double()
        wanted = base[name].double() + 8 / RANK * product
        assert float((ours[name].double() - wanted).abs().max()) <= 1e-6, name
        seen.add(name)
    assert any(map(is_packed, seen))
    for name in base.keys() - seen:
        assert torch.equal(ours[name], base[name]), name


@pytest.mark.full
def test_merged_and_opened_again_it_computes_what_was_trained(trained: Path) -> None:
    """With the folder's own weights, which the run names, it does not."""
    merged, _ = export_run(trained / "straight", trained / "elsewhere", merge=True)
    resumed = run_of(trained, "straight", NF4, "checkpoint={every_steps:1,keep_last:9}")
    engine = session(resumed)[0].engine
    adapter = load_file(trained / "straight/export/adapter_model.safetensors")
    with torch.no_grad():
        for name, one in engine.named_parameters():
            if name in adapter:
                one.copy_(adapter[name])
    live = logits_of(trained, engine.module.eval())
    whole = logits_of(trained, load_model(merged, "qwen2_5_vl", torch.float32, "sdpa").eval())
    opened = logits_of(trained, load_exported(trained / "straight"))
    assert float((whole - live).abs().max()) <= 1e-5 * float(live.abs().max())
    assert float((opened - live).abs().max()) <= 1e-5 * float(live.abs().max())
    (trained / "straight/export" / nf4.NF4_RECORD).rename(trained / "hidden")
    try:
        still = logits_of(trained, load_exported(trained / "straight"))
        config = trained / "straight/export" / CONFIG
        written = config.read_text()
        config.write_text(json.dumps(json.loads(written) | {"auto_mapping": None}))
        wrong = logits_of(trained, load_exported(trained / "straight"))
        config.write_text(written)
    finally:
        (trained / "hidden").rename(trained / "straight/export" / nf4.NF4_RECORD)
    assert torch.equal(still, opened)
    assert float((wrong - live).abs().max()) > 1e-3 * float(live.abs().max())


@pytest.mark.full
def test_transformers_makes_the_same_base_of_what_the_export_says(trained: Path) -> None:
    from bitsandbytes.functional import dequantize_4bit
    from peft import PeftModel
    from transformers import AutoModelForImageTextToText, BitsAndBytesConfig

    said = json.loads((trained / "straight/export" / nf4.NF4_RECORD).read_text())
    base = AutoModelForImageTextToText.from_pretrained(
        trained / "narrow",
        dtype=torch.float32,
        quantization_config=BitsAndBytesConfig(**said, bnb_4bit_compute_dtype=torch.float32),
        local_files_only=True,
        attn_implementation="sdpa",
    )
    own = load_exported(trained / "straight")
    layers = {
        name.replace(".base_layer", ""): each
        for name, each in own.named_modules()
        if isinstance(each, nf4.Nf4Linear)
    }
    theirs = {name: one for name, one in base.named_parameters() if hasattr(one, "quant_state")}
    assert {name.removesuffix(".weight") for name in theirs} == layers.keys()
    for name, one in theirs.items():
        unpacked = dequantize_4bit(one, one.quant_state).float()
        assert torch.equal(unpacked, layers[name.removesuffix(".weight")].unpacked()), name
    # in evaluation mode, bitsandbytes' layers compute in bfloat16 on a CPU that can
    adapted = PeftModel.from_pretrained(base, str(trained / "straight/export")).train()
    ours = logits_of(trained, own)
    apart = float((logits_of(trained, adapted) - ours).abs().max())
    assert apart <= 1e-5 * float(ours.abs().max())


@pytest.mark.full
def test_an_export_says_that_it_is_for_a_base_in_nf4(trained: Path) -> None:
    run = trained / "straight"
    for merge, words in ((False, "it gives another model"), (True, "is what was trained")):
        (note,) = about_export(run, run / "export", merge=merge)
        assert (note.rule, note.severity, note.parameter) == (
            "quantized-base",
            "note",
            "lora.base_dtype",
        )
        assert str(trained / "narrow") in note.message
        assert words in note.message
    said = run_vtool(trained, "export", run, "--merge", "--output", trained / "said")
    assert (said.status, said.stderr.count("note[quantized-base")) == (0, 1)
    plain = run_of(trained, "plain-run", "train.steps=1", "optim.warmup_steps=0")
    finished(Ranks(), plain)
    assert about_export(trained / "plain-run", trained, merge=True) == []
    assert not is_for_nf4(trained / "plain-run/export")


@pytest.mark.full
def test_it_resumes_over_no_other_base(trained: Path) -> None:
    for source in ("straight", "straight/export"):
        start = f"train.from={trained / source}"
        with pytest.raises(Findings) as raised:
            setup_with_weights(run_of(trained, "other-base", start))
        (finding,) = raised.value.diagnostics
        assert finding.rule == "unfit-weights"
        assert "trained on a base in NF4" in finding.message
        assert "lora.base_dtype=nf4" in str(finding.help)
        setup_with_weights(run_of(trained, "same-base", start, NF4))


def setup_with_weights(made: RunRequest) -> None:
    from vtool.training.weights import find_weights

    assert find_weights(made.run) is not None


@pytest.mark.full
def test_a_server_is_given_the_merged_model(trained: Path) -> None:
    run = trained / "straight"
    said: list[str] = []
    model, _ = find_model(str(run), None, True, said.append)
    assert model.adapter is None
    assert model.folder == run / "merged"
    subject = open_model(str(run / "export"))
    absent = vllm_python() is None  # that is said before
    with pytest.raises(Findings, match="needs vLLM" if absent else "NF4") as raised:
        check_served(subject, 1)
    (finding,) = raised.value.diagnostics
    assert finding.rule == ("extra-not-installed" if absent else "vllm-failed")


@pytest.mark.full
def test_the_proofs_tell_layers_that_unpack_another_weight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proved = Proved("loss-differs", (f"lora={{rank: {RANK}, base_dtype: nf4}}",))
    (tmp_path / "healthy").mkdir()
    assert proved(tmp_path / "healthy") == ()
    real = nf4.dequantize

    def with_scales_of_others(
        packed: torch.Tensor, absmax: torch.Tensor, *more: Any
    ) -> torch.Tensor:
        return real(packed, absmax.roll(1), *more)

    monkeypatch.setattr(nf4, "dequantize", with_scales_of_others)
    (tmp_path / "wrong").mkdir()
    (finding,) = proved(tmp_path / "wrong")
    assert finding.rule == "loss-differs"


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ("engine=fsdp2", "engine=fsdp2"),
        ("engine=megatron", "engine=megatron"),
        ("lora.dora=true", "lora.dora"),
        ("model.dtype=float64", "float64"),
        ("device.kind=npu", "NPU"),
    ],
)
def test_what_has_no_base_in_nf4_is_refused_by_name(settings: str, what: str) -> None:
    from vtool.config.load import examine

    findings = examine("digits", (NF4, settings)).findings
    (message,) = [one.message for one in findings if one.parameter == "lora.base_dtype"]
    assert REFUSED in found(NF4, settings)
    assert what in message
    assert REFUSED not in found(NF4)


def test_another_kind_of_four_bits_is_no_choice() -> None:
    assert [(rule, name) for rule, _, name in found("lora.base_dtype=fp4")] == [
        ("unknown-choice", "lora.base_dtype")
    ]


def test_a_missing_package_is_reported_before_rows_are_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_rows(*_: Any) -> None:
        raise AssertionError("rows were opened")

    monkeypatch.setattr(nf4, "find_spec", lambda _: None)
    monkeypatch.setattr(setup, "open_splits", no_rows)
    with pytest.raises(SharedFindings) as raised:
        session(run_of(folder, "without", NF4))
    (finding,) = raised.value.diagnostics
    assert (finding.rule, finding.help) == (
        "extra-not-installed",
        "pip install 'vtool[qlora]', or set lora.base_dtype=float32",
    )


def test_weights_in_a_dtype_that_is_not_quantized_are_refused(folder: Path) -> None:
    wide = {
        name: one.double() for name, one in load_file(folder / "narrow/model.safetensors").items()
    }
    if not (folder / "wide").exists():
        copied(folder / "narrow", folder / "wide", wide)
    with pytest.raises(Findings) as raised:
        session(run_of(folder, "wide-run", NF4, f"model.path={folder / 'wide'}"))
    (finding,) = raised.value.diagnostics
    assert (finding.rule, finding.parameter) == ("base-rounded", "lora.base_dtype")
    assert "is float64, which bitsandbytes does not quantize" in finding.message


@pytest.mark.full
def test_two_ranks_have_the_same_packed_weights(folder: Path) -> None:
    made = run_of(folder, "two", NF4, "model.path=null", "model.init=random", "model.size=tiny")
    first, second = run_ranks(digests, 2, made)
    assert first == second
    assert first


def digests(ranks: Ranks, made: RunRequest) -> dict[str, bytes]:
    torch.set_num_threads(1)
    opened, _ = session(made, ranks)
    return {
        name: each.weight.numpy().tobytes()
        for name, each in opened.engine.module.named_modules()
        if isinstance(each, nf4.Nf4Linear)
    }
