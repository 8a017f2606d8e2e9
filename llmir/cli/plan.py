"""`llmir plan`: which devices, how many, and how a model is split over them, for a given traffic."""

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
    """How many devices there may be."""

    def check(self, name: str, value: Any) -> int:
        """As the API checks it."""
        from llmir.api.plan import DEVICES
        from llmir.base.arguments import integer

        return integer(name, value, 1, DEVICES)


class TimeLimit(Count):
    """A limit: a time, or one of a statistic."""

    name = "LIMIT"

    def read(self, name: str, text: str) -> Any:
        """As the API reads it; a bare number is milliseconds."""
        return parse_limit(text)

    def check(self, name: str, value: Any) -> Any:
        """With its unit, before the model is loaded."""
        from llmir.backends.search.traffic import latency_limit

        return latency_limit(name, value)


@command("plan", "Which devices serve some traffic within limits, at least cost.")
@options.model
@options.take(Estimation, "hw", default="h100-sxm", metavar="DEVICE,…", help="Devices to compare.")
@click.option("--gpus", type=Devices(), help="How many there may be.  [default: as few as serve the rate]")
@options.take(Traffic, "rate")
@options.take(Traffic, "prompt", default="2048", help="Tokens of a prompt, or a law.")
@options.take(Traffic, "generate", default="128")
@options.take(Traffic, "prefix_hits")
@options.take(
    Requests,
    "max_ttft",
    type=TimeLimit(),
    help="The first token of 99% of requests comes by then, such as 1s (a bare number is ms); mean:1s or "
    "p50:1s is of the mean, or of half of them.",
)
@options.take(
    Requests,
    "max_tpot",
    type=TimeLimit(),
    help="Likewise later tokens (the mean of a request), such as 30ms.",
)
@options.take(Reserve)
@options.take(
    Precision,
    "weights",
    metavar="DTYPE,…",
    help="Types of weights to compare, such as bf16,fp8.",
    shown="the checkpoint's",
)
@options.take(
    Precision,
    "activations",
    metavar="DTYPE,…",
    help="Likewise inputs of matrix products.",
    shown="fp8 for fp8 weights where the engine multiplies so, else the checkpoint's",
)
@options.take(
    Precision,
    "kv",
    metavar="DTYPE,…",
    help="Likewise the KV cache.",
    shown="the checkpoint's",
)
@options.axis(option(Requests, "chunk"), help="Tokens of a step to compare.", shown="the engine's, 2048")
@options.axis(option(Requests, "batch"), help="Requests at once to compare.", shown="all that fit")
@options.take(
    Memory, "chunked_prefill", "max_num_seqs", "memory_utilization", shown="the engine's, else searched"
)
@options.take(
    Memory,
    "max_batched_tokens",
    help="Tokens of a step, in place of --chunk.",
    shown="--chunk's",
)
@options.take(Memory, "reserve_bytes")
@options.draft
@options.speculation
@options.price_option
@options.take(Estimation, "engine", help="The engine that is priced: vllm, sglang, trtllm …")
@options.take(
    Servers,
    "link",
    help="Plans of prefill and decode servers too, between which caches go over nvlink, network, or what has "
    "a rate such as 25GBps,5us.",
)
@options.take(
    Servers,
    "router",
    help="Which server of a kind a request goes to: round-robin, random or least-loaded.",
)
@options.take(Traffic, "requests", type=Integer(100), default=1000, help="Of a simulated run.", shown="1000")
@options.take(Traffic, "seed", default=0, help="The first of the runs.")
@options.take(Servers, "emit")
@click.option(
    "--emit-to",
    "emit_to",
    metavar="DIR",
    help="Write it into a folder, with its benchmark, and print the table.",
)
@options.max_size
@options.form("table", "json", "csv", "md", "html", "page")
@options.output(
    "Write a file; .txt, .json, .csv, .md, .html for a page, or .png, .svg or .pdf for a picture decides the "
    "format."
)
def plan(**given: Any) -> int:
    """Find the plan that serves some traffic within limits at least cost, and say why others lose.

    Every split of the model (tensor, pipeline, data, expert and sequence parallel) on each device is priced
    by closed forms, memory first. Those on the front are simulated as `llmir serve-sim` does, on requests
    that come at random. Runs by five seeds or more decide, until the verdict is certain at 99%; after 40 runs
    it is undecided. A limit is on the 99th percentile of requests unless it says mean: or p50:. With --link
    there are plans of prefill and decode servers too. Exit 1 if no plan meets the limits.

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
        raise InputError("--rate: say how many requests come in a second")
    emit = _check_emit(given)
    if emit is not None and given["emit_to"] is None:
        form = output.choose(given["output_file"], None, _suffix(emit)) if given["output_file"] else ""
    else:
        form = output.choose(given["output_file"], given["form"], Plans)
    size = output.check_page(form, given["max_size"])
    inputs.check_drafts(given)
    if given["draft"] and given["draft_tokens"] is None:
        raise InputError("--draft: is of drafts, say --draft-tokens too")
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
            line("violated", message)
        return 1
    return 0


def _check_emit(given: Mapping[str, Any]) -> str | None:
    """What is emitted, if anything; an early InputError or OutputError for what cannot be."""
    from llmir.api.plan import checkpoint
    from llmir.backends.export.files import check_folder
    from llmir.backends.export.manifests import check_checkpoint, file_names
    from llmir.backends.search.launch import EMITS
    from llmir.base.arguments import choice

    emit: str | None = given["emit"]
    if emit is None:
        if given["emit_to"] is not None:
            raise InputError("--emit-to: say what to emit, such as --emit vllm")
        return None
    choice("--emit", emit, EMITS)
    check_checkpoint(emit, checkpoint(given["model"]))
    if given["emit_to"] is not None:
        devices = str(given["hw"]).split(",")
        inputs = (given["model"], given["draft_model"] or "", given["engine"] or "", *devices)
        written = [given["output_file"]] if given["output_file"] else []
        check_folder(given["emit_to"], file_names(emit), [*inputs, *written])
    elif given["form"] is not None:
        raise InputError(f"--format {given['form']}: --emit {emit} prints no table; say --emit-to DIR too")
    return emit


def _suffix(emit: str) -> dict[str, str]:
    from llmir.backends.export.manifests import file_names

    suffix = os.path.splitext(file_names(emit)[0])[1]
    return {suffix: suffix[1:]}


def _files(found: Plans, given: Mapping[str, Any]) -> dict[str, str]:
    from llmir.api.plan import launch_files

    return launch_files(found, given["emit"], given["model"], given["draft_model"] or "")
