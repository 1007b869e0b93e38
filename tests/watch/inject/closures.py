"""A loop whose passes are made in the closure of an optimizer's step: prints its final weights.

usage: closures.py HOW…    outside|inside (AdamW), by-name, many (LBFGS), ignored, compiled, never
"""

import hashlib
import sys
from typing import Any

import torch

from tests.watch.inject import tiny


class Ignores(torch.optim.AdamW):
    """Does not call the closure that it is given."""

    def step(self, closure: Any = None) -> Any:
        return super().step()


def train(how: str) -> None:
    """Train, and print a digest of the final weights."""
    model = tiny.make()
    kind = {"many": torch.optim.LBFGS, "ignored": Ignores}.get(how, torch.optim.AdamW)
    optimizer: Any = kind(model.parameters(), lr=1e-2)
    for step in range(4):

        def passes(seed: int = step) -> Any:
            optimizer.zero_grad()
            total, n = tiny.loss_of(model, tiny.batch([9, 5], seed=seed))
            (total / n).backward()
            return total

        if how in ("outside", "ignored", "compiled", "never"):
            passes()
        if how == "outside":
            optimizer.step()
        elif how == "compiled":
            torch.compile(optimizer.step, backend="eager")()
        elif how == "never":
            with torch.no_grad():
                for p in model.parameters():
                    p.sub_(p.grad, alpha=1e-2)
        elif how == "by-name":
            optimizer.step(closure=passes)
        else:
            optimizer.step(passes)
    digest = hashlib.sha256()
    for p in model.parameters():
        digest.update(p.detach().numpy().tobytes())
    print(digest.hexdigest())


for each in sys.argv[1:]:
    train(each)
