"""Limits of a deployment (`largest`), and the size and transfer time of its KV caches (`kv`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llmir.base import arguments
from llmir.base.errors import InputError
from llmir.ir.core.program import Program

from .estimate import deploy, workload
from .options import (
    Estimation,
    Memory,
    Parallel,
    Precision,
    Traffic,
    limit_seconds,
    option,
    record_or_default,
)

if TYPE_CHECKING:
    from llmir.backends.memory.transfer import CacheTransfer
    from llmir.backends.request.largest import LargestLoad


def largest(
    model: Program | object,
    hw: Any = None,
    *,
    prompt: int = 2048,
    generate: int = 128,
    batch: int | None = None,
    cached: int = 0,
    chunk: int | str | None = None,
    max_ttft: float | str | None = None,
    max_tpot: float | str | None = None,
    lengths: str | None = None,
    memory: Memory | None = None,
    parallel: Parallel | None = None,
    precision: Precision | None = None,
    estimation: Estimation | None = None,
) -> LargestLoad:
    """Find the largest batch, context and number of concurrent requests within memory and latency limits.

    The batch is the number of requests that start together. The context is the largest number of prompt and
    output tokens of each of `batch` requests. Concurrent requests come from users in a closed loop. Each
    result names the limit that decides, the largest value that each limit alone allows, and how much one more
    would need.

    Args:
        model, hw: As in `analyze`.
        prompt: Prompt tokens of each request.
        generate: Output tokens of each request.
        batch: Requests for the largest context. The default is one in each micro-batch.
        cached: Prompt tokens that are in the prefix cache.
        chunk: Prompt tokens of a step, as in `workload`.
        max_ttft: Limit of TTFT in seconds, or a text such as `1s`. It applies to the TTFT of a whole batch,
            and to the mean TTFT of users.
        max_tpot: Limit of the mean TPOT in seconds, or a text such as `30ms`.
        lengths: Distribution of the output lengths of users: "spread" (the default) or "fixed", as in
            `workload`.
        memory: The usable memory and the limits of a step (`Memory`).
        parallel: The ranks that share the model (`Parallel`).
        precision: The dtypes (`Precision`).
        estimation: The cost model (`Estimation`).

    Returns:
        The three limits as a `LargestLoad`.

    Raises:
        InputError: The model has image inputs only, or an argument is out of range.

    >>> import llmir
    >>> model = llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of("vllm"))
    >>> load = llmir.largest(model, "h100-sxm", prompt=1000, generate=200, max_tpot="10ms")
    >>> load.batch.binding.name, load.batch.most < load.batch.of("prefill").most
    ('tpot', True)
    """
    from llmir.backends.request.largest import largest_load
    from llmir.backends.simulate.closed_loop import simulate_loop

    limits = limit_seconds("max_ttft", max_ttft), limit_seconds("max_tpot", max_tpot)
    program, _ = deploy(model, hw, estimation, parallel, precision)
    if program.patches:
        raise InputError(f"largest: {program.name} is an image model; it has no tokens to count")
    requests: dict[str, Any] = {"prompt": prompt, "generate": generate, "cached": cached, "chunk": chunk}
    requests["batch"] = program.micro_batches if batch is None else batch
    job = workload(program, hw, **requests, memory=memory, estimation=estimation)
    positions = program.facts.get("positions")
    if job.max_model_len is None and isinstance(positions, int) and job.prompt + job.generate > positions:
        raise InputError(length_error(job.prompt, job.generate, positions, program.name))
    spread = option(Traffic, "lengths").check(lengths) or "spread"
    return largest_load(job, *limits, simulate_loop, spread)


def length_error(prompt: int, generate: int, positions: int, model: str) -> str:
    """Build the message for a prompt and output that together exceed the maximum positions of the model."""
    tokens = f"{prompt:,} tokens and {generate:,} generated"
    return f"prompt: {tokens} are more than the {positions:,} positions of {model}"


def kv(
    model: Program | object,
    hw: Any = None,
    *,
    batch: int = 1,
    prompt: int = 2048,
    link: str = "host",
    parallel: Parallel | None = None,
    precision: Precision | None = None,
    estimation: Estimation | None = None,
) -> CacheTransfer:
    """Size of the KV caches of `batch` sequences after prefill, and the time to send them over a link.

    All ranks send at the same time, each over its own link.

    Args:
        model, hw: As in `analyze`.
        batch: Number of sequences.
        prompt: Cached tokens of each sequence.
        link: `host` (to or from CPU memory), a link between two devices of this kind such as `nvlink` or
            `pcie`, `network` (to another node), or a rate such as `25GBps,5us`.
        parallel: The ranks that share the model (`Parallel`).
        precision: The dtypes (`Precision`).
        estimation: The cost model (`Estimation`).

    Returns:
        A `CacheTransfer` with the bytes of all ranks and the time in seconds.

    Raises:
        InputError: The model has no caches, or an option has no effect on this link.

    >>> import llmir
    >>> moved = llmir.kv(llmir.load("llama-2-7b"), "rtx3090", prompt=512, link="13.1GBps")
    >>> moved.bytes, round(moved.time_s, 4)
    (268435456, 0.0205)
    """
    from llmir.backends.memory.transfer import cache_transfer

    program, cost_model = deploy(model, hw, estimation, parallel, precision)
    options = record_or_default(Estimation, estimation)
    sequences, tokens = arguments.integer("batch", batch, 1), arguments.integer("prompt", prompt, 1)
    _check_link(link, options)
    if not program.cache_bytes(tokens):
        raise InputError(f"{program.name} keeps no caches that could be moved")
    transfer = cache_transfer(program, cost_model, sequences, tokens, link)
    if other := [name for name in options.efficiency or () if name not in transfer.channel.shares]:
        raise InputError(
            f"efficiency: {other[0]} has no effect; set that of {transfer.channel.name}, the link of caches"
        )
    return transfer


def _check_link(link: object, estimation: Estimation) -> None:
    """Raise InputError for an option of the estimation that does not affect copies over this link."""
    given = [name for name in ("cost", "engine", "efficiency") if name in estimation.given]
    link = arguments.text("link", link)
    if link.strip()[:1].isdigit() and given:
        raise InputError(
            f"{given[0]}: has no effect with the rate of a link ({link.strip()[:40]}); leave it out"
        )
    if link == "host" and estimation.engine is not None:
        raise InputError("engine: has no effect on copies to the host; leave it out")
