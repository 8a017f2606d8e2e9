"""The Python face: load a model, run passes, price a step or a whole request, draw it.

Beam search of a priced workload.

Steps and requests of many programs at once: `candidates`, for searches.

A step of one program in several numbers of pipeline stages, without cutting it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from llmir.base import arguments
from llmir.base.errors import InputError
from llmir.ir.core.program import PHASES, Program
from llmir.ir.tools.loops import cut_sizes
from llmir.ir.tools.pipeline import Pass, Step, parse_pipeline, run_passes, steps_of
from llmir.ir.tools.verify import checked_program

if TYPE_CHECKING:
    from llmir.backends.compare.conservation import Conservation
    from llmir.backends.compare.diff import StepDiff, WorkloadDiff
    from llmir.backends.compare.explain import Explanation
    from llmir.backends.compare.sensitivity import Sensitivity
    from llmir.backends.cost.models import CostModel
    from llmir.backends.cost.op_time import Model
    from llmir.backends.export.sections import Rows
    from llmir.backends.interpret.equivalence import Equivalence
    from llmir.backends.request.candidates import Candidates
    from llmir.backends.request.speculation import Speculative
    from llmir.backends.request.workload import Workload
    from llmir.backends.step.program_batch import InStages
    from llmir.backends.step.report import Report
    from llmir.frontends.checkpoints.weights import Comparison
    from llmir.ir.core.op import Array
    from llmir.ir.core.tensor import Tensor


def load(model: object, logits: str | None = None, *, lenient: bool = False, draft: bool = False) -> Program:
    """The unfused, unsharded program of a model, quantized if its config says that its checkpoint is.

    `model` is a preset's name or HF id, a path to a config.json or its folder, a dict, or an object with
    `.to_dict()`; `logits` is `last` (one position a sequence, the default) or `all`. `lenient` turns config
    fields that llmir does not model from errors into notes; with `draft` the layer that predicts further
    tokens is a phase of its own. The path of an `.ir` file is that program as it is. Raises `ConfigError`,
    `UnsupportedError` or `ParseError`.
    """
    from llmir.frontends.load import load as read
    from llmir.ir.tools.text import read_program

    path = os.fspath(model) if isinstance(model, str | os.PathLike) else None
    if isinstance(path, str) and path.lower().endswith(".ir"):
        if logits is not None:
            raise InputError(f"logits: {path} is IR, which says already what lm_head runs on")
        if draft:
            raise InputError(f"draft: {path} is IR, which has already the phases that it has")
        return read_program(path)
    program = read(model, logits="last" if logits is None else logits, lenient=lenient, draft=draft)
    stored = program.facts.get("quantization")
    return run(program, stored) if isinstance(stored, str) else program


def models(name: str = "") -> Rows:
    """The bundled models, or those that have `name` in theirs; of one model that `load` knows, its weights.

    >>> [row["name"] for row in models("llama-3.2").rows]
    ['Llama-3.2-1B', 'Llama-3.2-3B']
    """
    from llmir.backends.export import catalog as lists
    from llmir.frontends import model_sizes
    from llmir.frontends.models import presets

    if preset := presets.find(arguments.text("name", name)):
        return lists.model(load(preset.config), model_sizes.bundled(preset))
    if rows := model_sizes.rows(name):
        return lists.models(rows)
    program = load(name)
    return lists.model(program, model_sizes.row(program, program.name, ""))


def devices(name: Any = None) -> Rows:
    """The bundled devices and clusters; of one, by name or YAML file, each number and its source.

    >>> {row["field"]: row["value"] for row in devices("h100-sxm").rows}["memory_Bps"]
    3350000000000.0
    """
    from llmir.backends.export import catalog as lists
    from llmir.hw.library import load

    return lists.devices() if name is None else lists.device(load(name))


def run(program: Program, pipeline: str | Step | Iterable[Step]) -> Program:
    """`program` after a pipeline: a string such as `"fuse-attention,fuse"`, a pass, a function, or a list.

    Verified before the first pass and after every one; raises `PassError`.
    """
    passes: list[Pass | Callable[[Program], Program]] = []
    for step in steps_of(pipeline):
        passes += parse_pipeline(step) if isinstance(step, str) else [step]
    return run_passes(program, passes)


def analyze(
    program: Program,
    hw: Any,
    *,
    batch: Any = 1,
    new: Any = 1,
    context: Any = 0,
    beside: Iterable[Mapping[str, Any]] = (),
    phase: str | None = None,
    cost: str | CostModel | None = None,
    engine: str | None = None,
    efficiency: Mapping[str, float] | None = None,
    cache_policy: str = "exact",
) -> Report:
    """One step on a device: `batch` sequences of `new` tokens each, with `context` tokens cached.

    Any of the three may be an array; figures are then arrays of their broadcast shape. `beside` are other
    sequences in the same step, such as `[{"batch": 1, "new": 512}]`, a chunk of a prefill beside decodes.
    Of a program with phases `phase` says which, by default decode for one new token of each, else prefill.
    `cost` is the cost model: `calibrated` (the default where kernels were measured, on the device or on a
    relative), by the kernels of an `engine`; `ideal`; a plugin's; or an object of yours with `price(row)`
    (`llmir.CostModel`). Or `efficiency` gives shares of the roofline's rates, such as `{"memory": 0.8}`.
    `cache_policy` is what is reserved for caches: their `exact` bytes, or as engines do that are `paged` or
    `unified`.
    """
    from llmir.backends.step.report import Report

    model = _model(hw, cost, engine, efficiency)
    at: dict[str, Any] = {"batch": batch, "new": new, "context": context, "beside": beside}
    at["cache_policy"] = cache_policy
    if phase is not None:
        at["phase"] = arguments.choice("phase", phase, PHASES)
    return Report(checked_program(program), model.device, **at, model=model)


def workload(
    program: Program,
    hw: Any,
    *,
    batch: int = 1,
    prompt: int | None = None,
    generate: int | None = None,
    memory_utilization: float | None = None,
    reserve_bytes: int = 0,
    cache_policy: str = "exact",
    max_model_len: int | None = None,
    max_num_seqs: int | None = None,
    max_batched_tokens: int | None = None,
    cost: str | CostModel | None = None,
    engine: str | None = None,
    efficiency: Mapping[str, float] | None = None,
    chunk: int | str | None = None,
    cached: int = 0,
    concurrency: int | None = None,
    max_tpot_s: float | None = None,
) -> Workload:
    """A batch of requests, from prompt to last token; its `to_dict()` is the JSON report.

    By default a prompt has 2048 tokens, and 128 are generated; a model of images alone takes neither. The
    first `cached` are in the cache already; a step reads `chunk` on each data-parallel rank, by default as
    many as the engine's, without one "all". `concurrency` in place of `batch` adds a `loop`, what a server
    makes of so many users, `max_tpot_s` the loop of the `most` users who get their tokens within that. Memory
    is that of the engine: `memory_utilization`, less `reserve_bytes`, may be used, `max_num_seqs` and
    `max_batched_tokens` are its step, `max_model_len` the longest request. All else is as in `analyze`.
    """
    from llmir.backends.request.workload import Workload

    model, program = _model(hw, cost, engine, efficiency), checked_program(program)
    asked = batch, *_tokens(program, prompt, generate), memory_utilization, reserve_bytes
    limits = max_model_len, max_num_seqs, max_batched_tokens
    job = Workload(program, model.device, *asked, model, cache_policy, *limits, chunk, cached)
    if concurrency is None and max_tpot_s is None:
        return job
    from llmir.backends.request.closed_loop import service

    return service(job, concurrency, max_tpot_s)


def speculate(
    job: Workload, verify: Program, draft_tokens: int, acceptance: float, draft: Program | None = None
) -> Speculative:
    """A workload whose later tokens come by steps that verify `draft_tokens` of each sequence at once.

    `verify` is the same program with logits of all positions. A draft is right with chance `acceptance`,
    whatever came before it, so that a step yields (1 − aᵏ⁺¹) / (1 − a) tokens (arXiv:2211.17192). `draft` is
    the model that drafts, a token a step; without one it is the layer of a program that was loaded with
    `draft=True`, and without that drafts cost nothing. InputError for what cannot be.

    >>> import llmir
    >>> last, every = (
    ...     llmir.run(llmir.load("llama3.1-8b", logits=of), llmir.DEFAULT_PIPELINE) for of in ("last", "all")
    ... )
    >>> job = llmir.workload(last, "h100-sxm", batch=4)
    >>> faster = llmir.speculate(job, every, 4, 0.7)
    >>> faster.tokens_per_step, 2 < job.tpot_s / faster.tpot_s < faster.tokens_per_step
    (2.7731, True)
    """
    from llmir.backends.request.speculation import speculative
    from llmir.backends.request.workload import Workload

    if not isinstance(job, Workload):
        arguments.refuse("job", job, "a Workload")
    own = None if draft is None else checked_program(draft)
    return speculative(job, checked_program(verify), draft_tokens, acceptance, own)


def _tokens(program: Program, prompt: Any, generate: Any) -> tuple[Any, Any]:
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
    return _given(prompt, usual), _given(generate, 128)


def diff(
    before: Any,
    after: Any,
    hw: Any = None,
    *,
    hw_after: Any = None,
    batch: int = 1,
    new: int | None = None,
    context: int | None = None,
    prompt: int | None = None,
    generate: int | None = None,
    cost: str | CostModel | None = None,
    engine: str | None = None,
    efficiency: Mapping[str, float] | None = None,
    engine_after: str | None = None,
    chunk: int | str | None = None,
    cached: int | None = None,
    concurrency: int | None = None,
) -> StepDiff | WorkloadDiff:
    """What two programs differ in, op by op: in a step (`new`, `context`), or `prompt` and `generate`.

    Both sides are priced alike: calibrated, by one engine's kernels, where all ops of both have some, else by
    the roofline, as `basis` says; `cost`, `engine` and `efficiency` are as in `analyze`. `hw_after` and
    `engine_after` are those of the other side; `chunk`, `cached` and `concurrency` as in `workload`. Also of
    two reports or workloads, priced already: InputError if only the times of one are measured.
    """
    from llmir.backends.compare.diff import common, diff, requested, stepped
    from llmir.hw.library import load

    (engine, efficiency), (after_engine, _) = _options(engine, efficiency), _options(engine_after, None)
    asked = cost, engine, efficiency, hw_after, engine_after, chunk, cached, concurrency
    if hw is None:
        if any(x is not None for x in asked):
            raise InputError("diff: two reports or workloads are priced already; give two programs and hw")
        return diff(before, after)
    requests = prompt is not None or generate is not None
    if requests and not (new is None and context is None):
        raise InputError("diff: new and context are of a step, prompt and generate of requests; give two")
    devices = load(hw), load(hw if hw_after is None else hw_after)
    programs = [checked_program(before), checked_program(after)]
    basis = common(list(zip(programs, devices, strict=True)), cost, engine, efficiency, after_engine)
    if requests:
        tokens = [_tokens(program, prompt, generate) for program in programs]
        return requested(programs, basis, tokens, concurrency, batch=batch, chunk=chunk, cached=cached)
    at = {"batch": batch, "new": _given(new, 1), "context": _given(context, 0)}
    return stepped(programs, basis, at, chunk=chunk, cached=cached, concurrency=concurrency)


def _given(value: Any, default: int) -> Any:
    return default if value is None else value


def explain(priced: Report | Workload, op: str, *, phase: str | None = None) -> Explanation:
    """One op of a step: its equation, its costs in symbols and numbers, and why it takes as long as it does.

    `op` is a name that a report has, such as `layer.qkv_proj` or `qkv_proj`; of a workload, `phase` is the
    step, `prefill` or (the last) `decode`.
    """
    from llmir.backends.compare.explain import explain
    from llmir.backends.request.workload import Workload
    from llmir.backends.step.report import Report

    op = arguments.text("op", op)
    if isinstance(priced, Workload):
        runs = priced.steps
        if phase is None:
            phase = next(name for name in ("prefill", "encode") if name in runs)
        if arguments.choice("phase", phase, PHASES) not in runs:
            why = {
                "decode": "with 1 token to generate",
                "encode": "without image tokens",
                "draft": "without draft",
            }
            raise InputError(f"phase: {why.get(phase, 'with images alone')} there is no {phase} step")
        return explain(runs[phase], op, phase)
    if not isinstance(priced, Report):
        arguments.refuse("priced", priced, "a Report or a Workload")
    return explain(priced, op)


def sensitivity(job: Workload, more: float = 0.1) -> Sensitivity:
    """What a tenth more of each resource saves of a workload's steps, by phase and op, or another share.

    Resources are the device's rates, by their names in its file, and the time of kernels' `launch` and of the
    engine's `host`, which take so much less. Each is what the workload takes on a device that has more of it.
    """
    from llmir.backends.compare.sensitivity import sensitivity
    from llmir.backends.request.workload import Workload

    if not isinstance(job, Workload):
        arguments.refuse("job", job, "a Workload")
    return sensitivity(job, more)


def interpret(
    program: Program,
    inputs: Mapping[str, Array],
    weights: Callable[[str, Tensor], Array] | None = None,
    caches: Mapping[str, list[Array]] | None = None,
    *,
    context: int = 0,
    phase: str | None = None,
) -> tuple[list[Array], dict[str, list[Array]]]:
    """What a program computes, in numpy, in float64: the outputs of one step, and the caches after it.

    `inputs` are whole arrays by name; their shapes say how many sequences and tokens there are. `weights`
    gives an array for a checkpoint's name and a type; by default numbers that depend on the name alone.
    `caches` are those that the step before returned, by rank, and `context` says how many tokens there were
    before this step; `phase` says which of a program's phases runs, by default decode for one new token of
    each, else prefill. For small models: nothing is spared.
    """
    from llmir.backends.interpret.equivalence import random
    from llmir.backends.interpret.program import interpret

    if not (weights is None or callable(weights)):
        arguments.refuse("weights", weights, "a function of a name and a type")
    arrays = arguments.mapping("inputs", inputs, "arrays by name")
    arrays = {name: arguments.array(f"inputs: {name}", x) for name, x in arrays.items()}
    held = arguments.mapping("caches", {} if caches is None else caches, "arrays by name, a rank each")
    for name, pieces in held.items():
        given = arguments.items(f"caches: {name}", pieces, "arrays")
        held[name] = [arguments.array(f"caches: {name}", x) for x in given]
    tokens = arguments.integer("context", context)
    runs = "" if phase is None else arguments.choice("phase", phase, PHASES)
    return interpret(checked_program(program), arrays, weights or random, held, context=tokens, phase=runs)


def equivalent(
    before: Program, after: Program, *, batch: int = 2, new: int = 5, tolerance: float = 1e-9
) -> Equivalence:
    """Whether two programs compute the same; true or false, and it names what differs first.

    Both are run in numpy on short axes, all layers and ranks, from the same random weights: a prefill of
    `new` tokens, and one token more from the caches. The difference is relative to the largest output.
    """
    from llmir.backends.interpret.equivalence import equivalent

    return equivalent(
        checked_program(before), checked_program(after), batch=batch, new=new, tolerance=tolerance
    )


def check(
    program: Program,
    against: str | os.PathLike[str] | Program,
    *,
    batch: int | None = None,
    new: int | None = None,
) -> Comparison | Conservation:
    """The weights of an unfused program against a checkpoint's, or all ranks of one against one device.

    `against` is a safetensors index, a `.safetensors` file, its header as JSON, or their folder, of which
    only headers are read; or the same program before it was sharded, in a step of `batch` sequences of `new`
    tokens (by default a sequence for each data-parallel rank, a token for each tensor-parallel one).
    """
    if isinstance(against, Program):
        from llmir.backends.compare.conservation import conservation

        return conservation(against, checked_program(program), batch=batch, new=new)
    from llmir.frontends.checkpoints import tensors, weights

    if batch is not None or new is not None:
        raise InputError("check: a checkpoint is compared whole; leave batch and new out")
    return weights.compare(checked_program(program), tensors.read(str(arguments.path("against", against))))


def _model(
    hw: Any, cost: str | CostModel | None, engine: str | None, efficiency: Mapping[str, float] | None
) -> Model:
    from llmir.backends.cost.models import model
    from llmir.hw.library import load

    return model(load(hw), cost, *_options(engine, efficiency))


def _options(
    engine: str | None, efficiency: Mapping[str, float] | None
) -> tuple[str | None, Mapping[str, float] | None]:
    """What a cost model is asked for besides its name, checked."""
    if efficiency is not None:
        shares = arguments.mapping("efficiency", efficiency, "shares by name")
        efficiency = {name: arguments.number(f"efficiency: {name}", share) for name, share in shares.items()}
    return None if engine is None else arguments.text("engine", engine), efficiency


def beam_search(job: Workload, beams: int) -> Workload:
    """A workload whose requests decode so many sequences each, after one prompt, and give the best.

    Steps have `batch`·`beams` rows, of which each has 2·`beams` candidates. Caches in place share the whole
    blocks of a prompt; those that grow by copies, of transformers, are each sequence's own, and are copied
    where beams change places. With 1 it is the job itself. InputError for what cannot be.

    >>> import llmir
    >>> program = llmir.run(llmir.load("llama3.1-8b"), llmir.DEFAULT_PIPELINE)
    >>> job = llmir.workload(program, "h100-sxm", batch=8, prompt=1000, generate=100, cost="ideal")
    >>> four = beam_search(job, 4)
    >>> four.rows, four.cache_bytes == 8 * (1000 + 4 * 99) * program.cache_bytes(1)
    (32, True)
    """
    from llmir.backends.request.beams import check, searched
    from llmir.backends.request.workload import Workload
    from llmir.ir.ops.beam_search import MOST
    from llmir.passes.beam_search import BeamSearch, copied

    if not isinstance(job, Workload):
        arguments.refuse("job", job, "a Workload")
    count = arguments.integer("beams", beams, 1, MOST)
    if count == 1:
        return job
    check(job)
    return searched(job, BeamSearch(count)(job.program), count, count if copied(job.program) else 1)


Structure = Program | tuple[Program, int | Sequence[int]]


def candidates(
    programs: Iterable[Structure],
    hw: Any,
    *,
    cost: str | CostModel | None = None,
    engine: str | None = None,
    efficiency: Mapping[str, float] | None = None,
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

    model = _model(hw, cost, engine, efficiency)
    found = []
    for each in arguments.items("programs", programs, "programs, or pairs of one and its stages"):
        program, stages = each if isinstance(each, tuple) and len(each) == 2 else (each, 1)
        program = checked_program(program)
        layers = cut(stages)
        found.append((program, (1,) if layers == 1 else cut_sizes(program, layers)))
    return Candidates(found, model, cache_policy)


def cut(stages: Any) -> int | list[int]:
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
    cost: str | CostModel | None = None,
    engine: str | None = None,
    efficiency: Mapping[str, float] | None = None,
    cache_policy: str = "exact",
) -> tuple[InStages, ...]:
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
    from llmir.backends.step.program_batch import in_stages, staged
    from llmir.backends.step.sizes import checked, running

    program, model = checked_program(program), _model(hw, cost, engine, efficiency)
    asked = arguments.items("stages", stages, "numbers of stages, or layers of each")
    cuts = list(map(cut, asked))
    named = "" if phase is None else arguments.choice("phase", phase, PHASES)
    runs, _, at = running(program, (checked(batch, new, context),), named)
    by, sizes = policy(cache_policy).name, [cut_sizes(program, each) for each in cuts]
    return tuple(in_stages(staged(runs, model, each, by), each, at) for each in sizes)
