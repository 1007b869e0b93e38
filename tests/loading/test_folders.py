"""A checkpoint folder as a subject: its files, and the class that will load them."""

import json
import os
import pickle
import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from torch import Tensor

import tests.loading.models
from tests.cli.load_check_commands import ROOT, VLLM, load_check, needs_vllm
from tests.export.test_huggingface import trained
from tests.loading.checkpoint.folders import TWO, encode, f32, folder, raw, sharded
from tests.loading.checkpoint.test_adapters import adapter
from tests.rows import mixed_rows, write_rows
from vtool.config.load import load_run
from vtool.diagnostics import rules_folder
from vtool.diagnostics.rules_loading import CLASS_RULES, FRAMEWORK_CLASS_RULES
from vtool.export.huggingface import write_export
from vtool.families import FAMILIES
from vtool.loading.probe.formats import DEFAULT, FORMATS_BY_NAME
from vtool.verification.context import build_proof_context

Found = dict[str, object]
MODELS = tests.loading.models.__file__
FILES_ALONE = "limits.memory_mib=64"
"""Keeps a class from being asked, whose framework takes more:

where a test is about files, importing that would be most of its time.
"""


def results(*arguments: str | Path, status: int, cwd: Path = ROOT) -> list[Found]:
    done = load_check(*map(str, arguments), "--format", "json", cwd=cwd)
    assert done.status == status, done.output
    return json.loads(done.stdout)["results"]


def state_of(path: Path) -> dict[str, tuple[int, bytes]]:
    """Everything that writing into a folder would change."""
    return {
        str(one): (one.stat().st_mtime_ns, one.read_bytes() if one.is_file() else b"")
        for one in [path, *sorted(path.rglob("*"))]
    }


def no_config(path: Path) -> None:
    folder(path, model={"a": f32(2)})
    (path / "config.json").unlink()


def cut_off(path: Path) -> None:
    shard = sharded(path) / f"{TWO}.safetensors"
    shard.write_bytes(shard.read_bytes()[:-8])


def huge_header(path: Path) -> None:
    (folder(path) / "model.safetensors").write_bytes(struct.pack("<Q", 10 * 2**30) + b"{}")


def overlapping(path: Path) -> None:
    entries = {
        name: {"dtype": "F32", "shape": [2], "data_offsets": [at, at + 8]}
        for name, at in (("a", 0), ("b", 4))
    }
    (folder(path) / "model.safetensors").write_bytes(raw(json.dumps(entries), bytes(12)))


def link_outside(path: Path) -> None:
    (path.parent / "elsewhere").write_bytes(encode({"a": f32(2)}))
    (folder(path) / "model.safetensors").symlink_to(path.parent / "elsewhere")


class Trap:
    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return (os.mkdir, ("sprung",))


def pickled(path: Path) -> None:
    (folder(path) / "pytorch_model.bin").write_bytes(pickle.dumps(Trap()))


@pytest.mark.parametrize(
    ("make", "rule", "severity", "status"),
    [
        (no_config, "no-config", "warning", 0),
        (cut_off, "truncated-file", "error", 1),
        (huge_header, "bad-header", "error", 1),
        (overlapping, "bad-header", "error", 1),
        (link_outside, "outside-link", "warning", 0),
        (pickled, "unsafe-format", "error", 1),
        (lambda path: path.mkdir(), "no-weights", "error", 2),
        (lambda path: None, "no-weights", "error", 2),
    ],
)
def test_each_bad_folder_has_one_finding(
    make: Callable[[Path], None], rule: str, severity: str, status: int, tmp_path: Path
) -> None:
    make(tmp_path / "model")
    before = state_of(tmp_path)
    (found,) = results(tmp_path / "model", FILES_ALONE, status=status)
    assert [(finding["rule"], finding["severity"]) for finding in found["findings"]] == [
        (rule, severity)
    ]
    assert set(found["checks"]) >= {*CLASS_RULES, *(one.name for one in rules_folder.RULES)}
    assert {found["checks"][name] for name in CLASS_RULES} == {"not-run"}
    assert state_of(tmp_path) == before


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (no_config, "without a config.json"),
        (lambda path: folder(path, model={"a": f32(2)}), "the weights take 0 MiB"),
        (adapter, "it is an adapter, not compared with its base: transformers makes no class"),
    ],
)
def test_strict_a_folder_whose_class_was_not_asked_has_not_passed(
    make: Callable[[Path], object], reason: str, tmp_path: Path
) -> None:
    make(tmp_path / "model")
    asked = (str(tmp_path / "model"), FILES_ALONE, "--python", sys.executable)
    done = load_check(*asked, "--strict", cwd=ROOT)
    assert done.status == 2
    assert "its class was not checked" in done.stderr
    assert reason in done.stderr
    done = load_check(*asked, cwd=ROOT)
    assert done.status == 0
    assert "files clean, class not-run; names not compared: " in done.stdout
    assert done.stdout.splitlines()[-1].startswith(f"not run: {reason}")


