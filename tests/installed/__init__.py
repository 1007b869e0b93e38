"""vtool as it is installed: its wheel in environments of its own, at both ends of its ranges."""
