"""What a router is: it chooses the replica that serves a request."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from llmir.base.arguments import choice
from llmir.base.errors import InputError
from llmir.base.registry import Kind

from .capacity import Capacity
from .load import Load

ROUTERS: Kind[type[Router]] = Kind("router", "llmir.backends.simulate.routers")

FIRST = "round-robin"  # where nobody says which


class Router(ABC):
    """Sends each request of a load to one of `replicas`, each of a `capacity`, when it arrives.

    It knows what it has sent where, and how many of these requests are not answered yet.
    """

    name: ClassVar[str]
    blind: ClassVar[bool] = False  # to loads of replicas, so that each replica can be simulated alone

    def __init__(self, replicas: int, load: Load, capacity: Capacity) -> None:
        self.replicas = replicas

    @abstractmethod
    def choose(self, request: int, unanswered: Sequence[int]) -> int:
        """The replica that a request goes to, from 0; `unanswered` are the requests that each has."""


def dealing(name: object, replicas: int) -> str:
    """The name of a router, checked; InputError for an unknown one, and for any with one replica."""
    known: str = choice("router", FIRST if name is None else name, tuple(ROUTERS))
    if name is not None and replicas == 1:
        raise InputError(f"router: {known} deals out requests to several replicas, there is 1")
    return known
