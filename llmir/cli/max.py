"""`llmir max`: the largest batch, context and number of concurrent requests, and what limits each."""

from __future__ import annotations

from typing import Any

from llmir.api.options import Memory, Requests, Traffic

from . import inputs, options, output
from .command import command, line
from .options import Count, parse_limit

REQUEST_OPTIONS = (
    "batch",
    "prompt",
    "generate",
    "cached",
    "chunk",
    "lengths",
    "max_ttft",
    "max_tpot",
)


class Duration(Count):
    """A time with its unit."""

    name = "TIME"

    def read(self, name: str, text: str) -> Any:
        """Parse the text as the API does; a bare number is in milliseconds."""
        return parse_limit(text)

    def check(self, name: str, value: Any) -> Any:
        """Check the value with its unit, before the model is loaded."""
        from llmir.api.options import limit_seconds

        return limit_seconds(name, value)


@command("max", "The largest batch, context and number of users, and the limit of each.")
@options.model
@options.hardware
@options.take(Requests, "prompt", default=2048, help="Prompt tokens of each request.")
@options.take(Requests, "generate", default=128, help="Output tokens of each request.")
@options.take(
    Requests,
    "batch",
    default=None,
    help="Number of sequences for which the largest context is computed.",
    shown="1, or 1 per micro-batch",
)
@options.take(Requests, "max_ttft", "max_tpot", type=Duration())
@options.cost_options
@options.lowering
@options.parallel
@options.prefill_options
@options.take(Traffic, "lengths", shown="spread")
@options.memory
@options.price_option
@options.form("table", "json", "csv", "md", "html")
@options.output("File to write; its suffix sets the format: .txt, .json, .csv, .md or .html.")
def largest(**given: Any) -> int:
    """Find the largest batch, context and number of users that fit in memory and meet latency limits.

    All requests of a batch start together. A context is the prompt plus --generate output tokens. Each user
    sends a request when the last one ends (a closed loop). Memory is counted as in `llmir analyze`. The table
    shows the limit that decides, the largest value that each limit alone allows, and how much one more would
    use. Exit code 1 means that not even one request meets the limits.

    \b
    llmir max llama3.1-8b --hw h100-sxm --max-ttft 1s --max-tpot 20ms
    llmir max qwen3-32b --hw h200 --tp 2 --weights fp8 --prompt 8000
    llmir max llama3.1-70b --tp 8 --engine sglang --max-tpot 30ms --price h100=2
    """
    from llmir.api.capacity import largest as largest_load
    from llmir.backends.export.capacity import misses
    from llmir.backends.request.largest import LargestLoad

    form = output.choose(given["output_file"], given["form"], LargestLoad)
    program = inputs.lower(given)
    (device,) = inputs.with_prices(given, inputs.hardware(given, program))
    asked: dict[str, Any] = {name: given[name] for name in REQUEST_OPTIONS}
    asked |= {"memory": inputs.taken(Memory, given), "estimation": inputs.estimation(given)}
    found = largest_load(program, device, **asked)
    output.result(found, form, given["output_file"])
    output.note(*found.notes)
    late = misses(found)
    for message in late:
        line("limit not met", message)
    return 1 if late else 0
