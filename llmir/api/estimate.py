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
        model: A name, config or path as `load` takes it, estimated as the engine runs it; or a program,
            estimated as it is.
        hw: A device: its name, its file, or the result of `llmir.hw.library.load`.
        batch, new, context: Numbers, or arrays of one broadcast shape; figures then have that shape.
        beside: Other sequences of the same step, such as `[{"batch": 1, "new": 512}]`: a prefill chunk that
            runs together with decodes.
        phase: The phase of a program that has several; by default decode for one new token, else prefill.
        cache_policy: The rule of cache allocation: `exact` bytes, or `paged` or `unified` as in engines.
        parallel: The ranks that share the model.
        precision: The element types.
        estimation: The cost model. The default is `calibrated` if kernels were measured on the device or on
            a similar one, else `ideal`. `engine` chooses the kernels, `efficiency` gives shares of the
            roofline's rates, such as `{"memory": 0.8}`. `cost` may be an object with `price(row)`
            (`llmir.CostModel`).
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
    """Estimate a batch of requests from prompt to last token; `to_dict()` of the result is the JSON report.

    The arguments that are not listed are as in `analyze`.

    Args:
        prompt: Tokens of each prompt, by default 2048; not for models that read images alone.
        generate: Generated tokens of each request, by default 128; not for models that read images alone.
        chunk: Prompt tokens of a step on each data-parallel rank, or "all"; by default the engine's limit,
            and "all" without an engine.
        cached: Tokens of each prompt that are in the cache already.
        concurrency: Users in a closed loop, in place of `batch`; the result has the `loop`.
        max_tpot_s: Limit of TPOT in seconds; the result has the loop of the most users within it.
        lengths: How answers in a closed loop differ: "spread", uniform from 0.8 to 1.0 of `generate` (the
            default), or "fixed".
        memory: The share of memory that may be used, and the limits of a step.
        drafts: Speculative decoding, as in `speculate`.

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
    """How answers in a closed loop differ; InputError for lengths without a loop."""
    if lengths is not None and concurrency is None:
        given = arguments.show_value(lengths)
        raise InputError(f"lengths: {given}; only answers in a closed loop differ, so concurrency is needed")
    return option(Traffic, "lengths").check(lengths) or "spread"


def speculate(job: Workload, drafts: Drafts) -> SpeculativeWorkload:
    """A workload with speculative decoding: a step verifies the draft tokens of each sequence at once.

    A draft token is right with probability `acceptance`, independently of earlier ones. A step of k drafts
    and acceptance a then yields (1 − aᵏ⁺¹) / (1 − a) tokens on average (arXiv:2211.17192).

    Args:
        job: The workload without drafts.
        drafts: `verify` is the same program with logits of all positions. `draft_model` is the program that
            drafts one token a step; by default the draft layer of a program loaded with `draft=True`. A
            program without such a layer drafts at no cost.

    Raises:
        InputError: `drafts` lacks a value, or the workload cannot use drafts.

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
        raise InputError("drafts: say draft_tokens, acceptance and verify")
    count, share, verify, draft = values
    return speculative_workload(job, verify, count, share, draft)


def draft_values(drafts: Drafts | None) -> tuple[int, float, Program, Program | None] | None:
    """The number of draft tokens, the acceptance and the two programs; None without drafts.

    Raises:
        InputError: One of the values is missing.
    """
    drafts = record_or_default(Drafts, drafts)
    if drafts.draft_tokens is None:
        if name := next(iter(drafts.given), None):
            raise InputError(f"{name}: is of drafts, say draft_tokens too")
        return None
    if drafts.verify is None:
        raise InputError("draft_tokens: say verify too, the program with logits of all positions")
    if drafts.acceptance is None:
        raise InputError("draft_tokens: say acceptance too, the chance that a draft is right")
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
    """Drafts with their programs, lowered as the model is; unchanged for a model that is a program."""
    drafts, how = record_or_default(Drafts, drafts), (hw, estimation, parallel, precision)
    if isinstance(ModelSource.of(model).model, Program) or drafts.draft_tokens is None:
        return drafts
    if drafts.verify is None:
        drafts = replace(drafts, verify=deploy(model, *how, logits="all")[0])
    if drafts.draft_model is not None and not isinstance(drafts.draft_model, Program):
        drafts = replace(drafts, draft_model=deploy(drafts.draft_model, *how)[0])
    return drafts


