"""Limits of a deployment: `largest` batch and context, and the size and transfer of caches (`kv`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llmir.base import arguments
from llmir.base.errors import InputError
from llmir.ir.core.program import Program

from .estimate import deployed, workload
from .options import Estimation, Memory, Parallel, Precision, limit_seconds, of

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
    memory: Memory | None = None,
    parallel: Parallel | None = None,
    precision: Precision | None = None,
    estimation: Estimation | None = None,
) -> LargestLoad:
    """The largest batch, context and number of requests at once that fit and come within limits.

    `batch` requests of `prompt` and `generate` tokens begin together; the context is the longest prompt and
    answer of each of `batch` of them (by default one in each micro-batch), with `generate` as it is; requests
    at once are those of users who ask again when answered. `max_ttft` is of the first token, of all that
    begin together and of users on average, and `max_tpot` of later ones on average: seconds, or `30ms`.
    Each answer has what binds it, what each limit alone allows, and what one more takes. All else is as in
    `workload`; InputError for models of images, and for what means nothing.

    >>> import llmir
    >>> model = llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of("vllm"))
    >>> found = llmir.largest(model, "h100-sxm", prompt=1000, generate=200, max_tpot="10ms")
    >>> found.batch.binding.name, found.batch.most < found.batch.of("prefill").most
    ('tpot', True)
    """
    from llmir.backends.request.largest import largest_load

    limits = limit_seconds("max_ttft", max_ttft), limit_seconds("max_tpot", max_tpot)
    program, _ = deployed(model, hw, estimation, parallel, precision)
    if program.patches:
        raise InputError(f"largest: {program.name} is of images, and has no tokens to count")
    requests: dict[str, Any] = {"prompt": prompt, "generate": generate, "cached": cached, "chunk": chunk}
    requests["batch"] = program.micro_batches if batch is None else batch
    job = workload(program, hw, **requests, memory=memory, estimation=estimation)
    positions = program.facts.get("positions")
    if job.max_model_len is None and isinstance(positions, int) and job.prompt + job.generate > positions:
        raise InputError(length_error(job.prompt, job.generate, positions, program.name))
    return largest_load(job, *limits)


def length_error(prompt: int, generate: int, positions: int, model: str) -> str:
    """What is said where prompt and answer have no room in the model."""
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
    """The caches of `batch` sequences after a prompt, and the time to move them over a link.

    That is `host`, to or from its memory; `nvlink`, `pcie` or what else joins two such devices; `network`, to
    another node; or a rate such as `25GBps,5us`. Ranks send at once, each over its own. InputError for a
    model that keeps none.

    >>> import llmir
    >>> moved = llmir.kv(llmir.load("llama-2-7b"), "rtx3090", prompt=512, link="13.1GBps")
    >>> moved.bytes, round(moved.time_s, 4)
    (268435456, 0.0205)
    """
    from llmir.backends.memory.transfer import cache_transfer

    program, priced = deployed(model, hw, estimation, parallel, precision)
    said = of(Estimation, estimation)
    sequences, tokens = arguments.integer("batch", batch, 1), arguments.integer("prompt", prompt, 1)
    _acts(link, said)
    if not program.cache_bytes(tokens):
        raise InputError(f"{program.name} keeps no caches that could be moved")
    found = cache_transfer(program, priced, sequences, tokens, link)
    if other := [name for name in said.efficiency or () if name not in found.channel.shares]:
        raise InputError(
            f"efficiency: {other[0]} cannot act, caches go over {found.channel.name}; say that one's share"
        )
    return found


def _acts(link: object, estimation: Estimation) -> None:
    """InputError for what prices no copy over this link."""
    given = [name for name in ("cost", "engine", "efficiency") if name in estimation.given]
    link = arguments.text("link", link)
    if link.strip()[:1].isdigit() and given:
        raise InputError(
            f"{given[0]}: cannot act, the link's rate is stated ({link.strip()[:40]}); leave it out"
        )
    if link == "host" and estimation.engine is not None:
        raise InputError("engine: cannot act, copies to the host are the same on all; leave it out")
