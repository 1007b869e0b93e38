"""The names of a twin: its own, those that the table adds, those that were changed."""

import torch

from vtool.loading.probe.twin import about_twin

ONE = torch.ones(1)
OWN = type("Own", (), {"__module__": "framework.models.own"})
BACKEND = type("Backend", (), {"__module__": "framework.models.transformers.causal"})


def test_a_twin_is_the_class_itself_by_its_name_and_where_a_backend_runs_it() -> None:
    saved = {"a": ONE}
    assert about_twin("C", "C", OWN, saved, saved)["own_twin"]
    assert not about_twin("C", "D", OWN, saved, saved)["own_twin"]
    assert about_twin("C", "D", BACKEND, saved, saved)["own_twin"]
    assert about_twin("C", "D", OWN, saved, saved, own=True)["own_twin"]


def test_added_and_renamed_tensors_are_distinguished_from_those_of_the_twin() -> None:
    saved = {"lm_head.weight": ONE, "custom_text_proj.bias": ONE}
    taken = {"language_model.lm_head.weight": ONE, "custom_text_proj.bias": ONE}
    about = about_twin("ColQwen3", "Qwen3VLForConditionalGeneration", OWN, saved, taken)
    assert about["added"] == ("custom_text_proj.bias",)
    assert about["renamed"] == ("language_model.lm_head.weight",)
