"""The profiler of a training run.

`profiler` is called by the training loop, `tools` record, `trace` and `summary` write the results.
"""
