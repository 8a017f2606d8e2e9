"""A decode server: requests come to it with the caches of their prompts, and with their first token."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .load import Load
from .server import Server

LATER = 1 << 32  # what is drawn of decode servers is drawn by another seed than of prefill servers


def decoded(load: Load) -> Load:
    """What is left of requests when their prompts are read: all but the first token, which is not cached yet.

    The first of these is read as part of the prompt, and that makes the next one.
    """
    rest = np.maximum(load.generate - 1, 1)
    asked = None if load.asked is None else np.maximum(load.asked - 1, 1)
    known = replace(load, prompt=load.prompt + 1, generate=rest, cached=load.prompt, asked=asked)
    own = load.seed + LATER
    return replace(known, users=None, hashes=(), sessions=None, think_s=None, seed=own)


class Decoder(Server):
    """A server of a `decoded` load. Who is preempted has lost the cache, and is read again."""

    def preempt(self, request: int) -> None:
        """Nothing of it is cached from then on."""
        super().preempt(request)
        self.cached[request] = 0
