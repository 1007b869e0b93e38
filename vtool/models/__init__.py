"""Models: one file a family, the processor, and how they are built."""
