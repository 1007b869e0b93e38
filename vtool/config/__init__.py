"""From a recipe and `KEY=VALUE` to one frozen, validated `Run`.

Never imports torch, transformers or an engine.
"""
