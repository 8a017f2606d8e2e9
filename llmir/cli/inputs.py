"""Options of a command, converted to programs, devices and workloads."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from llmir.api.options import Drafts, Estimation, Memory, Record, options
from llmir.base.errors import InputError, ParseError

if TYPE_CHECKING:
    from llmir.api.deployment import Deployment
    from llmir.api.load import ModelSource
    from llmir.backends.cost.op_time import DeviceCostModel
    from llmir.backends.request.workload import Workload
    from llmir.hw.device import Device
    from llmir.ir.core.program import Program
    from llmir.ir.tools.pipeline import Pass, Step

COST_OPTIONS = ("cost", "engine", "efficiency")
Kind = TypeVar("Kind", bound=Record)


def read(model: str, logits: str | None = None, *, lenient: bool = False, draft: bool = False) -> Program:
    """The program for a model's name or config, or the program in an `.ir` file (`-` is stdin)."""
    from llmir.api import load

    if logits and is_ir(model):
        raise InputError(f"--logits: {model} is IR, which already states for which tokens lm_head runs")
    return _stdin() if model == "-" else load.load(model, logits, lenient=lenient, draft=draft)


def is_ir(model: str) -> bool:
    """Whether a model is given as IR."""
    return model == "-" or model.lower().endswith(".ir")


def _stdin() -> Program:
    from llmir.ir.tools.text import BUDGET, read_program

    try:
        return read_program(sys.stdin.buffer.read(BUDGET.bytes + 1))
    except (ParseError, OSError) as error:
        raise ParseError(f"stdin: {getattr(error, 'strerror', None) or error}") from None


def source(given: Mapping[str, Any]) -> ModelSource:
    """The model of a command, before any pass: its name, path or config, or the program of an `.ir` file."""
    from llmir.api.load import ModelSource

    model = given["model"]
    return ModelSource(_stdin() if model == "-" else model, given["lenient"], given.get("draft", False))


def cost_model(given: Mapping[str, Any]) -> DeviceCostModel | None:
    """The cost model that the options of a command select, before `--network`; None without options of a
    device.

    An unknown device, engine or cost model is an error here.
    """
    from llmir.backends.cost.models import model
    from llmir.hw.library import load

    if not {*COST_OPTIONS, "hw", "cluster"} <= given.keys():
        return None
    device = load(hardware({**given, "network": None}))
    return model(device, *(given[name] for name in COST_OPTIONS))


def default_passes(given: Mapping[str, Any]) -> str:
    """The default pipeline of the engine of the estimate."""
    from llmir.api.deployment import passes_of

    model = cost_model(given)
    return passes_of(model.runs if model else None)


def passes(
    model: str, attention: str, pipeline: str | None, mla: str | None = None, default: str = ""
) -> str:
    """The pipeline that the options state, or else `default`; IR is used unchanged."""
    from llmir.ir.core.tensor import split_commas

    if pipeline is not None:
        for option in ("--attention eager",) * (attention == "eager") + (f"--mla {mla}",) * bool(mla):
            raise InputError(f"{option}: cannot be combined with --pipeline; leave one of them out")
        return pipeline
    if is_ir(model):
        if mla:
            raise InputError(f"--mla {mla}: {model} is IR already; --pipeline absorb-mla rewrites it")
        return ""
    steps = {step.split("{")[0]: step for step in split_commas(default)}
    if attention == "eager":
        steps.pop("fuse-attention", None)
    if mla == "naive":
        steps.pop("absorb-mla", None)
    elif mla == "absorbed":
        steps = {"absorb-mla": "absorb-mla"} | steps | {"absorb-mla": "absorb-mla"}
    return ",".join(steps.values())


def lower(given: Mapping[str, Any]) -> Program:
    """Load the program that the options name, and run its quantization, pipeline and sharding."""
    from llmir.api.deployment import lower as run_steps

    how = {"lenient": given["lenient"], "draft": given.get("draft", False)}
    program = read(given["model"], given["logits"], **how)
    steps = _requested_pipeline(program, given)
    return run_steps(program, around(given, steps), written=given["pipeline"] is not None)


def _requested_pipeline(program: Program, given: Mapping[str, Any]) -> str:
    """The pipeline that the options state; InputError for a form of attention that the model does not
    support.
    """
    from llmir.api.load import run

    mla = given["mla"]
    steps = passes(given["model"], given["attention"], given["pipeline"], mla, default_passes(given))
    if mla and run(program, "absorb-mla") is program:
        raise InputError(f"--mla {mla}: {program.name} has no latent attention")
    if given["attention"] == "eager" and run(program, "fuse-attention") == program:
        raise InputError(f"--attention eager: {program.name} has no attention to leave unfused")
    return steps


def before_and_after(given: Mapping[str, Any]) -> tuple[Program, Program]:
    """The program before and after it is sharded."""
    from llmir.api.deployment import lower as run_steps

    program = read(given["model"], given["logits"], lenient=given["lenient"])
    steps = _requested_pipeline(program, given)
    before: list[Step] = [*deployment(given).types(), steps]
    written = given["pipeline"] is not None
    return run_steps(program, before, written=written), run_steps(
        program, around(given, steps), written=written
    )


def around(given: Mapping[str, Any], *pipeline: Step) -> list[Step]:
    """Add the passes of the options to a pipeline: dtypes and stages before it, ranks and collectives after
    it.
    """
    return deployment(given).around(*pipeline, model=cost_model(given), prompts=_prompts(given))


