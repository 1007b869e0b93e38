"""A folder's weights are mapped, cut and put into a model: to the bit what transformers loads."""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tests.each_family import EACH_FAMILY
from tests.mapped_files import bytes_in_memory
from tests.models.published import INDEX, WHOLE, as_loaded, publish, untie, write
from tests.models.tiny import IDS, VOCABULARY, tiny_model
from vtool.config.schema import Model
from vtool.diagnostics import Diagnostic, Findings
from vtool.engines.common import materialize
from vtool.families.family import load_family
from vtool.models.build import build_on_meta, implementations, load_model
from vtool.models.mapped_weights import map_folder, pickled_files, weight_files
from vtool.models.processor import Processor

HOW = implementations(torch.float32, "sdpa")
PROCESSOR = cast(Processor, SimpleNamespace(ids=IDS))


def saved(name: str, folder: Path) -> Path:
    """A tiny model's folder, of one file, its tensors as published ones are."""
    model = tiny_model(name)
    state = dict(model.named_parameters())
    model.save_pretrained(folder, **load_family(name).save_arguments(state))
    return folder


def embedding_of(model: Path) -> Tensor:
    tensors = load_file(model / WHOLE)
    return next(one for name, one in tensors.items() if name.endswith("embed_tokens.weight"))


def mapped(folder: Path, name: str, dtype: str = "float32") -> Any:
    weights = map_folder(folder, name, HOW)
    assert weights is not None
    settings = Model(family=name, path=str(folder), dtype=dtype)  # type: ignore[arg-type]
    model = build_on_meta(settings, PROCESSOR, folder, 0)
    assert all(one.is_meta for one in model.parameters())
    assert not any(one.is_meta for one in model.buffers())
    materialize(model, weights.tensors, torch.device("cpu"))
    return model


