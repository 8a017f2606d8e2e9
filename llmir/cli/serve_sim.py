"""`llmir serve-sim`: requests over time, on an engine that fills its steps as its policy does."""

from __future__ import annotations

from typing import Any

import click

from . import inputs, options, output
from .command import command
from .kinds import Count, Number, Whole, spelled


class Lengths(Count):
    """Tokens, or a law with its numbers."""

    name = "TOKENS|LAW"

    def read(self, name: str, text: str) -> Any:
        """The law is read with the requests; it needs numpy."""
        return spelled(text)

    def check(self, name: str, value: Any) -> Any:
        """Its numbers, before the model is loaded."""
        from llmir.backends.simulation.lengths import lengths

        lengths(name, value)
        return value


@command("serve-sim", "Latencies of requests that come over time, simulated step by step.")
@options.model
@options.hardware
@click.option("--rate", type=Number("REQUESTS"), help="Requests a second, which come at random.")
@click.option("--closed", type=Count(), help="Instead: users, each of whom asks again when answered.")
@click.option(
    "--prompt",
    type=Lengths(),
    default=2048,
    show_default=True,
    help="Tokens of a prompt: a number, uniform:LEAST,MOST, normal:MEAN,DEVIATION, exponential:MEAN or "
    "lognormal:MEDIAN,SIGMA.",
)
@click.option(
    "--generate", type=Lengths(), default=128, show_default=True, help="Tokens generated, likewise."
)
@click.option("--requests", type=Whole(), default=1000, show_default=True, help="How many, such as 1e5.")
@click.option("--seed", type=Whole(0), default=0, show_default=True, help="Of what is random.")
@click.option(
    "--prefix-hits",
    type=click.FloatRange(0, 1),
    default=0.0,
    metavar="SHARE",
    help="Share of each prompt that is in the cache already.  [default: 0]",
)
@click.option(
    "--chunked-prefill/--no-chunked-prefill",
    default=None,
    help="Whether prompts are read in chunks.  [default: as the engine does]",
)
@options.pricing
@options.lowering
@options.parallel
@options.limits
@options.form("table", "json", "csv", "md", "html")
@options.output("Write a file; .txt, .json, .csv, .md or .html decides the format.")
def serve_sim(**given: Any) -> None:
    """Simulate an engine that serves requests: queues, batches, chunks of prompts, blocks, preemptions.

    The policy is that of the engine: vllm decodes first and fills a step with chunks of prompts, sglang reads
    prompts first and alone, trtllm reads whole prompts beside decodes. Blocks, tokens and sequences of a step
    are those of the engine's profile. A step is priced as `analyze` prices it, with the engine's overhead.

    \b
    llmir serve-sim llama3.1-8b --rate 18 --prompt lognormal:512,0.6 --generate lognormal:200,0.6
    llmir serve-sim qwen3-32b --tp 2 --closed 64 --prompt 4000 --generate 500 --engine sglang
    """
    from llmir import simulate
    from llmir.backends.simulation.simulation import Simulation

    form = output.choose(given["output_file"], given["form"], Simulation)
    program = inputs.lowered(given)
    asked = ("rate", "closed", "prompt", "generate", "requests", "seed", "prefix_hits", "chunked_prefill")
    found = simulate(
        program,
        inputs.hardware(given, program),
        **{name: given[name] for name in (*asked, *inputs.LIMITS, *inputs.PRICING)},
        reserve_bytes=given["reserve"],
    )
    output.result(found, form, given["output_file"])
    output.note(*found.notes)
