"""The structure of the project: packages, allowed imports, names, and the contents of files."""

from __future__ import annotations

import ast
import configparser
import os
import re
import runpy
from collections.abc import Iterator, Sequence
from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(__file__).parents[2]
# Which packages each package may import, besides itself and what is inside it; function-level and typing
# imports count too.
BASE = ("base",)
SIZES = (*BASE, "ir.sizes")
CORE = (*SIZES, "ir.core")
OPS = (*CORE, "ir.ops")
IR = (*OPS, "ir.tools")
FRONTENDS = ("models", "config", "layers", "families", "checkpoints", "")
BACKENDS = ("tape", "work", "kernels", "cost", "memory", "step", "request", "compare", "simulate", "search")
BACKENDS += ("export", "silicon")


def _in_order(package: str, parts: tuple[str, ...], *more: str) -> dict[str, tuple[str, ...]]:
    """Each part of a package may import the parts before it."""
    names = [f"{package}.{part}".rstrip(".") for part in parts]
    return {name: (*more, *names[:i]) for i, name in enumerate(names)}


MAY_IMPORT = {
    "base": (),
    "ir.sizes": BASE,
    "ir.core": SIZES,
    "ir.ops": CORE,
    "ir.tools": OPS,
    "ir": IR,
    "hw": IR,
    "passes": IR,
    **_in_order("frontends", FRONTENDS, *IR),
    "backends": (),
    "backends.interpret": IR,
    **_in_order("backends", BACKENDS, *IR, "hw"),
    "api": (*IR, "hw", "passes", "frontends", "backends"),
    "page_server": (*IR, "hw", "passes", "frontends", "backends", "api"),
    "cli": (*IR, "hw", "passes", "frontends", "backends", "api", "page_server"),
}
# Modules that import by name: the registry, and packages that import their public names on first use.
REGISTRY = {"llmir/base/registry.py", "llmir/__init__.py", "llmir/ir/__init__.py"}
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
MODULES = {
    ".".join(f.relative_to(ROOT / "llmir").with_suffix("").parts).removesuffix(".__init__") for f in SOURCES
}
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
    assert shipped == {f for f in walk("llmir") if f.suffix not in {".py", ".md"}}


def test_the_version_is_stated_twice_alike() -> None:
    import llmir

    assert settings()["metadata"]["version"] == llmir.__version__


def test_every_page_with_examples_is_run() -> None:
    pages = {f.name for f in ROOT.glob("*.md")} | {"docs", "llmir", "tests"}
    assert pages == set(settings()["tool:pytest"]["testpaths"].split())


def module_of(path: Path) -> str:
    """The dotted name inside llmir of a file: `ir.core.op`, `hw` of `hw/__init__.py`."""
    parts = path.relative_to(ROOT / "llmir").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, text: str | None = None) -> Iterator[tuple[int, str]]:
    """Line and dotted name inside llmir (`hw.device`; empty for llmir itself) of each import.

    `from x import y` is an import of `x.y` where that is a module, else of `x`.
    """
    package = path.relative_to(ROOT).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text("utf-8") if text is None else text)):
        if isinstance(node, ast.Call) and called(node) in {"import_module", "__import__"}:
            full = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else "llmir.?"
            full = ".".join([*package, str(full).lstrip(".")]) if str(full).startswith(".") else str(full)
            if full.startswith("llmir") and name(path) not in REGISTRY:
                yield node.lineno, full.removeprefix("llmir").lstrip(".")
        if isinstance(node, ast.Import):
            found = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*start, *([node.module] if node.module else [])])
            inside = base.removeprefix("llmir").lstrip(".")
            found = [
                full if (full := f"{base}.{a.name}").removeprefix("llmir.") in MODULES or not inside else base
                for a in node.names
            ]
        else:
            continue
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
    from llmir.ir.core.op import OPS
