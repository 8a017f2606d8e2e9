"""Loads: requests with their tokens and arrival times, sampled or read from a trace.

Order of the file: the number of tokens that each step of speculative decoding yields (`AcceptedTokens`), the
`Load`, the distributions of lengths, the defaults of closed loops, random requests (`sample_load`), and
traces (`trace_load`).

Lengths are written `512`, `uniform:100,900`, `lognormal:512,0.6` and so on:

>>> import numpy as np
>>> draw = length_distribution("prompt", "uniform:1,3")
>>> sorted(set(draw(np.random.default_rng(0), 100).tolist()))
[1, 2, 3]
>>> length_distribution("prompt", "pareto:3")
Traceback (most recent call last):
...
llmir.base.errors.InputError: prompt: expected constant, uniform, ... or lognormal, got 'pareto'

Formats of traces:

| source | file | columns or keys |
|---|---|---|
| Azure | CSV | `TIMESTAMP, ContextTokens, GeneratedTokens` |
| vidur | CSV | `arrived_at, num_prefill_tokens, num_decode_tokens`, in seconds |
| llmir | CSV | `arrival_s, prompt, generate`, maybe `cancel_tokens, cancel_s`; from `--requests-out` |
| Mooncake, AIPerf | JSON lines | `timestamp` in ms, `input_length, output_length`, optional `hash_ids` |
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from functools import cached_property
from math import inf, log
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from llmir.backends.request.closed_loop import least_answer
from llmir.backends.request.workload import LONGEST
from llmir.base.arguments import choice, integer, number, parse_field, show_value
from llmir.base.dataclass import dataclass
from llmir.base.errors import InputError, UnreadableError
from llmir.base.names import plain
from llmir.base.readers import Budget, decode_text, read_bytes, table
from llmir.base.values import Figures, Immutable, figure

# Accepted tokens of speculative decoding

GROUP = 256  # number of requests that are drawn together
GROUPS = 64  # number of cached groups
Array = np.ndarray[Any, np.dtype[Any]]


class AcceptedTokens(Immutable):
    """The number of tokens that each step yields for each request: the drafts before the first rejected one,
    plus one.

    A step verifies `tokens` drafts, each accepted with probability `acceptance`. For each request, random
    numbers are drawn for the largest possible number of steps, which is `lengths`, its tokens after the
    first. Requests are drawn in groups.
    """

    tokens: int
    acceptance: float
    seed: int
    lengths: Array
    _drawn: OrderedDict[int, Array]

    def __init__(self, tokens: int, acceptance: float, seed: int, lengths: Array) -> None:
        vars(self).update(
            tokens=tokens, acceptance=acceptance, seed=seed, lengths=lengths, _drawn=OrderedDict()
        )

    @cached_property
    def _ends(self) -> list[int]:
        """For each request, the position where its random numbers end within its group."""
        found = np.cumsum(self.lengths)
        before = np.concatenate([[0], found])[: len(found) : GROUP]
        ends: list[int] = (found - np.repeat(before, GROUP)[: len(found)]).tolist()
        return ends

    def __call__(self, request: int) -> Array:
        """The number of tokens of each step of a request, at least one."""
        number, place = divmod(request, GROUP)
        first = self._ends[request - 1] if place else 0
        return self._group(number)[first : self._ends[request]]

    def _group(self, number: int) -> Array:
        known = self._drawn
        if number not in known:
            if len(known) >= GROUPS:
                known.popitem(last=False)
            last = min((number + 1) * GROUP, len(self.lengths)) - 1
            chance = np.random.default_rng((self.seed, 2, number)).random(self._ends[last])
            found = np.ones(len(chance), dtype=np.int64)
            for n in range(1, self.tokens + 1):
                found += chance < self.acceptance**n
            known[number] = found
        return known[number]


# Loads

TOKENS = 512  # tokens of a hash in Mooncake's traces and by AIPerf's default
FAR = 1 << 32  # more blocks than any session has


@dataclass(frozen=True, eq=False)
class Load(Figures):
    """Requests in the order of arrival; arrays have an entry for each.

    A request has `prompt` input tokens, of which `cached` are in the prefix cache, and `generate` output
    tokens. Requests arrive at `arrival_s`. Or each of `users` users sends a request after each response;
    these requests reach the server at least `apart_s` apart.

    - Prefixes: `hashes` of the prefix of each prompt, if known (`kv_blocks.py`).
    - Cancellation: if some requests are canceled earlier, `asked` is the number of tokens that was requested.
      A client gives up a request `timeout_s` after its arrival, or at the client's own time `leave_s`.
    - Sessions: `sessions` is the session of each request. Later turns arrive `think_s` after the previous
      response.
    - Drafts: `drafts` are the verified tokens per step and the acceptance; the yields of steps are drawn with
      `seed`.
    - Lengths: `limit` is the longest possible output of the distribution; None if it is unbounded.
    """

    prompt: Array
    generate: Array
    cached: Array
    arrival_s: Array
    users: int | None = None
    hashes: tuple[tuple[int, ...], ...] = ()
    apart_s: float = 0.0
    asked: Array | None = None
    timeout_s: float | None = None
    leave_s: Array | None = None
    sessions: Array | None = None
    think_s: Array | None = None
    seed: int = 0
    drafts: tuple[int, float] | None = None
    limit: int | None = None

    def __len__(self) -> int:
        return len(self.prompt)

    @figure
    def written(self) -> Array:
        """The number of cached tokens when a request ends: the last generated token is never processed."""
        return np.asarray(self.prompt + self.generate - 1)

    @figure
    def reserved(self) -> Array:
        """The number of cached tokens when a request ends without cancellation."""
        return self.written if self.asked is None else np.asarray(self.prompt + self.asked - 1)

    @figure
    def stays_s(self) -> Array | None:
        """The time that each client waits for the response; None if all wait without limit."""
        if self.leave_s is None:
            return None if self.timeout_s is None else np.full(len(self), self.timeout_s)
        return np.minimum(self.leave_s, np.inf if self.timeout_s is None else self.timeout_s)

    @figure
    def yields(self) -> AcceptedTokens | None:
        """The tokens of each step of each request; None without drafts, with one token per step."""
        return self.drafts and AcceptedTokens(*self.drafts, self.seed, self.generate - 1)

    @property
    def shares(self) -> bool:
        """Whether prompts share known prefixes."""
        return bool(self.hashes) or self.sessions is not None

    @figure
    def after(self) -> Array:
        """The previous turn of each request in its session; -1 without one."""
        found = np.full(len(self), -1)
        if self.sessions is not None:
            order = np.argsort(self.sessions, kind="stable")
            goes_on = np.diff(self.sessions[order]) == 0
            found[order[1:][goes_on]] = order[:-1][goes_on]
        return found

    def hashed(self, block: int) -> tuple[Sequence[Sequence[int]], Array, int]:
        """Hashes of the prefix of each request, the tokens that they cover, and the tokens per hash.

        Sessions have a hash for each block of `block` tokens.
        """
        if self.sessions is None:
            return self.hashes, self.prompt, TOKENS
        many = zip((self.sessions * FAR).tolist(), (-(-self.written // block)).tolist(), strict=True)
        return [range(first, first + n) for first, n in many], self.written, block

    @property
    def longest(self) -> int:
        """Tokens of the longest request, prompt plus output."""
        return sum(self.longest_request)

    @figure
    def longest_request(self) -> tuple[int, int]:
        """The prompt and output of the longest request; the largest possible output if it is bounded."""
        if not len(self):
            return 0, 0
        if self.limit is not None:
            return int(self.prompt.max()), self.limit
        at = int(self.reserved.argmax())
        return int(self.prompt[at]), int(self.reserved[at] - self.prompt[at]) + 1

    @property
    def rate(self) -> float | None:
        """The arrival rate per second; None in a closed loop, without requests, and if all arrive at once.

        For sessions, the long-run rate: all turns count, over the time in which sessions start.
        """
        span = float(self.arrival_s[-1] - self.arrival_s[0]) if len(self) else 0.0
        return (len(self) - 1) / span if span else None

    @property
    def talks(self) -> int | None:
        """The number of sessions; None without sessions."""
        return None if self.sessions is None else int((self.after < 0).sum())

    @property
    def sessions_per_s(self) -> float | None:
        """The sessions that start per second; None without sessions."""
        if self.sessions is None:
            return None
        begin = self.arrival_s[self.after < 0]
        span = float(begin.max() - begin.min())
        return (len(begin) - 1) / span if span else None

    def hit(self, share: float) -> Load:
        """The load in which a share of each prompt is cached; the last token is always prefilled.

        InputError if hashes or sessions already determine which tokens are cached.
        """
        if share and self.shares:
            raise InputError(f"prefix_hits: {share:g}; hashes or sessions determine the cache contents")
        cached = np.minimum(np.floor(share * self.prompt).astype(np.int64), self.prompt - 1)
        return replace(self, cached=cached) if share else self

    def only(self, kept: Array) -> Load:
        """The requests that a mask or an array of indices selects."""
        columns = ("prompt", "generate", "cached", "arrival_s", "asked", "leave_s", "sessions", "think_s")
        some = {name: x[kept] for name in columns if (x := getattr(self, name)) is not None}
        hashes = tuple(self.hashes[i] for i in np.arange(len(self))[kept]) if self.hashes else ()
        return replace(self, hashes=hashes, limit=None, **some)

    def cancelled(self, share: float, rng: np.random.Generator) -> Load:
        """The load in which a share of the requests is canceled after a random part of the output."""
        stops = rng.integers(1, self.generate + 1)
        chosen = rng.random(len(self)) < share
        return replace(self, generate=np.where(chosen, stops, self.generate), asked=self.generate)


# Distributions of lengths

Draw = Callable[[np.random.Generator, int], Array]


class LengthDistribution(NamedTuple):
    """A distribution: the names of its parameters, their lower bounds, and the sampling function.

    `limit` is the index of the parameter that limits the length; None if the distribution has no limit.
    """

    takes: tuple[str, ...]
    least: tuple[float, ...]
    draw: Callable[..., Array]
    limit: int | None = None


LAWS = {
    "constant": LengthDistribution(("tokens",), (1,), lambda rng, count, tokens: np.full(count, tokens), 0),
    "uniform": LengthDistribution(
        ("least", "most"), (1, 1), lambda rng, n, a, b: rng.integers(int(a), int(b) + 1, n), 1
    ),
    "normal": LengthDistribution(
        ("mean", "deviation"), (1, 0), lambda rng, n, mean, by: rng.normal(mean, by, n)
    ),
    "exponential": LengthDistribution(("mean",), (1,), lambda rng, n, mean: rng.exponential(mean, n)),
    # `sigma` is the deviation of the logarithm; the mean is median · exp(sigma² / 2).
    "lognormal": LengthDistribution(
        ("median", "sigma"), (1, 0), lambda rng, n, m, s: rng.lognormal(log(m), s, n)
    ),
}


def length_distribution(name: str, said: object) -> Draw:
    """Build a sampling function for a number of tokens or a distribution; lengths are rounded, at least 1.

    InputError for an unknown distribution or invalid parameters.
    """
    word, values = _law(name, said)

    def draw(rng: np.random.Generator, count: int) -> Array:
        with np.errstate(over="ignore"):
            found = np.maximum(np.rint(LAWS[word].draw(rng, count, *values)), 1)
        if found.max(initial=0) > LONGEST:
            raise InputError(f"{name}: {said!r} gave more than {LONGEST:,} tokens, the limit")
        return np.asarray(found.astype(np.int64))

    return draw


def longest_length(name: str, said: object) -> int | None:
    """The largest length of a distribution; None if it is unbounded.

    >>> longest_length("prompt", "uniform:1,3"), longest_length("prompt", "exponential:3")
    (3, None)
    """
    word, values = _law(name, said)
    limit = LAWS[word].limit
    return None if limit is None else int(values[limit])


def _law(name: str, said: object) -> tuple[str, list[float]]:
    """The name and the numbers of a distribution, or of a number of tokens."""
    word, _, numbers = said.strip().partition(":") if isinstance(said, str) else ("", "", "")
    if not word.isidentifier():
        tokens = integer(name, parse_field(said) if isinstance(said, str) else said, 1, LONGEST)
        return "constant", [float(tokens)]
    law = LAWS[choice(name, word, tuple(LAWS))]
    values = [parse_field(value.strip()) for value in numbers.split(",")] if numbers else []
    if len(values) != len(law.takes):
        raise InputError(f"{name}: {word} takes {' and '.join(law.takes)}, got {said!r}")
    pairs = zip(law.takes, values, law.least, strict=True)
    found = [number(f"{name}: {what} of {word}", value, least, LONGEST) for what, value, least in pairs]
    if word == "uniform" and found[1] < found[0]:
        raise InputError(f"{name}: uniform from {found[0]:g} to {found[1]:g}, the least goes first")
    return word, found


# Closed loops as benchmark clients run them

# InferenceX sends 10 · concurrency prompts, and warms up with 2 · concurrency: `--num-prompts` and
# `--num-warmups` in benchmarks/benchmark_lib.sh of SemiAnalysisAI/InferenceX.
ROUNDS, WARM_ROUNDS = 10, 2
SOME, LEAST_ROUNDS, MOST = 10_000, 4, 100_000  # default requests with many users


def closed_loop_requests(users: int) -> int:
    """The default number of requests of a closed loop: ten per user, fewer beyond 1,000 users."""
    return min(max(min(ROUNDS * users, SOME), LEAST_ROUNDS * users), MOST)


def closed_loop_warm_up(load: Load) -> int:
    """The number of first requests that do not count by default: two for each user who sends more than
    two.
    """
    warm = WARM_ROUNDS * (load.users or 0)
    return warm if warm < len(load) - (load.users or 0) else 0


def spread_lengths(tokens: int) -> str:
    """The distribution of output lengths of up to `tokens` tokens, as benchmark clients use it.

    >>> spread_lengths(1000), spread_lengths(1)
    ('uniform:800,1000', 'uniform:1,1')
    """
    return f"uniform:{least_answer(tokens)},{tokens}"


# Random requests


def sample_load(
    requests: int,
    prompt: object,
    generate: object,
    *,
    rate: float | None = None,
    burstiness: float = 1.0,
    users: int | None = None,
    seed: int = 0,
    cancel: float = 0.0,
) -> Load:
    """Requests with random lengths, at random times or after responses to `users`; reproducible by seed.

    A share `cancel` of them is canceled after a random part of the output.
    """
    streams = [np.random.default_rng(seq) for seq in np.random.SeedSequence(seed).spawn(4)]
    tokens = length_distribution("prompt", prompt)(streams[0], requests)
    answers = length_distribution("generate", generate)(streams[1], requests)
    comes = np.zeros(requests) if rate is None else arrival_times(rate, requests, burstiness, streams[2])
    limit = longest_length("generate", generate)
    load = Load(tokens, answers, np.zeros_like(tokens), comes, users, seed=seed, limit=limit)
    return load.cancelled(cancel, streams[3]) if cancel else load


def arrival_times(rate: float, requests: int, burstiness: float, rng: np.random.Generator) -> Array:
    """Random arrival times with mean rate `rate` per second; gaps have a gamma distribution of shape
    `burstiness`.

    Shape 1 gives a Poisson process; shape n gives the arrivals at each of n servers behind a round-robin
    router.
    """
    return np.cumsum(rng.gamma(burstiness, 1 / (rate * burstiness), requests))


def session_turns(load: Load, turns: object, think_s: float, seed: int) -> Load:
    """Group requests into sessions; the prompt of a turn begins with all earlier prompts and outputs of its
    session.

    `turns` is the distribution of the number of turns. Sessions begin at the arrival times. Before each later
    turn, the user thinks for an exponentially distributed time with mean `think_s`. `cached` contains the
    earlier tokens; a server finds them if they are still in its cache.
    """
    one, two = (np.random.default_rng(seq) for seq in np.random.SeedSequence((seed, 1)).spawn(2))
    ends = np.cumsum(length_distribution("turns", turns)(one, len(load)))
    sessions = np.searchsorted(ends, np.arange(len(load)), side="right")
    first = np.concatenate([[0], ends])[sessions]
    until = np.concatenate([[0], np.cumsum(load.prompt + load.generate)])
    before = until[:-1] - until[first]
    return replace(
        load,
        prompt=load.prompt + before,
        cached=np.maximum(before - 1, 0),
        arrival_s=load.arrival_s[sessions],
        sessions=sessions,
        think_s=two.exponential(think_s, len(load)),
    )


# Traces

BUDGET = Budget(bytes=2 << 30, nodes=0, depth=0)
FIRST = 5  # wrong rows that an error names


class TraceFormat(NamedTuple):
    """The names of the columns for time, prompt and output, the conversion of times, and cancellations.

    Columns for cancellation: the number of tokens after which a client leaves, and the time at which it
    leaves.
    """

    time: str
    prompt: str
    generate: str
    seconds: Callable[[Any], float]
    cancel_tokens: str | None = None
    cancel_s: str | None = None


_CLOCK = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(\.\d+)?(?:Z|[+-]\d\d:\d\d)?")


def _clock(text: Any) -> float:
    """Seconds of `2023-11-16 18:15:46.6805900`; a time zone is ignored, because only differences matter."""
    if not (found := _CLOCK.fullmatch(str(text).strip())):
        raise ValueError
    return datetime.fromisoformat(found[1]).replace(tzinfo=timezone.utc).timestamp() + float(found[2] or 0)


CSV = (
    TraceFormat("TIMESTAMP", "ContextTokens", "GeneratedTokens", _clock),
    TraceFormat("arrived_at", "num_prefill_tokens", "num_decode_tokens", float),
    TraceFormat("arrival_s", "prompt", "generate", float, "cancel_tokens", "cancel_s"),
)
JSON = TraceFormat("timestamp", "input_length", "output_length", lambda ms: float(ms) / 1000)


def trace_load(path: Path, speed: float = 1.0) -> Load:
    """The requests of a file, replayed `speed` times as fast; the first one arrives at time 0.

    `speed` shortens the gaps between arrivals, but not the time for which clients wait. InputError for an
    unknown format, and for rows that are not sorted or have missing, negative or non-numeric cells: the first
    five.
    """
    name = plain(str(path))
    try:
        rows = list(_json(path) if path.suffix.lower() in (".jsonl", ".json") else _csv(path))
    except UnreadableError as error:
        raise InputError(f"{name}: {error}") from None
    found: list[TraceRow] = []
    wrong = []
    for place, (line, row) in enumerate(rows, 1):
        why = row if isinstance(row, str) else "comes before a row above" if _before(row, found) else None
        if why:
            wrong.append(f"row {place} (line {line}): {why}")
        elif not isinstance(row, str):
            found.append(row)
    if wrong:
        more = f"; and {len(wrong) - FIRST:,} more" if len(wrong) > FIRST else ""
        raise InputError(f"{name}: {'; '.join(wrong[:FIRST])}{more}")
    if not found:
        raise InputError(f"{name}: has no requests")
    columns = {name: np.array([getattr(row, name) for row in found]) for name in TraceRow._fields[:-1]}
    time, prompt = columns["time_s"], columns["prompt"]
    stops, leaves = columns["stops"], columns["leave_s"]
    return Load(
        prompt,
        np.minimum(columns["generate"], stops),
        np.zeros_like(prompt),
        (time - time[0]) / speed,
        hashes=tuple(row.hashes for row in found) if any(row.hashes for row in found) else (),
        asked=columns["generate"] if (stops < columns["generate"]).any() else None,
        leave_s=leaves if np.isfinite(leaves).any() else None,
    )


class TraceRow(NamedTuple):
    """A request: its arrival, its tokens, and the tokens and seconds after which its client leaves."""

    time_s: float
    prompt: int
    generate: int
    stops: int
    leave_s: float
    hashes: tuple[int, ...]


def _before(row: TraceRow, rows: list[TraceRow]) -> bool:
    return bool(rows) and row.time_s < rows[-1].time_s


Lines = Iterator[tuple[int, "TraceRow | str"]]  # or the error of a row


def _csv(path: Path) -> Lines:
    with table(path) as reader:
        header = [str(name) for name in reader.fieldnames or ()]
        form = next((f for f in CSV if {*f[:3]} <= {*header}), None)
        if form is None:
            known = "; ".join(", ".join(f[:3]) for f in CSV)
            raise UnreadableError(
                f"columns {plain(', '.join(header))} do not belong to a known trace format; known "
                f"formats: {known}"
            )
        for row in reader:
            yield reader.line_num, _row(form, row)


def _json(path: Path) -> Lines:
    for line, text in enumerate(decode_text(read_bytes(path, BUDGET), BUDGET).splitlines(), 1):
        if text.strip():
            try:
                row = json.loads(text)
            except (ValueError, RecursionError):
                row = None
            yield line, _row(JSON, row) if isinstance(row, dict) else f"no JSON object, {show_value(text)}"


class _TraceRowError(Exception):
    """The error in a row."""


def _row(form: TraceFormat, row: Mapping[str, Any]) -> TraceRow | str:
    """The request in a row, or the error in the row."""
    if missing := [name for name in form[:3] if row.get(name) in (None, "")]:
        return f"{missing[0]} is missing"
    try:
        time_s = _time(form, form.time, row)
        prompt, generate = (_tokens(name, row[name], LONGEST) for name in form[1:3])
        stops, leave_s = generate, inf
        if form.cancel_tokens and row.get(form.cancel_tokens) not in (None, ""):
            stops = _tokens(form.cancel_tokens, row[form.cancel_tokens], generate)
        if form.cancel_s and row.get(form.cancel_s) not in (None, ""):
            leave_s = _time(form, form.cancel_s, row) - time_s
            if leave_s <= 0:
                return (
                    f"{form.cancel_s} is {show_value(row[form.cancel_s])}, expected a time after {form.time}"
                )
    except _TraceRowError as wrong:
        return str(wrong)
    hashes = row.get("hash_ids") or ()
    if not isinstance(hashes, list | tuple) or not all(type(each) is int for each in hashes):
        return f"hash_ids is {show_value(hashes)}, expected a list of integers"
    return TraceRow(time_s, prompt, generate, stops, leave_s, tuple(hashes))


def _time(form: TraceFormat, name: str, row: Mapping[str, Any]) -> float:
    try:
        time_s = form.seconds(row[name])
    except (ValueError, TypeError, OverflowError):
        time_s = -1.0
    if not 0 <= time_s < inf:
        raise _TraceRowError(f"{name} is {show_value(row[name])}, expected a time from 0 up")
    return time_s


def _tokens(name: str, cell: Any, most: int) -> int:
    try:
        count = float(cell)
    except (ValueError, TypeError, OverflowError):
        count = -1.0
    if not (1 <= count <= most and count.is_integer()):
        raise _TraceRowError(f"{name} is {show_value(cell)}, expected tokens from 1 to {most:,}")
    return int(count)
