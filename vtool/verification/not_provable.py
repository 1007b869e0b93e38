"""Says that proofs cannot be made; a file of its own, so that to raise it imports no proof."""

from vtool.diagnostics import Findings


class NotProvable(Findings):
    """The finding that no proof can be made, where it is nothing against the recipe.

    Commands, and the preflight of a training, state its reason and continue.
    """

    @property
    def reason(self) -> str:
        """The finding's message."""
        return self.diagnostics[0].message


class ProofNotMade(Exception):
    """The reason why one proof is not made, where it is nothing against the recipe."""
