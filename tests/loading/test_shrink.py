"""Configs are made tiny, whatever their class."""

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import transformers

from vtool.loading.probe.constants import set_constants, shrink_constants
from vtool.loading.probe.field_guesses import guess_field
from vtool.loading.probe.shrink import shrink, small
from vtool.loading.probe.stubs import Stub, StubInstaller
from vtool.loading.probe.twin import changed_names, tiny_config, write_config
from vtool.loading.probe.vllm_tiny import predict_one_layer


def test_a_config_and_those_inside_of_it_are_small_and_go_together() -> None:
    config = shrink(transformers.Qwen2VLConfig())
    text = config.text_config
    assert (text.hidden_size, text.num_hidden_layers, text.vocab_size) == (128, 2, 1024)
    assert text.num_attention_heads % text.num_key_value_heads == 0
    assert config.vision_config.depth == 2


def test_a_choice_of_experts_is_small_and_one_of_answers_stays() -> None:
    # transformers 4 has the one of answers in every config, and saves none that it cannot be
    assert (small("top_k", 8), small("top_k", 50), small("moe_topk", 50)) == (2, 50, 2)


def test_lists_with_an_entry_a_layer_follow_the_layers() -> None:
    config = tiny_config(transformers.Gemma3TextConfig, {})
    assert len(config.layer_types) == config.num_hidden_layers == 2


@pytest.mark.parametrize("family", ["LongcatFlash", "DeepseekV3"])
def test_a_head_of_latent_attention_is_as_wide_as_its_two_parts(family: str) -> None:
    config = tiny_config(getattr(transformers, f"{family}Config"), {})
    parts = config.qk_nope_head_dim + config.qk_rope_head_dim
    assert config.qk_head_dim == parts == 64


def test_an_image_is_a_whole_number_of_patches() -> None:
    vision = shrink(transformers.CLIPVisionConfig())
    assert vision.image_size % vision.patch_size == 0


def test_a_field_that_a_config_lacks_is_given_and_reported() -> None:
    class Lacking(transformers.PretrainedConfig):
        model_type = "lacking"

    config = Lacking()
    installer = StubInstaller(None, {"patch_size": 14})
    assert installer.run(lambda: (config.patch_size, config.rms_norm_eps, config.use_qk_norm)) == (
        14,
        1e-6,
        False,
    )
    assert set(installer.added_fields) == {
        "Lacking.patch_size",
        "Lacking.rms_norm_eps",
        "Lacking.use_qk_norm",
    }


def test_a_field_of_a_part_has_the_size_of_the_whole() -> None:
    found = [small(f"vt_{name}", 27) for name in ("num_attention_heads", "num_hidden_layers")]
    assert found == [4, 2]
    assert guess_field("rope_head_dim", {}) == 32


@pytest.mark.parametrize(("partial", "sections"), [(1.0, [4, 6, 6]), (0.5, [2, 3, 3])])
def test_the_pairs_of_a_turned_head_are_shared_out(partial: float, sections: list[int]) -> None:
    config = transformers.PretrainedConfig()
    config.rope_parameters = {"mrope_section": [16, 24, 24], "partial_rotary_factor": partial}
    assert shrink(config).rope_parameters["mrope_section"] == sections
    assert 2 * sum(sections) == 32 * partial  # a pair is two elements


def test_a_component_of_the_table_is_read_by_attributes_and_other_dicts_by_keys() -> None:
    table = {"blocks": [{"model_type": "block", "inner": {"model_type": "part", "size": 3}}]}
    (block,) = guess_field("blocks", table)
    assert block.inner.size == 3
    assert guess_field("plain_config", {"plain_config": {"size": 3}}) == {"size": 3}


def test_a_load_is_given_fields_and_nothing_is_replaced_for_it() -> None:
    class Asked(transformers.PretrainedConfig):
        model_type = "asked"

    config = Asked()
    stub = Stub("vllm", "1", "all", "Sparse Attention", lambda: None, "a test", "A")
    installer = StubInstaller("vllm", {"n_routed_experts": 4}, stubs=(stub,))
    assert installer.run_load(lambda: config.n_routed_experts) == 4

    def load() -> None:
        raise NotImplementedError("Sparse Attention")

    with pytest.raises(NotImplementedError):
        installer.run_load(load)
    assert installer.replaced == []


