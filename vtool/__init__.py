"""vtool: fine-tune vision-language models and prove that nothing went silently wrong."""

__version__ = "0.1.0"
