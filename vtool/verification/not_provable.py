"""Says that proofs cannot be made; a file of its own, so that to raise it imports no proof."""


class NotProvable(ValueError):
    """The reason why proofs cannot be made, where it is nothing against the recipe."""