@pytest.mark.full
def test_files_and_classes_are_named_together_and_reported_in_that_order(tmp_path: Path) -> None:
    model = folder(tmp_path / "a=b", model={"a": f32(2, 3)})
    # Away from `make vllm-env`'s environment: which class loads the folder is not the question
    # here.
    found = results(
        f"python:{MODELS}:Good", model, model / "model.safetensors", status=0, cwd=tmp_path
    )
    assert [result["subject"] for result in found] == [
        f"python:{MODELS}:Good",
        str(model),
        str(model / "model.safetensors"),
    ]
    # of one file no class is asked; of a folder it could not be
    assert [result["verdict"] for result in found] == ["clean", "not-run", "clean"]
    assert (
        found[2]["details"]["missing-shard"]["reason"] == "one file was asked for, not its folder"
    )


def test_a_folder_that_is_named_in_two_ways_is_one_subject(tmp_path: Path) -> None:
    model = folder(tmp_path / "model", model={"a": f32(2, 3)})
    other = f"{os.path.relpath(tmp_path)}/./model"
    (found,) = results(model, other, "limits.memory_mib=64", status=0)
    assert found["subject"] == str(model)


def test_digests_are_printed_as_xxhsum_does(tmp_path: Path) -> None:
    import xxhash

    file = folder(tmp_path / "model", model={"a": f32(2, 3)}) / "model.safetensors"
    digest = xxhash.xxh3_128_hexdigest(file.read_bytes())
    asked = load_check(str(file), str(file.parent), FILES_ALONE, "--digest")
    assert asked.stdout.count(f"{digest}  {file}\n") == 2  # of the file, and of its folder
    assert digest not in load_check(str(file)).stdout


def test_an_interpreter_without_the_framework_leaves_the_files_judged(tmp_path: Path) -> None:
    model = folder(tmp_path / "model", model={"a": f32(2)})
    (found,) = results(model, "--python", "/no/such/python", status=1)
    assert [finding["rule"] for finding in found["findings"]] == ["unusable-interpreter"]
    assert found["checks"]["nonfinite-value"] == "passed"
    assert "cannot be started" in found["details"]["stale-reference"]["reason"]


