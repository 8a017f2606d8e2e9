"""Plans for given traffic: the devices, their number, and the split of a model over them (`plan`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmir.base import arguments
from llmir.base.budget import check_work
from llmir.base.errors import InputError, LlmirError
from llmir.base.gc_pause import pause_gc
from llmir.base.names import normalize
from llmir.ir.core.program import Program
from llmir.ir.tools.ranks import independent_ranks

from .capacity import length_error
from .deployment import Deployment, default_steps, lower
from .estimate import _model, draft_values
from .load import ModelSource, load
from .options import (
    PLAN_MEMORY,
    Drafts,
    Estimation,
    Memory,
    Parallel,
    Precision,
    Requests,
    Reserve,
    Servers,
    Traffic,
    option,
    record_or_default,
)

if TYPE_CHECKING:
    from llmir.backends.export.manifests import Checkpoint
    from llmir.backends.search.plan import Plans
    from llmir.backends.search.search import Progress
    from llmir.backends.search.structures import ElementTypes, Rejection, Structure
    from llmir.backends.search.traffic import LatencyLimit
    from llmir.backends.search.traffic import Traffic as Load
    from llmir.backends.simulate.drafts import Drafts as DraftSteps
    from llmir.ir.tools.pipeline import Step

DEVICES = 1 << 16  # the largest `gpus`
TRAFFIC = ("rate", "prompt", "generate", "requests", "seed", "prefix_hits")  # options of `Traffic` for a plan
SERVERS = ("link", "router", "emit")  # options of `Servers` for a plan
ROLES = ("weights", "activations", "kv")  # options of `Precision` for a plan
REQUEST_S, REQUEST_BYTES = 1.2e-5, 3500  # per simulated request, measured on plans of 10,000 and 200,000
ROUTERS = ("round-robin", "random", "least-loaded")  # routers for a plan
HEADROOM = 0.1  # share of the stable rate, if no TTFT limit bounds the waiting time
# The share with a TTFT limit. With less headroom, runs end before queues reach their steady state.
LEAST_HEADROOM = 0.05
REPLICA = 64  # the most devices of a replica


def plan(
    model: object,
    hw: Any = "h100-sxm",
    traffic: Traffic | None = None,
    *,
    max_ttft: float | str | None = None,
    max_tpot: float | str | None = None,
    gpus: int | None = None,
    precision: Precision | None = None,
    chunk: int | str | Iterable[int] | None = None,
    batch: int | str | Iterable[int] | None = None,
    servers: Servers | None = None,
    drafts: Drafts | None = None,
    progress: Progress | None = None,
    estimation: Estimation | None = None,
    reserve: Reserve | None = None,
    memory: Memory | None = None,
) -> Plans:
    """Find plans that serve the requests of `traffic` within limits, the cheapest first.

    Closed forms estimate every split of the model. The plans on the Pareto front are then simulated with at
    least five seeds, until the verdict on each limit has a certainty of 99%. Plans with a known price are
    ranked by cost. Plans without a price follow, ranked by the number of devices.

    Args:
        model: A name, path or config, which is lowered by the passes of the engine. Or a program, which is
            estimated as it is.
        hw: Devices, separated by commas or in a list.
        traffic: The requests (`Traffic`). A plan uses `rate`, `prompt`, `generate`, `requests`, `seed` and
            `prefix_hits`.
        max_ttft, max_tpot: Limits in seconds, or texts such as `30ms`. They apply to the 99th percentile of
            requests, or to another statistic such as `mean:30ms` or `p50:30ms`.
        gpus: The largest number of devices. The default is no limit.
        precision: Dtypes to compare (`Precision`). Each of `weights`, `activations` and `kv` may list several
            dtypes, such as `Precision(weights="bf16,fp8")`. Activations follow the engine, as in `analyze`.
        chunk: Prompt tokens of a step. The default is every size that the engine supports.
        batch: Requests of a step. The default is every size that the engine supports.
        servers: The servers (`Servers`). With a `link` for caches (nvlink, network, or a rate such as
            `25GBps,5us`) the search includes plans with separate prefill and decode servers. The `router`
            distributes requests: round-robin (the default), random or least-loaded. `emit` limits plans to
            those that `launch_files` can start: of an engine (vllm, sglang, trtllm), or in containers
            (compose, k8s, dynamo). A plan ignores all other options of the record.
        drafts: Speculative decoding (`Drafts`), as in `server`. Its programs are split like the model.
        progress: Called before each simulated run with its number and its plan.
        estimation: The cost model (`Estimation`). A plan uses `engine`, and `price` in dollars per hour by
            device name.
        reserve: Safety margins (`Reserve`). `margin` adds a share to all times. `headroom` is the unused
            share of the stable rate, by default 10% without `max_ttft` and 5% with it.
        memory: Settings of each server (`Memory`). The search does not change settings that are given here,
            and `launch_files` writes them. A plan uses neither `max_model_len` nor `cache_policy`.

    Returns:
        The plans, the best first.

    Raises:
        InputError: An argument is out of range or has no effect in a plan, or no split is possible.

    >>> import llmir
    >>> traffic = llmir.Traffic(rate=20, prompt=500, generate=100, requests=200)
    >>> plans = llmir.plan("llama3.1-8b", traffic=traffic, max_tpot="20ms", gpus=4)
    >>> plans.best.devices, plans.best.meets
    (1, True)
    """
    from llmir.backends.cost.channel import server_channel
    from llmir.backends.search.launch import check_pool_launch
    from llmir.backends.search.search import expected_runs, search
    from llmir.backends.search.traffic import latency_limit
    from llmir.backends.simulate.engine import engine_policy

    if progress is not None and not callable(progress):
        arguments.refuse("progress", progress, "a function of the runs so far, and of the plan that is next")
    requests, options = _requests(traffic), record_or_default(Estimation, estimation)
    check_work(
        f"a plan by runs of {requests.requests:,} requests",
        "simulate fewer of them",
        seconds=requests.requests * REQUEST_S * expected_runs(devices=1),
        memory=requests.requests * REQUEST_BYTES,
    )
    serving = _servers(servers)
    if name := next((name for name in options.given if name not in ("engine", "price")), None):
        raise InputError(f"{name}: has no effect in a plan, which sets its own; leave it out")
    limits = (
        None if max_ttft is None else latency_limit("max_ttft", max_ttft),
        None if max_tpot is None else latency_limit("max_tpot", max_tpot),
    )
    emit = serving.emit
    most = None if gpus is None else arguments.integer("gpus", gpus, 1, DEVICES)
    fixed, tokens = _settings(record_or_default(Memory, memory), chunk, batch)
    chunks, batches = _sizes("chunk", chunk) if tokens is None else (tokens,), _sizes("batch", batch)
    if emit is not None and fixed["reserve"]:
        raise InputError(f"reserve: llmir knows no flag that keeps memory free; leave out emit {emit}")
    source = ModelSource.of(model)
    program = source.load()
    served = _served(program, requests, limits, serving.router, record_or_default(Reserve, reserve))
    types = _precisions(record_or_default(Precision, precision))
    steps = draft_values(_draft_programs(source, drafts))
    # Ranks without shared work are replicas, which a plan counts.
    _, (program, *drafting) = independent_ranks(program, *filter(None, steps[2:] if steps else ()))
    steps = steps and (*steps[:2], drafting[0], drafting[1] if drafting[1:] else None)
    devices = _devices(hw, options.price)
    structures, refused = _structures(source, program, devices, types, options.engine, emit, most, steps)
    structures = [each._replace(**fixed) for each in structures]
    if not structures:
        raise InputError(
            f"plan: no split is possible; the first reason is: {next(iter(refused.values())).why}"
        )
    for structure in {each.device.name: each for each in structures}.values():
        if serving.link is not None:
            server_channel(structure.model, serving.link)
            if emit is not None:
                check_pool_launch(emit, structure.model.runs)
        engine_policy(structure.job(1, 1, None, None, None))  # raises for an engine without a scheduler
    plans = search(structures, served, most, chunks, batches, refused, serving.link, progress, devices)
    return replace(plans, notes=(*source.notes, *plans.notes))


def launch_files(plans: Plans, emit: str, model: str, draft_model: str = "") -> dict[str, str]:
    """Write the files that start and benchmark the best plan; empty without a plan.

    Args:
        plans: The result of `plan`.
        emit: As in `plan`, which must have the same value.
        model: The name, id or path of the planned model.
        draft_model: The name, id or path of the draft model; empty without one.

    Returns:
        The text of each file by file name.

    Raises:
        InputError: The plan cannot be started in this way.

    >>> import llmir
    >>> servers = llmir.Servers(emit="k8s")
    >>> found = llmir.plan("llama3.1-8b", "l4", llmir.Traffic(0.5, requests=100), gpus=8, servers=servers)
    >>> files = launch_files(found, "k8s", "llama3.1-8b")
    >>> list(files), "meta-llama/Llama-3.1-8B" in files["kubernetes.yaml"]
    (['kubernetes.yaml', 'benchmark.sh'], True)
    """
    from llmir.backends.export import manifests

    if plans.best is None:
        return {}
    draft = checkpoint(draft_model) if draft_model else None
    return manifests.launch_files(plans.best, emit, checkpoint(model), draft)


def checkpoint(model: str) -> Checkpoint:
    """The checkpoint that an engine loads for a model, given by name, id or path.

    >>> checkpoint("llama3.1-8b").id, checkpoint("Qwen/Qwen3-32B").id
    ('meta-llama/Llama-3.1-8B', 'Qwen/Qwen3-32B')
    """
    from llmir.backends.export.manifests import Checkpoint
    from llmir.frontends.models import presets

    path = Path(model).expanduser()
    if path.is_dir() or path.name == "config.json":
        return Checkpoint(str((path if path.is_dir() else path.parent).resolve()), folder=True)
    preset = presets.find(model)
    if "/" in model and not path.exists():
        return Checkpoint(model)
    if preset is None or not preset.hf_id:
        return Checkpoint(model, f"name the folder of the checkpoint, or its id on the hub, for {model}")
    own = normalize(model) in (normalize(preset.name), normalize(preset.hf_id))
    note = f"{preset.hf_id} has the shapes of {model}; name the release that you serve"
    return Checkpoint(preset.hf_id, "" if own else note)


def _requests(traffic: Traffic | None) -> Any:
    """The traffic of a plan with its defaults; InputError unless requests arrive at a rate."""
    if traffic is None:
        raise InputError("traffic: requires a rate in requests per second, such as llmir.Traffic(rate=2)")
    record = record_or_default(Traffic, traffic)
    if name := next((name for name in record.given if name not in TRAFFIC), None):
        raise InputError(
            f"{name}: has no effect in a plan, because its requests arrive at random; leave it out"
        )
    if record.rate is None:
        raise InputError("rate: expected requests per second")
    defaults: dict[str, Any] = {"prompt": 2048, "generate": 128, "requests": 1000, "seed": 0}
    missing = {name: value for name, value in defaults.items() if getattr(record, name) is None}
    record = replace(record, **missing)
    arguments.integer("requests", record.requests, 100, 1_000_000)
    return record


def _served(
    program: Program,
    requests: Any,
    limits: tuple[LatencyLimit | None, LatencyLimit | None],
    router: str | None,
    reserve: Reserve,
) -> Load:
    """The traffic that a plan serves; InputError for a router or for lengths that plans do not support."""
    from llmir.backends.search.traffic import Traffic as Load
    from llmir.backends.simulate.router import FIRST

    if isinstance(router, str) and router == "prefix-aware":
        raise InputError("router: prefix-aware needs prompts with hashes, a plan's have none")
    deals = FIRST if router is None else arguments.choice("router", router, ROUTERS)
    headroom = reserve.headroom
    if headroom is None:
        headroom = HEADROOM if limits[0] is None else LEAST_HEADROOM
    positions = program.facts.get("positions")
    longest = positions if isinstance(positions, int) else None
    left = float(reserve.margin), float(headroom)  # the record has checked that these are numbers
    each = requests.rate, requests.prompt, requests.generate, requests.requests
    served = Load(*each, *limits, longest, requests.prefix_hits, deals, requests.seed, *left)
    if served.answer < 2:
        raise InputError(f"generate: {requests.generate}; a plan requires outputs of at least 2 tokens")
    if served.positions and served.read + served.answer > served.positions:
        raise InputError(length_error(served.read, served.answer, served.positions, program.name))
    return served


def _servers(servers: Servers | None) -> Servers:
    """The servers of a plan; InputError for options that a plan does not use."""
    record = record_or_default(Servers, servers)
    if name := next((name for name in record.given if name not in SERVERS), None):
        raise InputError(f"{name}: has no effect in a plan, which sets its own; leave it out")
    if record.link is not None:
        arguments.text("link", record.link)
    return record


def _settings(memory: Memory, chunk: object, batch: object) -> tuple[dict[str, Any], int | None]:
    """The settings of each server that were given, as fields of `Structure`; and the tokens of a step, if
    given.

    InputError for an option of `Memory` that a plan does not use, and for a size that is given twice.
    """
    if name := next((name for name in memory.given if name not in PLAN_MEMORY), None):
        raise InputError(f"{name}: has no effect in a plan, which sets its own; leave it out")
    for name, value, other in (("max_batched_tokens", chunk, "chunk"), ("max_num_seqs", batch, "batch")):
        if name in memory.given and value is not None:
            raise InputError(f"{name}: {other} lists values to compare; leave one of them out")
    fields = {
        "chunked": memory.chunked_prefill,
        "utilization": memory.memory_utilization,
        "sequences": memory.max_num_seqs,
        "reserve": memory.reserve_bytes,
    }
    return fields, memory.max_batched_tokens


def _draft_programs(source: ModelSource, drafts: Drafts | None) -> Drafts:
    """Load the programs of drafts, before any pass."""
    drafts = record_or_default(Drafts, drafts)
    if drafts.draft_tokens is None or isinstance(source.model, Program):
        return drafts
    draft, verify = drafts.draft_model, drafts.verify
    draft = load(draft) if draft is not None and not isinstance(draft, Program) else draft
    return replace(drafts, verify=source.load("all") if verify is None else verify, draft_model=draft)


def _precisions(precision: Precision) -> list[Precision]:
    """Every combination of the dtypes that a plan compares."""
    if name := next((name for name in precision.given if name not in ROLES), None):
        raise InputError(f"{name}: has no effect in a plan; allowed are {', '.join(ROLES)}")
    lists: list[list[str | None]] = []
    for role in ROLES:
        value = getattr(precision, role)
        names = [None] if value is None else [name.strip() for name in value.split(",")]
        if "" in names:
            raise InputError(f"{role}: a value is empty")
        lists.append([*dict.fromkeys(names)])
    return [Precision(weights, activations, kv) for weights, activations, kv in product(*lists)]


def _element_types(precision: Precision) -> ElementTypes:
    from llmir.backends.search.structures import ElementTypes

    return ElementTypes(*(getattr(precision, role) or "" for role in ROLES))


def _sizes(name: str, value: Any) -> tuple[int, ...] | None:
    from llmir.backends.search.sweep import axis_values

    least = option(Requests, "batch").least
    return None if value is None else tuple(int(n) for n in axis_values(name, value, least) if n is not None)


def _devices(hw: Any, price: Mapping[str, float] | None) -> list[Any]:
    """The devices with their prices; InputError for a price of another device."""
    from llmir.hw.library import check_unique, with_prices

    names = hw.split(",") if isinstance(hw, str) else hw if isinstance(hw, (list, tuple)) else [hw]
    devices = with_prices(
        [each.strip() if isinstance(each, str) else each for each in names], {} if price is None else price
    )
    check_unique(devices)
    return devices or arguments.refuse("hw", hw, "devices")


@pause_gc()
def _structures(
    source: ModelSource,
    program: Program,
    devices: Sequence[Any],
    types: Sequence[Precision],
    engine: str | None,
    emit: str | None,
    most: int | None,
    drafts: tuple[int, float, Program, Program | None] | None,
) -> tuple[list[Structure], dict[str, Rejection]]:
    """Build every possible split on every device, and collect the reason for each rejected one."""
    from llmir.backends.request.speculation import draft_kind
    from llmir.backends.search.launch import check_launch, check_types, launchable
    from llmir.backends.search.structures import Rejection, Structure, splits, structure_name
    from llmir.backends.step.facts import precision as precision_of
    from llmir.passes.plan import divides

    limit = REPLICA if most is None else min(most, REPLICA)
    experts = any("expert" in n.op.axes for graph in program.graphs.values() for n in graph.sources)
    tensor = [n for n in range(1, limit + 1) if divides(program, n)]
    stages = program.depth(program.entries[0])
    structures: list[Structure] = []
    refused: dict[str, Rejection] = {}
    drafter = draft_kind(program, drafts[-1]) if drafts else ""
    own = precision_of(program)["weights"] or ""
    for device in devices:
        model = _model(device, Estimation(engine=engine))
        between = default_steps(source, model.runs)
        unlaunchable: Mapping[str, LlmirError] = {}
        if emit is not None:
            weights = dict.fromkeys(_element_types(precision).weights for precision in types)
            _, unlaunchable = launchable(emit, model.runs, tuple(weights), drafter, device)
        for precision in types:
            asked = _element_types(precision)
            try:
                if asked.weights in unlaunchable:
                    raise unlaunchable[asked.weights]
                run = _element_types(Deployment(precision).precision_on(model))
                if emit is not None:
                    alone = Deployment(Precision(precision.weights)).precision_on(model)
                    check_types(emit, model.runs, own, asked, run, _element_types(alone))
            except LlmirError as error:
                refused[f"{device.name} {asked}"] = Rejection(str(error))
                continue
            for split in splits(limit, tensor, stages, experts=experts):
                deployment = Deployment(precision, Parallel(**split._asdict()))
                try:
                    if emit is not None:
                        check_launch(emit, model.runs, run.weights, split, drafter, device)
                    steps = deployment.around(*between, model=model)
                    deployed = lower(program, steps)
                    drafting = drafts and _draft_steps(deployed, steps, model.runs, *drafts)
                    structures.append(Structure(deployed, model, run, split, drafting))
                except LlmirError as error:
                    refused[structure_name(device, run, split)] = Rejection(str(error))
    return structures, refused


def _draft_steps(
    deployed: Program, steps: Sequence[Step], runs: Any, count: int, share: float, *programs: Program | None
) -> DraftSteps:
    """Lower draft and verification steps by the same passes; InputError if they cannot be simulated."""
    from llmir.backends.simulate.drafts import Drafts as DraftSteps

    verify, small = (each and lower(each, steps) for each in programs)
    assert verify is not None
    return DraftSteps.of(deployed, count, share, verify, small, runs.name if runs else "")
