"""The sum of a device's memory, as a terminal shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmir.backends.memory.memory_sum import MemorySum

from . import table, units, wording

if TYPE_CHECKING:
    from rich.console import RenderableType

# What the share is a share of, by the engine's rule, and where activations lie.
WHOLE = {
    None: "physical memory",
    "physical": "physical memory",
    "static": "physical memory less overhead",
    "free": "what all else leaves, and that",
}
RANKS = "contexts, buffers of collectives"


@table.printed(of=MemorySum)
def shown(of: MemorySum) -> RenderableType:
    """A line a term, in GiB as logs have them."""
    from rich.padding import Padding
    from rich.text import Text

    by = f", as {of.engine} holds it" if of.engine else ""
    title = Text(wording.plain(f"memory of a rank: {of.model} on {of.device}{by}"), style="bold")
    rows = table.columns(["", "GiB", ""], ["GiB"], [""])
    for row in lines(of):
        table.add(rows, row, styles=["bold"])
    return table.stack(title, "", Padding(rows, (0, 0, 0, 2), expand=False))


def lines(of: MemorySum) -> list[tuple[str, str, str]]:
    """Each term: its name, GiB, and how it comes about."""
    reserve = f", less {units.bytes(of.reserve_bytes)}" if of.reserve_bytes else ""
    nominal = "nominal, what the driver gives is not known"
    if of.physical_bytes != of.nominal_bytes:
        nominal = f"physical, of {_gib(of.nominal_bytes)} nominal"
    aside = " (beside what may be used)" if of.rule == "static" else ""
    graphs = f", {_gib(of.graph_bytes)} for CUDA graphs" if of.graph_bytes else ""
    tokens = "any number of tokens" if of.kv_tokens is None else f"{of.kv_tokens:,} tokens"
    limits = ""
    if of.max_num_seqs is not None:
        limits = f"; a step takes {of.max_batched_tokens:,} tokens, of {of.max_num_seqs:,} sequences at most"
    return [
        ("memory", _gib(of.physical_bytes), nominal),
        ("usable", _gib(of.usable_bytes), f"{100 * of.share:.4g}% of {WHOLE[of.rule]}{reserve}"),
        ("weights", _gib(of.weight_bytes), ""),
        ("activations", _gib(of.activation_bytes), of.fullest + aside),
        *([("overhead", _gib(of.overhead_bytes), RANKS + graphs + aside)] if of.engine else []),
        ("KV cache", _gib(of.kv_bytes), _rest(of)),
        ("", "", f"{tokens}{_blocks(of)}"),
        ("", "", f"{requests(of)}{limits}"),
    ]


def requests(of: MemorySum) -> str:
    """`192 requests of 2,303 tokens at once`."""
    tokens = "1 token" if of.request_tokens == 1 else f"{of.request_tokens:,} tokens"
    return f"{of.max_requests:,} requests of {tokens} at once{_unlike(of)}"


def _rest(of: MemorySum) -> str:
    """What is left for caches, or how much is missing."""
    held = of.weight_bytes + (of.activation_bytes + of.overhead_bytes if of.rule != "static" else 0)
    missing = held - of.usable_bytes
    return "the rest" if missing < 0 else f"nothing is left, {_gib(missing)} are missing"


def _unlike(of: MemorySum) -> str:
    """Why there are not as many requests as tokens of cache divided by their length."""
    if not of.engine:
        return ", all read in one step"
    return "" if of.keeps_all else ", by what windows and states keep"


def _blocks(of: MemorySum) -> str:
    return f", in blocks of {of.block}" if of.block > 1 else ""


def _gib(bytes: float) -> str:
    return f"{bytes / 2**30:,.2f}"
