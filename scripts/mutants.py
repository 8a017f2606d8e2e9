"""`make mutants`: small changes to the code, one at a time, and whether a test notices.

A mutant is one module with one operator, constant, condition, return or statement changed; of a script of
pages, one operator, constant or condition. An area is a set of modules and the tests of it. The tests run
once on a copy of the code as it is, which says which of them run the lines of which mutant. Then each mutant
stands in a copy, and the tests that run it go on until the first fails. What no test notices is printed as a
diff: a test is missing, the code says more than it does, or the two are equivalent (`scripts/equivalent.yaml`
says which, and why).
"""

from __future__ import annotations

import argparse
import ast
import builtins
import gc
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.machinery import SourceFileLoader
from inspect import CO_OPTIMIZED
from itertools import islice
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import pytest
import yaml
from mutations import Mutant, mutants

ROOT = Path(__file__).resolve().parents[1]
EQUIVALENT = ROOT / "scripts" / "equivalent.yaml"
GOAL = 0.9
MEMORY = 16 << 30  # bytes of addresses
# Processor seconds, at most: of one test and of all, the first time; of the tests of a mutant.
LONGEST, ALL, ENOUGH = 3.0, 75.0, 10.0
ENDLESS = "processor time"  # how a mutant is noticed that never ends
ERROR = 99  # the exit code of a process that fails outside its tests
TURN = 6  # tests of a file, before those of the next
SCRIPTS = ("price.js",)  # of pages, which tests run in node
LEFT_OUT = (
    ".git",
    ".venv*",
    ".hypothesis",
    ".mypy_cache",
    ".ruff_cache",
    ".pytest_cache",
    "node_modules",
)


@dataclass(frozen=True)
class Area:
    """Modules that are judged together, by folder or file, and the tests that cover them."""

    name: str
    files: tuple[str, ...]
    tests: tuple[str, ...]
    examples: int = 20  # of each property, at most
    without: tuple[str, ...] = ()  # generated files, and lists of published sizes


AREAS = (
    Area(
        "ir",
        ("llmir/ir/sizes", "llmir/ir/core", "llmir/ir/tools"),
        ("tests/ir", "tests/passes/test_pairs.py", "tests/passes/test_shard_patterns.py"),
    ),
    Area(
        "ops",
        ("llmir/ir/ops",),
        (
            "tests/ir/ops",
            "tests/ir/tools",
            "tests/backends/interpret",
            "tests/frontends/families/test_transformers.py",
        ),
    ),
    Area("passes", ("passes",), ("tests/passes",)),
    Area("frontends", ("frontends",), ("tests/frontends",), without=("frontends/models",)),
    Area(
        "step",
        ("backends/step", "backends/request", "backends/memory", "backends/work"),
        ("tests/backends/step", "tests/backends/request", "tests/backends/memory", "tests/backends/work"),
    ),
    Area("simulate", ("backends/simulate",), ("tests/backends/simulate",)),
    Area("search", ("backends/search",), ("tests/backends/search",)),
    Area(
        "page",
        ("llmir/page_server", "backends/export/page"),
        ("tests/page_server", "tests/backends/export/page"),
    ),
)


_SIGNS = re.compile(r"[^a-z0-9]+")
_CACHED = type(lru_cache(len))
Changes = list[tuple[FunctionType, CodeType]]  # functions, and the code that they have in a mutant


class Run(NamedTuple):
    """A test: its seconds, and the lines, functions and files that it runs."""

    seconds: float
    lines: frozenset[tuple[str, int]]
    files: frozenset[str]


# Tests in a process of their own


