"""A set-up for a page that is open already, as data: functions as lists, for no code travels."""

from __future__ import annotations

from typing import Any

from llmir.base.errors import InputError

from .listing import Listing
from .setups import Setup, Tables, choices

# What every set-up of a served page says, so that any two can be told apart.
_USUAL = {"tp": 1, **dict.fromkeys(("weights", "activations", "kv", "engine", "cost"))}


def answer(setup: Setup, asked: str) -> dict[str, Any]:
    """What a page needs for a set-up, for JSON: tables, graphs, and the name that its model was `asked` by.

    InputError where it cannot be, and for what is no function of three sizes: `RequestCode`.
    """
    if setup.why or setup.program is None:
        raise InputError(setup.why)
    listing = Listing()
    tables = Tables(listing)
    values = {name: value for name, value in setup.values.items() if value is not None}
    own = tables.setup(setup) | {"choices": answered_choices(setup), "values": values}
    return {
        "model": setup.program.name,
        "asked": asked,
        "setup": own,
        "rates": list(listing.told),
        "tables": tables.tables,
        "graphs": tables.graphs.all,
        "functions": listing.all,
    }


def answered_choices(setup: Setup) -> dict[str, str]:
    """What tells a set-up apart from any other of any model."""
    assert setup.program is not None
    assert setup.model is not None
    names = {str(setup.values["hw"]): setup.model.device.name}
    said = Setup({**_USUAL, **setup.values}, setup.program, setup.model)
    return {"model": setup.program.name, **choices(said, names)}
