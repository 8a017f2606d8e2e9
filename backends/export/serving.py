"""A server's answer beside a single batch's, and what makes up the difference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from llmir.backends.request.service import Service
from llmir.base.formats import exporter

from . import json, spending, table, units, wording

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

_NONE = "–"
_BAR = 24  # columns of the longest bar
_STYLES = ("blue", "bright_black", "dark_orange")


def headings(service: Service) -> tuple[str, str, str]:
    """Of the columns: a label, the batch, the loop."""
    users = service.batch
    many = f"{users:,} users in a closed loop" if users > 1 else "1 user in a closed loop"
    return "", f"one batch of {users:,}", many


def compared(service: Service) -> list[tuple[str, str, str]]:
    """A row a figure: what it is, of the batch, and of the loop."""
    loop, ranks = service.loop, service.program.devices
    first = wording.within(service.prefill.error)
    batch = units.time(service.ttft_s) + first
    if wording.reads(service) > 1 and service.batch > 1:
        batch += f", mean {units.time(service.ttft_mean_s)}"
    rows = [("TTFT, first token", batch, units.time(loop.ttft_s) + first)]
    if service.tpot_s is not None and service.decode and loop.tpot_s is not None:
        later = units.time(service.tpot_s) + wording.within(service.decode.error)
        served = units.time(loop.tpot_s) + wording.within(loop.error)
        rows.append(("TPOT, later tokens", later, served))
    each = f", {units.digits(loop.output_tokens_per_s / ranks)} a device" if ranks > 1 else ""
    rates = units.digits(service.output_tokens_per_s), units.digits(loop.output_tokens_per_s)
    rows += [("end to end", units.time(service.e2e_s), units.time(loop.e2e_s))]
    rows += [("output tokens/s", rates[0], rates[1] + each)]
    if service.tpot_s and loop.tpot_s:
        users = units.digits(1 / service.tpot_s), units.digits(1 / loop.tpot_s)
        rows.append(("tokens/s a user", *users))
    rows += spending.compared(service, service.busy_output_tokens_per_s, loop.output_tokens_per_s)
    held = f"{loop.in_flight:,} of {loop.max_in_flight:,} {loop.limit}"
    rows.append(("in flight", f"{service.batch:,}" if service.fits else "does not fit", held))
    if service.max_tpot_s is not None:
        most, limit = service.most, f"most at {units.time(service.max_tpot_s)}"
        users_most = "none, not even 1"
        if most:
            users_most = f"{most.concurrency:,} users, {units.digits(most.output_tokens_per_s)} tokens/s"
        rows.append((limit, _NONE, users_most))
    return rows


def steps(service: Service) -> str:
    """How the engine fills its steps, in words."""
    loop = service.loop
    mixes, whole = loop.scheduler.mixes, "" if loop.chunk else "whole "
    first = f"{whole}prompts first, then decodes"
    how = f"{whole or 'chunks of '}prompts and decodes together" if mixes else first
    most = "without a limit of tokens (--chunk)"
    if loop.chunk:
        by = f", by {loop.job.budget_by}" if loop.job.budget_by else ""
        most = f"of {loop.chunk:,} tokens at most on each rank{by}"
    reads = wording.reads(service)
    alone = f"all prompts in {f'{reads:,} such steps' if reads > 1 else 'one step'}, then decodes"
    return f"steps {most}: {how}; of the one batch {alone}"


def arrivals(service: Service) -> str:
    """When the users' prompts are taken to come."""
    if service.loop.scheduler.mixes:
        return "Prompts come one by one, spread over the time of an answer."
    return "Prompts come in waves: answers are equally long, begin together and end together."


def why(service: Service) -> list[tuple[str, str, float]]:
    """The terms of the loop's TPOT: milliseconds, what they are, their share."""
    tpot = service.loop.tpot_s or 1.0
    return [
        (f"{units.digits(1e3 * term.time_s)}", term.what, term.time_s / tpot) for term in service.loop.terms
    ]


def _title(service: Service) -> str:
    return f"a token of the loop: {units.time(service.loop.tpot_s or 0.0)} ="


@table.printed(of=Service)
def service(service: Service) -> Group:
    """The whole report: what was priced, both answers, why they differ, and the steps of the batch."""
    from rich.text import Text

    names = headings(service)
    answers = table.columns(names)
    for row in compared(service):
        table.add(answers, row, styles=["bold"])
    parts: list[RenderableType] = [answers, ""]
    if terms := why(service):
        parts += [Text(_title(service), style="bold"), _bars(terms)]
    parts += [
        f"{wording.plain(steps(service))}. {arrivals(service)}",
        "",
        table.pairs(wording.memory(service)),
    ]
    return table.answered(service, *parts)


def _bars(terms: list[tuple[str, str, float]]) -> RenderableType:
    """Milliseconds, words, a bar and its share a line."""
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    for justify in ("right", "left", "left", "right"):
        shown.add_column(justify=justify, no_wrap=True)
    for (time, what, share), style in zip(terms, _colours(len(terms)), strict=True):
        bar = "█" * max(0, round(_BAR * share))
        shown.add_row(Text(f"  {time}", style=style), what, Text(bar, style=style), units.percent(share))
    return shown


def _colours(count: int) -> Iterator[str]:
    """Of the first term that of memory, of the last that of compute."""
    yield from (_STYLES[0], *(_STYLES[1],) * (count - 2), *(_STYLES[2],) * (count > 1))


@exporter("md", ".md", of=Service)
def service_markdown(service: Service) -> str:
    """A report to read."""
    terms = [(time, what, units.percent(share)) for time, what, share in why(service)]
    parts = [
        json.workload_markdown(service),
        "## Closed loop\n",
        json.to_markdown(headings(service), compared(service)),
        *([json.to_markdown(("ms a token", "of", "share"), terms, (0, 2))] if terms else []),
        f"{steps(service).capitalize()}. {arrivals(service)}\n",
    ]
    return "\n".join(parts)


@exporter("html", ".html", of=Service)
def service_html(service: Service) -> str:
    """A report as HTML."""
    parts = [
        table.workload_html(service),
        table.caption("closed loop"),
        table.html(headings(service), compared(service)),
    ]
    if terms := why(service):
        rows = [(time, what, units.percent(share)) for time, what, share in terms]
        parts += [table.caption(_title(service)), table.html(("ms", "of", "share"), rows, (0, 2))]
    return "".join((*parts, *(table.caption(line, "small") for line in (steps(service), arrivals(service)))))