class _Few:
    """A plugin of pytest: few examples of each property, the same each time, and none made small."""

    def __init__(self, examples: int, only: Sequence[str] | None = None) -> None:
        self.examples, self.only = examples, only

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Before they run."""
        from hypothesis import Phase, settings

        if self.only is not None:
            place = {test: i for i, test in enumerate(self.only)}
            items[:] = sorted((x for x in items if x.nodeid in place), key=lambda x: place[x.nodeid])
        name = "_hypothesis_internal_use_settings"
        for item in items:
            test = getattr(item, "obj", None)
            if known := getattr(test, name, None):
                few = settings(
                    known,
                    max_examples=min(self.examples, known.max_examples),
                    derandomize=True,
                    database=None,
                    phases=(Phase.explicit, Phase.generate),
                )
                setattr(getattr(test, "__func__", test), name, few)


class _TooLongError(BaseException):
    """A test takes longer than the tests of mutants may."""


class _Traced:
    """A plugin of pytest: which lines of mutants, and which files, each test runs.

    Modules with mutants are compiled with a call (`_mark`) before each statement of these lines.
    After that it tries each mutant that is within functions in a fork of this process, where the functions
    have its code and cached functions forget their results. Other values computed before stay, so that only
    what a test notices there is certain.
    """

    def __init__(self, folder: Path, chosen: Sequence[Mutant], into: Path) -> None:
        self.folder, self.chosen, self.killed = folder, chosen, list[tuple[int, str]]()
        self.forked = self.control = False
        lines: dict[str, set[int]] = defaultdict(set)
        for mutant in chosen:
            lines[mutant.file].update(range(mutant.line, mutant.line + mutant.old.count("\n") + 1))
        self.lines = {
            str(folder / root / file): (file, frozenset(some))  # llmir/passes is a link to passes, and so on
            for file, some in lines.items()
            for root in ("", "llmir")
        }
        self.into, self.found = into, dict[str, tuple[float, list[tuple[str, int]], list[str]]]()
        self.wrong: list[str] = []
        self._end = time.process_time() + ALL
        self._hit: set[tuple[str, int]] = set()

    def compile_with_marks(self) -> None:
        """Of all modules that this process imports from now on."""
        plain = SourceFileLoader.get_code

        def get_code(loader: SourceFileLoader, name: str) -> CodeType | None:
            if (path := loader.get_filename(name)) not in self.lines:
                return plain(loader, name)
            tree = _Marks(*self.lines[path]).visit(ast.parse(loader.get_data(path)))
            return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)

        SourceFileLoader.get_code = get_code  # type: ignore[method-assign, assignment]
        vars(builtins)[_Marks.name] = lambda file, line: self._hit.add((file, line))

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Those that are not marked as slow go first, some of each file in turn."""
        place: Counter[Path] = Counter()
        order = {}
        for item in items:
            place[item.path] += 1
            order[item.nodeid] = item.get_closest_marker("slow") is not None, place[item.path] // TURN
        items.sort(key=lambda item: order[item.nodeid])

    def pytest_runtest_protocol(self, item: Any, nextitem: Any) -> None:
        """Before the fixtures of a test."""
        if self.forked:
            return
        self._hit, self._fails = set(), False
        self._start = time.process_time()
        left = self._end - self._start
        signal.signal(signal.SIGPROF, self._stop)
        signal.setitimer(signal.ITIMER_PROF, max(min(LONGEST, left), 0.01))

    @staticmethod
    def _stop(number: int, frame: object) -> None:
        raise _TooLongError

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Whether it passes."""
        if self.forked and report.failed:
            if not self.control:
                os._exit(1)
            with self.into.open("a", encoding="utf-8") as failing:
                failing.write(f"{report.nodeid}\n")
        self._fails |= report.outcome != "passed"
        if report.failed and "_TooLongError" not in str(report.longrepr):
            self.wrong.append(report.nodeid)

    def pytest_runtest_logfinish(self, nodeid: str, location: object) -> None:
        """After them."""
        if self.forked:
            return
        signal.setitimer(signal.ITIMER_PROF, 0)
        seconds = time.process_time() - self._start
        if not self._fails:
            lines = sorted(x for x in self._hit if x[1])
            self.found[nodeid] = seconds, lines, sorted({file for file, _ in self._hit})

    # Before pytest removes its folders.
    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: Any) -> None:
        """At the end."""
        items = {item.nodeid: item for item in session.items}
        runs = runs_of(self.found)
        tests = [tests_of(mutant, runs) for mutant in self.chosen if not self.wrong]
        failing = self._control(session, [items[x] for x in dict.fromkeys(x for some in tests for x in some)])
        for i, some in enumerate(tests):
            changes = changed_functions(self.chosen[i], self.folder)
            good = [test for test in some if test not in failing]
            if good and changes:
                limit = 4 * sum(runs[test].seconds for test in good) + 10
                work = partial(self._try, session, changes, [items[test] for test in good], limit)
                status = _status(started(work), 8 * limit)
                if how := noticed(status):
                    self.killed.append((i, how))
        self.into.write_text(json.dumps([self.wrong, self.found, self.killed]), encoding="utf-8")

    def _control(self, session: Any, items: list[Any]) -> set[str]:
        """Those that fail in a fork of the code as it is, and say nothing of mutants there."""
        self.into.write_text("", encoding="utf-8")
        self.control = True
        pid = started(partial(self._try, session, [], items, 10 * ALL))
        self.control = False
        if _status(pid, 40 * ALL):
            return {item.nodeid for item in items}
        return {*self.into.read_text(encoding="utf-8").splitlines()}

    def _try(self, session: Any, changes: Changes, items: list[Any], limit: float) -> int:
        """In a fork: tests until the first that fails."""
        self.forked = True
        resource.setrlimit(resource.RLIMIT_CPU, (int(limit), int(limit) + 1))
        for function, code in changes:
            function.__code__ = code
        for each in gc.get_objects():
            if isinstance(each, _CACHED):
                each.cache_clear()
        for item, after in zip(items, [*items[1:], None], strict=True):
            session.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
        return 0


class _Marks(ast.NodeTransformer):
    """Puts a call of `name` in front of the statements of functions on some lines of a file.

    Its arguments are the file and the line; at the start of each function, the line is 0.
    """

    name = "_a_line_of_a_mutant_runs"

    def __init__(self, file: str, lines: frozenset[int]) -> None:
        self.file, self.lines, self.inside = file, lines, False

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        """A function, and those in it."""
        before, self.inside = self.inside, True
        self.generic_visit(node)
        self.inside = before
        place = ast.get_docstring(node, clean=False) is not None
        node.body.insert(place, self._mark(0, node.body[-1]))
        return node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """The statements in it."""
        super().generic_visit(node)
        if self.inside:
            for name in ("body", "orelse", "finalbody"):
                if isinstance(below := getattr(node, name, None), list):
                    setattr(node, name, [x for each in below for x in (*self._marks(each), each)])
        return node

    def _marks(self, node: ast.stmt) -> list[ast.stmt]:
        """Of a statement without those in it."""
        inside = [x.lineno for x in ast.walk(node) if isinstance(x, ast.stmt) and x is not node]
        last = max(min(inside) - 1, node.lineno) if inside else node.end_lineno or node.lineno
        match node:
            case ast.Global() | ast.Nonlocal() | ast.Expr(ast.Constant()):  # the last is a docstring
                return []
        return [self._mark(line, node) for line in range(node.lineno, last + 1) if line in self.lines]

    def _mark(self, line: int, at: ast.stmt) -> ast.stmt:
        (call,) = ast.parse(f"{self.name}({self.file!r}, {line})").body
        for node in ast.walk(call):
            ast.copy_location(node, at)
        return call


def changed_functions(mutant: Mutant, folder: Path) -> Changes:
    """The functions in memory that a mutant changes, with their new code; none where it runs on import."""
    if not mutant.file.endswith(".py"):
        return []
    path = folder / mutant.file
    before = compile(path.read_text(encoding="utf-8"), str(path), "exec", dont_inherit=True)
    after = compile(mutant.source, str(path), "exec", dont_inherit=True)
    new: dict[tuple[str, int], CodeType] = {}
    if not _pairs(before, after, new):
        return []
    found: Changes = []
    for each in gc.get_objects():
        if isinstance(each, FunctionType):
            code = each.__code__
            key = code.co_name, code.co_firstlineno
            if key in new and code.co_filename.endswith(mutant.file):
                found.append((each, new[key].replace(co_filename=code.co_filename)))
    return found


def _pairs(before: CodeType, after: CodeType, into: dict[tuple[str, int], CodeType]) -> bool:
    """Whether two codes of a module or a class differ in functions alone, which are noted by their places."""
    same = before.co_code == after.co_code and len(before.co_consts) == len(after.co_consts)
    if not same or before.co_names != after.co_names:
        return False
    for one, two in zip(before.co_consts, after.co_consts, strict=True):
        if not isinstance(one, CodeType):
            if repr(one) != repr(two):
                return False
        elif one.co_flags & CO_OPTIMIZED:  # a function
            if one.co_freevars != two.co_freevars:
                return False
            into[one.co_name, one.co_firstlineno] = two
        elif not _pairs(one, two, into):
            return False
    return True


def run_tests(
    folder: Path, files: Sequence[str], plugins: list[Any], seconds: float | None, first: bool
) -> int:
    """In a process of its own, in a copy of the project: pytest's exit code."""
    os.chdir(folder)
    os.setpgid(0, 0)
    parent = os.getppid()
    threading.Thread(target=_follow, args=(parent,), daemon=True).start()
    sys.path[:] = [str(folder), *(path for path in sys.path if Path(path).resolve() != ROOT)]
    os.environ["PYTHONPATH"] = str(folder)
    for plugin in plugins:
        if isinstance(plugin, _Traced):
            plugin.compile_with_marks()
    if seconds:
        sys.dont_write_bytecode = True
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds) + 1))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    if not os.environ.get("SHOW"):
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
    off = [x for name in ("randomly", "xdist", "cacheprovider", "faulthandler") for x in ("-p", f"no:{name}")]
    options = ["-q", "-o", "addopts=", "--tb=line", "--rootdir", str(folder), "-k", "not measured", *off]
    if first:
        options.append("-x")
    return int(pytest.main([*options, *(str(folder / t) for t in files)], plugins=plugins))