@pytest.mark.parametrize("limit", ["memory_mib", "parts_mib"])
def test_a_limit_below_the_framework_s_own_leaves_the_class_not_run(
    limit: str, tmp_path: Path
) -> None:
    model = folder(tmp_path / "model", model={"a": f32(1024, 1024)})
    (found,) = results(model, "--python", sys.executable, f"limits.{limit}=499", status=0)
    reason = found["details"]["stale-reference"]["reason"]
    assert "the weights take 4 MiB" in reason
    assert f"limits.{limit} is 499" in reason


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run, with its export."""
    path = tmp_path_factory.mktemp("served")
    return trained(write_rows(path / "rows.jsonl", mixed_rows(path, 8)), "run")


def changed(run: Path, to: Path, change: Callable[[dict[str, Tensor]], object]) -> Path:
    shutil.copytree(run / "export", to)
    tensors = load_file(to / "model.safetensors")
    change(tensors)
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()}, to / "model.safetensors"
    )
    return to


NORM, DOWN, V = (
    "model.norm.weight",
    "model.layers.0.mlp.down_proj.weight",
    "model.layers.1.self_attn.v_proj.weight",
)
EMBEDDING = "model.embed_tokens.weight"
CHANGES: dict[str, Callable[[dict[str, Tensor]], object]] = {
    "renamed": lambda tensors: tensors.update({f"{DOWN}s": tensors.pop(DOWN)}),
    "transposed": lambda tensors: tensors.update({DOWN: tensors[DOWN].T}),
    "norm": lambda tensors: tensors.pop(NORM),
    "part": lambda tensors: tensors.pop(V),
    "tied": lambda tensors: tensors.update({"lm_head.weight": tensors[EMBEDDING].clone()}),
    "untied": lambda tensors: tensors.update({"lm_head.weight": tensors[EMBEDDING] + 1}),
}


def with_a_pooler(path: Path) -> Path:
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    small = BertConfig(
        hidden_size=64,
        num_attention_heads=2,
        num_hidden_layers=1,
        intermediate_size=64,
        vocab_size=96,
        max_position_embeddings=64,
    )
    BertModel(small).to(torch.bfloat16).save_pretrained(path)
    return path


def of_no_such_class(path: Path) -> Path:
    (folder(path, model={"a": f32(2)}) / "config.json").write_text(
        '{"architectures": ["NoSuchForCausalLM"]}'
    )
    return path


SCALE = "model.layers.0.mlp.down_proj.weight_scale"


def quantized(whole: Path, without: Path) -> tuple[Path, Path]:
    """fp8 with a scale for each row, as compressed-tensors writes it:

    all of it, and without one of the scales.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    small = LlamaConfig(
        hidden_size=64,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_hidden_layers=1,
        intermediate_size=64,
        vocab_size=96,
    )
    LlamaForCausalLM(small).to(torch.bfloat16).save_pretrained(whole)
    written = json.loads((whole / "config.json").read_text())
    (whole / "config.json").write_text(
        json.dumps({**written, "quantization_config": FORMATS_BY_NAME[DEFAULT].config})
    )
    tensors = load_file(whole / "model.safetensors")
    for name in [name for name in tensors if name.endswith("proj.weight")]:
        scale = tensors[name].float().abs().amax(1, keepdim=True) / 448
        tensors |= {
            name: (tensors[name].float() / scale).to(torch.float8_e4m3fn),
            f"{name}_scale": scale,
        }
    save_file(tensors, whole / "model.safetensors")
    shutil.copytree(whole, without)
    tensors.pop(SCALE)
    save_file(tensors, without / "model.safetensors")
    return whole, without


OTHERS = sorted(FAMILIES.keys() - {"qwen2_5_vl"})


def of_family(family: str, at: Path) -> Path:
    """An export of random weights."""
    stand = build_proof_context(load_run("digits", [f"model.family={family}"]).run, at)
    return write_export(stand.bare, stand.bare.state_dict(), stand.processor, family, at / family)


@pytest.fixture(scope="module")
def before(run: Path) -> dict[str, tuple[int, bytes]]:
    return state_of(run)


@pytest.fixture(scope="module")
def judged(run: Path, before: object, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Found]:
    """A run by its recipe, and folders of every kind, by one command:

    importing vLLM takes longer than judging a folder.
    """
    at = tmp_path_factory.mktemp("folders")
    folders = [
        *(changed(run, at / name, change) for name, change in CHANGES.items()),
        *(
            with_a_pooler(at / "pooler"),
            of_no_such_class(at / "unknown"),
            *quantized(at / "quantized", at / "without"),
        ),
        Path(shutil.copytree(run / "export", at / "exported")),
        *(of_family(family, at) for family in OTHERS),
    ]
    found = results("digits", f"run.dir={run}", *folders, "--python", str(VLLM), status=1)
    assert [result["subject"] for result in found] == ["digits", *map(str, folders)]
    return {Path(str(result["subject"])).name: result for result in found}


def errors(result: Found) -> list[dict[str, str]]:
    """Errors about vLLM's class: transformers' word has tests of its own file."""
    return [
        finding
        for finding in result["findings"]
        if finding["severity"] == "error" and finding["rule"] != "weights-not-of-class"
    ]


