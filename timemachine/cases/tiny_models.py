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
LLAVAS = {"llava": "Llava", "llava_next": "LlavaNext", "vipllava": "VipLlava"}
SIDE = {"layers": 1, "attention_heads": 2, "ffn_dim": 64}


def make(name):
    if name in ("qwen2_vl", "qwen2_5_vl"):
        of = "Qwen2VL" if name == "qwen2_vl" else "Qwen2_5_VL"
        size = {"embed_dim": 32} if name == "qwen2_vl" else {"out_hidden_size": 64}
        seen = {"depth": 1, "hidden_size": 64, "num_heads": 2, "intermediate_size": 64, **size}
        marks = {"image_token_id": 500, "video_token_id": 501, "vision_start_token_id": 502}
        scaling = {"type": "mrope", "mrope_section": [2, 3, 3]}
        ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
        text = {**TEXT, **ends, "rope_scaling": scaling}
        config = getattr(t, f"{of}Config")(**text, **marks, vision_config=seen)
        return getattr(t, f"{of}ForConditionalGeneration")(config)
    if name in LLAVAS:
        of = LLAVAS[name]
        vision = t.CLIPVisionConfig(**SEEN)
        config = getattr(t, f"{of}Config")(
            vision_config=vision, text_config=t.LlamaConfig(**TEXT), image_token_index=500
        )
        return getattr(t, f"{of}ForConditionalGeneration")(config)
    if name == "gemma3":
        text, vision = t.Gemma3TextConfig(**TEXT, head_dim=16), t.SiglipVisionConfig(**SEEN)
        config = t.Gemma3Config(text, vision, mm_tokens_per_image=4, image_token_index=500)
        return t.Gemma3ForConditionalGeneration(config)
    if name == "paligemma":
        text = t.GemmaConfig(**TEXT, head_dim=16).to_dict()
        vision = t.SiglipVisionConfig(**SEEN, projection_dim=64).to_dict()
        given = {"image_token_index": 500, "projection_dim": 64, "hidden_size": 64}
        config = t.PaliGemmaConfig(text_config=text, vision_config=vision, **given)
        return t.PaliGemmaForConditionalGeneration(config)
    if name == "glm4v":
        scaling = {"rope_type": "default", "mrope_section": [2, 3, 3]}
        seen = {"depth": 1, "hidden_size": 32, "out_hidden_size": 64, "num_heads": 2}
        seen |= {"intermediate_size": 32, "patch_size": 4, "image_size": 16}
        marks = {"image_token_id": 500, "video_token_id": 501, "image_start_token_id": 502}
        marks |= {"image_end_token_id": 503, "video_start_token_id": 504, "video_end_token_id": 505}
        text = {**TEXT, "rope_scaling": scaling, "pad_token_id": 0}
        return t.Glm4vForConditionalGeneration(
            t.Glm4vConfig(text_config=text, vision_config=seen, **marks)
        )
    if name == "mamba2":
        size = {"num_heads": 4, "head_dim": 32, "n_groups": 1, "state_size": 8, "chunk_size": 8}
        config = t.Mamba2Config(vocab_size=512, hidden_size=64, num_hidden_layers=1, **size)
        return t.Mamba2ForCausalLM(config)
    if name == "bart":
        sides = {f"{side}_{k}": v for side in ("encoder", "decoder") for k, v in SIDE.items()}
        sides |= {"d_model": 64, "dropout": 0.0}
        return t.BartForConditionalGeneration(t.BartConfig(vocab_size=512, **sides))
    return t.AutoModelForCausalLM.from_config(t.AutoConfig.for_model(name, **TEXT))