def _follow(parent: int) -> None:
    """Ends this process and what it has started when its parent has ended."""
    while os.getppid() == parent:
        time.sleep(1)
    os.killpg(0, signal.SIGKILL)


def _status(pid: int, seconds: float) -> int:
    """How a child ends, which has so much time."""
    end = time.monotonic() + seconds
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return status
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def noticed(status: int) -> str:
    """How tests noticed a mutant, by the status of their process; empty where they did not."""
    if os.WIFSIGNALED(status):
        return ENDLESS if os.WTERMSIG(status) == signal.SIGXCPU else ""
    return "" if os.waitstatus_to_exitcode(status) in (0, 5, ERROR) else "a failure"


def started(work: Callable[[], int]) -> int:
    """The id of a child that ends with what `work` gives."""
    pid = os.fork()
    if not pid:
        code = ERROR
        try:
            code = work()
        finally:
            os._exit(code)
    return pid


def copies(folder: Path, of: Path, count: int) -> list[Path]:
    """Copies of the project, in which mutants stand, with what Python has compiled."""
    found = []
    for number in range(count):
        into = Path(tempfile.mkdtemp(dir=folder)) / str(number)
        shutil.copytree(of, into, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
        found.append(into)
    return found


def traced(
    area: Area, chosen: Sequence[Mutant], folder: Path
) -> tuple[dict[str, Run], dict[Mutant, str], list[Mutant]]:
    """The tests that pass on the code as it is, and what each runs; the mutants they notice; the rest."""
    into = folder / "runs.json"
    plugin = _Traced(folder, chosen, into)
    pid = started(lambda: run_tests(folder, area.tests, [_Few(area.examples), plugin], None, False))
    _, status = os.waitpid(pid, 0)
    if not into.exists():
        raise SystemExit(f"{area.name}: {' '.join(area.tests)} cannot run, with the status {status}")
    wrong, found, killed = json.loads(into.read_text(encoding="utf-8"))
    if wrong:
        raise SystemExit(f"{area.name}: {' '.join(wrong[:5])} fail on the code as it is")
    hows = {chosen[i]: how for i, how in killed}
    return runs_of(found), hows, [mutant for mutant in chosen if mutant not in hows]


def runs_of(found: Mapping[str, Any]) -> dict[str, Run]:
    """Tests, as JSON has them."""
    return {
        test: Run(seconds, frozenset((file, line) for file, line in hit), frozenset(files))
        for test, (seconds, hit, files) in found.items()
    }


def names_of(mutant: Mutant) -> set[str]:
    """The class or constant that a line is in, and its names in text forms, as the ids of tests have them."""
    if not mutant.file.endswith(".py"):
        return set()
    found: set[str] = set()
    for node in ast.parse((mutant.root / mutant.file).read_text(encoding="utf-8")).body:
        if not node.lineno <= mutant.line <= (node.end_lineno or 0):
            continue
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id.strip("_") for target in targets if isinstance(target, ast.Name)}
        if isinstance(node, ast.ClassDef):
            found.add(node.name)
            for line in node.body:
                match line:
                    case (
                        ast.Assign(targets=[ast.Name("opcode" | "name")], value=ast.Constant(str(name)))
                        | ast.AnnAssign(target=ast.Name("opcode" | "name"), value=ast.Constant(str(name)))
                    ):
                        found.add(name)
    return {f"_{_SIGNS.sub('_', name.lower())}_" for name in found}


