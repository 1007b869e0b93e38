"""The linear layers of each family, and how adapters' settings name them."""

from collections.abc import Iterator

import pytest
from torch import nn

from vtool.families import FAMILIES
from vtool.families.family import load_family
from vtool.families.linear_layers import ends_in, select_layers
from vtool.families.tokens import TokenIds


@pytest.mark.parametrize("name", FAMILIES)
def test_the_table_has_every_linear_layer_of_the_family_in_its_component(name: str) -> None:
    from transformers import AutoModelForImageTextToText

    ids = TokenIds(image=1, video=2, vision_start=3, vision_end=4, end=5, pad=6)
    model = AutoModelForImageTextToText.from_config(
        load_family(name).random_config("tiny", 32, ids)
    )

    def real() -> Iterator[tuple[str, str]]:
        for module_name, module in model.named_modules():
            if isinstance(module, nn.Linear) and module is not model.get_output_embeddings():
                words = (
                    (
                        "N"
                        if word.isdigit() and ".mlp." not in module_name.partition("merger")[2]
                        else word
                    )
                    for word in module_name.split(".")
                )
                yield load_family(name).component(module_name), ".".join(words)

    assert set(real()) == {
        (component, each)
        for component, names in FAMILIES[name].linear_layers.items()
        for each in names
    }


def test_a_name_is_recognized_by_its_end() -> None:
    name = "model.language_model.layers.12.self_attn.q_proj"
    assert all(
        ends_in(name, end) for end in ("q_proj", "self_attn.q_proj", "12.self_attn.q_proj", name)
    )
    assert not any(
        ends_in(name, end)
        for end in ("proj", "_proj", "attn.q_proj", "2.self_attn.q_proj", f"x.{name}")
    )
    assert ends_in(name.replace("12", "N"), "12.self_attn.q_proj")


def test_targets_and_exclude_choose() -> None:
    names = ["a.q_proj", "a.k_proj", "b.q_proj"]
    assert select_layers(names, None) == names
    assert select_layers(names, ("q_proj",)) == ["a.q_proj", "b.q_proj"]
    assert select_layers(names, ("q_proj",), ("b.q_proj",)) == ["a.q_proj"]
