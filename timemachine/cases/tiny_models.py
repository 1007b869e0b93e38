"""Tiny models with random weights, where a user would write `from_pretrained`."""

import transformers as t

TEXT = {
    "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.2,
}  # fmt: skip
SEEN = {
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
    "num_attention_heads": 2, "image_size": 8, "patch_size": 4,
}  # fmt: skip
SIDE = {"layers": 1, "attention_heads": 2, "ffn_dim": 64}
MARKS = {"image_token_id": 500, "video_token_id": 501}
LLAVAS = {"llava": "Llava", "llava_next": "LlavaNext", "vipllava": "VipLlava"}


def qwen_vl(name):
    of = "Qwen2VL" if name == "qwen2_vl" else "Qwen2_5_VL"
    size = {"embed_dim": 32} if name == "qwen2_vl" else {"out_hidden_size": 64}
    seen = {"depth": 1, "hidden_size": 64, "num_heads": 2, "intermediate_size": 64, **size}
    scaling = {"type": "mrope", "mrope_section": [2, 3, 3]}
    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    text = {**TEXT, **ends, "rope_scaling": scaling, **MARKS, "vision_start_token_id": 502}
    config = getattr(t, f"{of}Config")(**text, vision_config=seen)
    return getattr(t, f"{of}ForConditionalGeneration")(config)


def llava(name):
    given = {"vision_config": t.CLIPVisionConfig(**SEEN), "text_config": t.LlamaConfig(**TEXT)}
    config = getattr(t, f"{LLAVAS[name]}Config")(**given, image_token_index=500)
    return getattr(t, f"{LLAVAS[name]}ForConditionalGeneration")(config)


def llava_onevision(_):
    seen, text = t.SiglipVisionConfig(**SEEN), t.Qwen2Config(**TEXT)
    given = {"vision_config": seen, "text_config": text, "image_token_index": 500}
    config = t.LlavaOnevisionConfig(**given, video_token_index=501)
    return t.LlavaOnevisionForConditionalGeneration(config)


def mistral3(_):
    seen, text = t.PixtralVisionConfig(**SEEN), t.MistralConfig(**TEXT)
    given = {"vision_config": seen, "text_config": text, "image_token_index": 500}
    return t.Mistral3ForConditionalGeneration(t.Mistral3Config(**given))


def gemma3(_):
    text, vision = t.Gemma3TextConfig(**TEXT, head_dim=16), t.SiglipVisionConfig(**SEEN)
    given = {"text_config": text, "vision_config": vision, "image_token_index": 500}
    config = t.Gemma3Config(**given, mm_tokens_per_image=4)
    return t.Gemma3ForConditionalGeneration(config)


