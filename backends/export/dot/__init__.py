"""Pictures of a report or workload, drawn by Graphviz."""

from .render import LEVELS, PHASES, SUFFIXES, draw

__all__ = ["LEVELS", "PHASES", "SUFFIXES", "draw"]
