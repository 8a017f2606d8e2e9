"""Estimate a step (`analyze`) or a request (`workload`), and variants of both.

`speculate` and `beam_search` change how tokens are decoded, `candidates` compares several programs at the
same points, and `stages` splits a step over pipeline stages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from llmir.base import arguments
from llmir.base.errors import InputError
from llmir.base.values import FrozenDict
from llmir.ir.core.program import PHASES, Program
from llmir.ir.tools.loops import cut_sizes
from llmir.ir.tools.verify import checked_program

from .load import ModelSource
from .options import Drafts, Estimation, Memory, Parallel, Precision, Traffic, option, record_or_default

if TYPE_CHECKING:
    from llmir.backends.cost.op_time import DeviceCostModel
    from llmir.backends.request.candidates import Candidates
    from llmir.backends.request.speculation import SpeculativeWorkload
    from llmir.backends.request.workload import Workload
    from llmir.backends.step.program_batch import StageReport
    from llmir.backends.step.report import Report
    from llmir.hw.device import Device


def analyze(
    model: Program | object,
    hw: Any = None,
    *,
    batch: Any = 1,
    new: Any = 1,
    context: Any = 0,
    beside: Iterable[Mapping[str, Any]] = (),
    phase: str | None = None,
    cache_policy: str = "exact",
    parallel: Parallel | None = None,
    precision: Precision | None = None,
    estimation: Estimation | None = None,
) -> Report:
    """Estimate one step on a device: `batch` sequences of `new` tokens, each with `context` cached tokens.

    Args:
        model: A name, config or path as in `load`, which is lowered as the engine runs it. Or a program,
            which is estimated as it is.
        hw: A device: its name, its file, or the result of `llmir.hw.library.load`.
        batch, new, context: Numbers, or arrays that broadcast to one shape; the results then have this shape.
        beside: Other sequences of the same step, such as `[{"batch": 1, "new": 512}]` for a prefill chunk
            that runs together with decodes.
        phase: The phase of a program with several phases. The default is decode for one new token, otherwise
            prefill.
        cache_policy: The rule of cache allocation: `exact` bytes, or `paged` or `unified` as in engines.
        parallel: The ranks that share the model (`Parallel`).
        precision: The dtypes (`Precision`).
        estimation: The cost model (`Estimation`). The default is `calibrated` if kernels were measured on the
            device or on a similar one, otherwise `ideal`.

    Returns:
        A `Report` with time, memory, FLOPs and bytes by op.

    Raises:
        InputError: An argument is out of range.
        HardwareError: The device, the engine or the cost model is unknown.

    >>> step = analyze("qwen3-32b", "h100-sxm", batch=[1, 8, 64], context=4096, parallel=Parallel(tp=4))
    >>> step.time_s.shape, bool(step.time_s[0] < step.time_s[-1])
    ((3,), True)
    """
    from llmir.backends.step.report import Report

    program, cost_model = deploy(model, hw, estimation, parallel, precision)
    at: dict[str, Any] = {"batch": batch, "new": new, "context": context, "beside": beside}
    at["cache_policy"] = cache_policy
    if phase is not None:
        at["phase"] = arguments.choice("phase", phase, PHASES)
    return Report(program, cost_model.device, **at, model=cost_model)


def workload(
    model: Program | object,
    hw: Any = None,
    *,
    batch: int = 1,
    prompt: int | None = None,
    generate: int | None = None,
    chunk: int | str | None = None,
    cached: int = 0,
    concurrency: int | None = None,
    max_tpot_s: float | None = None,
    lengths: str | None = None,
    memory: Memory | None = None,
    drafts: Drafts | None = None,
    parallel: Parallel | None = None,
    precision: Precision | None = None,
    estimation: Estimation | None = None,
) -> Workload:
    """Estimate a batch of requests from prefill to the last output token.

    Args:
        model, hw: As in `analyze`.
        batch: Requests that start together.
        prompt: Tokens of each prompt. The default is 2048; not allowed for models with image inputs only.
        generate: Output tokens of each request. The default is 128; not allowed for models with image inputs
            only.
        chunk: Prompt tokens of a step on each data-parallel rank, or "all". The default is the engine's
            limit, and "all" without an engine.
        cached: Tokens of each prompt that are in the prefix cache.
        concurrency: Users in a closed loop, instead of `batch`; the result then has a `loop`.
        max_tpot_s: Limit of TPOT in seconds; the result then also has the loop with the most users within the
            limit.
        lengths: Distribution of output lengths in a closed loop: "spread", uniform from 0.8 to 1.0 of
            `generate` (the default), or "fixed".
        memory: The usable memory and the limits of a step (`Memory`).
        drafts: Speculative decoding (`Drafts`), as in `speculate`.
        parallel: The ranks that share the model (`Parallel`).
        precision: The dtypes (`Precision`).
        estimation: The cost model (`Estimation`).

    Returns:
        A `Workload`. Its `to_dict()` is the JSON report.

    Raises:
        InputError: An argument is out of range, or two arguments exclude each other.

    >>> job = workload("qwen3-32b", "h100-sxm", batch=32, prompt=2048, generate=256, parallel=Parallel(tp=4))
    >>> job.program.devices, job.fits
    (4, True)
    """
    from llmir.backends.request.workload import Workload

    program, cost_model = deploy(model, hw, estimation, parallel, precision)
    prompt, generate = request_lengths(program, prompt, generate)
    requests: dict[str, Any] = {
        "batch": batch,
        "prompt": prompt,
        "generate": generate,
        "chunk": chunk,
        "cached": cached,
    }
    limits = record_or_default(Memory, memory).values
    job = Workload(program, cost_model.device, model=cost_model, **requests, **limits)
    spread = loop_lengths(lengths, concurrency)
    if estimation and estimation.receive_interval is not None and concurrency is None:
        few = f"{estimation.receive_interval}; one batch has no new requests, so concurrency is needed"
        raise InputError(f"receive_interval: {few}")
    if concurrency is not None or max_tpot_s is not None:
        from llmir.backends.request.closed_loop import closed_loop_workload
        from llmir.backends.simulate.closed_loop import simulate_loop

        job = closed_loop_workload(job, concurrency, max_tpot_s, simulate_loop, spread)
    if drafts is None:
        return job
    return speculate(job, draft_programs(model, drafts, hw, estimation, parallel, precision))


def loop_lengths(lengths: str | None, concurrency: int | None) -> str:
    """Distribution of output lengths in a closed loop; InputError if it is set without a loop."""
    if lengths is not None and concurrency is None:
        given = arguments.show_value(lengths)
        raise InputError(
            f"lengths: {given}; it requires concurrency, since answers differ only in a closed loop"
        )
    return option(Traffic, "lengths").check(lengths) or "spread"


def speculate(job: Workload, drafts: Drafts) -> SpeculativeWorkload:
    """Add speculative decoding to a workload: one step verifies the draft tokens of each sequence.

    A draft token is accepted with probability `acceptance`, independently of earlier ones. A step of k drafts
    and acceptance a then yields (1 − aᵏ⁺¹) / (1 − a) tokens on average (arXiv:2211.17192).

    Args:
        job: The workload without drafts.
        drafts: The draft tokens, the acceptance and the programs (`Drafts`). `verify` is the target program
            with logits at all positions. `draft_model` drafts one token per step. Its default is the draft
            layer of a program loaded with `draft=True`; without this layer, drafts have no cost.

    Returns:
        A `SpeculativeWorkload`.

    Raises:
        InputError: `drafts` lacks a value, or the workload does not support drafts.

    >>> import llmir
    >>> last, every = (
    ...     llmir.run(llmir.load("llama3.1-8b", logits=of), llmir.pipeline_of()) for of in ("last", "all")
    ... )
    >>> job = llmir.workload(last, "h100-sxm", batch=4)
    >>> faster = llmir.speculate(job, llmir.Drafts(4, 0.7, verify=every))
    >>> faster.tokens_per_step, 2 < job.tpot_s / faster.tpot_s < faster.tokens_per_step
    (2.7731, True)
    """
    from llmir.backends.request.speculation import speculative_workload
    from llmir.backends.request.workload import Workload

    if not isinstance(job, Workload):
        arguments.refuse("job", job, "a Workload")
    values = draft_values(drafts)
    if values is None:
        raise InputError("drafts: requires draft_tokens, acceptance and verify")
    count, share, verify, draft = values
    return speculative_workload(job, verify, count, share, draft)


def draft_values(drafts: Drafts | None) -> tuple[int, float, Program, Program | None] | None:
    """Unpack drafts: the number of tokens, the acceptance, the program that verifies, and the program that
    drafts.

    Returns:
        The four values, or None without drafts.

    Raises:
        InputError: A value is missing.
    """
    drafts = record_or_default(Drafts, drafts)
    if drafts.draft_tokens is None:
        if name := next(iter(drafts.given), None):
            raise InputError(f"{name}: requires draft_tokens")
        return None
    if drafts.verify is None:
        raise InputError("draft_tokens: requires verify, the program with logits of all positions")
    if drafts.acceptance is None:
        raise InputError("draft_tokens: requires acceptance, the probability that a draft token is accepted")
    draft = None if drafts.draft_model is None else checked_program(drafts.draft_model)
    return drafts.draft_tokens, drafts.acceptance, checked_program(drafts.verify), draft


def draft_programs(
    model: object,
    drafts: Drafts | None,
    hw: Any,
    estimation: Estimation | None,
    parallel: Parallel | None,
    precision: Precision | None,
) -> Drafts:
    """Load the programs for drafts and lower them in the same way as the model. If the model is a program,
    they stay unchanged.
    """
    drafts, how = record_or_default(Drafts, drafts), (hw, estimation, parallel, precision)
    if isinstance(ModelSource.of(model).model, Program) or drafts.draft_tokens is None:
        return drafts
    if drafts.verify is None:
        drafts = replace(drafts, verify=deploy(model, *how, logits="all")[0])
    if drafts.draft_model is not None and not isinstance(drafts.draft_model, Program):
        drafts = replace(drafts, draft_model=deploy(drafts.draft_model, *how)[0])
    return drafts


def request_lengths(program: Program, prompt: Any, generate: Any) -> tuple[Any, Any]:
    """Prompt and output tokens with their defaults, 2048 and 128; InputError for a model without tokens."""
    for name, value in (("prompt", prompt), ("generate", generate)):
        if program.patches and value is not None:
            facts = f"{program.name} reads {program.patches} patches of each image, and no tokens"
            raise InputError(f"{name}: {facts}; only the batch can be set")
    if program.patches:
        return 1, 1
    length = program.facts.get("prompt")
    usual = length - program.image_tokens if isinstance(length, int) else 2048
    if usual < 1:
        fact = f"{program.image_tokens:,} tokens of images leave nothing of the {length:,} that layers see"
        raise InputError(f"prompt: {fact}")
    return or_default(prompt, usual), or_default(generate, 128)


def or_default(value: Any, default: float) -> Any:
    """Return the value, or the default if the value is None."""
    return default if value is None else value


def deploy(
    model: object,
    hw: Any,
    estimation: Estimation | None = None,
    parallel: Parallel | None = None,
    precision: Precision | None = None,
    logits: str | None = None,
) -> tuple[Program, DeviceCostModel]:
    """Lower a model onto its ranks and dtypes, and build its cost model.

    A name, config or path runs the passes of the engine. A program or an `.ir` file runs only the passes of
    `parallel` and `precision`.
    """
    from .deployment import Deployment, default_steps, lower

    cost_model, source = _model(hw, estimation), ModelSource.of(model)
    program = checked_program(source.load(logits))
    if source.is_program and parallel is None and precision is None:
        return program, cost_model
    deployment = Deployment(record_or_default(Precision, precision), record_or_default(Parallel, parallel))
    steps = deployment.around(*default_steps(source, cost_model.runs), model=cost_model)
    return lower(program, steps), cost_model


def _model(hw: Any, estimation: Estimation | None = None) -> DeviceCostModel:
    """Build the cost model of a device."""
    from llmir.backends.cost.models import model, with_scheduler
    from llmir.hw.engine_sections import Scheduler

    options = record_or_default(Estimation, estimation)
    found = model(device_of(hw, options), options.cost, options.engine, options.efficiency)
    if (interval := options.receive_interval) is None:
        return found
    scheduler = found.runs.section(Scheduler) if found.runs else None
    if not scheduler or not scheduler.receive_interval:
        why = f"{found.runs or 'no engine'} has no such setting, sglang has"
        raise InputError(f"receive_interval: {interval}; {why}")
    return with_scheduler(found, FrozenDict(receive_interval=interval))


def device_of(hw: Any, estimation: Estimation) -> Device:
    """The device of the argument `hw` or of the estimation, with its network and hourly price."""
    from llmir.hw.library import cluster, join, load, with_prices

    named = {"hw": hw, "estimation.hw": estimation.hw, "cluster": estimation.cluster}
    given = [name for name, value in named.items() if value is not None]
    if len(given) > 1:
        raise InputError(f"{given[-1]}: names the device, and so does {given[0]}; leave one of them out")
    if estimation.cluster is None:
        device = load(estimation.hw if hw is None else hw)
    else:
        device = cluster(estimation.cluster)
    if estimation.network is not None:
        device = join(device, estimation.network)
    return device if estimation.price is None else with_prices([device], estimation.price)[0]


def beam_search(job: Workload, beams: int) -> Workload:
    """Add beam search to a workload: each request decodes `beams` sequences after one prompt.

    A decode step has `batch`·`beams` rows, each with 2·`beams` candidates. If the cache is updated in place,
    the sequences of a request share the full cache blocks of the prompt. If the cache grows by copies, as in
    transformers, each sequence has its own cache, which is copied when beams are reordered.

    Args:
        job: The workload without beam search.
        beams: Number of beams; one beam returns `job`.

    Returns:
        A `Workload`.

    Raises:
        InputError: The workload does not support beam search.

    >>> import llmir
    >>> program = llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of())
    >>> ideal = llmir.Estimation(cost="ideal")
    >>> job = llmir.workload(program, "h100-sxm", batch=8, prompt=1000, generate=100, estimation=ideal)
    >>> four = beam_search(job, 4)
    >>> four.rows, four.cache_bytes == 8 * (1000 + 4 * 99) * program.cache_bytes(1)
    (32, True)
    """
    from llmir.backends.request.beams import beam_workload, check_beams
    from llmir.backends.request.workload import Workload
    from llmir.ir.ops.beam_search import MOST
    from llmir.passes.beam_search import BeamSearch, copies_caches

    if not isinstance(job, Workload):
        arguments.refuse("job", job, "a Workload")
    count = arguments.integer("beams", beams, 1, MOST)
    if count == 1:
        return job
    check_beams(job)
    return beam_workload(
        job, BeamSearch(count)(job.program), count, count if copies_caches(job.program) else 1
    )


Structure = Program | tuple[Program, int | Sequence[int]]


def candidates(
    programs: Iterable[Structure],
    hw: Any,
    *,
    estimation: Estimation | None = None,
    cache_policy: str = "exact",
) -> Candidates:
    """Compare programs at the same points. Ops that several programs share are estimated once.

    The results of each program equal those of `analyze`, and those of `workload` with chunk="all".

    Args:
        programs: Programs or models as in `analyze`, or pairs of a program and its pipeline stages as in
            `llmir.stages`.
        hw: The device, as in `analyze`.
        estimation: The cost model (`Estimation`).
        cache_policy: The rule of cache allocation, as in `analyze`.

    Returns:
        A `Candidates`; its methods `step` and `requests` return arrays over programs and points.

    Raises:
        InputError: A list is empty, or a value is out of range.

    >>> import llmir
    >>> program = llmir.run(llmir.load("llama3.1-70b"), llmir.pipeline_of())
    >>> split = [(llmir.run(program, f"shard{{tp={8 // pp}}}"), pp) for pp in (1, 2, 4)]
    >>> jobs = llmir.candidates(split, "h100-sxm").requests(batch=[1, 64], prompt=2000, generate=200)
    >>> jobs.tpot_s.shape
    (3, 2)
    """
    from llmir.backends.request.candidates import Candidates

    model = _model(hw, estimation)
    pairs = []
    for each in arguments.items("programs", programs, "programs, or pairs of one and its stages"):
        program, stages = each if isinstance(each, tuple) and len(each) == 2 else (each, 1)
        program, _ = deploy(program, hw, estimation)
        layers = stage_layers(stages)
        pairs.append((program, (1,) if layers == 1 else cut_sizes(program, layers)))
    return Candidates(pairs, model, cache_policy)


def stage_layers(stages: Any) -> int | list[int]:
    """Check the number of stages, or the number of layers of each stage; InputError for other values."""
    if isinstance(stages, int):
        return arguments.integer("stages", stages, 1)
    either = "layers, or a number of stages"
    return [arguments.integer("stages: layers", n, 1) for n in arguments.items("stages", stages, either)]


def stages(
    program: Any,
    hw: Any,
    stages: Iterable[int | Sequence[int]],
    *,
    batch: Any = 1,
    new: Any = 1,
    context: Any = 0,
    phase: str | None = None,
    estimation: Estimation | None = None,
    cache_policy: str = "exact",
) -> tuple[StageReport, ...]:
    """Estimate one step of a program for each pipeline split in `stages`.

    The results equal those of `analyze` after the passes `stages` and `slice-sends`, but each layer is
    lowered and estimated only once. Run all other passes before this call.

    Args:
        program: A program, or a model as in `analyze`.
        hw: The device.
        stages: One entry for each split: the number of pipeline stages, or the layers of each stage.
        batch, new, context, phase, cache_policy: As in `analyze`.
        estimation: The cost model (`Estimation`).

    Returns:
        A `StageReport` for each split.

    Raises:
        InputError: A split is impossible, or a value is out of range.

    >>> import llmir
    >>> program = llmir.run(llmir.load("llama3.1-405b"), f"{llmir.pipeline_of()},shard{{tp=8}}")
    >>> for step in llmir.stages(program, "h200", (1, 2, (30, 32, 32, 32)), batch=32, context=2048):
    ...     print(step.layers, [round(stage.peak_memory_bytes / 1e9) for stage in step.stages])
    (126,) [106]
    (63, 63) [53, 53]
    (30, 32, 32, 32) [25, 27, 27, 27]
    """
    from llmir.backends.memory.caches import policy
    from llmir.backends.step.program_batch import stage_evaluator, stage_report
    from llmir.backends.step.sizes import batch_program, check_sizes

    program, model = deploy(program, hw, estimation)
    cuts = list(map(stage_layers, arguments.items("stages", stages, "numbers of stages, or layers of each")))
    named = "" if phase is None else arguments.choice("phase", phase, PHASES)
    runs, _, at = batch_program(program, (check_sizes(batch, new, context),), named)
    by, sizes = policy(cache_policy).name, [cut_sizes(program, each) for each in cuts]
    return tuple(stage_report(stage_evaluator(runs, model, each, by), each, at) for each in sizes)
