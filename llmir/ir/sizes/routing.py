"""How tokens choose experts: laws, from which come the rows of a rank and the experts that they touch."""

from .chance import Chance
from .even import Arrived, Even, Groups
from .power_law import PowerLaw
from .replicas import Replicas
from .routing_laws import Law, law
from .zipf import Zipf

CHANCE = Chance()  # of a program that says nothing

__all__ = [
    "CHANCE",
    "Arrived",
    "Chance",
    "Even",
    "Groups",
    "Law",
    "PowerLaw",
    "Replicas",
    "Zipf",
    "law",
]
