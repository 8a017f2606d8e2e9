"""Fits and their errors, as `llmir calibrate` shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import output

if TYPE_CHECKING:
    from llmir.backends.silicon.calibrate.refit import Refit


def show(found: Refit, form: str) -> None:
    """Rows of kernels, and of the hosts that were fitted with them or alone."""
    from llmir.backends.silicon.calibrate import overview

    kernels, hosts = found.kernels, found.hosts
    rows = [*kernels, *({"device": None, "family": "host", **host} if kernels else host for host in hosts)]
    output.emit_rows(rows, form, None, overview.shown(found))
