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
    """Compare two models op by op, in one step or in whole requests.

    `new` and `context` describe a step, `prompt` and `generate` describe requests. Both sides use the same
    cost model: calibrated kernels of one engine if every op of both sides has one, otherwise the roofline.
    The field `basis` of the result names the choice.

    Args:
        before, after: The two sides. A name, path or config is lowered by the passes of its engine; a program
            is estimated as it is. Two reports or two workloads are compared without another estimate.
        hw: The device of both sides, or of `before` alone.
        hw_after: The device of `after`. The default is `hw`.
        engine_after: The engine of `after`. The default is the engine of `estimation`.
        batch: Number of sequences.
        new, context: New and cached tokens of each sequence, for a comparison of steps. The defaults are 1
            and 0.
        prompt, generate: Prompt and output tokens of each request, for a comparison of requests. The defaults
            are 2048 and 128 if only one of them is set.
        chunk, cached, concurrency, lengths: As in `workload`.
        estimation: The cost model (`Estimation`).

    Returns:
        A `StepDiff` or a `WorkloadDiff`.

    Raises:
        InputError: An argument is out of range, or only one of two reports has calibrated times.

    >>> step = diff("qwen3-0.6b", "qwen3-1.7b", "h100-sxm", batch=8, context=1000)
    >>> step.total("flops").after > step.total("flops").before
    True
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
        raise InputError(
            "diff: new and context describe a step, prompt and generate describe requests; set "
            "only one of these pairs"
        )
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
    """The program of one side, after the passes of its engine. A program is returned unchanged."""
    source = ModelSource.of(side)
    return lower(checked_program(source.load()), default_steps(source, engine))


def explain(priced: Report | Workload, op: str, *, phase: str | None = None) -> Explanation:
    """Explain one op of a step: its equation, its cost in symbols and numbers, and the terms of its time.

    Args:
        priced: The estimate that contains the op.
        op: Name of the op in the report, such as `layer.qkv_proj` or `qkv_proj`.
        phase: The step of a workload: `prefill` or the last `decode`.

    Returns:
        An `Explanation`.

    Raises:
        InputError: The estimate has no op of this name, or no step of this phase.

    >>> import llmir
    >>> found = explain(llmir.analyze("qwen3-0.6b", "h100-sxm", batch=8, context=1000), "qkv_proj")
    >>> found.equation
    'b t h, h g r d, h g d, h g d -> b t g r d, b t g d, b t g d'
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
    """Estimate how much time a workload saves if one resource is faster, by phase and op.

    The resources are the rates of the device file, the kernel launch time (`launch`) and the engine CPU time
    (`host`). The workload is estimated again on a device with a better value of each resource in turn.

    Args:
        job: The workload.
        more: Relative improvement of each resource, such as 0.1 for 10%.

    Returns:
        A `Sensitivity`.

    Raises:
        InputError: `more` is not above 0, or `job` is not a workload.

    >>> import llmir
    >>> job = llmir.workload("qwen3-0.6b", "h100-sxm", generate=64)
    >>> found = sensitivity(job)
    >>> found.more
    0.1
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
    """Compute one step of a program in NumPy, in float64.

    The interpreter is a reference for small models; it is not optimized.

    Args:
        program: The program.
        inputs: Whole arrays by name. Their shapes give the number of sequences and tokens.
        weights: A function from the name and type of a checkpoint tensor to its array. The default gives
            pseudo-random numbers that depend on the name alone.
        caches: The caches that the previous step returned, by rank.
        context: Number of tokens before this step.
        phase: The phase to run. The default is decode for one new token per sequence, otherwise prefill.

    Returns:
        The outputs, and the caches after the step by rank.

    Raises:
        InputError: An input is missing, or its shape does not fit the program.

    >>> import llmir, numpy as np
    >>> b = llmir.Builder()
    >>> b.output(b.silu(b.input("fp32[B, T, 4]", name="x")))
    >>> program = llmir.Program("silu", {"main": b.graph()})
    >>> (y,), caches = interpret(program, {"x": np.ones((1, 2, 4))})
    >>> y.shape, round(float(y[0, 0, 0]), 4), caches
    ((1, 2, 4), 0.7311, {})
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
    """Test whether two programs compute the same values.

    NumPy runs both programs on short axes, with all layers and ranks and with the same random weights: a
    prefill of `new` tokens, and then one decode step.

    Args:
        before, after: The two programs.
        batch: Number of sequences.
        new: Tokens of the prefill.
        tolerance: Largest allowed difference, relative to the largest output.

    Returns:
        An `Equivalence`, which is true or false in a condition, and names the first difference.

    Raises:
        InputError: The programs have different inputs or outputs, or a value is out of range.

    >>> import llmir
    >>> b = llmir.Builder()
    >>> x = b.input("fp32[B, T, 4]", name="x")
    >>> b.output(b.mul(b.silu(x), x))
    >>> program = llmir.Program("gate", {"main": b.graph()})
    >>> bool(equivalent(program, llmir.run(program, "fuse")))
    True
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
    """Check the weights of a program against a checkpoint, or the sum over all ranks against one device.

    Args:
        program: An unfused program, or a sharded program if `against` is a program.
        against: A safetensors index, a `.safetensors` file, its header as JSON, or a folder of these; only
            headers are read. Alternatively, the program before it was sharded.
        batch: Sequences of the compared step. The default is one for each data-parallel rank.
        new: Tokens of each sequence. The default is one for each tensor-parallel rank.

    Returns:
        A `Comparison` with a checkpoint, or a `Conservation` with a program.

    Raises:
        InputError: `batch` or `new` is set for a checkpoint, or the checkpoint cannot be read.

    >>> import llmir
    >>> program = llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of())
    >>> bool(check(llmir.run(program, "shard{tp=2}"), program))
    True
    """
    if isinstance(against, Program):
        from llmir.backends.compare.conservation import conservation

        return conservation(against, checked_program(program), batch=batch, new=new)
    from llmir.frontends.checkpoints import tensors, weights

    if batch is not None or new is not None:
        raise InputError("check: a checkpoint is compared whole; leave batch and new out")
    return weights.compare(checked_program(program), tensors.read(str(arguments.path("against", against))))
