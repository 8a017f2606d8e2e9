"""The rules of the house: what the packages are, who may import whom, what a file looks like."""

from __future__ import annotations

import ast
import configparser
import os
import re
import runpy
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
# Imports point down: to what stands before.
CORE = (
    *(
        "version",
        "dataclass",
        "errors",
        "garbage",
        "names",
        "plugins",
        "views",
        "frozen",
        "frozen_graph",
        "convert",
    ),
    *("reading", "strict_yaml", "strict_json", "strict_csv"),
    *("namespace", "routing", "dispatch", "dim", "masks", "ragged", "dtype", "mesh", "tensor", "equation"),
    *("gemm", "op", "ops", "layers"),
    *("node", "graph", "bodies", "opmethods", "build", "slices", "cut"),
    *("text", "verify", "rewrite", "pipeline"),
)
OUTER = {
    "frontends": {*CORE, "frontends"},
    "passes": {*CORE, "passes"},
    "backends": {*CORE, "backends", "hw"},  # and among its rooms as `ROOMS` says
    "hw": {*CORE[: CORE.index("dtype") + 1], "hw"},
}
# Rooms of `backends`, and which of them each may import. The meaning of a program sees the core alone.
ROOMS = {
    "interpret": set(),
    "cost": {"hw"},
    "analysis": {"cost", "hw"},
    "serving": {"cost", "analysis", "hw"},
    "search": {"cost", "analysis", "simulation", "hw"},
    "simulation": {"cost", "analysis", "hw"},
    "export": {"cost", "analysis", "serving", "search", "simulation", "hw"},
    "silicon": {"cost", "analysis", "serving", "simulation", "export", "hw"},
}
WRITTEN = "llmir/ir/tools/op_methods.py"  # by a script
# What finds things by name: the registry, and the public face, which imports a name when it is asked for.
REGISTRY = {"llmir/base/registry.py", "llmir/__init__.py"}
SEES_ALL = {"__init__", "__main__", "api", "cli"}
SEES_ALL |= {
    "beamed",
    "code",
    "deployment",
    "limited",
    "many",
    "measured",
    "planned",
    "plotted",
    "reported",
    "served",
}
SEES_ALL |= {"simulated", "staged", "swept", "transferred", "usual", "written"}
TEXT = {"", ".py", ".md", ".cfg", ".toml", ".yaml", ".sh", ".ir", ".json", ".csv", ".svg"}
TEXT |= {".html", ".css", ".js", ".mjs"}


def walk(folder: str) -> Iterator[Path]:
    """The files below a folder of the project, through its links."""
    for place, _, files in os.walk(ROOT / folder, followlinks=True):
        yield from (
            Path(place) / f for f in files if not {"__pycache__", "node_modules"} & {*Path(place).parts}
        )


SOURCES = sorted(f for f in walk("llmir") if f.suffix == ".py")
OTHERS = sorted(f for folder in ("tests", "benchmarks") for f in walk(folder))
LOOSE = [*walk("docs"), *walk("scripts"), *walk(".ci"), *(f for f in ROOT.glob("[!.]*") if f.is_file())]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def settings() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def test_the_packages_listed_are_those_of_the_tree() -> None:
    folders = {name(f.parent).replace("/", ".") for f in SOURCES}
    assert sorted(settings()["options"]["packages"].split()) == sorted(folders)
    assert folders == {name(f.parent).replace("/", ".") for f in SOURCES if f.name == "__init__.py"}


def test_the_links_lead_to_the_folders_that_are_shipped() -> None:
    places = dict(line.split(" = ") for line in settings()["options"]["package_dir"].strip().splitlines())
    links = {f"llmir.{f.name}": os.readlink(f) for f in (ROOT / "llmir").iterdir() if f.is_symlink()}
    assert places.pop("llmir") == "llmir"
    assert links == {package: f"../{folder}" for package, folder in places.items()}


def test_every_file_beside_the_code_is_shipped() -> None:
    shipped = {
        f
        for package, patterns in settings()["options.package_data"].items()
        for pattern in patterns.split()
        for f in (ROOT / package.replace(".", "/")).glob(pattern)
    }
    assert shipped == {f for f in walk("llmir") if f.suffix != ".py"}


