"""Compare programs (`diff`, `equivalent`, `check`) and explain results (`explain`, `sensitivity`).

`interpret` evaluates a program in NumPy.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from llmir.base import arguments
from llmir.base.errors import InputError
from llmir.ir.core.program import PHASES, Program
from llmir.ir.tools.verify import checked_program

from .deployment import default_steps, lower
from .estimate import device_of, loop_lengths, or_default, request_lengths
from .load import ModelSource
from .options import Estimation, record_or_default

if TYPE_CHECKING:
    from llmir.backends.compare.conservation import Conservation
    from llmir.backends.compare.diff import StepDiff, WorkloadDiff
    from llmir.backends.compare.explain import Explanation
    from llmir.backends.compare.sensitivity import Sensitivity
    from llmir.backends.interpret.equivalence import Equivalence
    from llmir.backends.request.workload import Workload
    from llmir.backends.step.report import Report
    from llmir.frontends.checkpoints.weights import Comparison
    from llmir.hw.engine import Engine
    from llmir.ir.core.op import Array
    from llmir.ir.core.tensor import Tensor


def diff(
    before: Any,
    after: Any,
    hw: Any = None,
    *,
    hw_after: Any = None,
    engine_after: str | None = None,
    batch: int = 1,
    new: int | None = None,
    context: int | None = None,
    prompt: int | None = None,
    generate: int | None = None,
    chunk: int | str | None = None,
    cached: int | None = None,
    concurrency: int | None = None,
    lengths: str | None = None,
    estimation: Estimation | None = None,
) -> StepDiff | WorkloadDiff:
    """What two models differ in, op by op: in a step (`new`, `context`), or `prompt` and `generate`.

    A model given by name, path or config runs the passes of the engine that estimates its side. A program is
    estimated as it is. Both sides are estimated alike: calibrated, by the kernels of one engine, if all ops
    of both have some, else by the roofline, as `basis` says. `estimation` is as in `analyze`. `hw_after` and
    `engine_after` are those of the other side; `chunk`, `cached`, `concurrency` and `lengths` are as in
    `workload`. Also of two reports or workloads that are estimated already: InputError if only the times of
    one are measured.
    """
    from llmir.backends.compare.diff import common_basis, compare_requests, compare_steps, diff, side_models
    from llmir.hw.library import load

    options = record_or_default(Estimation, estimation)
    after_engine = None if engine_after is None else arguments.text("engine_after", engine_after)
    only_with_hw = *options.given.values(), hw_after, engine_after, chunk, cached, concurrency, lengths
    if hw is None and options.hw is None and options.cluster is None:
        if any(x is not None for x in only_with_hw):
            raise InputError("diff: two reports or workloads are priced already; give two programs and hw")
        return diff(before, after)
    requests = prompt is not None or generate is not None
    if requests and not (new is None and context is None):
        raise InputError("diff: new and context are of a step, prompt and generate of requests; give two")
    device = device_of(hw, options)
    devices = device, device if hw_after is None else load(hw_after)
    how = options.cost, options.engine, options.efficiency
    models, _ = side_models(devices, *how, after_engine)
    sides = zip((before, after), models, strict=True)
    programs = [_lowered(side, model.runs) for side, model in sides]
    basis = common_basis(list(zip(programs, devices, strict=True)), *how, after_engine)
    if requests:
        from llmir.backends.simulate.closed_loop import simulate_loop

        tokens = [request_lengths(program, prompt, generate) for program in programs]
        spread = loop_lengths(lengths, concurrency)
        users = None if concurrency is None else (concurrency, simulate_loop, spread)
        return compare_requests(programs, basis, tokens, users, batch=batch, chunk=chunk, cached=cached)
    loop_lengths(lengths, None)
    at = {"batch": batch, "new": or_default(new, 1), "context": or_default(context, 0)}
    return compare_steps(programs, basis, at, chunk=chunk, cached=cached, concurrency=concurrency)


def _lowered(side: object, engine: Engine | None) -> Program:
    """The program of one side, after the passes of its engine unless it is a program."""
    source = ModelSource.of(side)
    return lower(checked_program(source.load()), default_steps(source, engine))


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
    from llmir.backends.interpret.equivalence import random_weight
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
    return interpret(
        checked_program(program), arrays, weights or random_weight, held, context=tokens, phase=runs
    )


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
