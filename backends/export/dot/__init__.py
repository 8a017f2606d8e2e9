"""Pictures of a report or workload, drawn by Graphviz."""

from .render import LEVELS, PHASES, draw

__all__ = ["LEVELS", "PHASES", "draw"]