"""
    found = [(4, "passes.fuse"), (6, "hw"), (7, "?"), (8, "backends.cost"), (9, "ir.core.op")]
    assert sorted(imports(ROOT / "llmir" / "any.py", text)) == found


def package_of(module: str) -> str:
    """The package in `MAY_IMPORT` that a module, named from inside llmir, belongs to."""
    parts = module.split(".")
    return next((p for n in range(len(parts), 0, -1) if (p := ".".join(parts[:n])) in MAY_IMPORT), "")


def test_packages_import_only_packages_below_them() -> None:
    wrong = []
    for path in SOURCES:
        own = package_of(".".join(path.relative_to(ROOT / "llmir").with_suffix("").parts))
        if name(path) in {"llmir/__init__.py", "llmir/__main__.py"}:
            continue
        assert own, f"{name(path)}: give the new package its place in MAY_IMPORT"
        for line, target in imports(path):
            package = package_of(target)
            if package != own and not any(f"{package}.".startswith(f"{p}.") for p in MAY_IMPORT[own]):
                wrong.append(f"{name(path)}:{line} imports {target or 'llmir'}")
    assert wrong == []


def test_no_files_or_folders_import_each_other_in_a_cycle() -> None:
    files, folders = nx.DiGraph(), nx.DiGraph()
    for path in SOURCES:
        if name(path) in {"llmir/__init__.py", "llmir/__main__.py"}:
            continue
        own, folder = module_of(path), module_of(path.parent / "__init__.py")
        for _, target in imports(path):
            if target in MODULES and target != own:
                files.add_edge(own, target)
                place = (
                    target
                    if (ROOT / "llmir" / target.replace(".", "/")).is_dir()
                    else target.rpartition(".")[0]
                )
                if place != folder:
                    folders.add_edge(folder, place)
    for graph in (files, folders):
        assert [sorted(cycle) for cycle in nx.strongly_connected_components(graph) if len(cycle) > 1] == []


def test_packages_hold_a_docstring_and_no_imports() -> None:
    exempt = {"llmir/__init__.py", "llmir/ir/__init__.py", "llmir/ir/ops/__init__.py"}
    for path in SOURCES:
        if path.name == "__init__.py" and name(path) not in exempt:
            (only,) = ast.parse(path.read_text("utf-8")).body
            assert isinstance(only, ast.Expr), name(path)


def test_methods_without_a_docstring_override_documented_ones() -> None:
    trees = [ast.parse(path.read_text("utf-8")) for path in SOURCES]
    classes = {n.name: n for tree in trees for n in ast.walk(tree) if isinstance(n, ast.ClassDef)}

    def is_documented(kind: str, method: str) -> bool:
        if kind not in classes:  # a class of another library
            return True
        if any(
            getattr(each, "name", "") == method and ast.get_docstring(each) for each in classes[kind].body
        ):  # type: ignore[arg-type]
            return True
        bases = [re.split(r"[\[(]", ast.unparse(base))[0].rpartition(".")[2] for base in classes[kind].bases]
        return any(
            is_documented(base, method) for base in bases if base not in ("ABC", "Protocol", "NamedTuple")
        )

    missing = [
        f"{kind}.{method.name}"
        for kind, node in classes.items()
        for method in node.body
        if isinstance(method, ast.FunctionDef)
        and not kind.startswith("_")
        and not method.name.startswith("_")
        if not any("overload" in ast.unparse(d) or "setter" in ast.unparse(d) for d in method.decorator_list)
        if not is_documented(kind, method.name)
    ]
    assert missing == []


def test_the_methods_of_a_builder_are_those_of_the_ops() -> None:
    for path, text in runpy.run_path(str(ROOT / "scripts" / "opmethods.py"))["texts"]().items():
        assert path.read_text("utf-8") == text, "run `python scripts/opmethods.py`"


def test_no_file_names_one_machine_or_leaves_something_to_do() -> None:
    wrong = re.compile(r"(?<!\w)/(?:home|root|work|Users)/\w+|\b(?:TO" r"DO|FIX" r"ME|XX" r"X)\b")
    texts = [f for f in (*walk("llmir"), *OTHERS, *LOOSE) if f.suffix in TEXT]
    assert {name(f): found for f in texts if (found := wrong.findall(f.read_text("utf-8")))} == {}


def names(node: ast.AST) -> set[str]:
    """The names in a piece of code."""
    plain = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    return plain | {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}


def last(node: ast.AST) -> str:
    """`op` of `node.op` and of `op`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def count_class_tests(node: ast.AST, known: set[str], opcodes: set[str]) -> int:
    """How many classes of ops a node tests for; a dictionary by opcode or class counts each of its keys."""
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
    """Lines that test the class or name of an op, and the number of ops that each tests for."""
    known: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and "ops" in (node.module or "").split("."):
            known |= {a.asname or a.name for a in node.names if a.name in classes}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple | ast.BinOp):
            known |= {last(t) for t in node.targets if names(node.value) & known}
    for node in ast.walk(tree):
        if count := count_class_tests(node, known, opcodes):
            yield getattr(node, "lineno", 0), count


MOST_CLASS_TESTS = 31


@pytest.mark.slow
def test_code_outside_ops_reads_traits_and_not_classes() -> None:
    """Outside of `llmir/ir/ops`, code reads the traits of ops; few places test their class or name."""
    from llmir.ir.core.op import OPS

    ours = {opcode: op for opcode, op in OPS.items() if op.__module__.startswith("llmir.ir.ops.")}
    classes = {base.__name__ for op in ours.values() for base in op.__mro__[:-1]} - {"Op"}
    found = {
        f"{name(path)}:{line}": count
        for path in SOURCES
        if not name(path).startswith("llmir/ir/ops/")
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


def words_of(identifier: str) -> list[str]:
    """The words of a name, in lower case: `KVCachePool` has `kv`, `cache` and `pool`."""
    parts = re.findall(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+", identifier.replace("_", " "))
    return [part.lower() for part in parts]


def denied(identifier: str, rows: Sequence[Sequence[str]]) -> list[str]:
    """The terms that `scripts/names.tsv` gives instead of a name, or instead of a part of it."""
    words = words_of(identifier)
    whole = "_".join(words)
    return [use for name, kind, use in rows if (name == whole if kind == "whole" else name in words)]


def test_modules_and_classes_are_named_in_the_terms_of_the_field() -> None:
    lines = (ROOT / "scripts" / "names.tsv").read_text("utf-8").splitlines()
    header, *rows = (line.split("\t") for line in lines)
    assert header == ["name", "kind", "use instead"]
    assert {kind for _, kind, _ in rows} == {"whole", "part"}
    assert denied("calm", rows) and denied("_LateRanks", rows) and not denied("FusedNorm", rows)
    wrong = {f"{path}: {use}" for path in MODULES for use in denied(path.rpartition(".")[2], rows)}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef) and (use := denied(node.name, rows)):
                wrong.add(f"{name(path)}: class {node.name}: {use[0]}")
    assert wrong == set()


def test_no_class_name_stands_in_two_modules_of_backends() -> None:
    places: dict[str, set[str]] = {}
    for path in SOURCES:
        if name(path).startswith("llmir/backends/"):
            for node in ast.parse(path.read_text("utf-8")).body:
                if isinstance(node, ast.ClassDef):
                    places.setdefault(node.name, set()).add(name(path))
    assert {kind: files for kind, files in places.items() if len(files) > 1} == {}
