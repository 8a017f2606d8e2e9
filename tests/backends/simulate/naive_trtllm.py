"""What TensorRT-LLM's patience adds to a plain server."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from .naive_server import Naive, Request


class Patient(Naive):
    """Beside decodes prompts wait `patience` steps, unless a step has a share `enough` of its tokens."""

    def __init__(self, *engine: Any, patience: int = 0, enough: float = 0.0) -> None:
        super().__init__(*engine)
        self.patience, self.enough, self.waited = patience, enough, 0

    def read(self, decodes: int, preempted: bool) -> list[tuple[Request, int]]:
        if self.patience and decodes:
            ready = sum(new for _, new in Naive.read(deepcopy(self), decodes, preempted))
            few = ready > 0 and self.room.rows * decodes + ready < self.enough * self.room.tokens
            self.waited = self.waited + 1 if few and self.waited < self.patience else 0
            if self.waited:
                return []
        self.waited = 0
        return super().read(decodes, preempted)
