"""Reports of capacity as text: the largest load, the transfer of caches, and the memory of a device.

Order of the file: the answers of `llmir max` with the limit that binds, the answer of `llmir kv`, and the
sum of memory that `llmir explain MODEL memory` prints.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from llmir.backends.memory.kv_capacity import MemoryBreakdown
from llmir.backends.memory.transfer import CacheTransfer
from llmir.backends.request.closed_loop import LENGTHS
from llmir.backends.request.largest import DECODE, PREFILL, CapacityAnswer, CapacityLimit, LargestLoad
from llmir.base.formats import exporter

from . import json, table, units, wording
from .sections import Section, sectioned

if TYPE_CHECKING:
    from rich.console import RenderableType

# Largest load

NAMES = {"ttft": "TTFT", "tpot": "TPOT"}
WHAT = {
    "batch": ("request", "requests that start together"),
    "context": ("token of prompt and output", "tokens of prompt and output"),
    "requests": ("user in a closed loop", "users in a closed loop"),
}
_NONE = "–"


def name(limit: CapacityLimit) -> str:
    """The name of a limit, as tables show it."""
    return NAMES.get(limit.name, limit.name)


def _shown(limit: CapacityLimit, value: float) -> str:
    if limit.unit == "s":
        return units.time(value)
    return units.bytes(value) if limit.unit == "bytes" else f"{value:,.0f}"


def many(answer: CapacityAnswer) -> str:
    """`22 requests that start together`."""
    one, more = WHAT[answer.what]
    if not answer.most:
        return f"none, not even 1 {one}"
    return f"{answer.most:,}{'' if answer.binding else ' or more'} {one if answer.most == 1 else more}"


def left(limit: CapacityLimit) -> str:
    """How much of a limit is used, and how much is left or exceeded."""
    allowed = limit.allowed or 0.0
    rest = allowed - limit.used
    if rest < 0:
        over = f"{_shown(limit, -rest)} above the limit of {_shown(limit, allowed)}"
        return f"{name(limit)} is {_shown(limit, limit.used)}, {over}"
    return (
        f"{name(limit)}: {_shown(limit, limit.used)} of {_shown(limit, allowed)}, {_shown(limit, rest)} free"
    )


def bound(answer: CapacityAnswer) -> str:
    """The limit that decides, and how much one more would need."""
    limit = answer.binding
    if limit is None:
        return "nothing"
    return left(limit) + (f"; {_more(answer)} needs {_shown(limit, limit.more)}" if limit.more else "")


def _more(answer: CapacityAnswer) -> str:
    return "one more" if answer.step == 1 else f"{answer.step:,} more"


def phase(answer: CapacityAnswer, of: str) -> str:
    """The largest value that one phase alone allows, and the limit that decides it."""
    limit = answer.of(of)
    return f"{of} at most {limit.most:,} ({name(limit)})" if limit else f"{of} without a limit"


def capacity_lines(largest: LargestLoad, answer: CapacityAnswer) -> Iterator[tuple[str, str]]:
    """The result in words."""
    each = f" of each of {largest.job.batch:,}" if answer.what == "context" and largest.job.batch > 1 else ""
    yield answer.what, many(answer) + each
    yield "  limit", bound(answer)
    alone = (answer.of(PREFILL), answer.of(DECODE))
    if answer.binding and any(limit is not answer.binding for limit in alone):
        yield "  alone", f"{phase(answer, PREFILL)}; {phase(answer, DECODE)}"
    if not answer.most:
        return
    yield from (("  prefill", _steps(answer, limit)) for limit in answer.limits if not limit.hard)
    used, rate = answer.spent, units.digits(answer.output_tokens_per_s)
    cost = [] if used.usd_per_mtok is None else [f"{wording.usd(used.usd_per_mtok)} per million"]
    drawn = [] if used.watts is None else [f"at most {wording.joules(used.joules_per_token)} per token"]
    yield "  speed", ", ".join([f"{rate} output tokens/s", *cost, *drawn])


def _steps(answer: CapacityAnswer, limit: CapacityLimit) -> str:
    """The tokens that all prompts need in addition to those of a step."""
    if limit.allowed is None or limit.used <= limit.allowed:
        return "all prompts fit in one step"
    one, more = (words.partition(" ")[0] for words in WHAT[answer.what])
    fit = f"{limit.most:,} {one if limit.most == 1 else more}"
    return f"{limit.used:,.0f} prompt tokens take several steps of {limit.allowed:,.0f}; one step fits {fit}"


def rows(answer: CapacityAnswer) -> list[tuple[str, ...]]:
    """A row for each limit that must hold."""
    return [
        (
            name(limit),
            limit.phase,
            _shown(limit, limit.used),
            "none set" if limit.allowed is None else _shown(limit, limit.allowed),
            f"+{_shown(limit, limit.more)}" if limit.more else _NONE,
            "unlimited" if limit.most is None else f"{limit.most:,}",
        )
        for limit in answer.limits
        if limit.hard
    ]


def _server(largest: LargestLoad) -> list[tuple[str, str]]:
    return [("server", wording.model_on_devices(largest.job))]


def head(largest: LargestLoad) -> list[tuple[str, str]]:
    """The model, its requests and their limits."""
    job = largest.job
    limits = (("TTFT", largest.max_ttft_s), ("TPOT", largest.max_tpot_s))
    said = [f"{what} within {units.time(limit)}" for what, limit in limits if limit is not None]
    equal = ["equal output lengths of users"] if largest.lengths == LENGTHS[-1] else []
    asked = [f"prompt {job.prompt:,}", f"generate {job.generate:,}", *said, *equal]
    lines = [pair for pair in wording.head_lines(job) if pair[0] in wording.SERVER_LINES]
    return [*lines, ("requests", ", ".join(asked))]


@sectioned(of=LargestLoad)
def sections(largest: LargestLoad) -> list[Section]:
    """Each answer with the limit that decides and all other limits, and the requests."""
    found = []
    for answer in largest.answers.values():
        found.append(Section(("", ""), list(capacity_lines(largest, answer))))
        headings = ("limit", "phase", f"at {answer.at:,}", "allowed", _more(answer), "alone allows")
        found.append(Section(headings, rows(answer), 2))
    return [
        found[0]._replace(rows=[*_server(largest), *found[0].rows]),
        *found[1:],
        Section(("", ""), head(largest)),
    ]


@exporter("csv", ".csv", of=LargestLoad)
def to_csv(largest: LargestLoad) -> str:
    """One line for each limit of each answer, in SI units."""
    found: list[dict[str, Any]] = []
    for answer in largest.answers.values():
        of = {"answer": answer.what, "answer_most": answer.most}
        found += [{**of, **limit._asdict(), "binds": limit is answer.binding} for limit in answer.limits]
    return json.to_csv(found)


def misses(largest: LargestLoad) -> list[str]:
    """The limits that even one request, token or user misses."""
    found = []
    for answer in largest.answers.values():
        late = [limit for limit in answer.limits if limit.hard and limit.most == 0]
        if not answer.most:
            found.append(
                f"{answer.what}: even 1 {WHAT[answer.what][0]} misses a limit: {'; '.join(map(left, late))}"
            )
    return found


# Transfer of caches


def transfer_lines(found: CacheTransfer) -> list[tuple[str, str]]:
    """The size of the caches, the link, and the time."""
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
    """Lines that each consist of a label and its text."""
    return [Section(("", ""), transfer_lines(found))]


# Memory of a device

# The memory to which the share of the engine's rule refers, and where activations are.
WHOLE = {
    None: "physical memory",
    "physical": "physical memory",
    "static": "physical memory less overhead",
    "free": "the memory that all other terms leave, plus those terms",
}
RANKS = "CUDA context, collective buffers"


@table.table_of(of=MemoryBreakdown)
def shown(of: MemoryBreakdown) -> RenderableType:
    """The tokens that fit, and then one line per term: GB as in other reports, GiB as in engine logs."""
    from rich.padding import Padding
    from rich.text import Text

    by = f" with {of.engine}" if of.engine else ""
    title = Text(wording.plain(f"Memory of one GPU: {of.model} on {of.device}{by}"), style="bold")
    rows = table.columns(["", "GB", "GiB", ""], ["GB", "GiB"], [""])
    for row in memory_lines(of):
        table.add(rows, row, styles=["bold"])
    tokens = "any number of tokens" if of.kv_tokens is None else f"{of.kv_tokens:,} tokens"
    answer = f"The KV cache holds {tokens}: {requests(of)}."
    return table.stack(title, Text(answer), "", Padding(rows, (0, 0, 0, 2), expand=False))


def memory_lines(of: MemoryBreakdown) -> list[tuple[str, ...]]:
    """The terms: name, GB, GiB, and origin of each. Usable memory is the sum of the terms below it."""
    reserve = f", less {units.bytes(of.reserve_bytes)}" if of.reserve_bytes else ""
    nominal = "nominal; the physical size is not known"
    if of.physical_bytes != of.nominal_bytes:
        nominal = f"the datasheet says {_gib(of.nominal_bytes)} GiB"
    aside = " (outside the usable memory)" if of.rule == "static" else ""
    graphs = f", {_gib(of.graph_bytes)} GiB for CUDA graphs" if of.graph_bytes else ""
    tokens = "any number of tokens" if of.kv_tokens is None else f"{of.kv_tokens:,} tokens"
    limits = ""
    if of.max_num_seqs is not None:
        limits = f"; a step has at most {of.max_batched_tokens:,} tokens and {of.max_num_seqs:,} sequences"
    return [
        ("physical", *_both(of.physical_bytes), nominal),
        ("usable", *_both(of.usable_bytes), f"{100 * of.share:.4g}% of {WHOLE[of.rule]}{reserve}"),
        ("weights", *_both(of.weight_bytes), ""),
        ("activations", *_both(of.activation_bytes), of.fullest + aside),
        *([("overhead", *_both(of.overhead_bytes), RANKS + graphs + aside)] if of.engine else []),
        ("KV cache", *_both(of.kv_bytes), _rest(of)),
        ("", "", "", f"{tokens}{_blocks(of)}"),
        ("", "", "", f"{requests(of)}{limits}"),
        *([("", "", "", _concurrency(of))] if of.rule == "physical" else []),
    ]


def _concurrency(of: MemoryBreakdown) -> str:
    """The maximum concurrency in vLLM's log."""
    assert of.max_concurrency is not None, "an engine logs it"
    fewer = of.max_concurrency < 0.99 * of.max_requests
    counted = ", which also counts the tokens of a step in each window" if fewer else ""
    return f"maximum concurrency {of.max_concurrency:,.2f}x in the log of {of.engine}{counted}"


