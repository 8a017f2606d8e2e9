"""Values stay what they are: no public object takes a change, and no array of a caller becomes ours."""

from __future__ import annotations

import copy
import operator
import pickle
import subprocess
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest

import llmir
from llmir.backends.compare.conservation import conservation
from llmir.backends.compare.explain import explain
from llmir.backends.interpret.program import interpret
from llmir.frontends.models.presets import PRESETS
from llmir.hw import library
from llmir.ir.core.dtype import DTYPES
from llmir.ir.core.mesh import Mesh
from llmir.ir.core.program import Program
from llmir.ir.sizes.binding import Binding, MixedBinding
from llmir.ir.sizes.polynomial import B, T, ceildiv
from llmir.ir.sizes.routing_laws import popularity
from llmir.ir.tools.pipeline import PASSES
from tests.commands import environment
from tests.frontends.families.transformers_cases import CASES

# What these are can change in no way that a test could try.
PLAIN = (str, bytes, int, float, complex, bool, type(None), type, range, np.generic)
PLAIN += (types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType)
ENOUGH = 60  # objects of one class
MOE = {**CASES["qwen3-moe"], "num_experts": 6, "vocab_size": 12}

IN_PLACE: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("append", "remove", "add", "discard", "extend"), ((1,),)),
    **dict.fromkeys(("clear", "sort", "reverse", "popitem"), ()),
    "insert": (0, 1),
    "setdefault": ("new", 1),
    "update": ({"new": 1},),
    "fill": (0,),
    "setflags": (True,),
    "__setitem__": (0, 0),
    "__delitem__": (0,),
    "add_node": ("new",),
    "add_nodes_from": (["new"],),
    "add_edge": ("new", "newer"),
    "add_edges_from": ([("new", "newer")],),
    "add_weighted_edges_from": ([("new", "newer", 1)],),
    "remove_nodes_from": ([],),
    "remove_edges_from": ([],),
    "clear_edges": (),
}


def program() -> Program:
    return llmir.run(llmir.load(MOE), f"{llmir.pipeline_of()},stages{{pp=2}},shard{{tp=2, ep=2}}")


def roots(folder: Path) -> Iterator[object]:
    built = program()
    plain = llmir.run(llmir.load(MOE), llmir.pipeline_of())
    yield from (built, *list(built.instances())[:40])
    yield from (
        library.load("dgx-h100"),
        library.load("h100-sxm").calibration,
        library.engine("vllm"),
        library.load("mi300x"),
    )
    yield from (PRESETS, DTYPES, *(kind() for kind in PASSES.values()), Mesh([["dp", 2]]))  # type: ignore[arg-type]
    yield from (B * T + ceildiv(B, 8), Binding(B=[1, 2]), MixedBinding([Binding(B=1), Binding(B=2)]))
    point = llmir.analyze(built, "dgx-h100", batch=2, new=3, context=4)
    yield from (point, point.peak)
    yield llmir.analyze(plain, "h100-sxm", batch=[1, 2], new=3, beside=[{"batch": [[1], [2]], "new": 5}])
    yield llmir.analyze(
        plain, "h100-sxm", new=[1, 2], estimation=llmir.Estimation(efficiency={"memory": 0.5})
    )
    before, after = (llmir.workload(p, "h100-sxm", generate=3) for p in (llmir.load("llama3.1-8b"), plain))
    yield from (before, llmir.diff(before, after), llmir.diff(point, point))
    yield llmir.replicate(plain, "h100-sxm", llmir.Traffic(closed=2, requests=3, prompt=9, generate=4), 2)
    yield llmir.simulate(plain, "h100-sxm", llmir.Traffic(closed=2, requests=3, prompt=9, generate=4))
    yield llmir.simulate(
        plain,
        "h100-sxm",
        llmir.Traffic(closed=4, requests=6, prompt=9, generate=4),
        servers=llmir.Servers(replicas=2),
    )
    yield llmir.simulate(
        plain,
        "h100-sxm",
        llmir.Traffic(closed=4, requests=6, prompt=9, generate=4),
        servers=llmir.Servers(link="nvlink"),
    )
    yield explain(llmir.analyze(plain, "h100-sxm", batch=4), "lm_head")
    yield conservation(plain, llmir.run(plain, "shard{tp=2}"), batch=2, new=1, context=3)
    yield llmir.validate(table(folder))
    yield popularity(8, 2, 0.5)
    yield from interpreted()


