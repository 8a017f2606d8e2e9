"""Estimate a step (`analyze`) or a request (`workload`), and variants of both.

`speculate` and `beam_search` change how tokens are decoded, `candidates` compares several programs at the
same points, and `stages` splits a step over pipeline stages.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from llmir.base import arguments
from llmir.base.errors import InputError, PassError
from llmir.ir.core.program import PHASES, Program
from llmir.ir.tools.loops import cut_sizes
from llmir.ir.tools.verify import checked_program

from .load import is_ir, load, run
from .options import Drafts, Estimation, Memory, Parallel, Precision, of

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
    """One step on a device: `batch` sequences of `new` tokens each, with `context` tokens cached.

    A `model` that is a program is estimated as it is; a name, config or path, as `load` takes it, as the
    engine runs it, on the ranks of `parallel` and in the types of `precision`. `hw` is a device by name,
    file or `llmir.hw.library.load`. Any of the three numbers may be an array; figures are then arrays of
    their broadcast shape. `beside` are other sequences in the same step, such as `[{"batch": 1, "new":
    512}]`, a chunk of a prefill beside decodes. Of a program with phases `phase` says which, by default
    decode for one new token of each, else prefill. `estimation` names the cost model: `calibrated` (the
    default where kernels were measured, on the device or on a relative), by the kernels of an `engine`;
    `ideal`; a plugin's; or an object of yours with `price(row)` (`llmir.CostModel`). Or its `efficiency`
    gives shares of the roofline's rates, such as `{"memory": 0.8}`. `cache_policy` is what is reserved for
    caches: their `exact` bytes, or as engines do that are `paged` or `unified`.
    """
    from llmir.backends.step.report import Report

    program, priced = deployed(model, hw, estimation, parallel, precision)
    at: dict[str, Any] = {"batch": batch, "new": new, "context": context, "beside": beside}
    at["cache_policy"] = cache_policy
    if phase is not None:
        at["phase"] = arguments.choice("phase", phase, PHASES)
    return Report(program, priced.device, **at, model=priced)


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
    memory: Memory | None = None,
    drafts: Drafts | None = None,
    parallel: Parallel | None = None,
    precision: Precision | None = None,
    estimation: Estimation | None = None,
) -> Workload:
    """A batch of requests, from prompt to last token; its `to_dict()` is the JSON report.

    By default a prompt has 2048 tokens, and 128 are generated; a model of images alone takes neither. The
    first `cached` are in the cache already; a step reads `chunk` on each data-parallel rank, by default as
    many as the engine's, without one "all". `concurrency` in place of `batch` adds a `loop`, what a server
    makes of so many users, `max_tpot_s` the loop of the `most` users who get their tokens within that.
    `memory` has the share of memory that may be used and the limits of a step; with `drafts` steps verify
    drafted tokens, as in `speculate`. The model and the other records are as in `analyze`.

    >>> job = workload("qwen3-32b", "h100-sxm", batch=32, prompt=2048, generate=256, parallel=Parallel(tp=4))
    >>> job.program.devices, job.fits
    (4, True)
    """
    from llmir.backends.request.workload import Workload

    program, priced = deployed(model, hw, estimation, parallel, precision)
    prompt, generate = request_lengths(program, prompt, generate)
    requests: dict[str, Any] = {
        "batch": batch,
        "prompt": prompt,
        "generate": generate,
        "chunk": chunk,
        "cached": cached,
    }
    job = Workload(program, priced.device, model=priced, **requests, **of(Memory, memory).values)
    if concurrency is not None or max_tpot_s is not None:
        from llmir.backends.request.closed_loop import closed_loop_workload

        job = closed_loop_workload(job, concurrency, max_tpot_s)
    if drafts is None:
        return job
    return speculate(job, drafted(model, drafts, hw, estimation, parallel, precision))


def speculate(job: Workload, drafts: Drafts) -> SpeculativeWorkload:
    """A workload whose later tokens come by steps that verify drafted tokens of each sequence at once.

    `drafts.verify` is the same program with logits of all positions. A draft is right with chance
    `acceptance`, whatever came before it, so that a step yields (1 − aᵏ⁺¹) / (1 − a) tokens
    (arXiv:2211.17192). `draft_model` is the program that drafts, a token a step; without one it is the layer
    of a program that was loaded with `draft=True`, and without that drafts cost nothing. InputError for what
    cannot be.

    >>> import llmir
    >>> last, every = (
    ...     llmir.run(llmir.load("llama3.1-8b", logits=of), llmir.DEFAULT_PIPELINE) for of in ("last", "all")
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
    found = verified(drafts)
    if found is None:
        raise InputError("drafts: say draft_tokens, acceptance and verify")
    count, share, verify, draft = found
    return speculative_workload(job, verify, count, share, draft)


def verified(drafts: Drafts | None) -> tuple[int, float, Program, Program | None] | None:
    """The values of drafts with their programs; None without drafts, InputError where some are missing."""
    said = of(Drafts, drafts)
    if said.draft_tokens is None:
        if name := next(iter(said.given), None):
            raise InputError(f"{name}: is of drafts, say draft_tokens too")
        return None
    if said.verify is None:
        raise InputError("draft_tokens: say verify too, the program with logits of all positions")
    if said.acceptance is None:
        raise InputError("draft_tokens: say acceptance too, the chance that a draft is right")
    own = None if said.draft_model is None else checked_program(said.draft_model)
    return said.draft_tokens, said.acceptance, checked_program(said.verify), own


def drafted(
    model: object,
    drafts: Drafts | None,
    hw: Any,
    estimation: Estimation | None,
    parallel: Parallel | None,
    precision: Precision | None,
) -> Drafts:
    """Drafts with their programs, lowered as the model is; those of a model that is a program as they are."""
    said, how = of(Drafts, drafts), (hw, estimation, parallel, precision)
    if isinstance(model, Program) or said.draft_tokens is None:
        return said
    if said.verify is None:
        said = replace(said, verify=deployed(model, *how, logits="all")[0])
    if said.draft_model is not None and not isinstance(said.draft_model, Program):
        said = replace(said, draft_model=deployed(said.draft_model, *how)[0])
    return said


def request_lengths(program: Program, prompt: Any, generate: Any) -> tuple[Any, Any]:
    """Tokens in and out, as asked for or by default; `InputError` where there are none to ask for."""
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


def or_default(value: Any, default: int) -> Any:
    """The value, or the default in place of None."""
    return default if value is None else value


def deployed(
    model: object,
    hw: Any,
    estimation: Estimation | None = None,
    parallel: Parallel | None = None,
    precision: Precision | None = None,
    logits: str | None = None,
) -> tuple[Program, DeviceCostModel]:
    """The program of a model on its ranks and in its types, and the cost model that estimates it.

    A name, config or path is lowered by the passes that the engine runs; a program, or an `.ir` file, by none
    but those of `parallel` and `precision`.
    """
    from .deployment import Deployment, passes_of

    priced = _model(hw, estimation)
    whole = isinstance(model, Program) or (isinstance(model, str | os.PathLike) and is_ir(model))
    program = checked_program(model if isinstance(model, Program) else load(model, logits))
    if whole and parallel is None and precision is None:
        return program, priced
    deployment = Deployment(of(Precision, precision), of(Parallel, parallel))
    passes = () if whole else (passes_of(priced.runs),)
    try:
        return run(program, deployment.around(*passes, runs=priced.runs)), priced
    except PassError as error:
        if isinstance(error.__cause__, PassError):  # nobody has written the pipeline that it names
            raise error.__cause__ from None
        raise


def _model(hw: Any, estimation: Estimation | None = None) -> DeviceCostModel:
    """The cost model of a device."""
    from llmir.backends.cost.models import model

    said = of(Estimation, estimation)
    return model(device_of(hw, said), said.cost, said.engine, said.efficiency)


def device_of(hw: Any, estimation: Estimation) -> Device:
    """The device of an argument, or else of the estimation, in its network and at its price."""
    from llmir.hw.library import cluster, join, load, with_prices

    named = {"hw": hw, "estimation.hw": estimation.hw, "cluster": estimation.cluster}
    given = [name for name, value in named.items() if value is not None]
    if len(given) > 1:
        raise InputError(f"{given[-1]}: says the device, and so does {given[0]}; leave one of them out")
    found = (
        load(estimation.hw if hw is None else hw)
        if estimation.cluster is None
        else cluster(estimation.cluster)
    )
    found = found if estimation.network is None else join(found, estimation.network)
    return found if estimation.price is None else with_prices([found], estimation.price)[0]


def beam_search(job: Workload, beams: int) -> Workload:
    """A workload whose requests decode so many sequences each, after one prompt, and give the best.

    Steps have `batch`·`beams` rows, of which each has 2·`beams` candidates. Caches in place share the whole
    blocks of a prompt; those that grow by copies, of transformers, are each sequence's own, and are copied
    where beams change places. With 1 it is the job itself. InputError for what cannot be.

    >>> import llmir
    >>> program = llmir.run(llmir.load("llama3.1-8b"), llmir.DEFAULT_PIPELINE)
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
    """Programs that are compared at the same points: what is the same in several is priced once.

    Each is a program, or a pair of one and the pipeline stages that it is in, as `llmir.stages` takes them.
    Their figures are those that `analyze` and `workload` (with chunk="all") give of each; other arguments
    are as there.

    >>> import llmir
    >>> program = llmir.run(llmir.load("llama3.1-70b"), llmir.DEFAULT_PIPELINE)
    >>> split = [(llmir.run(program, f"shard{{tp={8 // pp}}}"), pp) for pp in (1, 2, 4)]
    >>> jobs = llmir.candidates(split, "h100-sxm").requests(batch=[1, 64], prompt=2000, generate=200)
    >>> jobs.tpot_s.shape
    (3, 2)
    """
    from llmir.backends.request.candidates import Candidates

    model = _model(hw, estimation)
    found = []
    for each in arguments.items("programs", programs, "programs, or pairs of one and its stages"):
        program, stages = each if isinstance(each, tuple) and len(each) == 2 else (each, 1)
        program = checked_program(program)
        layers = stage_layers(stages)
        found.append((program, (1,) if layers == 1 else cut_sizes(program, layers)))
    return Candidates(found, model, cache_policy)


def stage_layers(stages: Any) -> int | list[int]:
    """How many stages, or the layers of each; `InputError` for neither."""
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
    """One step of a program in each of `stages`: how many pipeline stages, or the layers of each of them.

    Its figures are those that `analyze` gives of what the passes `stages` and `slice-sends` make of the
    program, which are best the last of its passes; but layers are lowered and priced once for all. Other
    arguments are as there.

    >>> import llmir
    >>> program = llmir.run(llmir.load("llama3.1-405b"), f"{llmir.DEFAULT_PIPELINE},shard{{tp=8}}")
    >>> for step in llmir.stages(program, "h200", (1, 2, (30, 32, 32, 32)), batch=32, context=2048):
    ...     print(step.layers, [round(stage.peak_memory_bytes / 1e9) for stage in step.stages])
    (126,) [106]
    (63, 63) [53, 53]
    (30, 32, 32, 32) [25, 27, 27, 27]
    """
    from llmir.backends.memory.caches import policy
    from llmir.backends.step.program_batch import stage_evaluator, stage_report
    from llmir.backends.step.sizes import batch_program, check_sizes

    program, model = checked_program(program), _model(hw, estimation)
    asked = arguments.items("stages", stages, "numbers of stages, or layers of each")
    cuts = list(map(stage_layers, asked))
    named = "" if phase is None else arguments.choice("phase", phase, PHASES)
    runs, _, at = batch_program(program, (check_sizes(batch, new, context),), named)
    by, sizes = policy(cache_policy).name, [cut_sizes(program, each) for each in cuts]
    return tuple(stage_report(stage_evaluator(runs, model, each, by), each, at) for each in sizes)
