"""The check of this machine: what it can run, and what is missing.

Nothing here imports torch: a process of its own does.
"""