def table(folder: Path) -> Path:
    rows = (
        "gpu,framework,dtype,m,n,k,latency_us\nh100-sxm,vllm,bf16,8,4096,4096,20\nabacus,vllm,bf16,8,8,8,1\n"
    )
    path = folder / "gemm.csv"
    path.write_text(rows, "utf-8")
    return path


def silu() -> Program:
    b = llmir.Builder()
    x = b.input("fp32[B, T, 2, 4]", name="x")
    b.append(b.cache("fp32[B, C, 2, 4]", name="k"), x)
    b.output(b.silu(x), x)
    return Program("silu", {"main": b.graph()})


def interpreted() -> tuple[object, ...]:
    outputs, caches = interpret(silu(), {"x": np.ones((1, 2, 2, 4))}, lambda name, type: np.ones(()))
    return *outputs, *(x for pieces in caches.values() for x in pieces)


def public(thing: object) -> Iterator[tuple[str, object]]:
    """The attributes of a thing that are no methods, and what it holds."""
    for name in dir(thing):
        if not name.startswith("_") and not isinstance(thing, np.ndarray):
            try:
                yield f".{name}", getattr(thing, name)
            except Exception:  # what a thing has not, such as the peak on a grid
                continue
    if isinstance(thing, Mapping):
        for key, value in thing.items():
            yield from ((f"[key {key!r}]", key), (f"[{key!r}]", value))
    elif isinstance(thing, (tuple, list, set, frozenset)):
        yield from ((f"[{i}]", value) for i, value in enumerate(thing))
    elif isinstance(thing, nx.Graph):
        data = dict(thing.nodes(data=True)), list(thing.edges(data=True, keys=True))
        pairs = [thing.get_edge_data(u, v) for u, v in list(thing.edges())[:9]]
        yield from (("nodes", data[0]), ("edges", *data[1:]), ("pairs", pairs))
        yield "adjacency", dict(thing.adjacency())


def reachable(found: Iterator[object]) -> Iterator[tuple[str, object]]:
    """Everything that public names lead to, some of each class."""
    seen: dict[int, object] = {}
    many: dict[type, int] = {}
    waiting = [(type(root).__name__, root) for root in found]
    while waiting:
        path, thing = waiting.pop()
        ours = path.endswith(("nodes", "edges", "pairs", "adjacency"))  # a test's own collection
        if id(thing) in seen or isinstance(thing, PLAIN) or (callable(thing) and not hasattr(thing, "name")):
            continue
        seen[id(thing)] = thing  # kept, so that its id stays its own
        many[type(thing)] = many.get(type(thing), 0) + 1
        if many[type(thing)] > ENOUGH and not isinstance(thing, (Mapping, tuple, np.ndarray)):
            continue
        waiting += [(path + name, value) for name, value in public(thing)]
        if not ours:
            yield path, thing


def changes(thing: Any) -> Iterator[tuple[str, Callable[[], object]]]:
    """Ways to change a thing, if it could be changed."""
    # An array's shape is of the view that was handed out, not of the values.
    names = [n for n in dir(thing) if not n.startswith("_") and not isinstance(thing, np.ndarray)]
    for name in (*names[:40], "brand_new"):
        yield f"set {name}", lambda name=name: setattr(thing, name, None)  # type: ignore[misc]
        yield f"delete {name}", lambda name=name: delattr(thing, name)  # type: ignore[misc]
    for name, arguments in IN_PLACE.items():
        copies = name == "reverse" and isinstance(thing, nx.Graph)
        if callable(getattr(thing, name, None)) and not copies:
            yield name, lambda name=name, given=arguments: getattr(thing, name)(*given)  # type: ignore[misc]
    if isinstance(thing, Mapping):
        for key in list(thing)[:3]:
            yield f"[{key!r}] = …", lambda key=key: operator.setitem(thing, key, None)  # type: ignore[misc, arg-type]
            yield f"del [{key!r}]", lambda key=key: operator.delitem(thing, key)  # type: ignore[misc, arg-type]
            yield f"pop {key!r}", lambda key=key: thing.pop(key)  # type: ignore[misc, attr-defined]
        yield "|=", lambda: operator.ior(thing, {"new": 1})
    if isinstance(thing, np.ndarray):
        yield "[...] = …", lambda: operator.setitem(thing, ..., thing.copy())
        yield "flags", lambda: setattr(thing.flags, "writeable", True)
        yield "+=", lambda: operator.iadd(thing, 1)