def gemma2(_):
    own = {"head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16}
    config = t.Gemma2Config(**{**TEXT, "num_hidden_layers": 2}, **own, attn_implementation="eager")
    return t.Gemma2ForCausalLM(config)


def paligemma(_):
    text = t.GemmaConfig(**TEXT, head_dim=16).to_dict()
    vision = t.SiglipVisionConfig(**SEEN, projection_dim=64).to_dict()
    given = {"image_token_index": 500, "projection_dim": 64, "hidden_size": 64}
    config = t.PaliGemmaConfig(text_config=text, vision_config=vision, **given)
    return t.PaliGemmaForConditionalGeneration(config)


def glm4v(_):
    seen = {"depth": 1, "hidden_size": 32, "out_hidden_size": 64, "num_heads": 2}
    seen |= {"intermediate_size": 32, "patch_size": 4, "image_size": 16}
    marks = {"image_start_token_id": 502, "image_end_token_id": 503}
    marks |= {"video_start_token_id": 504, "video_end_token_id": 505}
    scaling = {"rope_type": "default", "mrope_section": [2, 3, 3]}
    text = {**TEXT, "rope_scaling": scaling, "pad_token_id": 0}
    config = t.Glm4vConfig(text_config=text, vision_config=seen, **MARKS, **marks)
    return t.Glm4vForConditionalGeneration(config)


def mamba2(_):
    size = {"num_heads": 4, "head_dim": 32, "n_groups": 1, "state_size": 8, "chunk_size": 8}
    config = t.Mamba2Config(vocab_size=512, hidden_size=64, num_hidden_layers=1, **size)
    return t.Mamba2ForCausalLM(config)


def bart(_):
    sides = {f"{side}_{k}": v for side in ("encoder", "decoder") for k, v in SIDE.items()}
    config = t.BartConfig(vocab_size=512, **sides, d_model=64, dropout=0.0)
    config.decoder_start_token_id = 500  # by default one that ends answers as well
    return t.BartForConditionalGeneration(config)


def moonshine(_):
    sides = {
        f"{side}_num_{k}": n
        for side in ("encoder", "decoder")
        for k, n in (("hidden_layers", 1), ("attention_heads", 4))
    }
    text = {k: TEXT[k] for k in ("vocab_size", "hidden_size", "intermediate_size")}
    config = t.MoonshineConfig(**text, **sides, initializer_range=0.2, pad_token_id=0)
    return t.MoonshineForConditionalGeneration(config)


def cohere_asr(_):
    heard = {k: SEEN[k] for k in ("hidden_size", "intermediate_size", "num_hidden_layers")}
    heard |= {"num_attention_heads": 2, "num_mel_bins": 16, "subsampling_conv_channels": 16}
    still = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0, "layerdrop": 0.0}
    heard |= {"model_type": "parakeet_encoder", **still}
    ends = {"decoder_start_token_id": 1, "pad_token_id": 0}
    return t.CohereAsrForConditionalGeneration(
        t.CohereAsrConfig(**TEXT, **ends, encoder_config=heard)
    )


def florence2(_):
    seen = {"embed_dim": [16] * 4, "num_heads": [2] * 4, "num_groups": [2] * 4, "depths": [1] * 4}
    seen |= {"window_size": 4, "projection_dim": 64, "drop_path_rate": 0.0}
    sides = {f"{side}_{k}": v for side in ("encoder", "decoder") for k, v in SIDE.items()}
    text = {"model_type": "bart", "vocab_size": 512, **sides, "d_model": 64, "dropout": 0.0}
    config = t.Florence2Config(vision_config=seen, text_config=text, image_token_id=500)
    return t.Florence2ForConditionalGeneration(config)


def git(_):
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    text = {k: n for k, n in TEXT.items() if k != "num_key_value_heads"}
    return t.GitForCausalLM(t.GitConfig(vision_config=SEEN, **text, **still))


def vision_encoder_decoder(_):
    seen = t.ViTConfig(**SEEN, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    still = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    text = t.GPT2Config(vocab_size=512, n_embd=64, n_layer=1, n_head=4, **still)
    config = t.VisionEncoderDecoderConfig.from_encoder_decoder_configs(seen, text)
    config.decoder_start_token_id, config.pad_token_id = 1, 0
    return t.VisionEncoderDecoderModel(config)


def text(name):
    return t.AutoModelForCausalLM.from_config(t.AutoConfig.for_model(name, **TEXT))


MAKE = {
    "qwen2_vl": qwen_vl, "qwen2_5_vl": qwen_vl, **dict.fromkeys(LLAVAS, llava), "glm4v": glm4v,
    "gemma2": gemma2, "gemma3": gemma3, "paligemma": paligemma, "mamba2": mamba2, "bart": bart,
    "llava_onevision": llava_onevision, "mistral3": mistral3, "moonshine": moonshine,
    "cohere_asr": cohere_asr, "florence2": florence2, "git": git,
    "vision_encoder_decoder": vision_encoder_decoder,
}  # fmt: skip


def make(name):
    return MAKE.get(name, text)(name)
