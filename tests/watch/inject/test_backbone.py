"""The backbone of classes that are their own base: vision-language ones of transformers 4."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.watch.inject import tiny
from vtool.watch.inject.vtool_watch.alone import _looks_ahead, _switches
from vtool.watch.inject.vtool_watch.model import _is_tie_meant, describe_model


class Outer(nn.Module):
    """A class around a text model that has the head, or with the head as a sibling of its parts."""

    def __init__(self, text: tiny.Model, head_is_inside: bool) -> None:
        super().__init__()
        self.tower = nn.Linear(2, 2)
        if head_is_inside:
            self.language_model: nn.Module = text
        else:
            self.model, self.lm_head = Parts(text.model), text.lm_head
        self.config, self._text = text.config, (text,)

    @property
    def base_model(self) -> "Outer":
        return self

    def get_output_embeddings(self) -> nn.Module:
        return self._text[0].lm_head

    def get_input_embeddings(self) -> nn.Module:
        return self._text[0].model.embed


class Parts(nn.Module):
    """A tower and a text backbone, without a head."""

    def __init__(self, text: tiny.Base) -> None:
        super().__init__()
        self.language_model, self.tower = text, nn.Linear(2, 2)

    def get_input_embeddings(self) -> nn.Module:
        return self.language_model.embed


@pytest.mark.parametrize("head_is_inside", [True, False])
def test_the_backbone_is_what_gives_the_head_its_hidden_states(head_is_inside: bool) -> None:
    text = tiny.Model()
    outer: Any = Outer(text, head_is_inside)
    found = describe_model(outer, text.lm_head)
    assert found.base is (text.model if head_is_inside else outer.model)
    assert found.norm is text.model.norm


def test_a_base_that_is_named_is_taken() -> None:
    text = tiny.Model()
    assert describe_model(text, text.lm_head).base is text.model


class TiedConfig:
    """A config of a model whose text model has a config of its own, as in transformers 4."""

    def __init__(self, tied: bool, text: bool) -> None:
        self.tie_word_embeddings, self._text = tied, text

    def get_text_config(self, decoder: bool) -> "TiedConfig":
        return TiedConfig(self._text, self._text)


@pytest.mark.parametrize(
    ("whole", "text", "meant"),
    [(True, True, True), (False, False, False), (True, False, None), (False, True, None)],
)
def test_a_config_that_contradicts_its_text_models_says_nothing_of_the_head(
    whole: bool, text: bool, meant: bool | None
) -> None:
    model: Any = tiny.Model()
    model._tied_weights_keys = ["lm_head.weight"]
    found = describe_model(model, model.lm_head)
    model.config = TiedConfig(whole, text)
    assert _is_tie_meant(found) is meant


CAUSAL = torch.ones(1, 1, 4, 4, dtype=torch.bool).tril()


@pytest.mark.parametrize(
    ("mask", "ahead"),
    [
        (CAUSAL, False),
        (torch.zeros(1, 1, 4, 4).masked_fill(~CAUSAL, -1e9), False),
        (CAUSAL | (torch.arange(4) < 3), True),
        (torch.zeros(1, 1, 4, 4), True),
    ],
)
def test_a_mask_that_lets_tokens_see_what_follows_is_known(mask: Tensor, ahead: bool) -> None:
    assert _looks_ahead(mask) is ahead


def test_the_decoder_of_t5_gives_its_head_what_the_config_scales() -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"vocab_size": 64, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1}
    model: Any = T5ForConditionalGeneration(T5Config(**sizes, num_heads=2, dropout_rate=0.0)).eval()
    found = describe_model(model, model.lm_head)
    assert found.base is model.decoder
    seen: list[Tensor] = []
    model.decoder.register_forward_hook(lambda *given: seen.append(given[2].last_hidden_state))
    ids = torch.arange(3, 9)[None]
    logits = model(input_ids=ids, decoder_input_ids=ids).logits
    mine = found.scale * seen[0].double() @ model.lm_head.weight.double().T
    torch.testing.assert_close(logits.double(), mine, rtol=1e-5, atol=1e-6)


def test_a_decoder_alone_in_a_wrapper_is_what_is_called() -> None:
    from transformers import OPTConfig, OPTForCausalLM

    sizes = {"vocab_size": 64, "hidden_size": 16, "ffn_dim": 32, "num_hidden_layers": 1}
    model: Any = OPTForCausalLM(OPTConfig(**sizes, num_attention_heads=2, word_embed_proj_dim=16))
    assert describe_model(model, model.lm_head).base is model.model.decoder


def test_what_a_backbone_was_switched_to_is_kept_for_rows_by_themselves() -> None:
    given = {"is_decoder": True, "use_cache": True, "return_dict": True, "input_ids": torch.ones(1)}
    assert _switches(given) == {"is_decoder": True}