def taken(found: Iterator[object]) -> list[str]:
    """The changes that were not refused."""
    wrong = []
    for path, thing in reachable(found):
        for what, change in changes(thing):
            try:
                change()
            except Exception:
                continue
            wrong.append(f"{path}: {what} ({type(thing).__name__})")
    return wrong


@pytest.mark.slow
def test_no_public_object_takes_a_change(tmp_path: Path) -> None:
    assert taken(roots(tmp_path)) == []


def test_the_walk_sees_what_could_be_changed() -> None:
    class Loose:
        name = "loose"

        def __init__(self) -> None:
            self.rates, self.array, self.order = {"bf16": 1}, np.ones(2), [1]

    found = {w.partition(" (")[0] for w in taken(iter([Loose()]))}
    assert {"Loose: set brand_new", "Loose.rates: clear", "Loose.array: fill"} <= found
    assert {"Loose.order: append", "Loose.array: [...] = …", "Loose.array: +="} <= found


def test_values_are_equal_by_content() -> None:
    one = program()
    sides = [one, one.replace(name="other").replace(name=one.name)]
    assert sides[0] == sides[1]
    assert hash(sides[0]) == hash(sides[1])
    assert sides[0] is not sides[1]
    for change in ({"name": "other"}, {"notes": ("a note",)}, {"micro_batches": 2}, {"facts": {}}):
        assert sides[0].replace(**change) != sides[0]
    h100 = library.load("h100-sxm")
    copied = pickle.loads(pickle.dumps(h100))
    assert copied is not h100
    assert (copied, hash(copied)) == (h100, hash(h100))
    faster = replace(h100, memory_Bps=2 * h100.memory_Bps)
    assert faster != h100
    assert replace(faster, memory_Bps=h100.memory_Bps) == h100


def test_what_prices_depend_on_keys_their_caches() -> None:
    """A device that differs in one peak, or in one calibrated parameter, has prices of its own."""
    model, h100 = llmir.run(llmir.load(MOE), llmir.pipeline_of()), library.load("h100-sxm")
    slower = replace(h100, memory_Bps=h100.memory_Bps / 2)
    measured = h100.calibration
    assert measured is not None
    product = measured.engines["vllm"]["gemm_bf16"]
    late = replace(product, parameters={**product.parameters, "launch_us": 19.0})
    engines = {**measured.engines, "vllm": {**measured.engines["vllm"], "gemm_bf16": late}}
    slow_to_start = replace(h100, own_calibration=replace(measured, engines=engines))
    for cost, other in (("ideal", slower), ("calibrated", slow_to_start)):
        before, after = (
            llmir.analyze(model, d, batch=64, estimation=llmir.Estimation(cost=cost)).ops_s
            for d in (h100, other)
        )
        assert after > before
        assert (
            llmir.analyze(
                model, replace(other, name=h100.name), batch=64, estimation=llmir.Estimation(cost=cost)
            ).ops_s
            == after
        )
        assert llmir.analyze(model, h100, batch=64, estimation=llmir.Estimation(cost=cost)).ops_s == before


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_values_can_be_copied_and_pickled(again: Callable[[Any], Any], tmp_path: Path) -> None:
    built = program()
    for value in (
        built,
        built["layer"],
        built["layer"].nodes[3],
        B * T,
        library.load("dgx-h100"),
        Mesh((("tp", 2),)),
    ):
        assert again(value) == value
        assert again(value).__class__ is type(value)
    assert again(PRESETS) == PRESETS
    grid = llmir.analyze(built, "dgx-h100", batch=[1, 2], new=3, beside=[{"batch": 2, "new": [[1], [5]]}])
    job = llmir.workload(built, "dgx-h100", batch=2, generate=4)
    assert job.to_dict() == again(job).to_dict()
    assert grid.to_dict() == again(grid).to_dict()
    assert not again(grid).time_s.flags.writeable
    assert llmir.diff(grid.program, grid.program, "dgx-h100").to_dict()
    assert again(llmir.validate(table(tmp_path))).rows == llmir.validate(table(tmp_path)).rows
    assert list(again(built["layer"].nx.nodes)) == list(built["layer"].nx.nodes)


