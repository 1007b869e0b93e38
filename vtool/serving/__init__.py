"""vLLM's server for what was trained: its command, and the process (`vtool serve`)."""
