"""All that is public, called with usual arguments; and values of every kind, to be given in their place."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np

import llmir
from llmir.hw import library
from llmir.ir.core.graph import Graph, Node, Value
from llmir.ir.core.mesh import Mesh
from llmir.ir.core.program import Program
from llmir.ir.core.tensor import Tensor, parse_tensor
from llmir.ir.ops import make
from llmir.ir.sizes.polynomial import B
from llmir.ir.tools.build import Builder
from llmir.ir.tools.pipeline import Pass
from tests.commands import TINY
from tests.flat import flat, records


class OddError(RuntimeError):
    """What such an object raises."""


class Odd:
    """An object that is no help."""

    def __repr__(self) -> str:
        raise OddError("no words")

    def __len__(self) -> int:
        raise OddError("no length")

    def __iter__(self) -> Iterator[Any]:
        return itertools.count()


class Indexed:
    def __index__(self) -> int:
        return 2


def fresh() -> list[Any]:
    """Values of every kind, those that go on for ever among them."""
    built = Builder()
    value = built.input("bf16[B, 8]", name="x")
    return [
        *(None, True, False, 0, 1, -1, 2**31, 2**63, 10**400, -(10**400), 0.5, 1.0, -0.0, 1e308),
        *(float("nan"), float("inf"), -float("inf"), 1j, Indexed(), Odd(), Odd, object(), type, len),
        *(
            "",
            "x",
            "8",
            "\ud800",
            "1.5",
            "nan",
            "a b",
            "\0",
            "%",
            "\u2028",
            "x" * 5000,
            b"",
            b"fuse",
            "(" * 500,
        ),
        *([], [1], [[1], [1, 2]], (), (1,), ("a",), {}, {"a": 1}, {1: 2}, {"batch": 1}, set(), {1, 2}),
        *(np.int64(2), np.float32(0.5), np.float64("nan"), np.bool_(True), np.array(3), np.array([1, 2])),
        *(
            np.array([1.5]),
            np.array([np.nan, 1]),
            np.array(["a"]),
            np.array([]),
            np.zeros((2, 0)),
            np.str_("x"),
        ),
        *(np.array([object()], dtype=object), np.datetime64("2024-01-01"), range(3), range(10**9)),
        *(itertools.count(), itertools.repeat("fuse"), iter([1]), (x for x in [1]), lambda *_: 1),
        *(
            Path("x"),
            Path(),
            Exception("x"),
            NotImplemented,
            ...,
            slice(1),
            memoryview(b"x"),
            bytearray(b"x"),
        ),
        *(
            B,
            2 * B,
            value,
            Value("x", "y"),
            Value("nowhere", -5),
            parse_tensor("bf16[B]"),
            Mesh((("tp", 2),)),
        ),  # type: ignore[arg-type]
        *(
            PROGRAM,
            PROGRAM["main"],
            library.load("h100-sxm"),
            "h100-sxm",
            "fuse",
            "bf16[B, T]",
            "b t h -> b t h",
        ),
    ]


PROGRAM = llmir.run(llmir.load(TINY), llmir.pipeline_of())
EXPERTS = llmir.load("qwen3-30b-a3b")
REPORT = llmir.analyze(PROGRAM, "h100-sxm")
NODE = PROGRAM["main"].nodes[0]
FOLDER = Path(mkdtemp())
IDS = {n.name: np.zeros((1, 1), dtype=int) for n in PROGRAM["main"].inputs}
COUNT = len(fresh())
PRICING = dict.fromkeys(("cost", "engine", "efficiency"))
ON = {"hw": "h100-sxm", "estimation": None}
OVER: dict[str, Any] = {"model": PROGRAM, **ON, "parallel": None, "precision": None}
AT: dict[str, Any] = {"batch": 1, "new": 1, "context": 0}
REQUEST = {"batch": 1, "prompt": 8, "generate": 2}
JOB = {**REQUEST, "chunk": None, "cached": 0, "memory": None}
CACHES, USERS = {"cache_policy": "exact"}, {"concurrency": 2, "max_tpot_s": None, "lengths": "fixed"}
TRAFFIC: dict[str, Any] = {
    "rate": None,
    "closed": 2,
    "requests": 5,
    "prompt": 8,
    "generate": 2,
    "prefix_hits": 0.0,
    "cancel": 0.0,
    "seed": 0,
    "speed": 1.0,
    "lengths": "spread",
    **dict.fromkeys(("burstiness", "timeout_s", "turns", "think_s", "trace")),
}
COUNTED: dict[str, Any] = {
    "warm_up": 0,
    "max_ttft_s": None,
    "max_tpot_s": None,
    "replicas": 2,
    "router": "least-loaded",
}
MEMORY = {"max_model_len": 16, "max_num_seqs": 4, "max_batched_tokens": 64, **CACHES}
MEMORY |= {"memory_utilization": 0.9, "reserve_bytes": 0, "chunked_prefill": None}
SERVER = {"memory": None, "drafts": None}
COME = llmir.Traffic(closed=2, requests=5, prompt=8, generate=2)
SERVING: dict[str, Any] = {**OVER, "traffic": COME, **SERVER, "servers": None}
SERVING |= {"warm_up": 0, "max_ttft_s": None, "max_tpot_s": None}
SERVED = llmir.server(PROGRAM, "h100-sxm")
POOLS = ("prefill_replicas", "decode_replicas", "link", "decode_program", "decode_verify", "decode_draft")
POOLED = {name: value for name, value in COUNTED.items() if name != "replicas"}
POOLED |= {"prefill_replicas": 2, "decode_replicas": 1}


def built(method: str, *arguments: Any, **named: Any) -> Any:
    b = Builder()
    x = b.input("bf16[B, T, 8]", name="x")
    arguments = tuple(x if a is NODE else a for a in arguments)
    return getattr(b, method)(*arguments, **named)


def in_block(name: Any) -> None:
    with Builder().block(name):
        pass


class Priced:
    """A cost model that gives any price."""

    def __init__(self, given: Any) -> None:
        self.given = given

    def price(self, row: Any) -> Any:
        return self.given


def giving(value: Any) -> Pass:
    """A pass that gives anything."""

    class Giving(Pass):
        def __call__(self, program: Program) -> Any:
            return value

    return Giving()


# A public callable by name, and arguments that it takes; words after the name tell its calls apart.
CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "load": (llmir.load, {"model": TINY, "logits": "last", "lenient": False, "draft": False}),
    "run": (llmir.run, {"program": PROGRAM, "pipeline": "fuse", "after": None}),
    "run a list": (lambda step: llmir.run(PROGRAM, ["fuse", step]), {"step": "dce"}),
    "pipeline_of": (llmir.pipeline_of, {"engine": "vllm"}),
    "analyze": (
        llmir.analyze,
        {**OVER, "beside": (), "phase": None, **AT, **CACHES},
    ),
    "analyze by": (flat(llmir.analyze), {"model": PROGRAM, "hw": "h100-sxm", **PRICING}),
    "Estimation": (
        llmir.Estimation,
        {
            "hw": None,
            "cluster": None,
            "network": None,
            "price": {"h100": 3.0},
            "receive_interval": 9,
            **PRICING,
        },
    ),
    "Estimation in use": (
        lambda **x: llmir.analyze(PROGRAM, None, estimation=llmir.Estimation(**x)),
        {"hw": "h100-sxm", "network": "25GBps,5us", "price": {"h100-sxm": 3.0}},
    ),
    "Parallel": (
        llmir.Parallel,
        {
            **{"tp": 2, "pp": (1, 1), "micro_batches": 1, "dp": 1, "ep": 1, "dispatch": "rows"},
            **{"redundant_experts": 0, "sp": False, "routing": None, "routing_skew": None},
        },
    ),
    "Parallel in use": (
        lambda **x: llmir.analyze(PROGRAM, "h100", parallel=llmir.Parallel(**x)),
        {"tp": 2, "pp": 1, "micro_batches": 1, "dp": 1},
    ),
    "Precision": (
        llmir.Precision,
        {**dict.fromkeys(("weights", "activations", "kv", "collectives")), "plan": {}},
    ),
    "Precision in use": (
        lambda **x: llmir.analyze(PROGRAM, "h100", precision=llmir.Precision(**x)),
        {"weights": "fp8", "kv": "fp8", "plan": {}},
    ),
    "Memory": (llmir.Memory, MEMORY),
    "Memory in use": (flat(llmir.workload), {"model": PROGRAM, "hw": "h100", "generate": 4, **MEMORY}),
    "Drafts": (
        llmir.Drafts,
        {"draft_tokens": 2, "acceptance": 0.5, "draft_model": PROGRAM, "verify": PROGRAM},
    ),
    "Traffic": (llmir.Traffic, TRAFFIC),
    "Reserve": (llmir.Reserve, {"margin": 0.1, "headroom": None}),
    "Servers": (llmir.Servers, {"replicas": 2, "router": "random", "emit": None, **dict.fromkeys(POOLS)}),
    "analyze beside": (lambda part: llmir.analyze(PROGRAM, "h100", beside=[part]), {"part": {"batch": 2}}),
    "beside a new": (lambda new: llmir.analyze(PROGRAM, "h100", beside=[{"new": new}]).time_s, {"new": 2}),
    "efficiency": (
        lambda x: llmir.analyze(PROGRAM, "h100", estimation=llmir.Estimation(efficiency={"memory": x})),
        {"x": 0.5},
    ),
    "workload": (llmir.workload, {**OVER, **JOB, "drafts": None, **dict.fromkeys(USERS)}),
    "workload of users": (lambda **x: llmir.workload(PROGRAM, "h100", **records(llmir.workload, **x)), USERS),
    "replicate": (llmir.replicate, {**SERVING, "times": 2}),
    "server": (llmir.server, {**OVER, **SERVER}),
    "server that verifies drafts": (
        lambda **x: llmir.server(PROGRAM, "h100-sxm", **records(llmir.server, **x)).capacity(9),
        {"verify": PROGRAM, "draft_tokens": 2, "acceptance": 0.5, "draft": PROGRAM},
    ),
    "simulate drafts": (
        lambda **x: llmir.simulate(
            PROGRAM, "h100-sxm", **records(llmir.simulate, closed=2, requests=3, prompt=8, generate=4, **x)
        ),
        {"verify": PROGRAM, "draft_tokens": 2, "acceptance": 0.5, "draft": PROGRAM},
    ),
    "server.run": (
        llmir.server(PROGRAM, "h100-sxm").run,
        {"load": llmir.traffic(**records(llmir.traffic, **TRAFFIC)), **COUNTED},
    ),
    "traffic": (llmir.traffic, {"traffic": COME}),
    "traffic by": (flat(llmir.traffic), TRAFFIC),
    "traffic at a rate": (flat(llmir.traffic), {"rate": 2.0, "burstiness": 2.0, "requests": 5, "turns": 2}),
    "simulate": (llmir.simulate, SERVING),
    "simulate by": (
        flat(llmir.simulate),
        {"model": PROGRAM, "hw": "h100-sxm", **TRAFFIC, **COUNTED, **PRICING, **dict.fromkeys(POOLS)},
    ),
    "simulate pools": (
        lambda **x: llmir.simulate(
            PROGRAM, "h100-sxm", **records(llmir.simulate, closed=2, requests=3, prompt=8, generate=2, **x)
        ),
        dict(zip(POOLS, (2, 1, "nvlink", PROGRAM, None, None), strict=True)),
    ),
    "pools": (llmir.pools, {"prefill": SERVED, "decode": SERVED, "link": "nvlink"}),
    "pools.run": (
        llmir.pools(SERVED, SERVED, "nvlink").run,
        {"load": llmir.traffic(**records(llmir.traffic, **TRAFFIC)), **POOLED},
    ),
    "kv": (llmir.kv, {**OVER, "batch": 1, "prompt": 9, "link": "host"}),
    "stages": (llmir.stages, {"program": PROGRAM, **ON, "stages": [2], "phase": None, **AT}),
    "stages with caches": (
        lambda **x: llmir.stages(PROGRAM, "h100", [2], **records(llmir.stages, **x)),
        CACHES,
    ),
    "candidates": (llmir.candidates, {"programs": [PROGRAM], **ON, **CACHES}),
    "candidates in stages": (
        lambda stages: llmir.candidates([(PROGRAM, stages)], "h100"),
        {"stages": 1},
    ),
    "candidates' steps": (llmir.candidates([PROGRAM], "h100").step, {"batch": 1, "new": 1, "context": 0}),
    "candidates' requests": (
        llmir.candidates([PROGRAM], "h100").requests,
        {"batch": [1, 2], "prompt": 10, "generate": 4},
    ),
    "compile": (
        llmir.compile,
        {"program": PROGRAM, **ON, "phase": None, **CACHES, "by": "numpy"},
    ),
    "emit": (llmir.emit, {"program": PROGRAM, **ON, "to": "js", "phase": None, **CACHES}),
    "page": (
        llmir.page,
        {
            **{"model": PROGRAM, "axes": {}, "pipeline": "", "memory_utilization": 0.8},
            **{"max_size": 1 << 20, **REQUEST},
        },
    ),
    "compile steps": (llmir.compile(PROGRAM, "h100"), {"batch": 1, "new": 1, "context": 0}),
    "sensitivity": (llmir.sensitivity, {"job": llmir.workload(PROGRAM, "h100"), "more": 0.1}),
    "compile slopes": (
        llmir.compile(PROGRAM, "h100").slope,
        {"by": "context", "batch": 1, "new": 1, "context": 0},
    ),
    "surface": (llmir.surface, {"program": PROGRAM, **ON}),
    "surface kept": (llmir.surface(PROGRAM, "h100").kept, {"contexts": [5, 9]}),
    "surface steps": (
        llmir.surface(PROGRAM, "h100").step,
        {"decodes": 2, "kept": (14,), "chunks": [(3, 0)]},
    ),
    "models": (llmir.models, {"name": "qwen3"}),
    "devices": (llmir.devices, {"name": "h100-sxm"}),
    "load_plugin": (llmir.load_plugin, {"plugin": "nowhere"}),
    "CostModel": (
        lambda price: llmir.analyze(PROGRAM, "h100", estimation=llmir.Estimation(cost=Priced(price))).time_s,
        {"price": len},
    ),
    "CostModel times": (
        lambda seconds: (
            llmir.analyze(
                PROGRAM, "h100", batch=[1, 2], estimation=llmir.Estimation(cost=Priced(lambda _: seconds))
            ).time_s
        ),
        {"seconds": 1e-6},
    ),
    "Pass": (lambda given: llmir.run(PROGRAM, giving(given)), {"given": PROGRAM}),
    "diff": (llmir.diff, {"before": PROGRAM, "after": PROGRAM, **ON, "hw_after": None, **AT}),
    "diff of requests": (
        lambda **named: llmir.diff(PROGRAM, PROGRAM, "h100", **records(llmir.diff, **named)),
        {
            **{"prompt": 8, "generate": 2, "chunk": 4, "cached": 1, "concurrency": 2, "lengths": "fixed"},
            "engine_after": "sglang",
        },
    ),
    "diff of reports": (llmir.diff, {"before": REPORT, "after": REPORT}),
    "validate": (
        lambda files, **named: llmir.validate(files, **named),  # noqa: PLW0108 (they have no name)
        {
            "files": "x.csv",
            "program": None,
            "hw": None,
            "batch": 1,
            "engine": None,
            "unit": "ms",
            "cost": "ideal",
            **{"without": None, "folds": None, "tell": print},
        },
    ),
    "calibrate": (
        llmir.calibrate,
        {"folder": FOLDER, "hw": None, "engine": None, "family": None, "host": False, "tell": print},
    ),
    "measure": (  # of a device that nobody knows, so that nothing is timed
        llmir.measure,
        {
            "folder": FOLDER / "times",
            "hw": "abacus",
            "seconds": 1.0,
            "quick": True,
            "tell": print,
            "progress": print,
        },
    ),
    "draw": (
        lambda job, level, phase: llmir.draw(job, FOLDER / "x.dot", level=level, phase=phase),
        {"job": REPORT, "level": "layer", "phase": "both"},
    ),
    "sweep": (
        lambda model, axes, pipeline, price, memory, executor, progress: llmir.sweep(
            model, axes, pipeline=pipeline, price=price, memory=memory, executor=executor, progress=progress
        ),
        {
            **{"model": PROGRAM, "axes": {"batch": "1:4"}, "pipeline": "dce", "price": {"h100": 3}},
            **{"memory": None, "executor": None, "progress": None},
        },
    ),
    "sweep_to": (
        lambda path, model, axes, format, pipeline, price, memory, executor, progress: llmir.sweep_to(
            path,
            model,
            axes,
            **{"format": format, "pipeline": pipeline, "price": price, "memory": memory},
            **{"executor": executor, "progress": progress},
        ),
        {
            **{"path": FOLDER / "grid.jsonl", "model": PROGRAM, "axes": {"batch": "1:4"}, "format": None},
            **{"pipeline": "dce", "price": None, "memory": None, "executor": None, "progress": None},
        },
    ),
    "sweep axis": (
        lambda tp, weights, batch: llmir.sweep(PROGRAM, {"tp": tp, "weights": weights, "batch": batch}),
        {"tp": 1, "weights": "fp8", "batch": "1:2"},
    ),
    "trace": (
        lambda job, phase, rank, max_size: llmir.trace(
            job, FOLDER / "x.html", phase=phase, rank=rank, max_size=max_size
        ),
        {"job": REPORT, "phase": "decode", "rank": 0, "max_size": None},
    ),
    "trace to": (lambda path: llmir.trace(REPORT, path), {"path": None}),
    "draw to": (lambda path: llmir.draw(REPORT, path), {"path": None}),
    "save": (llmir.save, {"result": REPORT, "path": FOLDER / "x.json", "format": "json", "max_size": None}),
    "explain": (llmir.explain, {"priced": REPORT, "op": "lm_head", "phase": "prefill"}),
    "explain a workload": (
        lambda phase: llmir.explain(llmir.workload(PROGRAM, "h100", generate=2), "lm_head", phase=phase),
        {"phase": "decode"},
    ),
    "interpret": (
        llmir.interpret,
        {"program": PROGRAM, "inputs": IDS, "weights": None, "caches": None, "context": 0, "phase": None},
    ),
    "interpret inputs": (
        lambda x: llmir.interpret(PROGRAM, {"ids": x, "tokens": x}),
        {"x": np.zeros((1, 1))},
    ),
    "interpret weights": (lambda x: llmir.interpret(PROGRAM, IDS, lambda *_: x), {"x": 1}),
    "interpret caches": (lambda x: llmir.interpret(PROGRAM, IDS, caches={"layers.k_cache": x}), {"x": []}),
    "equivalent": (
        lambda **named: llmir.equivalent(PROGRAM, PROGRAM, **named),
        {"batch": 1, "new": 1, "tolerance": 0.1},
    ),
    "equivalent programs": (llmir.equivalent, {"before": PROGRAM, "after": PROGRAM}),
    "check": (llmir.check, {"program": llmir.load(TINY), "against": "nowhere"}),
    "check ranks": (
        lambda **named: llmir.check(llmir.run(PROGRAM, "shard{tp=2}"), PROGRAM, **named),
        {"batch": 2, "new": 2},
    ),
    "parse_program": (llmir.parse_program, {"text": "graph @main {\n}"}),
    "print_program": (llmir.print_program, {"program": PROGRAM}),
    "Graph": (Graph, {"name": "g", "nodes": PROGRAM["main"].nodes, "outputs": ()}),
    "Graph.type": (PROGRAM["main"].type, {"value": NODE.values[0]}),
    "Graph.origin": (PROGRAM["main"].origin, {"value": NODE.values[0]}),
    "Graph.operand_types": (PROGRAM["main"].operand_types, {"node": NODE}),
    "Graph[]": (PROGRAM["main"].__getitem__, {"name": NODE.name}),
    "Program": (
        Program,
        {
            "name": "p",
            "graphs": PROGRAM.graphs,
            "entries": ("main",),
            "mesh": Mesh(),
            "facts": {},
            "notes": (),
            "micro_batches": 1,
            "phases": {},
        },
    ),
    "Program.phase": (PROGRAM.phase, {"name": "decode"}),
    "Program.depth": (PROGRAM.depth, {"name": "main"}),
    "Program.replace": (PROGRAM.replace, {"micro_batches": 1, "entries": ("main",)}),
    "Program[]": (PROGRAM.__getitem__, {"name": "main"}),
    "analyze a program": (
        lambda **named: llmir.analyze(Program("p", PROGRAM.graphs, **named), "h100-sxm").time_s,
        {"entries": ("main",), "mesh": Mesh(), "facts": {}, "micro_batches": 1},
    ),
    "Node": (Node, {"name": "n", "op": NODE.op, "operands": (), "results": ()}),
    "Mesh": (Mesh, {"axes": (("tp", 2),)}),
    "Mesh of": (lambda name, size: Mesh(((name, size),)), {"name": "tp", "size": 2}),
    "Tensor": (
        lambda **named: Tensor(dtype=parse_tensor("bf16[1]").dtype, **named),
        {"shape": (2,)},
    ),
    "Builder": (Builder, {"name": "main", "known": None}),
    "Builder.block": (in_block, {"name": "mlp"}),
    "Builder.input": (lambda **n: built("input", **n), {"type": "bf16[B]", "name": "y", "axes": ("batch",)}),
    "Builder.weight": (
        lambda **n: built("weight", **n),
        {"type": "bf16[8]", "name": "y", "axes": (), "param": ""},
    ),
    "Builder.cache": (lambda **n: built("cache", **n), {"type": "bf16[B, C]", "name": "y", "axes": ()}),
    "Builder.apply": (
        lambda op, x, name: built("apply", op, x, name=name),
        {"op": make("silu"), "x": NODE, "name": ""},
    ),
    "Builder.output": (lambda x: built("output", x), {"x": NODE}),
    "Builder.type": (lambda x: built("type", x), {"x": NODE}),
    "Builder.node": (lambda x: built("node", x), {"x": "x"}),
    "Builder.insert": (lambda x: built("insert", x), {"x": NODE}),
    "hw.load": (library.load, {"device": "h100-sxm"}),
    "hw.from_keys": (library.from_keys, {"fields": {"extend": "h100-sxm"}, "name": "device"}),
    "hw.cluster": (library.cluster, {"name": "dgx-h100"}),
    "hw.join": (library.join, {"device": "h100-sxm", "network": "25GBps,5us"}),
    "hw.with_prices": (library.with_prices, {"devices": ("h100-sxm",), "prices": {"h100": 2.5}}),
    "hw.default_node": (library.default_node, {"device": "h100-sxm"}),
    "hw.engine": (library.engine, {"name": "vllm", "kernels": ()}),
}
# Of what is public, what the walk below cannot read from a signature, and why.
GIVEN_BACK = {
    "CostModel": {"price"},  # a protocol: callers do not call it, but what their own gives back is checked
    "Pass": {"given"},  # is inherited from, likewise
    "LlmirError": set[str](),  # what all of this raises; an exception takes any arguments
}


def passed_over(name: str, argument: str, value: object) -> bool:
    """Where a file would be written, or a caller's own function is run, which may raise what it will."""
    written = (name, argument) in (
        ("draw to", "path"),
        ("save", "path"),
        ("sweep_to", "path"),
    ) and isinstance(value, (str, Path))
    own = name.startswith("run") or argument in ("weights", "price", "pipeline", "progress")
    return written or (callable(value) and own)