def tests_of(mutant: Mutant, runs: Mapping[str, Run]) -> list[str]:
    """The tests of a mutant, quick ones first, as many as `ENOUGH` seconds hold.

    Those are the tests that run one of its lines. A line that runs on import, and a script of pages, has
    those that are named after its class or constant, then those that run something of the file, then those
    whose file imports it; or those of the area.
    """
    own = {(mutant.file, mutant.line + i) for i in range(mutant.old.count("\n") + 1)}
    quick = sorted(runs, key=lambda test: runs[test].seconds)
    some = [test for test in quick if own & runs[test].lines]
    if not some:
        named = names_of(mutant)
        some = [test for test in quick if any(name in f"{_SIGNS.sub('_', test.lower())}_" for name in named)]
        module = mutant.file.removesuffix(".py").removeprefix("llmir/").replace("/", ".")
        sources = {test: test.partition("::")[0] for test in quick}
        texts = {x: mutant.root / x for x in {*sources.values()} if (mutant.root / x).is_file()}
        imports = {x for x, path in texts.items() if f"llmir.{module} import" in path.read_text("utf-8")}
        some += [test for test in quick if mutant.file in runs[test].files]
        some += [test for test in quick if sources[test] in imports]
        some = list(dict.fromkeys(some))
    if not some and not mutant.file.endswith(".py"):
        some = [test for test in quick if "/page/" in test]
    found, seconds = [], 0.0
    for test in some:
        seconds += runs[test].seconds
        if found and seconds > ENOUGH:
            break
        found.append(test)
    return found


