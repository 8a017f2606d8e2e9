"""What is asked of a step: sequences, new tokens and cached ones, numbers or arrays of them."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from llmir.dim import Binding, Number
from llmir.errors import InputError
from llmir.frozen import read_only


def count(name: str, value: object, least: int, most: int = 1 << 48) -> Number:
    """`value` if it is an integer from `least` to `most`, or an array of such; `InputError` if not.

    Integers come back as Python's own, arrays as float64.
    """
    if type(value) is int and least <= value <= most:
        return value
    try:
        array = np.asarray(value)
        floats = array.dtype.kind == "f" and array.ndim and bool(np.all(array % 1 == 0))
        if (
            (array.dtype.kind in "iu" or floats)
            and array.size
            and least <= array.min()
            and array.max() <= most
        ):
            return read_only(array.astype(np.float64)) if array.ndim else int(array)
    except (ValueError, TypeError):  # a ragged list, say
        pass
    raise InputError(f"{name}: expected an integer from {least} to {most}, got {shown(value)}")


def shown(value: object) -> str:
    """A value on one line, cut."""
    return " ".join(reprlib.repr(value).split())


def checked(batch: Any = 1, new: Any = 1, context: Any = 0) -> tuple[Number, Number, Number]:
    """Sequences, new tokens of each and cached ones; `InputError` for what is none."""
    return count("batch", batch, 1), count("new", new, 1), count("context", context, 0)


def other(part: Mapping[str, Any]) -> tuple[Number, Number, Number]:
    """The same of other sequences in a step, from a mapping."""
    known = ("batch", "new", "context")
    if not isinstance(part, Mapping) or not set(part) <= set(known):
        raise InputError(f"beside: expected {', '.join(known)} of other sequences, got {shown(part)}")
    return checked(**part)


def binding(micro_batches: int, batch: Number, new: Number, context: Number) -> Binding:
    """What one micro-batch is."""
    if micro_batches > 1 and np.any(np.mod(batch, micro_batches)):
        raise InputError(
            f"batch: expected a multiple of the {micro_batches} micro-batches, got {shown(batch)}"
        )
    return Binding(B=batch if micro_batches == 1 else batch // micro_batches, T=new, C=context)
