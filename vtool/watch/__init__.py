"""What any trainer really teaches, read from its gradients (`vtool watch`)."""