def same(one: nn.Module, other: nn.Module) -> bool:
    """Return whether names, dtypes and bits are the same, of parameters and of all buffers."""

    def tensors(model: nn.Module) -> dict[str, Tensor]:
        return {**dict(model.named_parameters()), **dict(model.named_buffers())}

    ours, theirs = tensors(one), tensors(other)
    return ours.keys() == theirs.keys() and all(
        ours[name].dtype == theirs[name].dtype and torch.equal(ours[name], theirs[name])
        for name in ours
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", EACH_FAMILY)
def test_a_model_of_mapped_weights_is_the_one_that_transformers_loads(
    name: str, dtype: str, tmp_path: Path
) -> None:
    folder = publish(saved(name, tmp_path / "one"), tmp_path / "model")
    kind = load_family(name).model_class()
    loaded = as_loaded(folder, kind, getattr(torch, dtype))
    made = mapped(folder, name, dtype)
    assert same(made, loaded)
    assert made.lm_head.weight is made.get_input_embeddings().weight
    assert made.generation_config.eos_token_id == loaded.generation_config.eos_token_id


def test_a_head_of_its_own_is_loaded(tmp_path: Path) -> None:
    model = saved("qwen2_5_vl", tmp_path / "one")
    head = torch.randn_like(embedding_of(model)).bfloat16()
    folder = publish(model, tmp_path / "model", lm_head_weight=head)
    untie(folder)
    made = mapped(folder, "qwen2_5_vl")
    assert same(made, as_loaded(folder, load_family("qwen2_5_vl").model_class()))
    assert torch.equal(made.lm_head.weight, head.float())


def test_nothing_is_read_until_it_is_looked_into(tmp_path: Path) -> None:
    model = saved("qwen2_5_vl", tmp_path / "one")
    tensors = load_file(model / WHOLE)
    name = next(name for name in tensors if name.endswith("layers.0.mlp.up_proj.weight"))
    config = json.loads((model / "config.json").read_text())
    wide = 2**16
    config["text_config"]["intermediate_size"] = wide
    (model / "config.json").write_text(json.dumps(config))
    for one in [one for one in tensors if ".language_model." in one or "model.layers." in one]:
        rows, *more = tensors[one].shape
        if "gate_proj" in one or "up_proj" in one:
            tensors[one] = torch.ones(wide, *more)
        elif "down_proj" in one:
            tensors[one] = torch.ones(rows, wide)
    (model / WHOLE).unlink()
    folder = write(model, tensors)
    total = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    weights = map_folder(folder, "qwen2_5_vl", HOW)
    assert weights is not None
    at_first = bytes_in_memory(folder)
    (matrix,) = (weights.tensors[one] for one in weights.tensors if one.endswith(name[-30:]))
    half = matrix[: wide // 2].clone()
    grown = bytes_in_memory(folder) - at_first
    assert at_first < 0.05 * total
    assert half.nbytes <= grown < 1.25 * half.nbytes  # the kernel maps some pages around


def refused(folder: Path, name: str = "qwen2_5_vl") -> Diagnostic:
    """Return the finding about a folder, mapped or whole."""
    with pytest.raises(Findings) as caught:
        map_folder(folder, name, HOW)
    with pytest.raises(Findings) as whole:
        load_model(folder, name, torch.float32, "sdpa")
    (finding,) = caught.value.diagnostics
    assert whole.value.diagnostics == (finding,)
    assert finding.rule == "model-does-not-load"
    return finding


def test_files_of_another_format_are_not_mapped_and_are_loaded_whole(tmp_path: Path) -> None:
    folder = saved("qwen2_5_vl", tmp_path / "model")
    loaded = load_model(folder, "qwen2_5_vl", torch.float32, "sdpa")
    torch.save(load_file(folder / WHOLE), folder / "pytorch_model.bin")
    (folder / WHOLE).unlink()
    assert map_folder(folder, "qwen2_5_vl", HOW) is None
    assert same(load_model(folder, "qwen2_5_vl", torch.float32, "sdpa"), loaded)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_weights_of_each_floating_dtype_are_loaded(dtype: torch.dtype, tmp_path: Path) -> None:
    model = saved("qwen2_5_vl", tmp_path / "one")
    tensors = {name: one.to(dtype) for name, one in load_file(model / WHOLE).items()}
    save_file(tensors, model / WHOLE, metadata={"format": "pt"})
    assert same(
        mapped(model, "qwen2_5_vl"), as_loaded(model, load_family("qwen2_5_vl").model_class())
    )


def test_a_counter_that_is_an_integer_in_the_model_is_one_in_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = saved("qwen2_5_vl", tmp_path / "one")
    kind = load_family("qwen2_5_vl").model_class()
    begun = kind.__init__

    def with_counter(self: Any, *args: Any, **more: Any) -> None:
        begun(self, *args, **more)
        self.model.visual.register_buffer("counter", torch.zeros(2, dtype=torch.int64))

    monkeypatch.setattr(kind, "__init__", with_counter)
    counted = {**load_file(model / WHOLE), "visual.counter": torch.tensor([3, 4])}
    save_file(counted, model / WHOLE, metadata={"format": "pt"})
    weights = map_folder(model, "qwen2_5_vl", HOW)
    assert weights is not None
    assert weights.tensors["model.visual.counter"].tolist() == [3, 4]


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.bool, torch.float8_e4m3fn])
@pytest.mark.parametrize("file", ["pytorch_model.bin", "pytorch_model-00001-of-00001.bin"])
def test_a_weight_in_a_bin_file_is_saved_in_a_dtype_of_other_numbers(
    dtype: torch.dtype, file: str, tmp_path: Path
) -> None:
    folder = saved("qwen2_5_vl", tmp_path / "model")
    tensors = load_file(folder / WHOLE)
    name = next(name for name in tensors if name.endswith("_proj.weight"))
    tensors[name] = torch.ones_like(tensors[name], dtype=dtype)
    torch.save(tensors, folder / file)
    (folder / WHOLE).unlink()
    index = {"metadata": {}, "weight_map": dict.fromkeys(tensors, file)}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    with pytest.raises(Findings) as caught:
        load_model(folder, "qwen2_5_vl", torch.float32, "sdpa")
    (finding,) = caught.value.diagnostics
    assert finding.rule == "model-does-not-load"
    assert f"{folder / file} has 1 tensors of " in finding.message
    assert f"such as {name}: " in finding.message


def test_a_weight_that_two_files_have_alike_is_one(tmp_path: Path) -> None:
    folder = publish(saved("qwen2_5_vl", tmp_path / "one"), tmp_path / "model")
    one, other = (folder / f"model-0000{number}-of-00002.safetensors" for number in (1, 2))
    name, tensor = next(iter(load_file(one).items()))
    save_file({**load_file(other), name: tensor}, other, metadata={"format": "pt"})
    assert same(
        mapped(folder, "qwen2_5_vl"), as_loaded(folder, load_family("qwen2_5_vl").model_class())
    )


