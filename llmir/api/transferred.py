"""KV caches that are moved over a link: `kv`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from llmir.base import arguments
from llmir.base.errors import InputError
from llmir.ir.core.program import Program
from llmir.ir.tools.verify import checked_program

from .estimate import _model

if TYPE_CHECKING:
    from llmir.backends.cost.own import CostModel
    from llmir.backends.memory.transfer import CacheTransfer


def kv(
    program: Program,
    hw: Any,
    *,
    batch: int = 1,
    prompt: int = 2048,
    link: str = "host",
    cost: str | CostModel | None = None,
    engine: str | None = None,
    efficiency: Mapping[str, float] | None = None,
) -> CacheTransfer:
    """The caches of `batch` sequences after a prompt, and the time to move them over a link.

    That is `host`, to or from its memory; `nvlink`, `pcie` or what else joins two such devices; `network`, to
    another node; or a rate such as `25GBps,5us`. Ranks send at once, each over its own. InputError for a
    model that keeps none.

    >>> import llmir
    >>> moved = llmir.kv(llmir.load("llama-2-7b"), "rtx3090", prompt=512, link="13.1GBps")
    >>> moved.bytes, round(moved.time_s, 4)
    (268435456, 0.0205)
    """
    from llmir.backends.memory.transfer import transfer

    model, program = _model(hw, cost, engine, efficiency), checked_program(program)
    sequences, tokens = arguments.integer("batch", batch, 1), arguments.integer("prompt", prompt, 1)
    _acts(link, cost, engine, efficiency)
    if not program.cache_bytes(tokens):
        raise InputError(f"{program.name} keeps no caches that could be moved")
    found = transfer(program, model, sequences, tokens, link)
    if other := [name for name in efficiency or () if name not in found.channel.shares]:
        raise InputError(
            f"efficiency: {other[0]} cannot act, caches go over {found.channel.name}; say that one's share"
        )
    return found


def _acts(link: object, cost: object, engine: object, efficiency: object) -> None:
    """InputError for what prices no copy over this link."""
    said = {"cost": cost, "engine": engine, "efficiency": efficiency}
    given = [name for name, value in said.items() if value is not None]
    link = arguments.text("link", link)
    if link.strip()[:1].isdigit() and given:
        raise InputError(
            f"{given[0]}: cannot act, the link's rate is stated ({link.strip()[:40]}); leave it out"
        )
    if link == "host" and engine is not None:
        raise InputError("engine: cannot act, copies to the host are the same on all; leave it out")
