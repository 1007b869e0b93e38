"""A folder as a user has it: healthy ones give nothing, each kind of damage its finding."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from tests.loading.checkpoint.folders import ONE, TWO, encode, f32, folder, index, of, raw, sharded
from tests.test_contents import POINTER
from vtool.diagnostics.result import Result
from vtool.loading.checkpoint import audit_folder
from vtool.loading.checkpoint.audit import RULES


def findings(path: Path) -> list[tuple[str, str]]:
    return [(finding.rule, finding.severity or "") for finding in audited(path).findings]


def audited(path: Path) -> Result:
    """The result, after a look at whether the audit has left the folder as it was."""
    before = state(path)
    result = audit_folder(path)
    assert state(path) == before
    assert list(result.checks) == [*RULES]
    assert {finding.rule for finding in result.findings if finding.severity == "error"} == {
        rule for rule, check in result.checks.items() if check == "failed"
    }
    return result


def state(path: Path) -> list[tuple[str, int, int]]:
    return sorted(
        (str(file), file.lstat().st_mtime_ns, file.lstat().st_size)
        for file in (path, *path.rglob("*"))
        if os.path.lexists(file)
    )


def passes(path: Path) -> None:
    result = audited(path)
    assert not result.findings
    assert result.verdict == "clean"
    assert set(result.checks.values()) == {"passed"}


@pytest.fixture(scope="module")
def llama() -> LlamaForCausalLM:
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 512,
    }
    return LlamaForCausalLM(LlamaConfig(**sizes, tie_word_embeddings=True))


@pytest.mark.parametrize("size", ["5GB", "100KB"], ids=["single", "sharded"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_transformers_saves_is_healthy(
    tmp_path: Path, llama: LlamaForCausalLM, size: str, dtype: torch.dtype
) -> None:
    llama.to(dtype).save_pretrained(tmp_path, max_shard_size=size)
    assert (size == "100KB") == (tmp_path / "model.safetensors.index.json").exists()
    passes(tmp_path)


def test_quantized_weights_are_healthy(tmp_path: Path) -> None:
    fp8 = torch.randn(64, 64).to(torch.float8_e4m3fn)
    packed = torch.randint(-(2**31), 2**31 - 1, (64, 8), dtype=torch.int32)
    folder(tmp_path)
    tensors = {
        "fp8.weight": fp8,
        "fp8.weight_scale": torch.rand(64, 1),
        "int4.qweight": packed,
        "int4.scales": torch.rand(4, 64).half(),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    passes(tmp_path)


def test_an_adapter_needs_no_config_json(tmp_path: Path) -> None:
    folder(tmp_path, adapter_model={"a": f32(2)})
    (tmp_path / "config.json").rename(tmp_path / "adapter_config.json")
    passes(tmp_path)


def test_a_trainers_checkpoint_is_not_its_own_duplicate(tmp_path: Path) -> None:
    passes(folder(tmp_path, model={"a": f32(2)}, optimizer={"a": f32(2, seed=1)}))


def test_shards_of_an_optimizer_are_no_stale_shards_of_the_model(tmp_path: Path) -> None:
    sharded(tmp_path)
    for number, name in enumerate(("a.exp_avg", "c.exp_avg"), 1):
        shard = tmp_path / f"optimizer-{number:05d}-of-00002.safetensors"
        shard.write_bytes(encode({name: f32(2)}))
    passes(tmp_path)


def test_other_weights_next_to_an_index_are_not_stale_shards(tmp_path: Path) -> None:
    sharded(tmp_path)
    (tmp_path / "consolidated.safetensors").write_bytes(encode({"layers.0.wq.weight": f32(3)}))
    passes(tmp_path)


def test_links_into_the_blobs_of_a_cache_are_healthy(tmp_path: Path) -> None:
    sharded(tmp_path / "models--a--b" / "snapshots" / "main")
    snapshot, blobs = (
        tmp_path / "models--a--b" / "snapshots" / "main",
        tmp_path / "models--a--b" / "blobs",
    )
    blobs.mkdir()
    for number, file in enumerate(sorted(snapshot.iterdir())):
        file.rename(blobs / f"{number}")
        file.symlink_to(Path("../../blobs") / f"{number}")
    passes(snapshot)
    (tmp_path / "alias").symlink_to(snapshot)
    passes(tmp_path / "alias")


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 10)


def break_value(path: Path) -> None:
    values = np.zeros((3, 4), np.float32)
    values[1, 2] = np.nan
    folder(path, **{TWO: {"c": of("F32", values)}})


def move_tensor(path: Path) -> None:
    folder(path, **{ONE: {"a": f32(2, 3)}, TWO: {"b": f32(4), "c": f32(3, 4)}})


BROKEN: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "a shard is cut off": (
        lambda path: cut(path / f"{TWO}.safetensors"),
        "truncated-file",
        "error",
    ),
    "a shard's header is damaged": (
        lambda path: (path / f"{TWO}.safetensors").write_bytes(raw("{]")),
        "bad-header",
        "error",
    ),
    "a shard is gone": (
        lambda path: (path / f"{TWO}.safetensors").unlink(),
        "missing-shard",
        "error",
    ),
    "the index is gone": (
        lambda path: (path / "model.safetensors.index.json").unlink(),
        "index-mismatch",
        "error",
    ),
    "the index is not JSON": (
        lambda path: (path / "model.safetensors.index.json").write_text("{"),
        "index-mismatch",
        "error",
    ),
    "the index has no weight_map": (
        lambda path: (path / "model.safetensors.index.json").write_text("{}"),
        "index-mismatch",
        "error",
    ),
    "a tensor is in another shard": (move_tensor, "index-mismatch", "error"),
    "a tensor is nowhere": (
        lambda path: folder(path, **{ONE: {"a": f32(2, 3)}}),
        "index-mismatch",
        "error",
    ),
    "a tensor is not in the index": (
        lambda path: folder(path, **{TWO: {"c": f32(3, 4), "d": f32(1)}}),
        "index-mismatch",
        "error",
    ),
    "a shard is not in the index": (
        lambda path: folder(path, **{"model-00003-of-00003": {"d": f32(1)}}),
        "index-mismatch",
        "error",
    ),
    "a stale file has the same tensors": (
        lambda path: folder(path, model={"a": f32(2, 3, seed=1)}),
        "duplicate-tensor",
        "error",
    ),
    "a variant has the same tensors": (
        lambda path: folder(path, **{"model.fp16": {"a": f32(2, 3, seed=1)}}),
        "duplicate-tensor",
        "warning",
    ),
    "a copy has the same values": (
        lambda path: folder(path, model={"a": f32(2, 3)}),
        "duplicate-tensor",
        "note",
    ),
    "a value is NaN": (break_value, "nonfinite-value", "error"),
    "a pickle lies beside": (
        lambda path: (path / "pytorch_model.bin").write_bytes(b"\x80\x04."),
        "unsafe-format",
        "note",
    ),
    "config.json is gone": (lambda path: (path / "config.json").unlink(), "no-config", "warning"),
    "config.json is not JSON": (
        lambda path: (path / "config.json").write_text("{nope"),
        "no-config",
        "error",
    ),
    "config.json is a list": (
        lambda path: (path / "config.json").write_text("[]"),
        "no-config",
        "error",
    ),
    "config.json is a folder": (
        lambda path: (path / "config.json").unlink() or (path / "config.json").mkdir(),
        "no-config",
        "error",
    ),
    "config.json says it twice": (
        lambda path: (path / "config.json").write_text('{"a": 1, "a": 2}'),
        "no-config",
        "warning",
    ),
    "total_size is wrong": (
        lambda path: index(
            path, json.loads((path / "model.safetensors.index.json").read_text())["weight_map"], 89
        ),
        "index-mismatch",
        "note",
    ),
}


@pytest.mark.parametrize(("damage", "rule", "severity"), BROKEN.values(), ids=BROKEN)
def test_a_damage_is_its_one_finding(
    tmp_path: Path, damage: Callable[[Path], object], rule: str, severity: str
) -> None:
    passes(sharded(tmp_path))
    damage(tmp_path)
    assert findings(tmp_path) == [(rule, severity)]


def test_several_damages_are_reported_at_once(tmp_path: Path) -> None:
    sharded(tmp_path)
    (tmp_path / f"{ONE}.safetensors").unlink()
    cut(tmp_path / f"{TWO}.safetensors")
    (tmp_path / "config.json").unlink()
    folder_file = encode({"c": of("F32", np.full(2, np.inf, np.float32))})
    (tmp_path / "old.safetensors").write_bytes(folder_file)
    assert {rule for rule, _ in findings(tmp_path)} == {
        *("missing-shard", "truncated-file", "no-config", "nonfinite-value", "duplicate-tensor")
    }


def test_a_tensor_is_named_with_its_place(tmp_path: Path) -> None:
    sharded(tmp_path)
    break_value(tmp_path)
    (finding,) = audit_folder(tmp_path).findings
    assert finding.message == f"`c` in {TWO}.safetensors: 1 NaN of 12 values, the first at [1, 2]"
    assert (finding.parameter, finding.seen) == ("c", "1 NaN")


def test_what_could_not_be_looked_at_has_not_passed(tmp_path: Path) -> None:
    sharded(tmp_path)
    cut(tmp_path / f"{TWO}.safetensors")
    result = audit_folder(tmp_path)
    assert result.checks["nonfinite-value"] == "not-run"
    assert "cut off" in result.details["nonfinite-value"]["reason"]


def test_a_file_without_a_header_leaves_the_others_findings_and_no_pass(tmp_path: Path) -> None:
    sharded(tmp_path)
    break_value(tmp_path)
    (tmp_path / f"{ONE}.safetensors").write_bytes(b"")
    result = audited(tmp_path)
    assert [finding.rule for finding in result.findings] == ["truncated-file", "nonfinite-value"]
    assert (
        result.checks["index-mismatch"]
        == result.checks["duplicate-tensor"]
        == result.checks["bad-header"]
        == "not-run"
    )
    assert result.checks["no-config"] == "passed"


def test_a_saved_attention_mask_may_be_infinite(tmp_path: Path) -> None:
    mask = np.triu(np.full((4, 4), -np.inf, np.float32), 1)
    assert findings(folder(tmp_path, model={"text.attn_mask": of("F32", mask)})) == [
        ("nonfinite-value", "note")
    ]


def test_pickles_alone_are_an_error_and_never_opened(tmp_path: Path) -> None:
    folder(tmp_path)
    os.mkfifo(tmp_path / "pytorch_model.bin")  # whoever opens it would wait for ever
    result = audited(tmp_path)
    assert [(finding.rule, finding.severity) for finding in result.findings] == [
        ("unsafe-format", "error")
    ]
    assert result.checks["nonfinite-value"] == result.checks["bad-header"] == "not-run"
    assert result.verdict == "unsafe"


def test_a_pickle_that_is_loaded_for_want_of_the_model_is_an_error(tmp_path: Path) -> None:
    folder(tmp_path, adapter_model={"a": f32(2)})
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    assert findings(tmp_path) == [("unsafe-format", "error")]


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_link_out_of_the_folder_is_reported(tmp_path: Path, name: str) -> None:
    folder(tmp_path / "model", model={"a": f32(2)})
    (tmp_path / "model" / name).rename(tmp_path / name)
    (tmp_path / "model" / name).symlink_to(tmp_path / name)
    assert findings(tmp_path / "model") == [("outside-link", "warning")]


def test_a_link_to_nothing_is_a_missing_shard(tmp_path: Path) -> None:
    folder(tmp_path)
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "blobs" / "gone")
    assert findings(tmp_path) == [("missing-shard", "error")]
    (tmp_path / "model.safetensors").unlink()
    sharded(tmp_path)
    (tmp_path / f"{ONE}.safetensors").unlink()
    (tmp_path / f"{ONE}.safetensors").symlink_to("round")
    (tmp_path / "round").symlink_to(f"{ONE}.safetensors")
    assert findings(tmp_path) == [("missing-shard", "error")]


def test_an_index_that_leads_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "secret.safetensors")
    index(
        folder(tmp_path / "model", model={"a": f32(2)}),
        {"a": "model.safetensors", "b": "../secret.safetensors"},
    )
    assert findings(tmp_path / "model") == [("index-mismatch", "error")]


def test_shards_may_lie_in_a_folder_below(tmp_path: Path) -> None:
    folder(tmp_path / "model")
    (tmp_path / "model" / "parts").mkdir()
    (tmp_path / "model" / "parts" / "one.safetensors").write_bytes(encode({"a": f32(2)}))
    passes(index(tmp_path / "model", {"a": "parts/one.safetensors"}))


@pytest.mark.parametrize("made", [False, True])
def test_where_there_is_nothing_nothing_has_passed(tmp_path: Path, made: bool) -> None:
    path = tmp_path / "here"
    if made:
        path.mkdir()
    result = audit_folder(path)
    assert [finding.rule for finding in result.findings] == ["no-weights"]
    assert result.verdict == "not-run"
    assert set(result.checks.values()) == {"failed", "not-run"}


def test_the_folder_that_was_meant_is_named(tmp_path: Path) -> None:
    folder(tmp_path / "runs" / "digits" / "export", model={"a": f32(2)})
    (finding,) = audit_folder(tmp_path / "runs").findings
    assert finding.help == f"did you mean {tmp_path}/runs/digits/export?"


def test_one_file_is_audited_by_itself(tmp_path: Path) -> None:
    sharded(tmp_path)
    result = audited(tmp_path / f"{ONE}.safetensors")
    assert (result.verdict, result.findings) == ("clean", ())
    assert result.checks["nonfinite-value"] == "passed"
    assert result.checks["index-mismatch"] == result.checks["no-config"] == "not-run"


@pytest.mark.parametrize(
    ("name", "rule"),
    [("model.bin", "unsafe-format"), ("model.gguf", "no-weights"), ("x.index.json", "no-weights")],
)
def test_one_file_of_another_kind_is_reported(tmp_path: Path, name: str, rule: str) -> None:
    (tmp_path / name).write_bytes(b"GGUF")
    assert [found for found, _ in findings(tmp_path / name)] == [rule]


def test_digests_are_in_the_details(tmp_path: Path) -> None:
    sharded(tmp_path)
    measured = audit_folder(tmp_path, digest=True).details["truncated-file"]["measured"]
    assert set(measured) == {f"{ONE}.safetensors", f"{TWO}.safetensors"}
    assert (
        measured[f"{TWO}.safetensors"]["bytes"] == (tmp_path / f"{TWO}.safetensors").stat().st_size
    )
    assert len(measured[f"{TWO}.safetensors"]["xxh3_128"]) == 32


def test_no_torch_is_imported(tmp_path: Path) -> None:
    sharded(tmp_path)
    program = (
        "import sys; from pathlib import Path; from vtool.loading.checkpoint import audit_folder;"
        " audit_folder(Path(sys.argv[1]));"
    )
    command = [sys.executable, "-c", program + "print(*sys.modules)", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert {name.partition(".")[0] for name in done.stdout.split()}.isdisjoint(
        {"torch", "transformers", "pydantic", "hydra", "xxhash"}
    )


def test_an_index_of_names_that_no_file_can_have_is_a_finding_that_fits_a_screen(
    tmp_path: Path,
) -> None:
    long = "x" * 6000
    folder(tmp_path / "model", model={"a": f32(2)})
    index(
        tmp_path / "model",
        {"a": "model.safetensors", "b": f"sub/{long}", "c": long, "d": f"../{long}", long: "e/\0"},
    )
    result = audited(tmp_path / "model")
    assert {finding.rule for finding in result.findings} == {"index-mismatch", "missing-shard"}
    assert len(result.findings) == 4
    assert all(len(finding.message) < 400 for finding in result.findings)
    assert long in {name for finding in result.findings for name in finding.tensors or ()}


@pytest.mark.parametrize("link", ["sub", "sub/m.safetensors"])
def test_a_shard_behind_a_link_in_a_subfolder_is_outside(tmp_path: Path, link: str) -> None:
    folder(tmp_path / "model")
    folder(tmp_path / "other", m={"a": f32(2)})
    (tmp_path / "model" / link).parent.mkdir(exist_ok=True)
    (tmp_path / "model" / link).symlink_to(
        tmp_path / "other" / Path(link).relative_to("sub"), target_is_directory=link == "sub"
    )
    index(tmp_path / "model", {"a": "sub/m.safetensors"})
    assert findings(tmp_path / "model") == [("outside-link", "warning")]


def test_a_link_in_a_subfolder_to_the_same_folder_is_none(tmp_path: Path) -> None:
    folder(tmp_path / "model" / "blobs", m={"a": f32(2)})
    folder(tmp_path / "model")
    (tmp_path / "model" / "sub").symlink_to("blobs", target_is_directory=True)
    index(tmp_path / "model", {"a": "sub/m.safetensors"})
    passes(tmp_path / "model")


def test_a_giant_config_is_not_read(tmp_path: Path) -> None:
    folder(tmp_path / "model", model={"a": f32(2)})
    with (tmp_path / "model" / "config.json").open("wb") as file:
        file.truncate(2**40)
    (finding,) = audited(tmp_path / "model").findings
    assert (finding.rule, finding.severity) == ("no-config", "error")
    assert "1,099,511,627,776 bytes" in finding.message


def test_the_place_of_a_value_is_reported_of_more_dimensions_than_numpy_has(tmp_path: Path) -> None:
    values = np.array([1, np.inf], np.float32).tobytes()
    folder(tmp_path / "model", model={"a": ("F32", (*[1] * 70, 2), values)})
    (finding,) = audited(tmp_path / "model").findings
    assert finding.rule == "nonfinite-value"
    assert "the first at 1" in finding.message


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b'{"model": {"vocab": {"a": 0, ', "Expecting property name"),
        (b'{"model": {}}' + bytes(5000), "Extra data"),
        (b'{"model": "\xff"}', "can't decode byte 0xff"),
        (b"[" * 100_000, "maximum recursion depth"),
        (2**40, "it has 1,099,511,627,776 bytes; at most 134,217,728 are read"),
    ],
)
def test_a_damaged_tokenizer_beside_whole_weights_is_a_finding(
    tmp_path: Path, content: bytes | int, why: str
) -> None:
    folder(tmp_path / "model", model={"a": f32(2)})
    tokenizer = tmp_path / "model" / "tokenizer.json"
    with tokenizer.open("wb") as file:
        file.write(b"{" if isinstance(content, int) else content)
        file.truncate(content if isinstance(content, int) else None)
    (finding,) = audited(tmp_path / "model").findings
    assert (finding.rule, finding.severity) == ("no-config", "error")
    assert finding.message.startswith("tokenizer.json: ")
    assert why in finding.message
    tokenizer.write_text('{"model": {"vocab": {"a": 0}}}')
    passes(tmp_path / "model")


def test_a_pipe_among_a_models_files_is_a_finding(tmp_path: Path) -> None:
    folder(tmp_path / "model", model={"a": f32(2)})
    os.mkfifo(tmp_path / "model" / "tokenizer_config.json")
    (finding,) = audited(tmp_path / "model").findings
    assert (finding.rule, finding.severity) == ("no-config", "error")
    assert "tokenizer_config.json: it cannot be read: it is no file" in finding.message


def test_an_index_that_names_nothing_is_a_finding(tmp_path: Path) -> None:
    folder(tmp_path / "model", model={"a": f32(2)})
    index(tmp_path / "model", {})
    assert findings(tmp_path / "model") == [("index-mismatch", "error")]


def test_a_tokenizer_or_an_index_that_is_a_pointer_of_git_is_a_finding(tmp_path: Path) -> None:
    folder(tmp_path / "model", model={"a": f32(2)})
    for name in ("tokenizer.json", "README.md", "consolidated.safetensors.metadata"):
        (tmp_path / "model" / name).write_bytes(POINTER)
    (finding,) = audited(tmp_path / "model").findings
    assert (finding.rule, finding.severity) == ("no-config", "error")
    assert "tokenizer.json: it is a Git LFS pointer" in finding.message
    (tmp_path / "model" / "tokenizer.json").unlink()
    (tmp_path / "model" / "model.safetensors.index.json").write_bytes(POINTER)
    (finding,) = audited(tmp_path / "model").findings
    assert (finding.rule, finding.help) == ("index-mismatch", "in its repository: git lfs pull")