def test_a_guessed_config_is_reported_by_its_class() -> None:
    class Whole(transformers.PretrainedConfig):
        model_type = "whole"

    config = Whole()
    installer = StubInstaller(None, {})
    installer.run(lambda: config.vision_config)
    assert installer.added_fields == {"Whole.vision_config": "a SiglipVisionConfig"}


def test_other_errors_are_not_hidden() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        StubInstaller(None, {}).run(lambda: object().nothing)  # type: ignore[attr-defined]


def test_a_part_that_cannot_be_made_is_replaced_and_reported() -> None:
    state = {"works": False}

    def step() -> str:
        if not state["works"]:
            raise NotImplementedError("Sparse Attention is not supported")
        return "made"

    def install() -> None:
        state.update(works=True)

    stub = Stub("vllm", "1", "sparse attention", "Sparse Attention", install, "a test", "A")
    assert StubInstaller("sglang", {}, stubs=(stub,)).stubs == []
    installer = StubInstaller("vllm", {}, stubs=(stub,))
    assert installer.run(step) == "made"
    assert installer.replaced == ["sparse attention"]


def test_names_say_what_a_field_may_be() -> None:
    assert guess_field("attention_bias", {}) is False
    assert guess_field("layer_norm_eps", {}) == 1e-6
    assert guess_field("hidden_size", {}) == 128
    assert guess_field("nobody_knows", {}) is None


def test_the_table_drops_renames_and_adds_tensors() -> None:
    import torch

    changes = {"drop": "^lm_head", "rename": [["^model\\.", ""]], "extra": {"fc.weight": [2, 3]}}
    found = changed_names({"model.norm": torch.ones(2), "lm_head.weight": torch.ones(2)}, changes)
    assert set(found) == {"norm", "fc.weight"}
    assert found["fc.weight"].shape == (2, 3)


def test_a_table_whose_numbers_are_not_layers_stays() -> None:
    config = transformers.PretrainedConfig()
    config.num_hidden_layers = 8
    config.queries_of_patches = {1225: 128, 4900: 256}
    config.of_layers = dict.fromkeys(range(8), 1)
    shrink(config)
    assert config.queries_of_patches == {1225: 128, 4900: 256}
    assert config.of_layers == {0: 1, 1: 1}


def test_the_table_takes_fields_out_of_what_is_written(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {}, "hidden_size": 128}))
    write_config(tmp_path, {"without": ["text_config"], "json": {"merge_size": 2}}, "Named")
    assert json.loads((tmp_path / "config.json").read_text()) == {
        "hidden_size": 128,
        "merge_size": 2,
        "architectures": ["Named"],
    }


def test_configs_that_a_module_writes_down_are_shrunk() -> None:
    module = ModuleType("models")
    module.LARGE = transformers.CLIPVisionConfig(
        hidden_size=1024, num_attention_heads=16, num_hidden_layers=24
    )  # type: ignore[attr-defined]
    shrink_constants(module)
    assert (module.LARGE.hidden_size, module.LARGE.num_hidden_layers) == (128, 2)


def test_sizes_that_a_module_writes_down_are_given_to_its_functions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = ModuleType("models_of_a_test")
    module.make = dict  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    set_constants({"models_of_a_test:make": {"depth": 2}})
    assert module.make(depth=24, width=8) == {"depth": 2, "width": 8}


def test_one_layer_predicts_further_tokens_where_the_config_says_none(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"num_mtp_layers": 3, "text_config": {"num_mtp_layers": 0}}))
    predict_one_layer(file)
    assert json.loads(file.read_text()) == {
        "num_mtp_layers": 3,
        "text_config": {"num_mtp_layers": 1},
    }


@pytest.mark.full
def test_a_package_that_is_not_there_is_empty_where_it_is_imported() -> None:
    """Runs in a process of its own, since an empty package stays."""
    program = """
import sys
from vtool.loading.probe.stubs import StubInstaller
sys.modules["torchaudio"] = None

def step():
    import torchaudio.compliance.kaldi as kaldi
    from torchaudio.functional import melscale_fbanks
    return kaldi.fbank, melscale_fbanks(n_mels=4)

installer = StubInstaller("vllm", {})
assert installer.run(step)[1].shape == (1,)
assert installer.replaced == ["the package torchaudio"], installer.replaced
try:
    StubInstaller("vllm", {}).run(lambda: __import__("no_such_package"))
except ModuleNotFoundError:
    print("others are not")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout == "others are not\n", done.stderr
