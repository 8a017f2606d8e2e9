"""A price as a program: what kernels do to sizes is recorded once, and printed as code without them."""

from collections.abc import Callable
from typing import Any, Protocol

from . import numpy, python
from .record import Function


class Printer(Protocol):
    """A language that functions of a tape are printed in, and what they are in Python."""

    def text(self, function: Function, name: str = "run") -> str:
        """The source of a function of that name."""

    def compiled(self, function: Function) -> Callable[..., tuple[Any, ...]]:
        """The function, of its inputs in order."""


PRINTERS: dict[str, Printer] = {"python": python, "numpy": numpy}
