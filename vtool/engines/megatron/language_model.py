"""A Qwen2-VL model whose language model is megatron-core's.

The model stays transformers' own, with its vision tower, its positions in three dimensions and its
merging of image features; its language model, embedding and head are replaced by thin modules
around one `GPTModel` with multimodal rotary positions. So whoever calls it, the loss or `generate`,
calls what it knows.

Each tensor parallel rank computes the whole tower, from the same images; of a pipeline's stages the
first has it, and no other. Under sequence parallelism tokens are shared out among the tensor
parallel ranks, and under context parallelism (`context`) among its ranks, after the image features
have been merged, and padded to a number that all can share. There is no key and value cache.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vtool.data.head_nll import VocabularyShard, forward_replaced, summed_nll_of_hidden
from vtool.engines.megatron.context import gather_tokens, scatter_tokens
from vtool.engines.megatron.pipeline import Stage, no_features, no_video_features, without_tokens
from vtool.engines.megatron.shim import on_cpu
from vtool.models.masks import (
    allowed_in_documents,
    allowed_in_rows,
    megatron_mask,
    multiple_of,
    pad_rows,
    unpad_rows,
)
from vtool.models.spans import Spans


def replace_language(model: Any, gpt: Any, stage: Stage) -> None:
    """Replace the language model of transformers' model by a `GPTModel`, in place.

    On a pipeline stage behind the first the tower goes too.
    """
    text = model.config.get_text_config()
    model.model.language_model = LanguageModel(gpt, stage)
    model.lm_head = _Head(gpt, text.vocab_size, stage)
    if not stage.first:
        model.model.visual = None
        # `generate` asks for them before it calls the model
        model.model.get_image_features = no_features
        model.model.get_video_features = no_video_features
        model.register_forward_pre_hook(without_tokens, with_kwargs=True)
    # Without a cache: `generate` calls the model with the whole text for each token.
    model.generates_with_cache = False
    model.heeds_masks = gpt.heeds_masks


class LanguageModel(nn.Module):
    """The text model in transformers' place: from embeddings [B, S, H] to hidden states [B, S, H].

    On a pipeline stage that is not the first, the embeddings are not read; on one that is not the
    last, nobody reads the hidden states.
    """

    def __init__(self, gpt: Any, stage: Stage) -> None:
        super().__init__()
        self.gpt = gpt
        self.stage = stage
        self.embedding = _Embedding(gpt)
        self.sharing = gpt.config.tensor_model_parallel_size if gpt.config.sequence_parallel else 1
        """Ranks among which tokens are shared out where matrices are whole."""

    def get_input_embeddings(self) -> nn.Module:
        """Return the embedding, as transformers' `generate` asks for it."""
        return self.embedding

    def forward(
        self,
        inputs_embeds: Tensor,
        position_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        documents: Spans | None = None,
        **_: Any,
    ) -> Any:
        """Return hidden states [B, S, H]; see the class."""
        from megatron.core import tensor_parallel
        from transformers.modeling_outputs import BaseModelOutputWithPast

        config, gpt, context = self.gpt.config, self.gpt, self.gpt.pg_collection.cp
        rows, length, size = inputs_embeds.shape
        multiple = multiple_of(self.sharing, config.context_parallel_size)
        keep = (
            inputs_embeds.new_ones(rows, length, dtype=torch.bool)
            if attention_mask is None
            else attention_mask != 0
        )
        # Of whole rows: megatron-core cuts a context parallel rank's own pieces out of them.
        places, kept = pad_rows(
            _positions(position_ids, rows, length, inputs_embeds.device).permute(1, 2, 0),
            keep,
            multiple,
        )
        with on_cpu(self.stage.ranks.device):
            hidden = None
            if self.stage.first:
                embedded = pad_rows(inputs_embeds, keep, multiple)[0]
                hidden = scatter_tokens(embedded.transpose(0, 1), context).contiguous()
                if config.sequence_parallel:
                    hidden = tensor_parallel.scatter_to_sequence_parallel_region(hidden)
            elif not self.stage.scheduled:
                share = kept.shape[1] // (config.context_parallel_size * self.sharing)
                gpt.set_input_tensor(self.stage.receive((share, rows, size), config.pipeline_dtype))
            mask = _mask(kept) if documents is None else _block_mask(documents.lengths, kept)
            assert mask is None or gpt.heeds_masks, (
                "rows that are padded on the left come one by one to layers that look at no mask"
            )
            hidden = gpt.decoder(
                hidden_states=hidden,
                attention_mask=mask,
                rotary_pos_emb=gpt.rotary_pos_emb(places.permute(2, 0, 1), gpt.mrope_section),
            )
            if not self.stage.last:
                self.stage.send_on(hidden)
                return BaseModelOutputWithPast(last_hidden_state=inputs_embeds)
            if config.sequence_parallel:
                hidden = tensor_parallel.gather_from_sequence_parallel_region(hidden)
            hidden = gather_tokens(hidden, context)
        return BaseModelOutputWithPast(last_hidden_state=unpad_rows(hidden.transpose(0, 1), length))


