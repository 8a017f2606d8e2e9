"""What a deployment takes at most: `largest`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from llmir.base import arguments
from llmir.base.errors import InputError
from llmir.ir.core.program import Program

from .estimate import workload

if TYPE_CHECKING:
    from llmir.backends.cost.own import CostModel
    from llmir.backends.request.largest import Largest


def largest(
    program: Program,
    hw: Any,
    *,
    prompt: int = 2048,
    generate: int = 128,
    batch: int | None = None,
    cached: int = 0,
    chunk: int | str | None = None,
    max_ttft: float | str | None = None,
    max_tpot: float | str | None = None,
    memory_utilization: float | None = None,
    reserve_bytes: int = 0,
    cache_policy: str = "exact",
    max_model_len: int | None = None,
    max_num_seqs: int | None = None,
    max_batched_tokens: int | None = None,
    cost: str | CostModel | None = None,
    engine: str | None = None,
    efficiency: Mapping[str, float] | None = None,
) -> Largest:
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
    from llmir.backends.request.largest import largest as find

    limits = seconds("max_ttft", max_ttft), seconds("max_tpot", max_tpot)
    if not isinstance(program, Program):
        arguments.refuse("program", program, "a Program")
    each = program.micro_batches if batch is None else batch
    asked: dict[str, Any] = {
        "batch": each,
        "prompt": prompt,
        "generate": generate,
        "cached": cached,
        "chunk": chunk,
    }
    memory: dict[str, Any] = {"memory_utilization": memory_utilization, "reserve_bytes": reserve_bytes}
    memory |= {"cache_policy": cache_policy, "max_model_len": max_model_len, "max_num_seqs": max_num_seqs}
    memory |= {"max_batched_tokens": max_batched_tokens}
    if program.patches:
        raise InputError(f"largest: {program.name} is of images, and has no tokens to count")
    positions = program.facts.get("positions")
    if max_model_len is None and isinstance(positions, int) and prompt + generate > positions:
        raise InputError(beyond(prompt, generate, positions, program.name))
    job = workload(program, hw, **asked, **memory, cost=cost, engine=engine, efficiency=efficiency)
    return find(job, *limits)


def beyond(prompt: int, generate: int, positions: int, model: str) -> str:
    """What is said where prompt and answer have no room in the model."""
    tokens = f"{prompt:,} tokens and {generate:,} generated"
    return f"prompt: {tokens} are more than the {positions:,} positions of {model}"


def seconds(name: str, said: float | str | None) -> float | None:
    """A limit in seconds; InputError for one of a percentile, which a closed form has not."""
    from llmir.backends.search.limit import limit

    if said is None:
        return None
    if isinstance(said, str) and ":" in said:
        what = said.partition(":")[0][:40]
        raise InputError(f"{name}: {what}: is of simulated requests (llmir plan); say a time such as 30ms")
    return limit(name, said).seconds
