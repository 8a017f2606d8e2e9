"""`llmir kv`: the size of KV caches, and the time to move them."""

from __future__ import annotations

from typing import Any

import click

from llmir.api.options import Requests, Servers
from llmir.base.errors import InputError

from . import inputs, options, output
from .command import command
from .options import Count

# Options that change steps of a program, but neither the caches nor their transfer time.
IDLE = ("weights", "activations", "collectives", "attention", "logits", "dispatch", "routing", "routing_skew")


@command("kv", "Size of KV caches, and the time to send them.")
@options.model
@options.hardware
@options.take(Requests, "batch", type=Count(), help="Number of sequences.")
@options.take(Requests, "prompt", type=Count(), default=2048, help="Cached tokens of each sequence.")
@options.take(
    Servers,
    "link",
    default="host",
    help="Link: host (to or from host memory), nvlink, pcie or another link between two devices of "
    "this kind, network (to another node), or a rate such as 25GBps,5us.",
    shown="host",
)
@options.cost_options
@options.lowering
@options.parallel
@options.form("table", "json", "md", "html")
@options.output("Write a file; .txt, .json, .md or .html selects the format.")
def kv(**given: Any) -> None:
    """Estimate the size of the KV caches of sequences, and the time to send them over a link.

    The output is the cost of swapping a sequence out to CPU memory, or of sending it from a prefill server to
    a decode server. All ranks send at the same time, each over its own link. CPU memory is assumed to be
    pinned. Copies to CPU memory use the measured rate of the device or of similar devices; --cost ideal uses
    the datasheet.

    \b
    llmir kv llama3.1-8b --batch 8 --prompt 4096
    llmir kv llama3.1-70b --tp 8 --prompt 32768 --link network --cluster dgx-h100
    llmir kv llama-2-7b --prompt 512 --hw rtx3090 --link 13.1GBps
    """
    from llmir.api.capacity import kv as cache_transfer
    from llmir.backends.memory.transfer import CacheTransfer

    context = click.get_current_context()
    for name in IDLE:
        if context.get_parameter_source(name) == click.core.ParameterSource.COMMANDLINE:
            raise InputError(f"{name}: has no effect on caches; leave it out")
    form = output.choose(given["output_file"], given["form"], CacheTransfer)
    program = inputs.lower(given)
    asked = {name: given[name] for name in ("batch", "prompt", "link")}
    found = cache_transfer(
        program, inputs.link_hardware(given, program), **asked, estimation=inputs.estimation(given)
    )
    output.result(found, form, given["output_file"])
    positions = program.facts.get("positions")
    if isinstance(positions, int) and given["prompt"] > positions:
        output.note(f"prompt {given['prompt']} exceeds the model's {positions} positions")
