"""Randomness that belongs to one text: the same whatever else is in the batch, and nobody else's."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from captum_iba.text.encoding import EncodedText


def seed_of(seed: int, encoded: EncodedText) -> int:
    """A number of 32 bits that follows from a seed and a text.

    Args:
        seed (int): The caller's.
        encoded (EncodedText): The text, or pair of texts.
    """
    digest = hashlib.sha256(f"{seed}:{len(encoded.text)}:".encode())
    for part in (encoded.text, encoded.pair):
        digest.update(b"-" if part is None else part.encode("utf-8", "surrogatepass"))
    return int.from_bytes(digest.digest()[:4], "big")


@contextmanager
def own_randomness(device: torch.device) -> Iterator[None]:
    """Put back the global random states of Python, numpy and torch, which Captum draws from."""
    states = random.getstate(), np.random.get_state()
    devices = [device.index or 0] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])


def plant(seed: int) -> None:
    """Seed the global random states; within :func:`own_randomness`."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
