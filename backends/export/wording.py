"""The texts and cells of reports, which the terminal, Markdown and notebooks share.

Order of the file: cost in dollars and energy (`cost_lines`), the lines above a table of ops (`head_lines`,
`result_lines`, `step_lines`), and the rows of that table as short strings (`OpLine`, `op_lines`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from llmir.backends.cost.models import roofline_reason
from llmir.backends.cost.registry import model_source
from llmir.backends.cost.transfer import calibration_source, first_engine
from llmir.backends.memory.kv_capacity import MemoryBreakdown
from llmir.backends.request.workload import ALL, CostBreakdown, Workload, cost_breakdown
from llmir.backends.step.evaluate import OVERHEAD, OpCost, used_links
from llmir.backends.step.facts import precision_text
from llmir.backends.step.report import Report
from llmir.backends.work import network
from llmir.backends.work.rows import TRAFFIC, Basis
from llmir.base.array_namespace import Number
from llmir.hw.device import Device
from llmir.hw.prices import OperatingCost, operating_cost
from llmir.ir.core.program import Program

from . import units

# Cost in dollars and energy

AT_MOST = "an upper bound: all GPUs at their power limit all the time"


def usd(x: float | None) -> str:
    """Dollars as text; `–` without a price.

    >>> usd(0.1234), usd(None)
    ('$0.123', '–')
    """
    return "–" if x is None else f"${units.digits(x)}"


def joules(x: float | None) -> str:
    """Joules as text; `–` without a known power.

    >>> joules(1.234), joules(0.0125), joules(None)
    ('1.23 J', '12.5 mJ', '–')
    """
    if x is None:
        return "–"
    return f"{units.digits(1e3 * x)} mJ" if x < 1 else f"{units.digits(x)} J"


def cost_lines(job: Workload) -> list[tuple[str, str]]:
    """The cost and energy of a workload's tokens; empty if neither the price nor the power limit of the
    device is known.
    """
    found, of = cost_breakdown(job), "image" if job.program.patches else "output token"
    cost = f"{_parts(found, _usd, f'per million {of}s', 'per million tokens')}; {device_price(job.device)}"
    limit = f"at the board limit of {_watts(job.device)}"
    energy = f"at most {_parts(found, _joules, f'per {of}', 'per token')}; {limit}"
    known = ("cost", cost, found.answers.usd_per_mtok), ("energy", energy, found.answers.watts)
    return [(label, line) for label, line, figure in known if figure is not None]


def compare_costs(job: Workload, first: float, second: float) -> list[tuple[str, str, str]]:
    """Rows with the cost and energy of output tokens on the devices of a job, at two rates in tokens per
    second.
    """
    one, other = (operating_cost(job.device, job.program.devices, rate) for rate in (first, second))
    cost = ("$/million output", usd(one.usd_per_mtok), usd(other.usd_per_mtok))
    energy = ("energy, at most", joules(one.joules_per_token), joules(other.joules_per_token))
    return ([cost] if one.usd_per_hour else []) + ([energy] if one.watts else [])


def device_price(device: Device) -> str:
    """The hourly price of a device."""
    return f"{usd(device.price_per_hour_usd)} per device-hour"


def _watts(device: Device) -> str:
    return f"{units.digits(device.board_power_W or 0)} W"


def _usd(of: OperatingCost) -> str:
    return usd(of.usd_per_mtok)


def _joules(of: OperatingCost) -> str:
    return joules(of.joules_per_token)


def _parts(found: CostBreakdown, figure: Callable[[OperatingCost], str], per: str, each: str) -> str:
    """The total per output token and its parts: prompt tokens, and output tokens after the first."""
    parts = [
        f"{w} {figure(part)}" for w, part in (("prefill", found.input), ("decode", found.output)) if part
    ]
    return f"{figure(found.answers)} {per}" + (f"; {', '.join(parts)} {each}" if parts else "")


# Lines of a report

COST_MODELS = {"ideal": "ideal roofline, a lower bound (peak rates, no launches)"}

_NONE = "–"


def percent_off(error: Number | None) -> str:
    """An error as a percentage; `–` if it is unknown."""
    return _NONE if error is None else f"{100 * float(error):.0f}%"


def plain(text: object) -> str:
    """`text` on one line and without control characters."""
    words = str(text)
    return words if words.isprintable() else "".join(c if c.isprintable() else " " for c in words)


OVERHEADS = {
    "engine_cpu": "the GPU waits for the engine's CPU",
    "launch_gap": "the GPU waits for kernels to be launched",
    "rank_skew": "ranks wait for the last in collectives",
    "bubble": "waits for other stages",
}


def overhead(report: Report) -> str:
    """The engine overhead, and its parts."""
    names = {"host_s": "engine CPU", "launching_s": "launch gap", "skew_s": "rank skew"}
    parts = [f"{names[part]} {units.time(time)}" for part, time in report.overhead.items() if time]
    total = units.time(report.overhead_s)
    return parts[0] if len(parts) == 1 else ": ".join([total, *filter(None, [", ".join(parts)])])


def moved(report: Report, how: str) -> str:
    """The bytes that are read or written, by kind."""
    names = {"weight": "weights", "kv_cache": "KV cache", "activation": "activations"}
    roles = {role.removesuffix(f"_{how}"): role for role in TRAFFIC if role.endswith(how)}
    sizes = {names[role]: report.bytes_by_role[f"{key}_bytes"] for role, key in roles.items()}
    parts = [f"{name} {units.bytes(size)}" for name, size in sizes.items() if size]
    total = units.bytes(sum(sizes.values()))
    return f"{total}: {', '.join(parts)}" if len(parts) > 1 else total


def bounds(report: Report) -> str:
    """The shares of the time by bound; the largest comes first."""
    shares = sorted(((s, b) for b, s in report.bound.items() if s), reverse=True)
    return ", ".join(f"{bound} {units.percent(share)}" for share, bound in shares) or _NONE


def step_title(report: Report) -> str:
    """A description of one step."""
    if report.program.patches:
        return images(report.batch, report.program.patches)
    parts = ((report.batch, report.new, report.context), *report.beside)
    return "; beside ".join(itertools.starmap(_sequences, parts))


def images(count: Number, patches: int) -> str:
    """The number of images and the number of patches of each."""
    number = _number(count)
    return f"{number} {'image' if number == '1' else 'images'} of {patches:,} patches"


def _sequences(batch: Number, new: Number, context: Number) -> str:
    count, cached = _number(new), _number(context)
    tokens = "token" if count == "1" else "tokens"
    return f"batch {_number(batch)}, {count} new {tokens} each, {'none' if cached == '0' else cached} cached"


def _number(value: Number) -> str:
    if np.ndim(value):
        low, high = (f"{int(f(value)):,}" for f in (np.min, np.max))
        return low if low == high else f"{low}…{high}"
    return f"{int(value):,}"


# names of lines of `head_lines`, above the results
ANSWER_LINES = ("model", "not counted", "device", "workload")


def subject_lines(workload: Workload) -> list[tuple[str, str]]:
    """The model, the device and the requests."""
    return [pair for pair in head_lines(workload) if pair[0] in ANSWER_LINES]


def detail_lines(workload: Workload) -> list[tuple[str, str]]:
    """The parameters, the precision, the links, and the cost model with the basis of its times."""
    return [pair for pair in head_lines(workload) if pair[0] not in ANSWER_LINES]


def head_lines(workload: Workload) -> list[tuple[str, str]]:
    """The model, the device, and the cost model."""
    program, device = workload.program, workload.device
    facts, on = program.facts, workload.prefill.plan.model.device
    joined = [
        f"{plain(name)}, {units.bytes(x.Bps)}/s each way" for name, x in used_links(program, on).items()
    ]
    total, active = program.parameters, program.active_parameters
    about = [plain(facts["architecture"])] if "architecture" in facts else []
    about += [f"{facts['layers']} layers"] if "layers" in facts else []
    of_model = f" ({', '.join(about)})" if about else ""
    parameters = f"{units.count(total)} ({total:,})"
    parameters += f", {units.count(active)} active for a token" if active != total else ""
    rates = (
        f"{units.bytes(device.memory_bytes)} at {units.bytes(device.memory_Bps)}/s{_peaks(workload.prefill)}"
    )
    return [
        ("model", plain(program.name) + of_model),
        *left_out_line(program),
        ("parameters", parameters),
        ("precision", ", ".join(precision_text(program, workload.prefill.plan.model)) or "–"),
        ("device", f"{devices(program, device)}, {rates}"),
        *([("links", "; ".join(joined))] if joined else []),
        ("workload", _request_lines(workload)),
        *basis_lines(*(report for _, report in phases(workload))),
    ]


def left_out_line(*programs: Program) -> list[tuple[str, str]]:
    """The line of the heading that lists parts of a multimodal model that no figure counts; empty for other
    models.
    """
    parts = dict.fromkeys(part for p in programs for part in p.left_out.split(", ") if part)
    words = f"weights, memory and time of the {plain(' and the '.join(parts))}"
    return [("not counted", words)] if parts else []


# The lines of `head_lines` that are also shown above the results of a server.
SERVER_LINES = ("model", "not counted", "precision", "device", "links", "cost model")


def _request_lines(w: Workload) -> str:
    """The requests of a workload."""
    if w.program.patches:
        return images(w.batch, w.program.patches)
    of_images = f" and {w.program.image_tokens:,} tokens of images" if w.images else ""
    cached = f", {w.cached:,} of them cached" if w.cached else ""
    return f"batch {w.batch:,}, prompt {w.prompt:,}{of_images}{cached}, generate {w.generate:,}"


def basis_lines(*reports: Report) -> list[tuple[str, str]]:
    """The cost model of some steps, and for each kind of op the basis of its time, ordered by share."""
    said = [("cost model", cost_model(reports[0]))]
    if reports[0].cost_model == "calibrated":
        found: dict[Basis, dict[str, float]] = {}
        for op in (op for report in reports for op in report.ops):
            kinds = found.setdefault(op.basis, {})
            kinds[op.kind] = kinds.get(op.kind, 0.0) + float(op.share)
        for basis, kinds in sorted(found.items(), key=lambda item: -sum(item[1].values())):
            label = "basis" if len(said) == 1 else ""
            said.append((label, f"{basis}: {', '.join(sorted(kinds, key=lambda k: -kinds[k]))}"))
    return said


def cost_model(report: Report) -> str:
    """The cost model in words."""
    model = report.plan.model
    if report.cost_model == "calibrated":
        return model_source(model)
    if report.cost_model == "efficiency":
        shares = ", ".join(f"{k} {v:g}" for k, v in getattr(model, "shares", {}).items())
        return f"roofline at these shares of its rates: {shares}"
    if report.cost_model not in COST_MODELS:
        return plain(report.cost_model)
    nothing = "" if first_engine(report.device) else f"; {roofline_reason(report.device)}"
    return COST_MODELS[report.cost_model] + nothing


def basis_text(report: Report) -> str:
    """The basis of times in a few words: calibrated, transferred from H100-SXM, efficiency."""
    whose = calibration_source(report.device) if report.cost_model == "calibrated" else None
    return f"transferred from {whose.name}" if whose and whose != report.device else report.cost_model


def error_band(error: Number | None) -> str:
    """Text such as ` ± 9%`; empty for a bound."""
    return "" if error is None else f" ± {percent_off(error)}"


def model_on_devices(priced: Report | Workload) -> str:
    """`Llama-3.1-405B on 16 × H100-SXM in 2 × DGX-H100`."""
    return f"{plain(priced.program.title)} on {devices(priced.program, priced.device)}"


def devices(program: Program, device: Device) -> str:
    """`16 × H100-SXM in 2 × DGX-H100`."""
    device = network.in_default_nodes(program, device)
    ranks, boxes = program.devices, network.node_count(program, device)
    count = f"{ranks} × " if ranks > 1 else ""
    found = f"{count}{plain(device.name)}"
    if device.node is None or boxes is None:
        return found
    return f"{found} in {f'{boxes} × ' if boxes > 1 else ''}{plain(device.node.name)}"


def _peaks(report: Report) -> str:
    """The dtypes whose matrix rates the program uses."""
    dtypes = dict.fromkeys(row.work.dtype.name for row in report.plan.rows if row.work.matrix)
    rates = dict.fromkeys(report.device.matrix_peak(name) for name in dtypes)
    return "".join(f", {units.flops(rate)}/s in {unit}" for rate, unit in rates)


def result_lines(workload: Workload) -> list[tuple[str, str]]:
    """The results: times, throughput, and whether the workload fits."""
    w, tpot = workload, workload.tpot_s
    later = "–, one token is all there is"
    if tpot is not None and w.decode:
        tokens = "output token 2" if w.generate == 2 else f"output tokens 2 to {w.generate:,}"
        later = f"{units.time(tpot)}{error_band(w.decode.error)}, mean over {tokens}"
    busy = ""
    if len(w.program.entries) > 1:
        busy = f", {units.digits(w.busy_output_tokens_per_s)} if other batches keep all stages busy"
    encoded = f", of which encode {units.time(float(w.encode.time_s))}" if w.encode else ""
    times = [
        ("TTFT", f"{units.time(w.ttft_s)}{error_band(w.prefill.error)}, the first token{encoded}{_cut(w)}"),
        ("TPOT", later),
        ("end to end", units.time(w.e2e_s)),
        ("throughput", f"{units.digits(w.output_tokens_per_s)} output tokens/s{busy}"),
        ("prefill", f"{units.digits(w.prefill_tokens_per_s)} prompt tokens/s"),
    ]
    if w.program.patches:
        (step, time), rate = rates(w)
        times = [(step, time + error_band(w.prefill.error)), ("throughput", " ".join(rate))]
    return [*times, *cost_lines(w), *memory(w)]


def memory(w: Workload) -> list[tuple[str, str]]:
    """Whether a workload fits in memory, the terms of its peak, and how much would fit."""
    limit = f"{units.bytes(w.capacity_bytes)} ({_share(w)})"
    verdict = "yes" if w.fits else "NO" + (f", {over}" if (over := too_many(w)) else "")
    return [
        ("fits", f"{verdict}, peak {units.bytes(w.peak_bytes(w.batch))} of {limit}"),
        *([("peak", parts)] if (parts := _peak_parts(w)) else []),
        *([("KV capacity", capacity(w.memory))] if w.pool else []),
        ("largest batch", _largest(w)),
    ]


def _peak_parts(w: Workload) -> str:
    """The terms of the peak on the fullest rank; empty if there is no memory rule of an engine."""
    of = w.memory
    # SGLang's activations are outside of the memory share that it may use
    if not w.pool or of.rule == "static":
        return ""
    reserved = of.activation_bytes + of.overhead_bytes
    caches = w.peak_bytes(w.batch) - of.weight_bytes - reserved
    if caches < 0:
        return ""
    sizes = f"weights {units.bytes(of.weight_bytes)} + KV cache {units.bytes(caches)}"
    return f"{sizes} + {units.bytes(reserved)} that {of.engine} reserves"


def _largest(w: Workload) -> str:
    """The largest batch, and how many of its requests an engine runs at once by default."""
    if not w.max_batch:
        return "none, not even 1 fits"
    usual = w.pool.sequences * w.program.parallelism.dp if w.pool else w.max_batch
    if w.max_batch <= usual:
        return f"{w.max_batch:,}"
    return f"{w.max_batch:,} with --max-num-seqs; {w.memory.engine} runs {usual:,} by default"


def too_many(w: Workload) -> str:
    """A note that the engine runs fewer sequences at once than memory allows; empty if it does not."""
    most = w.pool.at_once if w.pool else w.batch
    return f"{most:,} of {w.batch:,} requests may run at once" if w.batch > most else ""


def _cut(w: Workload) -> str:
    """The number of prefill steps, if there are several, and when prompts have their first tokens."""
    if not (budget := chunk_budget(w)):
        more = w.pool and w.batch * (w.length - w.cached) > w.pool.tokens * w.program.parallelism.dp
        return ", all prompts in one step" if more or (w.chunk == ALL and w.pool) else ""
    mean = f" of all requests (mean {units.time(w.ttft_mean_s)})" if w.batch > 1 else ""
    return f"{mean}, in {prefill_steps(w):,} {budget}"


def prefill_steps(w: Workload) -> int:
    """The number of prefill steps."""
    return sum(chunk.steps for chunk in w.chunks)


def chunk_budget(w: Workload) -> str:
    """The tokens of a prefill step, and where this limit comes from; empty if one step prefills all
    prompts.
    """
    if not w.budget or prefill_steps(w) == 1:
        return ""
    tokens = "1 token" if w.budget == 1 else f"{w.budget:,} tokens"
    return f"steps of {tokens} at most" + (f", by {w.budget_by}" if w.budget_by else "")


def phase_title(w: Workload, name: str, report: Report) -> str:
    """A phase and its step, or the largest of its steps."""
    of = f", the largest of {prefill_steps(w):,} steps" if name == "prefill" and prefill_steps(w) > 1 else ""
    return f"{TITLES[name]}{of}: {step_title(report)}"


def capacity(of: MemoryBreakdown) -> str:
    """The number of tokens in the cache, and the number of requests of that length."""
    tokens = "any number of" if of.kv_tokens is None else f"{of.kv_tokens:,}"
    each = f"{of.request_tokens:,} token{'' if of.request_tokens == 1 else 's'}"
    return f"{tokens} tokens: {of.max_requests:,} requests of {each}"


def _share(workload: Workload) -> str:
    reserve = f" less {units.bytes(workload.reserve_bytes)}" if workload.reserve_bytes else ""
    by = f", by {workload.memory.engine}" if workload.pool else ""
    whole = "the memory"
    if workload.pool and workload.memory.rule == "physical":
        whole = units.bytes(workload.memory.physical_bytes)
    return f"{100 * workload.share:.4g}% of {whole}{reserve}{by}{_caches(workload)}"


def _caches(priced: Report | Workload) -> str:
    """How the cache policy reserves memory, if not by the exact bytes."""
    return "" if priced.cache_policy == "exact" else f", caches {priced.cache_policy}"


def rates(w: Workload) -> list[tuple[str, str]]:
    """A line with times and throughput, of requests or of images."""
    if w.program.patches:
        rate = units.digits(w.batch / w.e2e_s) if w.e2e_s else _NONE
        return [("step", units.time(w.e2e_s)), (rate, "images/s")]
    later = [("TPOT", units.time(w.tpot_s))] if w.tpot_s is not None else []
    return [("TTFT", units.time(w.ttft_s)), *later, (units.digits(w.output_tokens_per_s), "tokens/s")]


def step_lines(report: Report) -> list[tuple[str, str]]:
    """The results of one step at one point."""
    return [
        ("time", units.time(report.time_s) + error_band(report.error)),
        *([("roofline", ideal_time(report))] if report.cost_model != "ideal" else []),
        *([("overhead", overhead(report))] if report.engine else []),
        *pipeline_lines(report),
        ("bound by", bounds(report)),
        ("FLOPs", units.flops(report.flops)),
        ("read", moved(report, "read")),
        ("written", moved(report, "write")),
        ("weights", units.bytes(report.weight_bytes)),
        ("KV cache", f"{units.bytes(report.kv_cache_bytes)}{_caches(report)}"),
        ("activations", units.bytes(report.activation_peak_bytes)),
        ("peak of step", units.bytes(report.peak_memory_bytes)),
        ("peak at", plain(report.peak_at)),
    ]


def compare_steps(reports: Iterable[Report]) -> list[tuple[str, ...]]:
    """A row for each property of some steps: its name, and its value for each step."""
    figures = [dict(step_lines(report)) for report in reports]
    longest = max(figures, key=len)
    return [(name, *(of.get(name, _NONE) for of in figures)) for name in longest]


def ideal_time(report: Report) -> str:
    """The roofline time, and its share of the estimated time."""
    ideal, time = report.ideal_time_s, report.time_s
    return f"{units.time(ideal)} ({units.percent(ideal / time if time else 1.0)} of the time)"


def pipeline_lines(report: Report) -> list[tuple[str, str]]:
    """Stages and micro-batches of a step at one point, if there are several."""
    stages, parts = len(report.stages), report.program.micro_batches
    if stages * parts == 1:
        return []
    cut = f"{stages} stage{'s' if stages > 1 else ''}, {parts} micro-batch{'es' if parts > 1 else ''}"
    return [
        ("pipeline", cut),
        ("stages wait", f"{units.percent(report.bubble)} of this time"),
        ("next step", f"after {units.time(report.period_s)}"),
    ]


def ranges(report: Report) -> list[tuple[str, str, str]]:
    """The ranges of results of a grid."""
    figures = (
        ("time", report.time_s, units.time),
        ("FLOPs", report.flops, units.flops),
        ("read", report.read_bytes, units.bytes),
        ("written", report.write_bytes, units.bytes),
        ("peak memory", report.peak_memory_bytes, units.bytes),
    )
    return [(name, shown(np.min(at)), shown(np.max(at))) for name, at, shown in figures]


TITLES = {"encode": "encode", "prefill": "prefill", "decode": "last decode step", "draft": "draft step"}


def phases(workload: Workload) -> list[tuple[str, Report]]:
    """The steps that a report shows, by phase."""
    return list(workload.steps.items())


# Rows of the table of ops


class OpLine(NamedTuple):
    """One op in a table; times, FLOPs and bytes are those of one execution, and the share covers all
    repeats.
    """

    group: str
    name: str
    kind: str
    repeat: str
    time: str
    error: str
    share: str
    flops: str
    bytes: str
    roles: str
    intensity: str
    bound: str
    ideal: str
    shape: str


HEADINGS = OpLine(
    group="",
    name="op",
    kind="kind",
    repeat="×",
    time="time",
    error="±",
    share="share",
    flops="FLOPs",
    bytes="bytes",
    roles="w/kv/a",
    intensity="FLOP/B",
    bound="bound",
    ideal="roofline",
    shape="result shape",
)
NUMERIC = frozenset({"repeat", "time", "error", "share", "flops", "bytes", "roles", "intensity", "ideal"})
REMARKS = {
    "time": "time, FLOPs and bytes are per call; share and total count all calls",
    "error": "±: mean error on shapes held out of the calibration; ~: kernels of another GPU",
    "roles": "w/kv/a: weights, KV cache and activations in percent of the bytes",
    "ideal": "roofline: lower bound in percent of the time; 100% is at the bound",
}


def op_lines(report: Report) -> list[OpLine]:
    """The rows at one point, in schedule order."""
    return [_line(op) for op in report.ops]


def _line(op: OpCost) -> OpLine:
    group, _, name = op.name.rpartition(".")
    return OpLine(
        plain(group),
        plain(name),
        op.kind,
        f"×{op.repeat}" if op.repeat > 1 else "",
        units.time(op.time_s),
        _band(op),
        units.percent(op.share),
        units.flops(op.flops) if op.flops else _NONE,
        units.bytes(op.read_bytes + op.write_bytes) if op.kind != OVERHEAD else _NONE,
        _roles(vars(op)),
        units.digits(op.intensity) if op.flops else _NONE,
        op.bound,
        _ideal(op.ideal_time_s, op.time_s) if op.kind != OVERHEAD else _NONE,
        "×".join(str(n) for n in op.shape) or ("scalar" if op.kind != OVERHEAD else ""),
    )


def _roles(figures: Mapping[str, Any]) -> str:
    """How the moved bytes are split into weights, KV cache and activations, in percent.

    >>> _roles({f"{role}_bytes": n for role, n in zip(TRAFFIC, (667, 300, 0, 33, 0))})
    '67/0/33'
    """
    moved = {"weight": 0.0, "kv_cache": 0.0, "activation": 0.0}
    for role in TRAFFIC:
        moved[role.rpartition("_")[0]] += float(figures[f"{role}_bytes"])
    whole = sum(moved.values())
    return "/".join(f"{100 * part / whole:.0f}" for part in moved.values()) if whole else _NONE


def _band(op: OpCost) -> str:
    """The error of the op's time, with `~` for transferred kernels; empty for a roofline."""
    return f"{'~' if op.basis.borrowed else ''}{percent_off(op.error)}"


