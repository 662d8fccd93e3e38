"""Randomness as a function of where training is, so that a resumed run draws the numbers of the uninterrupted one.

Nothing here carries a state from one step to the next: the numbers of step t depend on the seed and on t alone.
"""

import hashlib
import random

import numpy as np
import torch


def derive_seed(seed: int, *where: int | str) -> int:
    """A seed of 63 bits for the place `where` (such as `"augment", epoch, step`) of the run with this `seed`.

    Example:
        >>> derive_seed(1, "shuffle", 3) == derive_seed(1, "shuffle", 3)
        True
        >>> derive_seed(1, "shuffle", 3) == derive_seed(1, "shuffle", 4)
        False
    """
    text = "/".join(str(part) for part in (seed, *where))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(seed: int, *where: int | str) -> torch.Generator:
    """A fresh CPU generator for that place of the run."""
    return torch.Generator().manual_seed(derive_seed(seed, *where))


def seed_everything(seed: int, *where: int | str) -> None:
    """Seeds Python, NumPy and torch, for code (dropout, mixup, initialisers) that draws from the global generators."""
    value = derive_seed(seed, *where)
    random.seed(value)
    np.random.seed(value % 2**32)  # noqa: NPY002  (timm's mixup draws from the global generator)
    torch.manual_seed(value)
