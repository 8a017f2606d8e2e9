"""A cost model on the nodes that a program's ranks need, and the links that they send over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, cast

from llmir.backends.cost.op_time import Model
from llmir.backends.work.network import ways
from llmir.backends.work.nodes import Ranks, check, house, ranks
from llmir.backends.work.rows import Row, rows
from llmir.base.errors import InputError
from llmir.base.values import FrozenDict
from llmir.hw.device import Device
from llmir.hw.link import Link
from llmir.ir.core.op import Work
from llmir.ir.core.program import Program


def placed(program: Program, model: Model) -> Model:
    """The model on the nodes that the ranks need; HardwareError if they do not fit, or nothing joins them.

    InputError for a share of a link that nothing goes over.
    """
    return for_ranks(ranks(program), model, program)


def for_ranks(of: Ranks, model: Model, program: Program, sent: Iterable[Row] = ()) -> Model:
    """The same for other ranks of the program, which send these rows besides."""
    device = house(of, model.device)
    check(of, device)
    if shares := getattr(model, "of_links", ()):
        used = {*links(program, device), *_links(device, (row.work for row in sent))}
        if idle := [name for name in shares if name not in used]:
            raise InputError(f"efficiency: {idle[0]} cannot act, nothing of {program.name} goes over it")
    return model if device is model.device else moved(model, device)


@lru_cache(maxsize=256)
def moved(model: Model, device: Device) -> Model:
    """The same cost model on another device."""
    return cast("Model", replace(cast("Any", model), device=device))


@lru_cache(maxsize=256)
def links(program: Program, device: Device) -> Mapping[str, Link]:
    """The links that ranks send over in any phase, by name; `network` is between nodes."""
    sent = (row.work for p in (program, *program.phases.values()) for row in rows(p) if row.work.wire)
    return FrozenDict(_links(device, sent))


def _links(device: Device, sent: Iterable[Work]) -> dict[str, Link]:
    used = (leg.span for work in sent for way in ways(device, work.pattern, work.group) for leg in way.legs)
    return {span.name: span.link for span in used}
