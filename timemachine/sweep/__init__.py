"""A sweep over transformers' classes that its Trainer trains wrongly under accumulation."""
