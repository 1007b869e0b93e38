"""The folder that stands on PYTHONPATH of what is watched: `sitecustomize` and `vtool_watch`."""
