"""What a program means: its ops in numpy, on one rank or on all in lockstep."""

from .equivalence import Equivalence, equivalent, random
from .program import interpret

__all__ = ["Equivalence", "equivalent", "interpret", "random"]
