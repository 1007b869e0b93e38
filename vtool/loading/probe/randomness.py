"""Other seeds for a load: those that `make` sets would hide that it draws random numbers."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

_SEED = 7919


@contextmanager
def other_seeds() -> Iterator[None]:
    """Seed the global generators otherwise than at the first load, and put them back."""
    python, array = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        random.seed(_SEED)
        np.random.seed(_SEED)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(array)