def request_lengths(program: Program, prompt: Any, generate: Any) -> tuple[Any, Any]:
    """Prompt and generated tokens, by default 2048 and 128; `InputError` for a model without tokens."""
    for name, value in (("prompt", prompt), ("generate", generate)):
        if program.patches and value is not None:
            facts = f"{program.name} reads {program.patches} patches of each image, and no tokens"
            raise InputError(f"{name}: {facts}; batch alone counts")
    if program.patches:
        return 1, 1
    length = program.facts.get("prompt")
    usual = length - program.image_tokens if isinstance(length, int) else 2048
    if usual < 1:
        fact = f"{program.image_tokens:,} tokens of images leave nothing of the {length:,} that layers see"
        raise InputError(f"prompt: {fact}")
    return or_default(prompt, usual), or_default(generate, 128)


def or_default(value: Any, default: float) -> Any:
    """The value, or the default in place of None."""
    return default if value is None else value


def deploy(
    model: object,
    hw: Any,
    estimation: Estimation | None = None,
    parallel: Parallel | None = None,
    precision: Precision | None = None,
    logits: str | None = None,
) -> tuple[Program, DeviceCostModel]:
    """The program of a model on its ranks and in its types, and the cost model that estimates it.

    The passes of the engine lower a name, config or path. A program or an `.ir` file takes only the passes of
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
    """The cost model of a device."""
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
    """The device of the argument `hw` or of the estimation, with its network and its price."""
    from llmir.hw.library import cluster, join, load, with_prices

    named = {"hw": hw, "estimation.hw": estimation.hw, "cluster": estimation.cluster}
    given = [name for name, value in named.items() if value is not None]
    if len(given) > 1:
        raise InputError(f"{given[-1]}: says the device, and so does {given[0]}; leave one of them out")
    if estimation.cluster is None:
        device = load(estimation.hw if hw is None else hw)
    else:
        device = cluster(estimation.cluster)
    if estimation.network is not None:
        device = join(device, estimation.network)
    return device if estimation.price is None else with_prices([device], estimation.price)[0]


def beam_search(job: Workload, beams: int) -> Workload:
    """A workload with beam search: each request decodes `beams` sequences after one prompt.

    A decode step has `batch`·`beams` rows, each with 2·`beams` candidates. Sequences share the full cache
    blocks of their prompt if the cache is updated in place. A cache that grows by copies, as in transformers,
    belongs to one sequence and is copied when beams change places. With one beam the result is `job`.

    Raises:
        InputError: The workload cannot use beam search.

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
    """Compare programs at the same points; equal ops of several programs are estimated once.

    The figures of each program equal those of `analyze`, and of `workload` with chunk="all".

    Args:
        programs: Programs or models as in `analyze`, or pairs of one and its pipeline stages, as
            `llmir.stages` takes them.
        hw: The device, as in `analyze`.
        estimation: The cost model, as in `analyze`.
        cache_policy: The rule of cache allocation, as in `analyze`.

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
    """The number of stages, or the layers of each stage; `InputError` for another value."""
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
    """Estimate one step of a program for each way in `stages` to split it into pipeline stages.

    The figures equal those of `analyze` after the passes `stages` and `slice-sends`, but each layer is
    lowered and estimated once. Run other passes before. The other arguments are as in `analyze`.

    Args:
        program: A program, or a model as in `analyze`.
        stages: For each step, the number of pipeline stages, or the layers of each stage.

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