def test_the_version_is_stated_twice_alike() -> None:
    import llmir

    assert settings()["metadata"]["version"] == llmir.__version__


def test_every_page_with_examples_is_run() -> None:
    pages = {f.name for f in ROOT.glob("*.md")} | {"docs", "llmir", "tests"}
    assert pages == set(settings()["tool:pytest"]["testpaths"].split())


def imports(path: Path, text: str | None = None) -> Iterator[tuple[int, str]]:
    """Line, and the dotted name inside llmir (`graph`, `ops.moe`, `hw`; empty for llmir itself)."""
    package = path.relative_to(ROOT).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text("utf-8") if text is None else text)):
        if isinstance(node, ast.Call) and called(node) in {"import_module", "__import__"}:
            full = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else "llmir.?"
            full = ".".join([*package, str(full).lstrip(".")]) if str(full).startswith(".") else str(full)
            if full.startswith("llmir") and name(path) not in REGISTRY:
                yield node.lineno, full.removeprefix("llmir").lstrip(".")
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        found = [a.name for a in node.names]
        if isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*start, *([node.module] if node.module else [])])
            # `from . import ops` names modules, `from .ops import x` names what is in one.
            found = (
                [f"{base}.{a.name}" for a in node.names] if base in {"llmir", "llmir.backends"} else [base]
            )
        for full in found:
            if full == "llmir" or full.startswith("llmir."):
                yield node.lineno, full.removeprefix("llmir").lstrip(".")


def called(node: ast.Call) -> str:
    """The last part of the name of what a call calls."""
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


def test_imports_inside_functions_and_by_name_are_counted() -> None:
    text = """
def f(name):
    import importlib
    importlib.import_module("llmir.passes.fuse")
    __import__("numpy")
    importlib.import_module(".hw", "llmir")
    __import__(name)
    from .backends import cost
"""
    found = [(4, "passes.fuse"), (6, "hw"), (7, "?"), (8, "backends.cost")]
    assert sorted(imports(ROOT / "llmir" / "any.py", text)) == found


def may(importer: str, imported: str) -> bool:
    """Whether files of one part may import another: only downwards, and no wing another wing."""
    if importer in SEES_ALL:
        return True
    if importer in OUTER:
        return imported in OUTER[importer]
    if imported not in CORE:
        return False
    return CORE.index(imported) < CORE.index(importer) or importer == imported in ("dim", "ops", "routing")


def may_enter(path: Path, target: str) -> bool:
    """Whether a file in a room of `backends` may import this room, or `hw`; others are asked elsewhere."""
    _, part, *inner = path.relative_to(ROOT).with_suffix("").parts
    outer, _, rest = target.partition(".")
    if part != "backends" or outer not in {"backends", "hw"} or inner == ["__init__"]:
        return True
    entered = outer if outer == "hw" else rest.partition(".")[0]
    return entered == inner[0] or entered in ROOMS[inner[0]]


def test_imports_point_down() -> None:
    wrong = []
    rooms = {f.name for f in (ROOT / "backends").iterdir() if f.is_dir() and f.name != "__pycache__"}
    assert rooms == set(ROOMS)
    for path in SOURCES:
        part = path.relative_to(ROOT / "llmir").with_suffix("").parts[0]
        assert part in {*CORE, *OUTER, *SEES_ALL}, f"{name(path)}: give the new module its place in CORE"
        for line, target in imports(path):
            if target == "?" or not may(part, target.partition(".")[0]) or not may_enter(path, target):
                wrong.append(f"{name(path)}:{line} imports {target or 'llmir'}")
    assert wrong == []


def test_the_methods_of_a_builder_are_those_of_the_ops() -> None:
    written = runpy.run_path(str(ROOT / "scripts" / "opmethods.py"))["text"]()
    assert (ROOT / WRITTEN).read_text("utf-8") == written, "run `python scripts/opmethods.py`"