def deployment(given: Mapping[str, Any]) -> Deployment:
    """The dtypes and ranks of the options; `InputError` for empty dtypes."""
    from llmir.api.deployment import Deployment
    from llmir.passes.modules import plan_file

    for name in ("weights", "activations", "kv", "collectives", "plan"):
        if given.get(name) == "":
            option = "precision" if name == "plan" else name
            raise InputError(f"--{option}: it is empty; leave it out, or see --help")
    plan = given.get("plan") and plan_file(given["plan"])
    pp, *more = given["pp"]
    said = {**given, "plan": plan, "pp": given["pp"] if more else pp}
    return Deployment.of(said)


def _prompts(given: Mapping[str, Any]) -> list[Pass]:
    """The passes for prompts: tokens that layers prune, and positions of images."""
    from llmir.passes.place_images import PlaceImages
    from llmir.passes.prune_tokens import PruneTokens

    tokens, layers = given.get("image_tokens"), given.get("layer_tokens")
    images: list[Pass] = [] if tokens is None else [PlaceImages(tokens)]
    return images if layers is None else [*images, PruneTokens(layers)]


def hardware(given: Mapping[str, Any], *programs: Program) -> str | Device:
    """The device of `--hw` or `--cluster`, with nodes that `--network` connects.

    InputError if both options are given, or if no program needs the network; HardwareError for an unknown
    cluster.
    """
    from llmir.hw import library

    name, cluster, network = given["hw"], given["cluster"], given["network"]
    if cluster is not None and name is not None:
        raise InputError(f"--cluster {cluster}: already selects the device; leave out --hw {name}")
    found = ("h100-sxm" if name is None else str(name)) if cluster is None else library.cluster(str(cluster))
    return found if network is None else join_nodes(found, str(network), *programs)


def with_prices(given: Mapping[str, Any], *devices: str | Device) -> list[Any]:
    """The devices with the hourly prices of `--price`, if set."""
    from llmir.hw import library

    return library.with_prices(devices, given["price"]) if given.get("price") else list(devices)


def link_hardware(given: Mapping[str, Any], *programs: Program) -> str | Device:
    """The device of a command with `--link`, which may be the network even if one node contains all ranks."""
    from llmir.hw import library

    if given["link"] == "network" and given["network"] is not None:
        return library.join(hardware({**given, "network": None}), str(given["network"]))
    found = hardware(given, *programs)
    if given["link"] == "network":
        node = library.load(found).node
        if node is None or node.network is None:
            name = library.load(found).name
            raise InputError(f"--link network: {name} has no node description; set --network or --cluster")
    return found


def join_nodes(device: str | Device, network: str, *programs: Program) -> Device:
    """The device in nodes that a network connects; InputError if all ranks fit in one node."""
    from llmir.hw import library

    found = library.join(device, network)
    most = max(program.devices for program in programs)
    if found.node and most <= found.node.devices:
        node = f"one node of {found.node.devices} devices holds all {most} ranks"
        raise InputError(f"--network {network}: {node}; --tp, --pp and --dp set the number of ranks")
    return found


def workload(program: Program, given: Mapping[str, Any]) -> Workload:
    """Estimate the workload that the options describe."""
    from llmir.api import estimate
    from llmir.api.estimate import beam_search

    users, tpot_ms = given.get("concurrency"), given.get("max_tpot")
    if users is not None and given["batch"] != 1:
        raise InputError(f"--concurrency {users}: sets the number of requests; leave --batch out")
    (device,) = with_prices(given, hardware(given, program))
    job = estimate.workload(
        program,
        device,
        **{name: given[name] for name in ("batch", "prompt", "generate")},
        memory=taken(Memory, given),
        estimation=estimation(given),
        chunk=given.get("chunk"),
        cached=given.get("cached", 0),
        concurrency=users,
        lengths=given.get("lengths"),
        max_tpot_s=None if users is None or tpot_ms is None else tpot_ms * 1e-3,
    )
    if given.get("beams") is not None:
        return beam_search(job, given["beams"])
    of = drafts(given)
    return estimate.speculate(job, of) if of else job


def check_drafts(given: Mapping[str, Any]) -> None:
    """Raise InputError for options of drafts that are incomplete or contradictory."""
    said = {name: given.get(name) for name in ("acceptance", "draft_model")}
    if given.get("draft_tokens") is None:
        for name, value in said.items():
            if value is not None:
                option = name.replace("_", "-")
                raise InputError(f"--{option} {value}: needs --draft-tokens")
        return
    if given.get("beams") is not None:
        raise InputError(
            f"--beams {given['beams']}: drafts require a single sequence; leave --draft-tokens out"
        )
    if given.get("logits") == "all":
        raise InputError("--logits all: --draft-tokens implies it; leave it out")
    if said["acceptance"] is None:
        raise InputError(
            "--draft-tokens: requires --acceptance, the probability that a draft token is accepted"
        )
    if given.get("draft") and said["draft_model"]:
        raise InputError(
            f"--draft-model {said['draft_model']}: --draft already selects the model's own layer"
        )


def drafts(given: Mapping[str, Any]) -> Drafts | None:
    """The drafts of the options, with their programs; None without drafts."""
    check_drafts(given)
    if given.get("draft_tokens") is None:
        return None
    name = given["draft_model"]
    verify = lower({**given, "logits": "all", "draft": False})
    drafter = None if name is None else lower({**given, "model": name, "draft": False})
    return Drafts(given["draft_tokens"], given["acceptance"], drafter, verify)


def taken(record: type[Kind], given: Mapping[str, Any]) -> Kind:
    """Fill a record from the options of a command; for options that the command lacks, the defaults apply."""
    return record(**{each.name: given[each.key] for each in options(record) if each.key in given})


def estimation(given: Mapping[str, Any]) -> Estimation:
    """The cost model that a command's options name; its device is `hardware`."""
    names = (*COST_OPTIONS, "receive_interval")
    return taken(Estimation, {name: given[name] for name in names if name in given})
