"""`llmir analyze`: estimate a request, op by op."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from llmir.api.options import Requests, Traffic
from llmir.base.errors import InputError

from . import inputs, options, output
from .command import command, line
from .options import Milliseconds

if TYPE_CHECKING:
    from llmir.backends.request.workload import Workload


@command("analyze", "Time and memory of a request: prefill, decode, op by op.")
@options.model
@options.workload
@options.lowering
@options.draft
@options.speculation
@options.beams
@options.parallel
@options.serving
@options.take(Traffic, "lengths", shown="spread")
@options.receive_interval
@options.memory
@options.price_option
@click.option(
    "--require-fit", is_flag=True, help="Exit with code 1 if the model and its requests do not fit in memory."
)
@options.take(
    Requests,
    "max_ttft",
    type=Milliseconds(),
    help="Exit with code 1 if TTFT is longer, such as 1s; a bare number is in ms.",
)
@options.take(
    Requests,
    "max_tpot",
    type=Milliseconds(),
    help="Exit with code 1 if mean TPOT is longer; with --concurrency, also print the largest "
    "number of users within the limit.",
)
@options.form("table", "json", "csv", "md", "html")
@options.output("File to write; its suffix sets the format: .txt, .json, .csv, .md or .html.")
def analyze(**given: Any) -> int:
    """Estimate the time and memory of requests: prefill, decode, and each op.

    MODEL is a bundled name (`llmir models`), a config.json or its folder, or an .ir file. Times come from
    kernels measured on the device, or on the most similar measured GPU. They are never below the roofline;
    --cost ideal prints the roofline alone. Sizes are in powers of 1000 (GB). The time of an op is that of one
    execution. `llmir explain MODEL memory` lists the contents of memory.

    \b
    llmir analyze llama3.1-8b --hw h100-sxm --batch 8 --prompt 2048 --generate 256
    llmir analyze qwen3-30b-a3b --hw my-gpu.yaml --attention eager -o qwen.json
    llmir analyze Qwen/Qwen3-235B-A22B --hw h200 --tp 4 --weights fp8 --kv fp8
    llmir analyze ./config.json --batch 64 --max-tpot 20 --require-fit
    llmir analyze qwen3-32b --tp 2 --prompt 4000 --generate 500 --concurrency 32
    llmir analyze qwen3-8b --draft-tokens 4 --acceptance 0.7
    llmir analyze qwen3-8b --batch 8 --beams 4
    """
    from llmir.backends.request.workload import Workload

    of: type = Workload
    if given["concurrency"] is not None:
        from llmir.backends.request.closed_loop import ClosedLoopWorkload as of  # noqa: N813 (a variable)
    form = output.choose(given["output_file"], given["form"], of)
    inputs.check_drafts(given)
    program = inputs.lower(given)
    for limit in ("max_ttft", "max_tpot"):
        if program.patches and given[limit] is not None:
            name = limit.replace("_", "-")
            raise InputError(f"--{name}: {program.name} processes images and generates no tokens")
    job = inputs.workload(program, given)
    if given["require_fit"] and given["concurrency"] is not None and not job.max_batch:
        line("limit not met", f"--require-fit: not even one request of {program.name} fits")
        return 1
    output.result(job, form, given["output_file"])
    output.note(*job.notes)
    broken = _broken(job, given["max_ttft"], given["max_tpot"], require_fit=given["require_fit"])
    for message in broken:
        line("limit not met", message)
    return 1 if broken else 0


def _broken(job: Workload, ttft_ms: float | None, tpot_ms: float | None, *, require_fit: bool) -> list[str]:
    """The user's limits that the workload exceeds; if there is a closed loop, the limits that the loop
    exceeds.
    """
    from llmir.backends.export import units, wording
    from llmir.backends.request.closed_loop import ClosedLoopWorkload

    found, of = [], job.loop if isinstance(job, ClosedLoopWorkload) else job
    for name, seconds, limit in (("ttft", of.ttft_s, ttft_ms), ("tpot", of.tpot_s, tpot_ms)):
        if limit is not None and seconds is not None and seconds * 1e3 > limit:
            said = "TTFT" if name == "ttft" else "mean TPOT"
            found.append(f"--max-{name} {limit:g} ms: {said} is {units.time(seconds)}")
    if require_fit and not job.fits:
        peak, capacity = job.peak_bytes(job.batch), job.capacity_bytes
        sizes = f"peak memory is {units.bytes(peak)}, and {units.bytes(capacity)} may be used"
        found.append(f"--require-fit: {wording.too_many(job) or sizes}")
    return found
