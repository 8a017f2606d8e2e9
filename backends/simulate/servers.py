"""The kinds of servers: with pipeline stages, with drafts, and those that decode what others have read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .capacity import Capacity
from .course import Course
from .load import Load
from .policy import Policy
from .prices import Prices
from .server import Server
from .server_kinds import PipelinedServer
from .speculative_server import SpeculativeServer

LATER = 1 << 32  # added to a seed: decode servers draw other drafts than prefill servers


def decoded(load: Load) -> Load:
    """The load of decode servers: requests whose prompts are cached, and which have their first token.

    That token is not cached yet, so that it counts as the last token of the prompt: reading it makes the
    second token.
    """
    rest = np.maximum(load.generate - 1, 1)
    asked = None if load.asked is None else np.maximum(load.asked - 1, 1)
    known = replace(load, prompt=load.prompt + 1, generate=rest, cached=load.prompt, asked=asked)
    seed = load.seed + LATER
    return replace(known, users=None, hashes=(), sessions=None, think_s=None, seed=seed)


class DecodeServer(Server):
    """A server of a `decoded` load. A request that is preempted loses its cache: the prompt is read again."""

    def preempt(self, request: int) -> None:
        """Nothing of it is cached from then on."""
        super().preempt(request)
        self.cached[request] = 0


class PipelinedDecodeServer(DecodeServer, PipelinedServer):
    """A decode server with pipeline stages."""


class SpeculativeDecodeServer(DecodeServer, SpeculativeServer):
    """A decode server that verifies drafts; there are none beside the first token that it makes."""


def server_of(prices: Prices, policy: Policy, capacity: Capacity, load: Load, course: Course) -> Server:
    """A server that reads prompts and decodes."""
    plain = Server if load.drafts is None else SpeculativeServer
    kind = PipelinedServer if capacity.micro_batches > 1 else plain
    return kind(prices, policy, capacity, load, course)


def decode_server_of(
    prices: Prices, policy: Policy, capacity: Capacity, load: Load, course: Course
) -> Server:
    """A server of a `decoded` load."""
    plain = DecodeServer if load.drafts is None else SpeculativeDecodeServer
    kind = PipelinedDecodeServer if capacity.micro_batches > 1 else plain
    return kind(prices, policy, capacity, load, course)