class _Embedding(nn.Module):
    """The embedding in transformers' place: from ids [B, S] to [B, S, H]."""

    def __init__(self, gpt: Any) -> None:
        super().__init__()
        self._gpt = (gpt,)  # a tuple: its parameters are counted once

    @property
    def weight(self) -> Tensor:
        weight: Tensor = self._gpt[0].embedding.word_embeddings.weight
        return weight

    def forward(self, ids: Tensor) -> Tensor:
        with on_cpu(ids.device):
            embedded: Tensor = self._gpt[0].embedding.word_embeddings(ids)
        return embedded


class _Head(nn.Module):
    """The head in transformers' place: from hidden states [B, K, H] to logits [B, K, V].

    They are whole on every rank and every stage.
    """

    def __init__(self, gpt: Any, vocabulary: int, stage: Stage) -> None:
        super().__init__()
        self._gpt = (gpt,)
        self.vocabulary = vocabulary
        self.stage = stage

    def forward(self, hidden: Tensor) -> Tensor:
        from megatron.core import tensor_parallel

        (gpt,) = self._gpt
        if not self.stage.last:
            return self.stage.from_last(
                hidden.new_empty(*hidden.shape[:2], self.vocabulary, dtype=gpt.config.params_dtype)
            )
        with on_cpu(self.stage.ranks.device):
            logits, _ = gpt.output_layer(hidden.transpose(0, 1).contiguous(), weight=self._tied())
            whole: Tensor = tensor_parallel.gather_from_tensor_model_parallel_region(logits)
        return self.stage.from_last(whole[..., : self.vocabulary].transpose(0, 1))

    def summed_nll(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Return Σ −log p(target) on the last stage, whose ranks keep their logits to themselves.

        Args:
            hidden: [B, K, H], the same on every tensor parallel rank.
            targets: [B, K].
        """
        from megatron.core import tensor_parallel

        (gpt,) = self._gpt
        assert self.stage.last, "on any other stage the forward pass has ended before"
        layer, group = gpt.output_layer, gpt.pg_collection.tp

        def compute(hidden: Tensor, weight: Tensor | None = None, **_: Any) -> Tensor:
            matrix = layer.weight if weight is None else weight
            shard = VocabularyShard(group, group.rank() * len(matrix), self.vocabulary)
            if not gpt.config.sequence_parallel:  # else the gather before it sums the gradients
                hidden = tensor_parallel.copy_to_tensor_model_parallel_region(hidden)
            return summed_nll_of_hidden(hidden, matrix, targets, shard)

        # Through the layer's call: megatron-core's hooks on it wait for its weight.
        with on_cpu(self.stage.ranks.device), forward_replaced(layer, compute):
            nll: Tensor = layer(hidden, weight=self._tied())
        return nll

    def _tied(self) -> Tensor | None:
        (gpt,) = self._gpt
        return (
            gpt.shared_embedding_or_output_weight()
            if gpt.share_embeddings_and_output_weights
            else None
        )


def _positions(given: Tensor | None, rows: int, length: int, device: torch.device) -> Tensor:
    """Return positions in time, height and width [3, B, S].

    Args:
        given: whatever transformers' model hands to its text model.
    """
    if given is None:
        return torch.arange(length, device=device).expand(3, rows, length)
    if given.ndim == 2:
        return given.expand(3, rows, length)
    return given[-3:].expand(3, rows, length)  # of four, the first is the place in the text


def _mask(kept: Tensor) -> Tensor | None:
    """Return the mask of what each token must not see, bool [B, 1, S, S]; None if causal alone.

    A row that is padded at its end needs no mask: nothing before the padding sees it. Megatron-core
    takes None for causal, and adds nothing to a mask that it is given.
    """
    return (
        megatron_mask(allowed_in_rows(kept)) if bool((kept[:, 1:] > kept[:, :-1]).any()) else None
    )


def _block_mask(documents: Sequence[int], kept: Tensor) -> Tensor:
    """Return `_mask` for documents in one row; padding at its end is one document more."""
    missing = kept.shape[1] - sum(documents)
    return megatron_mask(
        allowed_in_documents([*documents, *([missing] if missing else [])], kept.device)
    )
