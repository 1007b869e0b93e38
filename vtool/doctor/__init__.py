"""What this machine can run, and what is missing.

Nothing here imports torch: it is asked in a process of its own.
"""
