"""Which of transformers' classes its Trainer trains wrongly under accumulation."""
