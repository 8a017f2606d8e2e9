"""`llmir serve`: the page that computes, with every model, device and split within reach, on loopback."""

from .app import app
from .guard import Guard, Hosts

__all__ = ["Guard", "Hosts", "app"]