def test_no_file_names_one_machine_or_leaves_something_to_do() -> None:
    wrong = re.compile(r"/(?:home|root|work|Users)/\w+|\b(?:TO" r"DO|FIX" r"ME|XX" r"X)\b")
    texts = [f for f in (*walk("llmir"), *OTHERS, *LOOSE) if f.suffix in TEXT]
    assert {name(f): found for f in texts if (found := wrong.findall(f.read_text("utf-8")))} == {}


def names(node: ast.AST) -> set[str]:
    """The names in a piece of code."""
    plain = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    return plain | {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}


def last(node: ast.AST) -> str:
    """`op` of `node.op` and of `op`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def asked(node: ast.AST, known: set[str], opcodes: set[str]) -> int:
    """How many ops a piece of code asks about; a dictionary by opcode or class, about each of its keys."""
    match node:
        case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[what, of]):
            return bool(names(of) & known) or last(what) == "op"
        case ast.Call(func=ast.Name(id="type" | "hasattr" | "getattr" as by), args=[what, *others]):
            return last(what) == "op" and (by != "getattr" or len(others) == 2)
        case ast.match_case(pattern=pattern):
            return sum(bool(names(p) & known) for p in ast.walk(pattern) if isinstance(p, ast.MatchClass))
        case ast.Compare(left=left, comparators=others):
            sides = {last(side) for side in (left, *others)}
            kind = any(last(side) == "kind" and "op" in names(side) for side in (left, *others))
            return kind or ("opcode" in sides and sides != {"opcode"} and "OPS" not in sides)
        case ast.Dict(keys=keys):
            texts = {k.value for k in keys if isinstance(k, ast.Constant)}
            by_class = any(names(k) & known for k in keys if k)
            return len(keys) if by_class or (texts and texts <= opcodes) else 0
    return 0


def class_tests(tree: ast.AST, classes: set[str], opcodes: set[str]) -> Iterator[tuple[int, int]]:
    """Lines where code asks what op it has before it, by class or by name, and how many it asks about."""
    known: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and "ops" in (node.module or "").split("."):
            known |= {a.asname or a.name for a in node.names if a.name in classes}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple | ast.BinOp):
            known |= {last(t) for t in node.targets if names(node.value) & known}
    for node in ast.walk(tree):
        if count := asked(node, known, opcodes):
            yield getattr(node, "lineno", 0), count


MOST_CLASS_TESTS = 31


def test_ops_are_asked_for_traits_and_not_for_their_class() -> None:
    """Outside of `llmir/ir/ops`, few places know an op by its class or name: they ask its traits."""
    from llmir.ir.core.op import OPS

    ours = {opcode: op for opcode, op in OPS.items() if op.__module__.startswith("llmir.ir.ops.")}
    classes = {base.__name__ for op in ours.values() for base in op.__mro__[:-1]} - {"Op"}
    found = {
        f"{name(path)}:{line}": count
        for path in SOURCES
        if not name(path).startswith("llmir/ir/ops/") and name(path) != WRITTEN
        for line, count in class_tests(ast.parse(path.read_text("utf-8")), classes, set(ours))
    }
    assert sum(found.values()) <= MOST_CLASS_TESTS, found


def test_tests_of_classes_are_counted_however_they_are_written() -> None:
    source = """
from llmir.ir.ops.linear import Linear
from ..ops.moe import GroupedLinear as Grouped
PRODUCTS = (Linear, Grouped)
isinstance(x, PRODUCTS), issubclass(y, Linear | int), isinstance(node.op, cls)
type(node.op), hasattr(op, "to"), getattr(node.op, "dim", 0)
node.op.opcode == "cast", op.opcode in NAMES, op.kind == "gemm"
TABLE = {"add": 1, "mul": 2}, {Linear: 3}
isinstance(x, int), getattr(op, "dim"), a.opcode == b.opcode, opcode in OPS, {"add": 1, "new": 2}, x.kind == 1
match op:
    case Linear(): pass
"""
    counted = list(class_tests(ast.parse(source), {"Linear", "GroupedLinear"}, {"add", "mul", "cast"}))
    by_line = {line: sum(n for at, n in counted if at == line) for line, _ in counted}
    assert by_line == {5: 3, 6: 3, 7: 3, 8: 3, 0: 1}