class TestFoldersThatAreDamaged:
    @pytest.fixture
    def model(self, tmp_path: Path) -> Path:
        return saved("qwen2_5_vl", tmp_path / "one")

    @pytest.fixture
    def folder(self, model: Path, tmp_path: Path) -> Path:
        return publish(model, tmp_path / "model")

    def test_a_file_that_the_index_names_is_not_there(self, folder: Path) -> None:
        (folder / "model-00002-of-00002.safetensors").unlink()
        message = refused(folder).message
        assert f"{folder / INDEX} names model-00002-of-00002.safetensors, not in" in message

    def test_files_are_of_two_saves_that_were_cut_otherwise(self, folder: Path) -> None:
        one, other = (folder / f"model-0000{number}-of-00002.safetensors" for number in (1, 2))
        name, tensor = next(iter(load_file(one).items()))
        save_file({**load_file(other), name: tensor + 1}, other, metadata={"format": "pt"})
        message = refused(folder).message
        assert f"{other} has {name} with other values than {one}: they are of two" in message

    def test_the_index_is_no_index(self, folder: Path) -> None:
        (folder / INDEX).write_text("{}")
        assert f"{folder / INDEX} cannot be read" in refused(folder).message

    def test_the_index_has_no_metadata(self, folder: Path) -> None:
        weight_map = json.loads((folder / INDEX).read_text())["weight_map"]
        (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
        finding = refused(folder)
        assert f"{folder / INDEX} has no `metadata`" in finding.message
        assert finding.help == 'add "metadata": {} to it'

    def test_a_file_ends_too_early(self, folder: Path) -> None:
        file = folder / "model-00002-of-00002.safetensors"
        file.write_bytes(file.read_bytes()[:-100])
        assert str(folder) in refused(folder).message

    def test_a_tied_head_has_been_saved_with_other_values(
        self, model: Path, tmp_path: Path
    ) -> None:
        other = torch.randn_like(embedding_of(model)).bfloat16()
        finding = refused(publish(model, tmp_path / "two", lm_head_weight=other))
        assert "a head and an embedding of different values" in finding.message
        assert "tie_word_embeddings" in str(finding.help)

    def test_a_tied_head_saved_twice_alike_is_one(self, model: Path, tmp_path: Path) -> None:
        head = embedding_of(model).bfloat16()
        folder = publish(model, tmp_path / "two", lm_head_weight=head)
        made = mapped(folder, "qwen2_5_vl")
        assert made.lm_head.weight is made.get_input_embeddings().weight
        assert same(made, as_loaded(folder, load_family("qwen2_5_vl").model_class()))

    def test_a_weight_is_saved_as_a_quantizers_codes(self, folder: Path) -> None:
        file = folder / "model-00002-of-00002.safetensors"
        tensors = load_file(file)
        name = next(name for name in tensors if name.endswith("_proj.weight"))
        codes = torch.ones_like(tensors[name], dtype=torch.int8)
        save_file({**tensors, name: codes}, file, metadata={"format": "pt"})
        message = refused(folder).message
        assert f"{file} has 1 tensors of eight-bit integers, such as {name}: codes" in message

    @pytest.mark.parametrize(
        ("dtype", "name_of_it"),
        [
            (torch.int16, "I16"),
            (torch.int32, "I32"),
            (torch.int64, "I64"),
            (torch.bool, "BOOL"),
            (torch.complex64, "C64"),
            (torch.float8_e4m3fn, "F8_E4M3"),
            (torch.float8_e5m2, "F8_E5M2"),
        ],
    )
    def test_a_weight_is_saved_in_a_dtype_of_other_numbers(
        self, dtype: torch.dtype, name_of_it: str, folder: Path
    ) -> None:
        file = folder / "model-00002-of-00002.safetensors"
        tensors = load_file(file)
        name = next(name for name in tensors if name.endswith("_proj.weight"))
        changed = torch.ones_like(tensors[name], dtype=dtype)
        save_file({**tensors, name: changed}, file, metadata={"format": "pt"})
        finding = refused(folder)
        assert f"{file} has 1 tensors of dtype {name_of_it}, such as {name}: " in finding.message
        assert "float32" in str(finding.help)
        assert "lora.base_dtype" not in str(finding.help)

    @pytest.mark.parametrize("at", ["", "text_config"])
    def test_its_config_says_that_it_is_quantized(self, at: str, folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        method = {"quant_method": "fp8", "weight_block_size": [128, 128]}
        (config[at] if at else config)["quantization_config"] = method
        (folder / "config.json").write_text(json.dumps(config))
        finding = refused(folder)
        assert "is quantized already: its config.json has a quantization_config (fp8)" in (
            finding.message
        )
        assert "train from the weights that it was made of" in str(finding.help)

    def test_a_vocabulary_is_padded(self, model: Path, tmp_path: Path) -> None:
        _, width = embedding_of(model).shape
        padded = torch.zeros(VOCABULARY + 8, width).bfloat16()
        finding = refused(publish(model, tmp_path / "padded", embed_tokens_weight=padded))
        assert (
            f"embed_tokens.weight is [72, {width}], and by config.json [64, {width}]"
            in finding.message
        )
        assert "padded to 72 rows" in str(finding.help)

    @pytest.mark.parametrize("rows", [VOCABULARY + 8, VOCABULARY - 8])
    @pytest.mark.parametrize("both", [False, True])
    def test_a_tied_head_that_is_saved_too_has_other_rows(
        self, rows: int, both: bool, model: Path, tmp_path: Path
    ) -> None:
        embedding = embedding_of(model).bfloat16()
        width = embedding.shape[1]
        head = torch.zeros(rows, width).bfloat16()
        folder = publish(
            model,
            tmp_path / "padded",
            lm_head_weight=head,
            embed_tokens_weight=head if both else embedding,
        )
        finding = refused(folder)
        mismatch = (
            f"lm_head.weight is [{rows}, {width}], and by config.json [{VOCABULARY}, {width}]"
        )
        assert f"{2 if both else 1} mismatched keys: " in finding.message
        assert mismatch in finding.message
        assert ("padded to 72 rows" in str(finding.help)) == (rows > VOCABULARY)
        # else the embedding would no longer fit
        assert (f"set vocab_size={rows} in its config.json" in str(finding.help)) == both

    def test_a_weight_has_another_shape(self, model: Path, tmp_path: Path) -> None:
        finding = refused(publish(model, tmp_path / "other", k_proj_bias=torch.zeros(3)))
        assert "mismatched keys: " in finding.message
        assert "k_proj.bias is [3], and by config.json [" in finding.message
        assert finding.help is None or "padded" not in finding.help

    def test_the_configs_vocabulary_is_larger_than_the_weights(
        self, model: Path, tmp_path: Path
    ) -> None:
        config = json.loads((model / "config.json").read_text())
        config["text_config"]["vocab_size"] = VOCABULARY + 8
        (model / "config.json").write_text(json.dumps(config))
        finding = refused(publish(model, tmp_path / "padded"))
        assert finding.help == (
            f"set vocab_size={VOCABULARY} in its config.json, in text_config where it has one"
        )

    def test_a_weight_is_missing_and_another_is_not_the_models(self, model: Path) -> None:
        tensors = load_file(model / WHOLE)
        lost = next(name for name in tensors if name.endswith("o_proj.weight"))
        del tensors[lost]
        tensors["model.mystery.weight"] = torch.zeros(2)
        (model / WHOLE).unlink()
        message = refused(write(model, tensors)).message
        assert "1 missing keys: " in message
        assert "o_proj.weight" in message
        assert "1 unexpected keys: model.language_model.mystery.weight" in message


@pytest.mark.parametrize("name", [WHOLE, "a.safetensors", "pytorch_model.bin"])
def test_a_pipe_in_the_place_of_weights_is_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    if name not in (WHOLE, "pytorch_model.bin"):
        index = {"metadata": {}, "weight_map": {"x": name}}
        (tmp_path / INDEX).write_text(json.dumps(index))
    choose = pickled_files if name == "pytorch_model.bin" else weight_files
    with pytest.raises(Findings, match=rf"model-does-not-load.*{name} is no file"):
        choose(tmp_path)
