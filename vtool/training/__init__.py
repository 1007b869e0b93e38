"""Supervised fine-tuning: `sft.py` is the run and its loop."""
