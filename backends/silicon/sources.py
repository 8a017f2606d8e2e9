"""What is known of measured rows beside their columns: `sources.yaml`, and the words of tables for machines."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from llmir import strict_yaml

from .rows import Array, Table

FILE = Path(__file__).with_name("sources.yaml")
FACTS = ("timed", "turns", "fills", "variant", "left_out")  # all else in an entry is a word that rows have


@cache
def known() -> dict[str, Any]:
    """The file."""
    found: dict[str, Any] = strict_yaml.load(FILE.read_bytes())
    return found


def facts(table: str, rows: Table) -> Table:
    """The rows with what is known of them as columns; what their own columns say is kept."""
    found = {fact: np.full(len(rows), None, dtype=object) for fact in FACTS}
    for entry in known()["rows"]:
        if entry["table"] != table:
            continue
        fits = np.full(len(rows), fill_value=True)
        for column, words in entry.items():
            if column not in ("table", *FACTS):
                fits &= np.isin(rows[column].astype(str), words)
        for fact in FACTS:
            if fact in entry:
                found[fact][fits] = entry[fact]
    return Table({**rows.columns, **{f: _own(rows, f, said) for f, said in found.items()}}, rows.problems)


def _own(rows: Table, fact: str, said: Array) -> Array:
    """What a row's own cell says, else what is known."""
    if fact not in rows.columns:
        return said
    own = rows[fact]
    stated = ~np.isnan(own) if own.dtype == float else own != ""
    return np.where(stated, own, said)
