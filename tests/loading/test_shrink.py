"""Configs are made tiny, whatever their class."""

import pytest
import transformers

from vtool.loading.probe.mend import Mender, guess
from vtool.loading.probe.shrink import shrink
from vtool.loading.probe.twin import changed_names, tiny_config


def test_a_config_and_those_inside_of_it_are_small_and_go_together() -> None:
    config = shrink(transformers.Qwen2VLConfig())
    text = config.text_config
    assert (text.hidden_size, text.num_hidden_layers, text.vocab_size) == (128, 2, 1024)
    assert text.num_attention_heads % text.num_key_value_heads == 0
    assert config.vision_config.depth == 2


def test_lists_with_an_entry_a_layer_follow_the_layers() -> None:
    config = tiny_config(transformers.Gemma3TextConfig, {})
    assert len(config.layer_types) == config.num_hidden_layers == 2


def test_an_image_is_a_whole_number_of_patches() -> None:
    vision = shrink(transformers.CLIPVisionConfig())
    assert vision.image_size % vision.patch_size == 0


def test_a_field_that_a_config_lacks_is_given_and_told() -> None:
    class Lacking(transformers.PretrainedConfig):
        model_type = "lacking"

    config = Lacking()
    mender = Mender({"patch_size": 14}, ())
    assert mender.run(lambda: (config.patch_size, config.rms_norm_eps, config.use_qk_norm)) == (14, 1e-6, False)
    assert set(mender.added) == {"Lacking.patch_size", "Lacking.rms_norm_eps", "Lacking.use_qk_norm"}


def test_other_errors_are_not_hidden() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        Mender({}, ()).run(lambda: object().nothing)  # type: ignore[attr-defined]


def test_a_part_that_cannot_be_made_is_replaced_and_told() -> None:
    state = {"works": False}

    def step() -> str:
        if not state["works"]:
            raise NotImplementedError("Sparse Attention is not supported")
        return "made"

    mender = Mender({}, (("sparse attention", "Sparse Attention", lambda: state.update(works=True)),))
    assert mender.run(step) == "made"
    assert mender.replaced == ["sparse attention"]


def test_names_say_what_a_field_may_be() -> None:
    assert guess("attention_bias", {}) is False
    assert guess("layer_norm_eps", {}) == 1e-6
    assert guess("hidden_size", {}) == 128
    assert guess("nobody_knows", {}) is None


def test_the_table_drops_renames_and_adds_tensors() -> None:
    import torch

    said = {"drop": "^lm_head", "rename": [["^model\\.", ""]], "extra": {"fc.weight": [2, 3]}}
    found = changed_names({"model.norm": torch.ones(2), "lm_head.weight": torch.ones(2)}, said)
    assert set(found) == {"norm", "fc.weight"}
    assert found["fc.weight"].shape == (2, 3)
