"""Caches on their way over a link."""

from __future__ import annotations

from llmir.backends.memory.transfer import CacheTransfer

from . import units
from .sections import Section, sectioned


def lines(found: CacheTransfer) -> list[tuple[str, str]]:
    """What is sent, over what, and how long it takes."""
    many = f"{found.batch:,} sequence{'s' if found.batch > 1 else ''} of {found.prompt:,} tokens"
    each = f"{units.bytes(found.rank_bytes)} on each of {found.ranks}, which send at once"
    reached = found.rank_bytes / found.time_s if found.time_s else 0.0
    link = found.channel
    return [
        ("model", f"{found.model} on {found.device}"),
        ("caches", f"{found.bytes:,} bytes ({units.bytes(found.bytes)}), {many}"),
        *([("of a rank", each)] if found.ranks > 1 else []),
        ("link", f"{link.name}, {units.bytes(link.link.Bps)}/s each way; {link.basis}"),
        ("time", f"{units.time(found.time_s)} ({units.bytes(reached)}/s)"),
    ]


@sectioned(of=CacheTransfer)
def transfer(found: CacheTransfer) -> list[Section]:
    """A label and its words a line."""
    return [Section(("", ""), lines(found))]