def tried(
    area: Area, chosen: Sequence[Mutant], runs: Mapping[str, Run], folders: Sequence[Path]
) -> Iterator[tuple[Mutant, str, str]]:
    """Each mutant, how tests noticed it (`noticed`), and which tests; as many at once as there are copies."""
    queue = list(reversed(chosen))
    free = list(folders)
    running: dict[int, tuple[Mutant, Path, float, int]] = {}
    while queue or running:
        while queue and free:
            mutant = queue.pop()
            tests = tests_of(mutant, runs)
            if not tests:
                yield mutant, "", "no test runs it"
                continue
            folder = free.pop()
            put(folder, mutant.file, mutant.source)
            seconds = sum(runs[test].seconds for test in tests)
            limit = 4 * seconds + 20
            files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
            few = _Few(area.examples, tests)
            work = partial(run_tests, folder, files, [few], limit, True)
            running[started(work)] = mutant, folder, time.monotonic() + 8 * limit, len(tests)
        pid, status = os.waitpid(-1, os.WNOHANG) if running else (0, 0)
        if pid:
            mutant, folder, _, count = running.pop(pid)
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)  # what its tests have started
            put(folder, mutant.file, (ROOT / mutant.file).read_text(encoding="utf-8"))
            free.append(folder)
            yield mutant, noticed(status), f"{count} tests pass"
            continue
        for pid, (_, _, end, _) in running.items():
            if time.monotonic() > end:  # asleep, and so beyond any limit of processor time
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def put(folder: Path, file: str, text: str) -> None:
    """Writes a module of a copy, and removes what Python has compiled of it."""
    path = folder / file
    path.write_text(text, encoding="utf-8")
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        compiled.unlink()


