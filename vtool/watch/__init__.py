"""The watch of any trainer: what it really teaches, read from its gradients."""
