"""What a run records of itself:

`profiler` is what the loop calls, `tools` what records, `trace` and `summary` what becomes of it.
"""
