"""Plots of results by matplotlib, an extra: each takes what it shows, and the axes to draw in."""

from __future__ import annotations

from importlib.util import find_spec

from llmir.base.errors import InputError

FORMATS = {".png": "png", ".svg": "svg", ".pdf": "pdf"}


def check(what: str) -> None:
    """InputError without matplotlib, in which `what` names who asks for it."""
    if find_spec("matplotlib") is None:
        raise InputError(f"{what} needs matplotlib: pip install 'llmir[plot]'")
