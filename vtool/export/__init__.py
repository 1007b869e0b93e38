"""A trained model, for others to open."""