@pytest.mark.full
@needs_vllm
@pytest.mark.parametrize("name", ["digits", "exported"])
def test_a_real_export_lands_whole_and_is_left_alone(
    run: Path, before: dict[str, tuple[int, bytes]], judged: dict[str, Found], name: str
) -> None:
    found = judged[name]
    assert found["verdict"] == "clean"
    passed = {*CLASS_RULES, *FRAMEWORK_CLASS_RULES, *(one.name for one in rules_folder.RULES)}
    assert found["checks"] == dict.fromkeys(passed, "passed") | {"expert-mismatch": "not-run"}
    assert found["details"]["expert-mismatch"]["reason"] == "it has no experts"
    assert {finding["severity"] for finding in found["findings"]} <= {"note"}
    assert found["details"]["subject"]["class"].endswith("Qwen2_5_VLForConditionalGeneration")
    assert state_of(run) == before


@pytest.mark.full
@needs_vllm
@pytest.mark.parametrize("family", OTHERS)
def test_the_exports_of_all_families_land_whole(judged: dict[str, Found], family: str) -> None:
    """A field that transformers does not read, and vLLM does, may be all that is missing: without
    `attention_bias` it leaves out the biases of GLM-4V, and still answers.
    """
    assert errors(judged[family]) == []
    assert judged[family]["checks"]["unconsumed-tensor"] == "passed"


@pytest.mark.full
@needs_vllm
def test_what_does_not_land_is_found(run: Path, judged: dict[str, Found]) -> None:
    assert {NORM, DOWN, V, EMBEDDING} <= set(load_file(run / "export" / "model.safetensors"))
    reported = {
        name: [(finding["rule"], finding["message"]) for finding in errors(judged[name])]
        for name in CHANGES
    }
    assert {name: [rule for rule, _ in findings] for name, findings in reported.items()} == {
        "renamed": ["load-failed"],
        "transposed": ["load-failed"],
        "norm": ["unwritten-parameter"],
        "part": ["partly-written-parameter"],
        "tied": [],
        "untied": ["tied-head-differs", "unconsumed-tensor"],
    }
    for name, words in (
        ("renamed", f"{DOWN}s"),
        ("transposed", DOWN),
        ("norm", "norm.weight"),
        ("part", "k_proj"),
        ("untied", "lm_head"),
    ):
        assert words in reported[name][0][1]
    assert [judged[name]["verdict"] for name in ("renamed", "norm", "tied")] == [
        "unsafe",  # transformers' class lacks a weight too
        "unsafe",
        "clean",
    ]


@pytest.mark.full
@needs_vllm
def test_a_pooler_that_is_not_served_is_a_note(judged: dict[str, Found]) -> None:
    severities = {finding["rule"]: finding["severity"] for finding in judged["pooler"]["findings"]}
    assert severities["unconsumed-tensor"] == "note"
    assert severities["stale-reference"] == "error"  # the class itself keeps what it is given


@pytest.mark.full
@needs_vllm
def test_an_architecture_that_vllm_does_not_have_is_not_run(judged: dict[str, Found]) -> None:
    found = judged["unknown"]
    assert errors(found) == []
    assert "has registered no NoSuchForCausalLM" in found["details"]["stale-reference"]["reason"]


@pytest.mark.full
@needs_vllm
def test_a_folder_of_quantized_weights_is_judged_as_it_is(judged: dict[str, Found]) -> None:
    right, wrong = judged["quantized"], judged["without"]
    assert right["verdict"] == "clean"
    assert {rule for rule, state in right["checks"].items() if state == "not-run"} == {
        "quantised-load",
        "computes-differently",  # transformers' class asks for the library of the format
        "weights-not-of-class",
        "expert-mismatch",
    }
    assert "quantized already" in right["details"]["quantised-load"]["reason"]
    ((rule, tensors),) = [(each["rule"], each["tensors"]) for each in errors(wrong)]
    assert (rule, tensors) == ("missing-scale", [SCALE.removesuffix("_scale")])
    assert wrong["checks"]["unwritten-parameter"] == "not-run"