# Areas


def equivalent() -> dict[tuple[str, str, str], str]:
    """Mutants that no test can notice, each with the reason."""
    listed = yaml.safe_load(EQUIVALENT.read_text(encoding="utf-8")) or {}
    return {
        (file, " ".join(x["old"].split()), " ".join(x["new"].split())): x["why"]
        for file, changes in listed.items()
        for x in changes
    }


def judged(area: Area, number: int, seed: int) -> tuple[list[Mutant], int]:
    """Mutants of an area that are not listed as equivalent, drawn by the seed, and how many there are."""
    known = equivalent()
    every = [m for file in files_of(area) for m in mutants(file, ROOT) if m.key not in known]
    chance = random.Random(f"{seed} {area.name}")
    chance.shuffle(every)
    chosen = list(islice((m for m in every if m.runs), number or None))
    return sorted(chosen, key=lambda m: (m.file, m.line)), len(every)


def judge(area: Area, number: int, seed: int, jobs: int, folder: Path) -> tuple[float, str]:
    """The share of mutants that tests notice, and the line that says so."""
    start = time.monotonic()
    chosen, every = judged(area, number, seed)
    (first,) = copies(folder, ROOT, 1)
    runs, hows, rest = traced(area, chosen, first)
    folders = [first, *copies(folder, first, jobs - 1)]
    spent = sum(run.seconds for run in runs.values())
    print(f"{area.name:9} {len(runs):,} tests take {spent:.0f} s of processor time", flush=True)
    print(f"{area.name:9} {len(hows)} of {len(chosen)} killed in forks", flush=True)
    for mutant, how, which in tried(area, rest, runs, folders):
        if how:
            hows[mutant] = how
        else:
            print(f"survives, {which}: {mutant}", flush=True)
    for mutant, how in hows.items():
        if how == ENDLESS:
            print(f"killed at its limit of processor time: {mutant}", flush=True)
    left = len(chosen) - len(hows)
    share = 1 - left / len(chosen) if chosen and runs else 0.0  # who tests nothing kills nothing
    took = f"{every:,} in all; {time.monotonic() - start:.0f} s"
    line = f"{area.name:9} {len(chosen) - left} of {len(chosen)} killed, {100 * share:.0f}% ({took})"
    print(line, flush=True)
    return share, line


def files_of(area: Area) -> list[Path]:
    """The modules of an area, and its scripts of pages that node can run."""
    found = [ROOT / name for name in area.files]
    every = [f for path in found for f in ([path] if path.is_file() else sorted(path.rglob("*.py")))]
    every += [path / name for path in found for name in SCRIPTS if (path / name).is_file()]
    left_out = [ROOT / name for name in area.without]
    return [f for f in every if not any(f == path or path in f.parents for path in left_out)]


def main() -> int:
    """0 where each area has its share killed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("areas", nargs="*", help=f"of {', '.join(a.name for a in AREAS)}; all by default")
    parser.add_argument("--number", type=int, default=60, help="mutants of each area, 0 for all")
    parser.add_argument("--seed", type=int, default=0, help="which of them")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    if unknown := set(asked.areas) - {area.name for area in AREAS}:
        parser.error(
            f"unknown area {', '.join(sorted(unknown))}; there are {', '.join(a.name for a in AREAS)}"
        )
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
    _import_libraries()
    results = []
    with tempfile.TemporaryDirectory(prefix="llmir-mutants-") as folder:
        for area in AREAS:
            if not asked.areas or area.name in asked.areas:
                results.append(judge(area, asked.number, asked.seed, asked.jobs, Path(folder)))
    print("\n".join(["", *(line for _, line in results)]))
    return int(min(share for share, _ in results) < GOAL)


def _import_libraries() -> None:
    """What all children need and no mutant changes, once."""
    import click
    import hypothesis.strategies
    import networkx
    import numpy

    assert click and hypothesis and networkx and numpy


if __name__ == "__main__":
    sys.exit(main())
