"""`llmir serve-sim`: simulate an engine that serves requests over time.

With `--rates`, it runs one simulation per request rate and prints the latencies against the rate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import click

from llmir.api.options import Drafts, Memory, Requests, Servers, Traffic, option
from llmir.base.errors import InputError

from . import inputs, options, output
from .command import command, line
from .options import Declared, Integer, Milliseconds, parse_value

ALONE = ("rate", "closed", "trace", "requests_out", "steps_out", "trace_out", "price")


MOST_RATES = 1000


class Rates(Declared):
    """Several request rates: numbers, and ranges as `llmir sweep` takes them."""

    def __init__(self) -> None:
        super().__init__(option(Traffic, "rate"))
        self.name = "RANGE"

    def read(self, name: str, text: str) -> Any:
        """Parse numbers and ranges that are separated by commas."""
        from llmir.backends.search.sweep import range_values

        rates: list[Any] = []
        for part in text.split(","):
            if ":" in part:
                rates += range_values(name, part.strip(), partial(super().check, name))
            else:
                rates.append(parse_value(part))
        return rates

    def check(self, name: str, value: Any) -> Any:
        """Two or more rates, in ascending order, without duplicates."""
        rates = sorted({super(Rates, self).check(name, each) for each in value})
        if not 2 <= len(rates) <= MOST_RATES:
            expected = f"rates from two up to {MOST_RATES:,}, such as 2,6,10 or 2:18:4"
            raise InputError(f"{name}: expected {expected}; got {len(rates):,}")
        return rates


def alone(given: Mapping[str, Any]) -> None:
    """Raise InputError for options of a single run."""
    for name in ALONE:
        if given[name] is not None:
            option = name.replace("_", "-")
            raise InputError(f"--{option}: cannot be combined with --rates; leave one of them out")


FILES = ("trace", "output_file", "requests_out", "steps_out", "trace_out")


@command("serve-sim", "Latencies of requests that arrive over time, simulated step by step.")
@options.model
@options.hardware
@options.take(Traffic, "rate")
@click.option(
    "--rates",
    type=Rates(),
    help="Several rates, such as 2,6,10 or 2:18:4, instead of --rate; prints latencies against the rate "
    "(-o late.html, late.png).",
)
@options.take(Traffic, *("burstiness", "closed", "trace", "speed", "prompt", "generate", "lengths"))
@options.take(Traffic, "requests", "seed")
@click.option(
    "--replications",
    type=Integer(2),
    help="Number of runs with consecutive seeds; prints confidence intervals.",
)
@options.take(Servers, "replicas", "router", "prefill_replicas", "decode_replicas", "link")
@click.option(
    "--decode-tp", type=Integer(), help="Tensor-parallel ranks of each decode server.  [default: --tp]"
)
@options.take(Traffic, "prefix_hits", "cancel", "turns", "think_s", "timeout_s")
@click.option(
    "--warm-up",
    type=Integer(0),
    help="Number of first requests that are excluded from the results.  [default: 0, or 2 per --closed user]",
)
@options.take(
    Requests,
    "max_ttft",
    type=Milliseconds(),
    help="Limit of TTFT for goodput, such as 1s; a bare number is in ms.",
)
@options.take(
    Requests, "max_tpot", type=Milliseconds(), help="Limit of TPOT for goodput (the mean of a request)."
)
@click.option("--requests-out", metavar="FILE", help="CSV file to write, with a line for each request.")
@click.option(
    "--steps-out", metavar="FILE", help="CSV file to write, with a line for each series of equal steps."
)
@click.option(
    "--trace-out",
    metavar="FILE",
    help="Timeline of servers and requests to write, for Perfetto (.json[.gz]).",
)
@options.cost_options
@options.receive_interval
@options.lowering
@options.draft
@options.speculation
@options.parallel
@options.limits
@options.price_option
@options.max_size
@options.form("table", "json", "csv", "md", "html", "page")
@options.output(
    "File to write; its suffix sets the format: .txt, .json, .csv, .md, .html (page), or .png, .svg or .pdf "
    "(picture)."
)
def serve_sim(**given: Any) -> None:
    """Simulate an engine that serves requests: queues, batches, chunked prefill, KV blocks, preemptions.

    The scheduler is that of the engine. vllm fills each step with decodes and then with chunks of prompts.
    sglang runs prefill first, in separate steps. trtllm runs whole prompts together with decodes. The
    engine's profile sets the block size, and the largest numbers of tokens and sequences per step. The time
    of a step is the time that `llmir analyze` estimates, including the engine's CPU overhead.

    \b
    llmir serve-sim llama3.1-8b --rate 18 --prompt lognormal:512,0.6
    llmir serve-sim qwen3-32b --tp 2 --trace chats.csv --max-ttft 1000
    llmir serve-sim qwen3-32b --tp 2 --closed 64 --prompt 4000 --engine sglang
    llmir serve-sim llama3.1-8b --rate 60 --replicas 4 --router least-loaded
    llmir serve-sim llama3.1-8b --rate 30 --prefill-replicas 2 --link 50GBps
    llmir serve-sim llama3.1-8b --rate 10 --draft-tokens 4 --acceptance 0.7
    llmir serve-sim llama3.1-8b --rates 2:18:4 -o latencies.html
    """
    from llmir.api.save import trace
    from llmir.api.serve import replicate, simulate, simulate_rates
    from llmir.backends.export import serving
    from llmir.backends.export.files import write
    from llmir.backends.simulate.replications import RateSeries, Replications
    from llmir.backends.simulate.result import Simulation

    files = [given[name] for name in FILES if given[name] is not None]
    if twice := next((name for i, name in enumerate(files) if name in files[:i]), None):
        raise InputError(f"{twice}: is named twice and would be overwritten; name another file")
    times, several = given["replications"], given["rates"] is not None
    if several:
        alone(given)
    form = output.choose(
        given["output_file"], given["form"], RateSeries if several else Replications if times else Simulation
    )
    size = output.check_page(form, given["max_size"])
    outputs = {"requests_out": serving.requests_csv, "steps_out": serving.steps_csv}
    _single(given)
    inputs.check_drafts(given)
    program = inputs.lower(given)
    limits = {f"{name}_s": given[name] and given[name] * 1e-3 for name in ("max_ttft", "max_tpot")}
    asked: dict[str, Any] = {"warm_up": given["warm_up"], **limits}
    servers, traffic = inputs.taken(Servers, given), inputs.taken(Traffic, given)
    asked |= {"memory": inputs.taken(Memory, given), "estimation": inputs.estimation(given)}
    asked |= {"drafts": inputs.drafts(given)}
    if given["decode_tp"] is not None:
        if given["link"] is None:
            raise InputError("--decode-tp: needs --link, which joins prefill and decode servers")
        decode = {**given, "tp": given["decode_tp"]}
        program_after = inputs.lower(decode)
        drafts: Any = inputs.drafts(decode) or Drafts()
        servers = replace(
            servers,
            decode_program=program_after,
            decode_verify=drafts.verify,
            decode_draft=drafts.draft_model,
        )
    asked |= {"servers": servers}
    (device,) = inputs.with_prices(given, inputs.link_hardware(given, program))
    if several or times:
        again = (
            simulate_rates(program, device, traffic, given["rates"], times, **asked)
            if several
            else replicate(program, device, traffic, times, **asked)
        )
        output.result(again, form, given["output_file"], **size)
        output.note(*again.notes)
        return
    found = simulate(program, device, traffic, **asked)
    output.result(found, form, given["output_file"], **size)
    for name, text in outputs.items():
        if given[name] is not None:
            write(given[name], text(found))
            line("wrote", given[name])
    if given["trace_out"] is not None:
        line("wrote", str(trace(found, given["trace_out"])))
    output.note(*found.notes)


def _single(given: Mapping[str, Any]) -> None:
    """InputError for files that describe one run if there are several runs, and for files that cannot be
    written.
    """
    from llmir.backends.export.timeline import check_target

    times = given["replications"]
    for name in ("requests_out", "steps_out", "trace_out"):
        if given[name] is None:
            continue
        if times:
            option = name.replace("_", "-")
            raise InputError(f"--{option}: applies to one run; leave out --replications {times}")
        if name == "trace_out":
            check_target(given[name])
        else:
            output.choose(given[name], None, {".csv": "csv"})
