"""`llmir serve-sim`: requests over time, on an engine that fills its steps as its policy does.

`serve-sim --rates`: latencies against the rate.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from llmir.base.errors import InputError

from . import inputs, options, output
from .command import command, line
from .options import Count, Integer, Milliseconds, Number, parse_value

if TYPE_CHECKING:
    from llmir.backends.simulate.replications import RateSeries as Runs
    from llmir.ir.core.program import Program

ALONE = ("rate", "closed", "trace", "requests_out", "steps_out", "trace_out", "price")


class Rates(Number):
    """Requests a second, several of them."""

    def read(self, name: str, text: str) -> Any:
        """What stands between the commas."""
        return [parse_value(part) for part in text.split(",")]

    def check(self, name: str, value: Any) -> Any:
        """Two rates or more, in order, no one twice."""
        rates = sorted({super(Rates, self).check(name, each) for each in value})
        if len(rates) < 2:
            raise InputError(f"{name}: expected rates from two up, such as 2,6,10; got {len(rates)}")
        return rates


def alone(given: Mapping[str, Any]) -> None:
    """InputError for what is of one run."""
    for name in ALONE:
        if given[name] is not None:
            option = name.replace("_", "-")
            raise InputError(f"--{option}: --rates has runs of its own; leave one of them out")


def run_rates(given: Mapping[str, Any], program: Program, device: Any, asked: Mapping[str, Any]) -> Runs:
    """Runs at each rate."""
    from llmir.api.serve import simulate_rates

    how = {**asked, "seed": asked["seed"] or 0}
    return simulate_rates(program, device, given["rates"], given["replications"], **how)


REQUEST_OPTIONS = (
    *("rate", "burstiness", "closed", "trace", "speed", "prompt", "generate", "requests", "seed"),
    *("prefix_hits", "cancel", "turns", "chunked_prefill", "warm_up", "replicas", "router"),
    *("prefill_replicas", "decode_replicas", "link"),
)
FILES = ("trace", "output_file", "requests_out", "steps_out", "trace_out")


class Lengths(Count):
    """Tokens, or a law with its numbers."""

    name = "TOKENS|LAW"

    def read(self, name: str, text: str) -> Any:
        """The law is read with the requests; it needs numpy."""
        return parse_value(text)

    def check(self, name: str, value: Any) -> Any:
        """Its numbers, before the model is loaded."""
        from llmir.backends.simulate.load import length_distribution

        length_distribution(name, value)
        return value


@command("serve-sim", "Latencies of requests that come over time, simulated step by step.")
@options.model
@options.hardware
@click.option("--rate", type=Number("REQUESTS"), help="Requests a second, which come at random.")
@click.option(
    "--rates",
    type=Rates("N,N,…"),
    help="Instead: several rates, each simulated: latencies against the rate (-o late.html, late.png).",
)
@click.option(
    "--burstiness",
    type=Number("SHAPE", least=1e-3, most=1e6),
    help="Of the gamma law of gaps between them: below 1 they come in bursts, above 1 evenly; N is what each "
    "of N servers gets that are dealt them in turn.  [default: 1, Poisson's law]",
)
@click.option("--closed", type=Count(), help="Instead: users, each of whom asks again when answered.")
@click.option(
    "--trace", metavar="FILE", help="Instead: requests of a file, .csv or .jsonl (docs/serving.md)."
)
@click.option(
    "--speed", type=Number("TIMES"), default=1.0, help="How much faster a trace runs.  [default: 1]"
)
@click.option(
    "--prompt",
    type=Lengths(),
    help="Tokens of a prompt: a number, uniform:LEAST,MOST, normal:MEAN,DEVIATION, exponential:MEAN or "
    "lognormal:MEDIAN,SIGMA.  [default: 2048]",
)
@click.option("--generate", type=Lengths(), help="Tokens generated, likewise.  [default: 128]")
@click.option("--requests", type=Integer(), help="How many, such as 1e5.  [default: 1000]")
@click.option("--seed", type=Integer(0), help="Of what is random.  [default: 0]")
@click.option(
    "--replications", type=Integer(2), help="Run so often, by seeds one after another; with intervals."
)
@click.option(
    "--replicas",
    type=Integer(),
    default=1,
    help="Copies of the model, each on devices of its own.  [default: 1]",
)
@click.option(
    "--router",
    metavar="NAME",
    help="Which replica a request goes to: round-robin, random, least-loaded (the fewest that are not "
    "answered), or prefix-aware (who read most of its prompt before).  [default: round-robin]",
)
@click.option("--prefill-replicas", type=Integer(), help="Instead: servers that read prompts …  [default: 1]")
@click.option("--decode-replicas", type=Integer(), help="… and servers that go on from there.  [default: 1]")
@click.option(
    "--link",
    metavar="LINK",
    help="What caches go over from the first to the second: nvlink or what else joins two such devices, "
    "network, or a rate such as 25GBps,5us.",
)
@click.option("--decode-tp", type=Integer(), help="--tp of the decode servers.  [default: --tp]")
@click.option(
    "--prefix-hits",
    type=Number("SHARE", least=0.0, most=1.0),
    default=0.0,
    help="Share of each prompt that is in the cache already.  [default: 0]",
)
@click.option(
    "--cancel",
    type=Number("SHARE", least=0.0, most=1.0),
    help="Share of requests that are cancelled after a random part of the answer.  [default: 0]",
)
@click.option(
    "--turns",
    type=Lengths(),
    metavar="TURNS|LAW",
    help="Requests are turns of sessions that come at the rate: how many of each.",
)
@click.option("--think", type=Number("S"), help="Mean time between turns (s).  [default: 10]")
@click.option("--timeout", type=Number("S"), help="Requests are given up that take longer (s).")
@click.option(
    "--chunked-prefill/--no-chunked-prefill",
    default=None,
    help="Whether prompts are read in chunks.  [default: as the engine does]",
)
@click.option("--warm-up", type=Integer(0), default=0, help="First requests that do not count.  [default: 0]")
@click.option(
    "--max-ttft",
    type=Milliseconds(),
    help="Goodput is of requests whose first token comes by then, such as 1s; a bare number is ms.",
)
@click.option("--max-tpot", type=Milliseconds(), help="… and later ones (mean of a request, ms).")
@click.option("--requests-out", metavar="FILE", help="Write a CSV line for each request.")
@click.option("--steps-out", metavar="FILE", help="Write a CSV line for each run of equal steps.")
@click.option(
    "--trace-out",
    metavar="FILE",
    help="Write the timeline of servers and requests, for Perfetto (.json[.gz]).",
)
@options.cost_options
@options.lowering
@options.draft
@options.speculation
@options.parallel
@options.limits
@options.price_option
@options.max_size
@options.form("table", "json", "csv", "md", "html", "page")
@options.output(
    "Write a file; .txt, .json, .csv, .md, .html for a page, or .png, .svg or .pdf for a picture decides the "
    "format."
)
def serve_sim(**given: Any) -> None:
    """Simulate an engine that serves requests: queues, batches, chunks of prompts, blocks, preemptions.

    The policy is that of the engine: vllm decodes first and fills a step with chunks of prompts, sglang reads
    prompts first and alone, trtllm reads whole prompts beside decodes. Blocks, tokens and sequences of a step
    are those of the engine's profile. A step is priced as `analyze` prices it, with the engine's overhead.

    \b
    llmir serve-sim llama3.1-8b --rate 18 --prompt lognormal:512,0.6
    llmir serve-sim qwen3-32b --tp 2 --trace chats.csv --max-ttft 1000
    llmir serve-sim qwen3-32b --tp 2 --closed 64 --prompt 4000 --engine sglang
    llmir serve-sim llama3.1-8b --rate 60 --replicas 4 --router least-loaded
    llmir serve-sim llama3.1-8b --rate 30 --prefill-replicas 2 --link 50GBps
    llmir serve-sim llama3.1-8b --rate 10 --draft-tokens 4 --acceptance 0.7
    llmir serve-sim llama3.1-8b --rates 2,6,10,14,18 -o latencies.html
    """
    from llmir.api.save import trace
    from llmir.api.serve import replicate, simulate
    from llmir.backends.export import serving as tables
    from llmir.backends.export.files import write
    from llmir.backends.simulate.replications import RateSeries, Replications
    from llmir.backends.simulate.result import Simulation

    files = [given[name] for name in FILES if given[name] is not None]
    if twice := next((name for i, name in enumerate(files) if name in files[:i]), None):
        raise InputError(f"{twice}: is named twice, and would be written over; say another file")
    times, several = given["replications"], given["rates"] is not None
    if several:
        alone(given)
    form = output.choose(
        given["output_file"], given["form"], RateSeries if several else Replications if times else Simulation
    )
    size = output.check_page(form, given["max_size"])
    outputs = {"requests_out": tables.requests_csv, "steps_out": tables.steps_csv}
    _single(given)
    inputs.check_drafts(given)
    program = inputs.lower(given)
    limits = {f"{name}_s": given[name] and given[name] * 1e-3 for name in ("max_ttft", "max_tpot")}
    asked = {name: given[name] for name in (*REQUEST_OPTIONS, *inputs.LIMITS, *inputs.COST_OPTIONS)} | limits
    asked |= {"reserve_bytes": given["reserve"], "timeout_s": given["timeout"], "think_s": given["think"]}
    asked |= inputs.drafts(given)
    if given["decode_tp"] is not None:
        if given["link"] is None:
            raise InputError("--decode-tp: is of pools, which a --link joins")
        decode = {**given, "tp": given["decode_tp"]}
        asked["decode_program"] = inputs.lower(decode)
        programs = inputs.drafts(decode)
        asked |= {f"decode_{name}": programs[name] for name in ("verify", "draft") if programs}
    (device,) = inputs.with_prices(given, inputs.link_hardware(given, program))
    if several or times:
        again = (
            run_rates(given, program, device, asked)
            if several
            else replicate(program, device, times, **asked | {"seed": asked["seed"] or 0})
        )
        output.result(again, form, given["output_file"], **size)
        output.note(*again.notes)
        return
    found = simulate(program, device, **asked)
    output.result(found, form, given["output_file"], **size)
    for name, text in outputs.items():
        if given[name] is not None:
            write(given[name], text(found))
            line("wrote", given[name])
    if given["trace_out"] is not None:
        line("wrote", str(trace(found, given["trace_out"])))
    output.note(*found.notes)


def _single(given: Mapping[str, Any]) -> None:
    """InputError for files of one run where there are several, or that cannot be written."""
    from llmir.backends.export.timeline import check_target

    times = given["replications"]
    for name in ("requests_out", "steps_out", "trace_out"):
        if given[name] is None:
            continue
        if times:
            option = name.replace("_", "-")
            raise InputError(f"--{option}: is of one run, leave out --replications {times}")
        if name == "trace_out":
            check_target(given[name])
        else:
            output.choose(given[name], None, {".csv": "csv"})
