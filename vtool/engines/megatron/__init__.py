"""Megatron-core: tensor, sequence and data parallel training of the Qwen2-VL layouts."""
