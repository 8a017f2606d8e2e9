"""Closed forms of many plans as arrays: how fast each answers, and how many requests it answers a second.

B requests in flight each wait for the decode steps of their own tokens and for the prompts of all others, so
that one is answered every cycle / B, where the cycle is (G − 1) · d(B) + B · r. In each of its steps
B / (G − 1) requests end, so that k = B / (G − 1) prompts are read at once, one at least and no more than a
step has tokens for: r is a k-th of what reading them takes. A step that reads beside decodes reads weights
and launches kernels once, so that it takes less by a decode step of one sequence.

Data-parallel ranks go abreast, and micro-batches follow one another through stages, so that all wait for the
whole of a prompt, but once for all that come in a step. Of λ = B / (G − 1) on average, who come by Poisson's
law, each costs (1 − exp(−λ)) / λ of that; no less than it keeps its rank and the slowest stage busy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from llmir.backends.request.candidates import Candidates
from llmir.backends.request.speculation import drafting
from llmir.base.errors import LlmirError
from llmir.base.values import Array
from llmir.hw.scheduler import Scheduler

from .structure import Structure

# Requests in flight that are tried, beside as many as have room.
BATCHES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
Reads = tuple[tuple[int, int], ...]  # new tokens, after so many cached


class Points(NamedTuple):
    """Plans of one replica, an entry each: the number of a structure, tokens of a step, requests in flight.

    `ttft_s` is how long a prompt is read that does not wait, `tpot_s` the mean time of a later token with all
    in flight, `rate` the requests that are answered a second, and `devices` those that a replica takes.
    """

    structure: Array
    chunk: Array
    batch: Array
    ttft_s: Array
    tpot_s: Array
    rate: Array
    devices: Array

    def only(self, kept: Array) -> Points:
        """Those of a mask, or of these numbers."""
        return Points(*(column[kept] for column in self))


class Times(NamedTuple):
    """Seconds of a structure's steps, by lane of its pipeline: what a prompt takes, and a decode step.

    Of a prompt in each chunk size the time until it is read alone, and the time that prompts read at once
    keep the slowest stage busy beside decodes: how many, and how long; and how long all others wait for one
    that comes alone, on its rank and through all stages. How many are read in a second where nothing else is
    done. Of a decode step by batch.
    """

    reads: dict[int, tuple[float, Array, Array, float]]
    alone: dict[int, float]
    decodes: dict[int, float]


def steps(prompt: int, chunk: int, cached: int = 0) -> Reads:
    """The steps that read a prompt alone, so many tokens each; a last one that would have 1 goes with it.

    >>> steps(4000, 1500), steps(1001, 1000), steps(4000, 1500, 2000)
    (((1500, 0), (1500, 1500), (1000, 3000)), ((1001, 0),), ((1500, 2000), (500, 3500)))
    """
    starts = list(range(cached, prompt, chunk))
    if len(starts) > 1 and prompt - starts[-1] == 1:
        starts.pop()
    ends = [*starts[1:], prompt]
    return tuple((end - start, start) for start, end in zip(starts, ends, strict=True))


def packs(prompt: int, chunk: int) -> list[int]:
    """How many prompts one step may read, by powers of two up to as many as it has tokens for.

    >>> packs(1500, 2048), packs(500, 8192)
    ([1], [1, 2, 4, 8, 16])
    """
    most = max(1, chunk // prompt)
    return sorted({*(1 << n for n in range(most.bit_length())), most})


def times(
    structures: Sequence[Structure],
    prompt: int,
    generate: int,
    chunks: Sequence[Sequence[int]],
    batches: Sequence[Sequence[int]],
    cached: int = 0,
) -> list[Times | str]:
    """Of structures on one device, each with its sizes of steps; in place of those refused, why.

    Of a prompt so many tokens are `cached`.
    """
    if not structures:
        return []
    programs = [s.program for s in structures]
    try:
        candidates = Candidates([(program, (1,)) for program in programs], structures[0].model)
    except LlmirError as error:
        return [str(error)] * len(structures)
    sizes = sorted({chunk for each in chunks for chunk in each})
    reads = {chunk: steps(prompt, chunk, cached) for chunk in sizes}
    pairs = sorted({pair for each in reads.values() for pair in each})
    lanes = sorted({1, *(s.split.dp for s in structures)})  # a prompt alone, and one on each rank
    new, context = (np.array(column) for column in zip(*pairs, strict=True))
    whole, busy = candidates.seconds(np.array(lanes)[:, None], new[None], context[None])
    every = sorted(
        {-(-n // s.split.pp) for s, each in zip(structures, batches, strict=True) for n in each} | set(lanes)
    )
    period, interval = candidates.seconds(np.array(every), 1, prompt + generate // 2)
    half = prompt + generate // 2
    drafter = _drafting(structures)
    verify, own_interval = _verifying(structures, drafter, np.array(every), half) or (period, interval)
    place = {size: i for i, size in enumerate(every)}
    column = {pair: i for i, pair in enumerate(pairs)}
    many = sorted({n for chunk in sizes for n in packs(prompt - cached, chunk)})
    together = np.array(lanes)[:, None] * np.array(many), prompt - cached, cached
    _, packed = candidates.seconds(*together)
    if drafter:  # which reads all that the model does, and a token of what decodes beside it
        more = drafter.seconds(np.array(lanes)[:, None], new[None], context[None])
        whole, busy = whole + more[0], busy + more[1]
        packed = packed + drafter.seconds(*together)[1]
        interval = interval + drafter.seconds(np.array(every), 1, half)[1]
    found: list[Times | str] = []
    for i, s in enumerate(structures):
        if i in candidates.refused:
            found.append(candidates.refused[i])
            continue
        lane, scheduler = lanes.index(s.split.dp), s.model.runs and s.model.runs.section(Scheduler)
        mixes = scheduler.mixes if scheduler else True
        shared = float(interval[i, place[s.split.dp]]) if mixes else 0.0
        own, alone = {}, {}
        for chunk in chunks[i]:
            at = [column[pair] for pair in reads[chunk]]
            read, first = float(busy[i, lane, at].sum()), float(busy[i, 0, at].sum())
            latency = first + float(whole[i, 0, at[-1]] - busy[i, 0, at[-1]])
            at_once = packs(prompt - cached, chunk)
            spent = packed[i, lane, [many.index(n) for n in at_once]]
            spent[0] = read
            alone[chunk] = float((np.array(at_once) * s.split.dp / spent).max()) if spent.all() else np.inf
            beside = np.maximum(spent - shared * np.where(np.array(at_once) == 1, len(at), 1), 0.0)
            steps_of_one = (len(at) + s.split.pp - 1) / s.split.pp
            held = max(latency - steps_of_one * float(period[i, place[1]]) * mixes, 0.0)
            own[chunk] = latency, np.array(at_once, dtype=float), beside / s.split.dp, held
        decodes = {}
        for batch in batches[i]:
            at_batch = place[-(-batch // s.split.pp)]
            decodes[batch] = max(float(verify[i, at_batch]), s.split.pp * float(own_interval[i, at_batch]))
        found.append(Times(own, alone, decodes))
    return found


def _drafting(structures: Sequence[Structure]) -> Candidates | None:
    """What drafts on each; None where nothing runs for that."""
    each = [s.drafts and drafting(s.program, s.drafts.drafter) for s in structures]
    return Candidates([(of, (1,)) for of in each if of], structures[0].model) if all(each) else None


def _verifying(
    structures: Sequence[Structure], drafter: Candidates | None, batch: Array, context: int
) -> tuple[Array, Array] | None:
    """Seconds of steps that verify drafts, and of those that make them; None where there are none."""
    drafts = [s.drafts for s in structures if s.drafts]
    if not drafts:
        return None
    model, count = structures[0].model, drafts[0].tokens
    every = Candidates([(each.verify, (1,)) for each in drafts], model)
    period, interval = every.seconds(batch, count + 1, context)
    if drafter:
        more = drafter.seconds(batch, 1, context)
        period, interval = period + count * more[0], interval + count * more[1]
    return period, interval


def points(
    number: int, structure: Structure, of: Times, generate: int, admitted: Mapping[int, Sequence[int]]
) -> Points:
    """All plans of a structure: each chunk with the batches that are admitted then."""
    rows = []
    steps_of_one = max(generate - 1, 1) / (structure.drafts.yielded if structure.drafts else 1.0)
    for chunk, batches in admitted.items():
        latency, at_once, spent, held = of.reads[chunk]
        for batch in batches:
            come = batch / steps_of_one  # in a step, on average
            reading = min(max(batch / structure.split.dp / steps_of_one, 1.0), at_once[-1])
            busy = float(np.interp(reading, at_once, spent)) / reading
            if structure.split.dp * structure.split.pp > 1:  # who come in one step wait for one another's
                busy = max(busy, held * -np.expm1(-come) / come)
            cycle = (generate > 1) * steps_of_one * of.decodes[batch] + batch * busy
            later = max(generate - 1, 1)
            tpot = (cycle - busy) / later if generate > 1 else np.nan
            rate = batch / cycle if cycle else np.inf
            rows.append((number, chunk, batch, latency, tpot, rate, structure.split.devices))
    return Points(*(np.array(column) for column in zip(*rows, strict=True)))


def joined(parts: Sequence[Points]) -> Points:
    """One after another."""
    return Points(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
