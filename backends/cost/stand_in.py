"""Calls that stand in for others: of an op without a measured kernel, and of ranks in several nodes."""

from __future__ import annotations

from dataclasses import replace

from llmir.backends.kernels.call import Call
from llmir.backends.kernels.collective import CollectiveShape
from llmir.backends.kernels.stream import StreamShape
from llmir.backends.work.rows import Row


def stand_in(row: Row) -> Call:
    """What is sent, as an exchange between two ranks; all else as a stream of the bytes that it moves.

    No price is below the roofline's, so arithmetic is not lost.
    """
    if row.work.wire:
        return Call(("all_to_all",), CollectiveShape(2 * row.work.wire, 2))
    return Call(("stream",), StreamShape(1, row.read + row.write))


def within(call: Call, most: int) -> Call:
    """A collective of as many bytes among at most so many ranks."""
    shape = call.shape
    if not isinstance(shape, CollectiveShape) or shape.ranks <= most:
        return call
    return replace(call, shape=replace(shape, ranks=most))