def _ideal(least: Number, time: Number) -> str:
    return units.percent(least / time) if time else _NONE


def total_line(report: Report) -> OpLine:
    """The whole step: the sum over all ops and their repeats."""
    moved = report.read_bytes + report.write_bytes
    return OpLine(
        "",
        "total",
        "",
        "",
        units.time(report.time_s),
        percent_off(report.error),
        "100%",
        units.flops(report.flops),
        units.bytes(moved),
        _roles(report.bytes_by_role),
        units.digits(report.flops / moved) if moved else _NONE,
        max(report.bound, key=lambda b: report.bound[b]) if report.time_s else _NONE,
        _ideal(report.ideal_time_s, report.time_s),
        "",
    )


def flat(report: Report) -> tuple[list[str], list[list[str]], list[int]]:
    """Headings, rows and numeric columns of a flat table, with the total last."""
    lines = [x._replace(name=f"{x.group}.{x.name}" if x.group else x.name) for x in op_lines(report)]
    chosen = [f for f in fields(report) if f != "group"]
    rows = [[getattr(x, f) for f in chosen] for x in (*lines, total_line(report))]
    return [getattr(HEADINGS, f) for f in chosen], rows, [i for i, f in enumerate(chosen) if f in NUMERIC]


def fields(report: Report) -> list[str]:
    """The columns for ops. The roofline share is shown only for other cost models, and errors only if they
    are known.
    """
    hidden = {"ideal": {"ideal", "error"}, "calibrated": set[str]()}.get(report.cost_model, {"error"})
    return [f for f in OpLine._fields if f not in hidden]


def remarks(report: Report) -> tuple[str, ...]:
    """The meanings of the columns of ops."""
    shown = fields(report)
    return tuple(words for field, words in REMARKS.items() if field in shown)


def sums(report: Report) -> list[str]:
    """A note that the rows add up on each stage; empty if all rows are ops."""
    found = []
    for stage in report.stages:
        others = (row for row in report.ops if row.kind == OVERHEAD and row.stage == stage.stage)
        parts = [f"ops {units.time(stage.ops_s)}"]
        parts += [f"{row.name.rpartition('.')[2]} {units.time(row.total_s)}" for row in others]
        where = f"stage {stage.stage}: " if len(report.stages) > 1 else ""
        found += [f"{where}{' + '.join(parts)} = {units.time(report.time_s)}"] if len(parts) > 1 else []
    return found
