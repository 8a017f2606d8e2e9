"""`llmir plan`: the devices, their number, and the split of a model over them, for a given traffic."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from llmir.api.options import (
    Drafts,
    Estimation,
    Memory,
    Precision,
    Requests,
    Reserve,
    Servers,
    Traffic,
    option,
)
from llmir.base.errors import InputError

from . import inputs, options, output
from .command import bar, command, line
from .options import Count, Integer, parse_limit

if TYPE_CHECKING:
    from llmir.backends.search.plan import Plans

REQUEST_OPTIONS = ("hw", "gpus", "max_ttft", "max_tpot", "chunk", "batch")


class Devices(Count):
    """The largest number of devices."""

    def check(self, name: str, value: Any) -> int:
        """Check the value as the API does."""
        from llmir.api.plan import DEVICES
        from llmir.base.arguments import integer

        return integer(name, value, 1, DEVICES)


class TimeLimit(Count):
    """A limit: a time, or one of a statistic."""

    name = "LIMIT"

    def read(self, name: str, text: str) -> Any:
        """Parse the text as the API does; a bare number is in milliseconds."""
        return parse_limit(text)

    def check(self, name: str, value: Any) -> Any:
        """Check the value with its unit, before the model is loaded."""
        from llmir.backends.search.traffic import latency_limit

        return latency_limit(name, value)


@command("plan", "Find the cheapest deployment that serves given traffic within limits.")
@options.model
@options.take(Estimation, "hw", default="h100-sxm", metavar="DEVICE,…", help="Devices to compare.")
@click.option("--gpus", type=Devices(), help="Largest number of devices.  [default: no limit]")
@options.take(Traffic, "rate")
@options.take(
    Traffic,
    "prompt",
    default="2048",
    help="Prompt tokens of a request: a number, or a distribution (llmir serve-sim -h).",
)
@options.take(Traffic, "generate", default="128")
@options.take(Traffic, "prefix_hits")
@options.take(
    Requests,
    "max_ttft",
    type=TimeLimit(),
    help="Limit of TTFT for 99% of requests, such as 1s (a bare number is in ms); mean:1s limits the mean, "
    "and p50:1s the median.",
)
@options.take(
    Requests,
    "max_tpot",
    type=TimeLimit(),
    help="Limit of TPOT (the mean of a request), such as 30ms; also mean:30ms or p50:30ms.",
)
@options.take(Reserve)
@options.take(
    Precision,
    "weights",
    metavar="DTYPE,…",
    help="Dtypes of weights to compare, such as bf16,fp8.",
    shown="the checkpoint's",
)
@options.take(
    Precision,
    "activations",
    metavar="DTYPE,…",
    help="Dtypes of the inputs of matrix products to compare.",
    shown="fp8 for fp8 weights if the engine multiplies in fp8, otherwise the checkpoint's",
)
@options.take(
    Precision,
    "kv",
    metavar="DTYPE,…",
    help="Dtypes of the KV cache to compare.",
    shown="the checkpoint's",
)
@options.axis(option(Requests, "chunk"), help="Tokens per step to compare.", shown="the engine's and 2048")
@options.axis(
    option(Requests, "batch"), help="Numbers of concurrent requests to compare.", shown="all that fit"
)
@options.take(
    Memory,
    "chunked_prefill",
    "max_num_seqs",
    "memory_utilization",
    shown="the engine's; searched if it misses the limits",
)
@options.take(
    Memory,
    "max_batched_tokens",
    help="Tokens per step, instead of --chunk.",
    shown="those of --chunk",
)
@options.take(Memory, "reserve_bytes")
@options.draft
@options.speculation
@options.price_option
@options.take(Estimation, "engine", help="Engine to estimate: vllm, sglang, trtllm …")
@options.take(
    Servers,
    "link",
    help="Also search plans with prefill and decode servers; KV caches are sent over this link: nvlink, "
    "network, or a rate such as 25GBps,5us.",
)
@options.take(
    Servers,
    "router",
    help="Router that assigns requests to servers: round-robin, random or least-loaded.",
)
@options.take(
    Traffic, "requests", type=Integer(100), default=1000, help="Requests of a simulated run.", shown="1000"
)
@options.take(Traffic, "seed", default=0, help="Seed of the first run.")
@options.take(Servers, "emit")
@click.option(
    "--emit-to",
    "emit_to",
    metavar="DIR",
    help="Write the files of --emit and a benchmark into this folder, and print the table.",
)
@options.max_size
@options.form("table", "json", "csv", "md", "html", "page")
@options.output(
    "File to write; its suffix sets the format: .txt, .json, .csv, .md, .html (page), or .png, .svg or .pdf "
    "(picture)."
)
def plan(**given: Any) -> int:
    """Find the cheapest plan that serves traffic within latency limits, and explain why other plans lose.

    A plan is a device, a split of the model, and a number of replicas. Closed forms estimate every split
    (tensor, pipeline, data, expert and sequence parallel) on each device. The plans on the Pareto front are
    then simulated with Poisson arrivals, as in `llmir serve-sim`. Each plan has 5 to 40 runs, until its
    verdict has a confidence of 99%; if it has not after 40 runs, it is undecided. Limits apply to the 99th
    percentile of requests, unless they begin with mean: or p50:. Exit code 1 means that no plan meets the
    limits.

    \b
    llmir plan qwen3-32b --hw h100-sxm,h200 --gpus 32 --rate 20 --prompt 4000 \\
        --generate 500 --max-ttft 1s --max-tpot 30ms
    llmir plan llama3.1-8b --rate 100 --prompt lognormal:512,0.6 --max-ttft p50:1s
    llmir plan qwen3-32b --rate 20 --gpus 32 --max-tpot 30ms -o plan.html
    """
    from llmir.api.plan import plan as find_plans
    from llmir.backends.export import plan as plan_text
    from llmir.backends.search.plan import Plans

    if given["rate"] is None:
        raise InputError("--rate: missing; set the requests per second, such as --rate 20")
    emit = _check_emit(given)
    if emit is not None and given["emit_to"] is None:
        form = output.choose(given["output_file"], None, _suffix(emit)) if given["output_file"] else ""
    else:
        form = output.choose(given["output_file"], given["form"], Plans)
    size = output.check_page(form, given["max_size"])
    inputs.check_drafts(given)
    if given["draft"] and given["draft_tokens"] is None:
        raise InputError("--draft: needs --draft-tokens")
    source = inputs.source(given)
    drafts = None
    if given["draft_tokens"] is not None:
        drafter = given["draft_model"] and inputs.read(given["draft_model"])
        verify = inputs.read(given["model"], "all", lenient=given["lenient"])
        drafts = Drafts(given["draft_tokens"], given["acceptance"], drafter, verify)
    asked = {name: given[name] for name in REQUEST_OPTIONS}
    estimation = Estimation(engine=given["engine"], price=given["price"])
    asked |= {"traffic": inputs.taken(Traffic, given), "drafts": drafts, "estimation": estimation}
    asked |= {"servers": inputs.taken(Servers, given), "reserve": inputs.taken(Reserve, given)}
    asked["memory"] = inputs.taken(Memory, given)
    asked["precision"] = inputs.taken(Precision, given)
    with bar() as progress:

        def told(runs: int, plan: str) -> None:
            progress(f"simulating {plan}, run {runs:,}", runs, None)

        found = find_plans(source, progress=told, **asked)
    printed = emit is not None and given["emit_to"] is None
    files = _files(found, given) if emit is not None else {}
    if not printed or found.best is None:
        output.result(found, "table" if printed else form, None if printed else given["output_file"], **size)
    else:
        output.emit(next(iter(files.values())), given["output_file"])
    if not printed and files:
        from llmir.backends.export.files import write_folder

        write_folder(given["emit_to"], files)
        line("wrote", ", ".join(os.path.join(given["emit_to"], name) for name in files))
    output.note(*found.notes)
    if found.best is None:
        for message in plan_text.misses(found):
            line("limit not met", message)
        return 1
    return 0


def _check_emit(given: Mapping[str, Any]) -> str | None:
    """The value of --emit, if set; an early InputError or OutputError if the files cannot be written."""
    from llmir.api.plan import checkpoint
    from llmir.backends.export.files import check_folder
    from llmir.backends.export.manifests import check_checkpoint, file_names
    from llmir.backends.search.launch import EMITS
    from llmir.base.arguments import choice

    emit: str | None = given["emit"]
    if emit is None:
        if given["emit_to"] is not None:
            raise InputError("--emit-to: needs --emit, such as --emit vllm")
        return None
    choice("--emit", emit, EMITS)
    check_checkpoint(emit, checkpoint(given["model"]))
    if given["emit_to"] is not None:
        devices = str(given["hw"]).split(",")
        inputs = (given["model"], given["draft_model"] or "", given["engine"] or "", *devices)
        written = [given["output_file"]] if given["output_file"] else []
        check_folder(given["emit_to"], file_names(emit), [*inputs, *written])
    elif given["form"] is not None:
        raise InputError(f"--format {given['form']}: --emit {emit} prints no table; add --emit-to DIR")
    return emit


def _suffix(emit: str) -> dict[str, str]:
    from llmir.backends.export.manifests import file_names

    suffix = os.path.splitext(file_names(emit)[0])[1]
    return {suffix: suffix[1:]}


def _files(found: Plans, given: Mapping[str, Any]) -> dict[str, str]:
    from llmir.api.plan import launch_files

    return launch_files(found, given["emit"], given["model"], given["draft_model"] or "")
