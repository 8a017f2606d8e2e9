"""A price as a program: what kernels do to sizes is recorded once, and printed as code without them."""

from .record import Function, Symbol, Tape

__all__ = ["Function", "Symbol", "Tape"]
