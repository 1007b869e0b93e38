"""The folder on the PYTHONPATH of a watched command: `sitecustomize` and `vtool_watch`."""