@pytest.mark.slow
def test_pickles_are_read_in_processes_that_hash_otherwise(tmp_path: Path) -> None:
    """A hash that was computed before must not travel: strings hash otherwise in each process."""
    path = tmp_path / "values.pickle"
    path.write_bytes(pickle.dumps((program(), library.load("dgx-h100"), {B * T: 1, ceildiv(B, 8): 2})))
    code = (
        "import pickle, sys, llmir; from llmir.hw import library;"
        "from llmir.ir.sizes.polynomial import B, T, ceildiv;"
        "built, device, sizes = pickle.load(open(sys.argv[1], 'rb'));"
        "again = llmir.parse_program(llmir.print_program(built));"
        "ops = [[node.op for node in each['layer'].nodes] for each in (built, again)];"
        "assert set(ops[0]) == set(ops[1]);"
        "assert {again: 1}[built] and {library.load('dgx-h100'): 1}[device];"
        "assert sizes[B * T] == 1 and sizes[ceildiv(B, 8)] == 2"
    )
    subprocess.run(
        [sys.executable, "-c", code, str(path)], check=True, env={**environment(), "PYTHONHASHSEED": "7"}
    )


def test_users_are_the_edges_of_networkx() -> None:
    for graph in program().graphs.values():
        known = [(name, user.name, slot) for name, of in graph.users.items() for user, slot in of]
        assert sorted(known) == sorted(graph.nx.edges(keys=True))
        assert list(graph.users) == list(graph.nx)


def test_the_graph_is_one_of_networkx() -> None:
    graph = program()["layer"].nx
    ends = next(iter(graph.nodes)), list(graph.nodes)[-1]
    assert type(graph).__mro__[1] is nx.MultiDiGraph
    assert nx.is_frozen(graph)
    assert list(nx.topological_sort(graph))
    assert nx.dag_longest_path_length(graph) > 3
    assert nx.ancestors(graph, ends[1]) == nx.descendants(graph.reverse(), ends[1])
    assert set(graph.subgraph(ends)) == set(ends)
    assert graph.to_undirected().number_of_edges() == graph.number_of_edges()
    assert nx.immediate_dominators(graph, ends[0])
    assert nx.transitive_closure(graph).number_of_edges() >= graph.number_of_edges()
    renamed = nx.relabel_nodes(graph, {ends[0]: "first"})
    assert "first" in renamed
    edited = graph.copy()
    assert type(edited) is nx.MultiDiGraph
    edited.nodes[ends[0]]["colour"] = "red"
    edited.add_edge(*ends, colour="blue")
    edited.graph["title"] = "edited"
    assert (graph.has_edge(*ends), "colour" in graph.nodes[ends[0]], "title" in graph.graph) == (False,) * 3
    assert nx.utils.graphs_equal(graph.copy(), graph)


def test_callers_keep_their_arrays() -> None:
    """What a caller gives is neither frozen nor looked at later."""
    batch, new = np.array([1.0, 2.0]), np.array([[1], [7]])
    step = llmir.analyze(program(), "dgx-h100", batch=batch, new=new, beside=[{"batch": batch, "new": 2}])
    before = pickle.loads(pickle.dumps(step)).time_s
    batch[:], new[:] = 100, 200
    assert np.array_equal(step.time_s, before)
    symbols = np.array([1.0, 2.0])
    at = Binding(B=symbols)
    symbols[:] = 9
    assert at(B).tolist() == [1, 2]

    x = np.ones((1, 2, 2, 4))
    held: dict[str, Any] = {}
    cache = {"k": [np.ones((1, 3, 2, 4))]}
    weights = lambda name, type: held.setdefault(name, np.ones(type.shape))  # noqa: E731
    outputs, caches = interpret(silu(), {"x": x}, weights, cache, context=3)
    results = [*outputs, *caches["k"]]
    expected = [r.copy() for r in results]
    x[:], cache["k"][0][:] = 5, 6
    assert all(np.array_equal(a, b) for a, b in zip(results, expected, strict=True))
    assert not any(r.flags.writeable for r in results)


def test_a_device_of_this_process_stays_what_it_is() -> None:
    """The change that once went into every later answer."""
    before = llmir.analyze(llmir.load("llama3.1-8b"), "h100-sxm", new=4096).time_s
    with pytest.raises(TypeError, match="read-only"):
        library.load("h100-sxm").matrix_flops["bf16"] = 1e12  # type: ignore[index]
    assert llmir.analyze(llmir.load("llama3.1-8b"), "h100-sxm", new=4096).time_s == before