def requests(of: MemoryBreakdown) -> str:
    """`192 requests of 2,303 tokens at once`."""
    tokens = "1 token" if of.request_tokens == 1 else f"{of.request_tokens:,} tokens"
    return f"{of.max_requests:,} requests of {tokens} at once{_unlike(of)}"


def _rest(of: MemoryBreakdown) -> str:
    """The memory for caches, or the missing memory."""
    held = of.weight_bytes + (of.activation_bytes + of.overhead_bytes if of.rule != "static" else 0)
    missing = held - of.usable_bytes
    return (
        "the rest of the usable memory"
        if missing < 0
        else f"nothing is left, {_gib(missing)} GiB are missing"
    )


def _unlike(of: MemoryBreakdown) -> str:
    """The reason why fewer requests fit than the cache tokens divided by their length."""
    if not of.engine:
        return ", prefilled in one step"
    return "" if of.keeps_all else ", by what windows and states keep"


def _blocks(of: MemoryBreakdown) -> str:
    return f", in blocks of {of.block}" if of.block > 1 else ""


def _both(bytes: float) -> tuple[str, str]:
    """GB and GiB."""
    return f"{bytes / 1e9:,.2f}", _gib(bytes)


def _gib(bytes: float) -> str:
    return f"{bytes / 2**30:,.2f}"
