"""Plans for a traffic: which devices, how many, and how a model is split over them (`plan`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from llmir.base import arguments
from llmir.base.errors import InputError, LlmirError
from llmir.base.gc_pause import pause_gc
from llmir.ir.core.program import Program

from .capacity import length_error
from .estimate import _model, verified
from .load import load, run
from .options import Drafts, Estimation, Parallel, Precision, Requests, Traffic, of, option

if TYPE_CHECKING:
    from llmir.backends.search.plan import Plans
    from llmir.backends.search.search import Progress
    from llmir.backends.search.structures import Rejection, Split, Structure
    from llmir.backends.simulate.drafts import Drafts as DraftSteps

DEVICES = 1 << 16  # there may be at most
TRAFFIC = ("rate", "prompt", "generate", "requests", "seed", "prefix_hits")  # that a plan takes
PLANNED = ("round-robin", "random", "least-loaded")  # what deals out requests in a plan
REPLICA = 64  # devices of a replica at most, where their number is not limited


def plan(
    model: object,
    hw: Any = "h100-sxm",
    traffic: Traffic | None = None,
    *,
    max_ttft: float | str | None = None,
    max_tpot: float | str | None = None,
    gpus: int | None = None,
    weights: str | Iterable[str] = "",
    chunk: int | str | Iterable[int] | None = None,
    batch: int | str | Iterable[int] | None = None,
    emit: str | None = None,
    link: str | None = None,
    router: str | None = None,
    drafts: Drafts | None = None,
    progress: Progress | None = None,
    estimation: Estimation | None = None,
) -> Plans:
    """The plans that serve the requests of `traffic` within limits, the cheapest first.

    `hw` are devices, with commas or in a list; `gpus` is how many there may be, by default any number. Of the
    traffic a plan takes `rate`, `prompt`, `generate`, `requests`, `seed` and `prefix_hits`. A limit is
    seconds or words such as `30ms`, and of the 99th percentile of requests unless it says `mean:30ms` or
    `p50:30ms`. `weights` are the types that the checkpoint may be quantized to, `chunk` and `batch` tokens
    and requests of a step, by default all that the engine takes. With `emit`, plans are those that a command
    of that engine (vllm, sglang, trtllm) is known to start. With a `link` (nvlink, network, or a rate such as
    `25GBps,5us`) there are plans of prefill servers and decode servers too, between which caches go over it.
    A `router` deals requests out to servers of a kind: round-robin, as by default, random or least-loaded.
    With `drafts` steps verify drafts, as in `server`; its programs are before any pass, split as the model
    is. Of the `estimation` a plan takes the `engine`, and `price`, dollars an hour of a device by name. If
    all devices have a price, cost decides, else their number.

    Every split of the model is priced by closed forms; those on the front are then simulated on the traffic,
    by five seeds of so many `requests`, and that decides. `progress` is told the number of each such run as
    it begins, and its plan. InputError for what means nothing.

    >>> import llmir
    >>> traffic = llmir.Traffic(rate=20, prompt=500, generate=100)
    >>> found = llmir.plan("llama3.1-8b", traffic=traffic, max_tpot="20ms", gpus=4)
    >>> found.best.devices, found.best.meets
    (1, True)
    """
    from llmir.backends.cost.channel import server_channel
    from llmir.backends.search.search import search
    from llmir.backends.search.traffic import Traffic as Load
    from llmir.backends.search.traffic import latency_limit
    from llmir.backends.simulate.engine import engine_policy
    from llmir.backends.simulate.router import FIRST

    if progress is not None and not callable(progress):
        arguments.refuse("progress", progress, "a function of the runs so far, and of the plan that is next")
    requests, said = _requests(traffic), of(Estimation, estimation)
    if name := next((name for name in said.given if name not in ("engine", "price")), None):
        raise InputError(f"{name}: cannot act in a plan, which has its own; leave it out")
    asked = (
        requests.rate,
        requests.prompt,
        requests.generate,
        requests.requests,
        None if max_ttft is None else latency_limit("max_ttft", max_ttft),
        None if max_tpot is None else latency_limit("max_tpot", max_tpot),
    )
    link = None if link is None else arguments.text("link", link)
    if emit is not None and link is not None:
        raise InputError(f"link: {link}; a command starts one server, leave out emit {emit}")
    if isinstance(router, str) and router == "prefix-aware":
        raise InputError("router: prefix-aware needs prompts with hashes, a plan's have none")
    deals = FIRST if router is None else arguments.choice("router", router, PLANNED)
    most = None if gpus is None else arguments.integer("gpus", gpus, 1, DEVICES)
    chunks, batches = _sizes("chunk", chunk), _sizes("batch", batch)
    program = model if isinstance(model, Program) else load(model)
    positions = program.facts.get("positions")
    longest = positions if isinstance(positions, int) else None
    served = Load(*asked, longest, requests.prefix_hits, deals, requests.seed)
    if served.answer < 2:
        raise InputError(f"generate: {requests.generate}; a plan is for answers from 2 tokens up")
    if served.positions and served.read + served.answer > served.positions:
        raise InputError(length_error(served.read, served.answer, served.positions, program.name))
    types = _names("weights", weights) or ("",)
    steps = verified(_drafted(model, drafts))
    structures, refused = _structures(
        program, _devices(hw, said.price), types, said.engine, emit, most, steps
    )
    if not structures:
        raise InputError(f"plan: no split can be, such as: {next(iter(refused.values())).why}")
    for structure in {each.device.name: each for each in structures}.values():
        if link is not None:
            server_channel(structure.model, link)
        engine_policy(structure.job(1, 1, None, None, None))  # or an error that names the engines
    return search(structures, served, most, chunks, batches, refused, link, progress)


def _requests(traffic: Traffic | None) -> Any:
    """The traffic of a plan, with its defaults; InputError for requests that do not come at random."""
    if traffic is None:
        raise InputError("traffic: say how many requests come in a second, such as llmir.Traffic(rate=2)")
    given = of(Traffic, traffic)
    if name := next((name for name in given.given if name not in TRAFFIC), None):
        raise InputError(f"{name}: the requests of a plan come at a rate, at random; leave it out")
    if given.rate is None:
        raise InputError("rate: say how many requests come in a second")
    usual: dict[str, Any] = {"prompt": 2048, "generate": 128, "requests": 1000, "seed": 0}
    found = replace(given, **{name: usual[name] for name in usual if getattr(given, name) is None})
    arguments.integer("requests", found.requests, 100, 1_000_000)
    return found


def _drafted(model: object, drafts: Drafts | None) -> Drafts:
    """Drafts with their programs before any pass."""
    said = of(Drafts, drafts)
    if said.draft_tokens is None or isinstance(model, Program):
        return said
    own, verify = said.draft_model, said.verify
    own = load(own) if own is not None and not isinstance(own, Program) else own
    return replace(said, verify=load(model, "all") if verify is None else verify, draft_model=own)


def _names(name: str, said: Any) -> tuple[str, ...]:
    parts = said.split(",") if isinstance(said, str) else arguments.items(name, said, "names")
    return tuple(dict.fromkeys(arguments.text(name, part).strip() for part in parts))


def _sizes(name: str, said: Any) -> tuple[int, ...] | None:
    from llmir.backends.search.sweep import axis_values

    least = option(Requests, "batch").least
    return None if said is None else tuple(int(n) for n in axis_values(name, said, least) if n is not None)


def _devices(hw: Any, price: Mapping[str, float] | None) -> list[Any]:
    """Each device, at its price if that is said; InputError for the price of another one."""
    from llmir.hw.library import check_unique, with_prices

    names = hw.split(",") if isinstance(hw, str) else hw if isinstance(hw, (list, tuple)) else [hw]
    found = with_prices(
        [each.strip() if isinstance(each, str) else each for each in names], {} if price is None else price
    )
    check_unique(found)
    return found or arguments.refuse("hw", hw, "devices")


@pause_gc()
def _structures(
    program: Program,
    devices: Sequence[Any],
    types: Sequence[str],
    engine: str | None,
    emit: str | None,
    most: int | None,
    drafts: tuple[int, float, Program, Program | None] | None,
) -> tuple[list[Structure], dict[str, Rejection]]:
    """Every split on every device that passes take, and why they refuse others."""
    from llmir.backends.request.speculation import draft_kind
    from llmir.backends.search.launch import check_launch
    from llmir.backends.search.structures import Rejection, Structure, splits, structure_name
    from llmir.passes.plan import divides

    limit = REPLICA if most is None else min(most, REPLICA)
    experts = any("expert" in n.op.axes for graph in program.graphs.values() for n in graph.sources)
    tensor = [n for n in range(1, limit + 1) if divides(program, n)]
    stages = program.depth(program.entries[0])
    found, refused = [], {}
    drafter = draft_kind(program, drafts[-1]) if drafts else ""
    for device in devices:
        model = _model(device, Estimation(engine=engine))
        for kind in types:
            if emit is not None:
                check_launch(emit, model.runs, kind, None, drafter)
            for split in splits(limit, tensor, stages, experts=experts):
                try:
                    if emit is not None:
                        check_launch(emit, model.runs, kind, split, drafter)
                    deployed = _deployed(program, kind, split, model.runs)
                    own = drafts and _drafts(deployed, kind, split, model.runs, *drafts)
                    found.append(Structure(deployed, model, kind, split, own))
                except LlmirError as error:
                    refused[structure_name(device, kind, split)] = Rejection(str(error.__cause__ or error))
    return found, refused


def _drafts(
    deployed: Program, kind: str, split: Split, runs: Any, count: int, share: float, *programs: Program | None
) -> DraftSteps:
    """What verifies and drafts on the ranks of a split; InputError where drafts are not simulated there."""
    from llmir.backends.simulate.drafts import Drafts as DraftSteps

    verify, small = (each and _deployed(each, kind, split, runs) for each in programs)
    assert verify is not None
    return DraftSteps.of(deployed, count, share, verify, small, runs.name if runs else "")


def _deployed(program: Program, weights: str, split: Split, runs: Any) -> Program:
    """The program as it lies on the ranks of a split."""
    from .deployment import Deployment, passes_of

    deployed = Deployment(Precision(weights=weights or None), Parallel(**split._asdict()))
    return run(program, deployed.around(passes_of(runs), runs=runs))
