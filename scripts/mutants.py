"""`make mutants`: small changes to the code, one at a time, and whether a test notices.

A mutant is one module with one operator, constant, condition, return or statement changed. A process of its
own imports it in place of the module and runs the tests of that module until the first that fails. What no
test notices is printed as a diff: a test is missing, the code says more than it does, or the two are
equivalent (`scripts/equivalent.yaml` says which, and why).
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml
from mutations import Mutant, mutants

ROOT = Path(__file__).resolve().parents[1]
EQUIVALENT = ROOT / "scripts" / "equivalent.yaml"
GOAL = 0.9
MEMORY = 4 << 30  # bytes


@dataclass(frozen=True)
class Target:
    """Modules that are judged together, by folder or file, and the tests that cover them."""

    name: str
    files: tuple[str, ...]
    tests: tuple[str, ...]
    examples: int = 100  # of each property, at most


TARGETS = (
    Target("dim", ("llmir/ir/sizes",), ("tests/ir/sizes/test_dim.py", "tests/ir/sizes/test_bindings.py")),
    Target(
        "equation",
        ("llmir/ir/core/equation.py",),
        ("tests/ir/core/test_equation.py", "tests/ir/core/test_layout.py"),
    ),
    Target(
        "shard",
        ("passes/shard.py",),
        (
            "tests/passes/test_shard_patterns.py",
            "tests/passes/test_no_effect_options.py",
            "tests/passes/test_shard.py",
        ),
        15,
    ),
    Target(
        "liveness",
        ("backends/memory/liveness.py",),
        ("tests/backends/memory/test_liveness.py",),
    ),
    Target("network", ("backends/work/network.py",), ("tests/backends/work/test_network.py",)),
)


class _Mutated(MetaPathFinder, Loader):
    """Imports one module from a changed text."""

    def __init__(self, mutant: Mutant) -> None:
        parts = list(Path(mutant.file).with_suffix("").parts)
        self.name = ".".join(parts if parts[0] == "llmir" else ["llmir", *parts]).removesuffix(".__init__")
        self.package = mutant.file.endswith("__init__.py")
        self.mutant = mutant

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        """Of that module alone."""
        if name != self.name:
            return None
        file = str(ROOT / self.mutant.file)
        return spec_from_loader(name, self, origin=file, is_package=self.package)

    def exec_module(self, module: ModuleType) -> None:
        """Run the changed text."""
        file = str(ROOT / self.mutant.file)
        module.__file__ = file
        if self.package:
            module.__path__ = [str(Path(file).parent)]
        exec(compile(self.mutant.source, file, "exec", dont_inherit=True), vars(module))


class _Few:
    """A plugin of pytest: few examples of each property, the same each time, and none made small."""

    def __init__(self, examples: int) -> None:
        self.examples = examples

    def pytest_collection_modifyitems(self, items: Sequence[Any]) -> None:
        """Before they run."""
        from hypothesis import Phase, settings

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


def run_tests(target: Target, mutant: Mutant | None, seconds: int | None) -> int:
    """In a process of its own: pytest's exit code."""
    import pytest

    if mutant:
        sys.meta_path.insert(0, _Mutated(mutant))
    if seconds:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    quiet = os.open(os.devnull, os.O_WRONLY)
    if mutant or not os.environ.get("SHOW"):
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
    off = [x for name in ("randomly", "xdist", "cacheprovider", "faulthandler") for x in ("-p", f"no:{name}")]
    options = ["-x", "-q", "-o", "addopts=", "--tb=no", "--rootdir", str(ROOT), "-k", "not measured", *off]
    return int(
        pytest.main([*options, *(str(ROOT / t) for t in target.tests)], plugins=[_Few(target.examples)])
    )


def started(work: Callable[[], int]) -> int:
    """The id of a child that ends with what `work` gives."""
    pid = os.fork()
    if not pid:
        code = 99
        try:
            code = work()
        finally:
            os._exit(code)
    return pid


def clean(target: Target) -> float:
    """The processor seconds of its tests on the code as it is, which they must accept."""
    before = time.monotonic()
    pid = started(lambda: run_tests(target, None, None))
    _, status, used = os.wait4(pid, 0)
    if status:
        raise SystemExit(f"{target.name}: {' '.join(target.tests)} fail on the code as it is")
    seconds = used.ru_utime + used.ru_stime
    print(f"{target.name:9} tests take {seconds:4.1f} s ({time.monotonic() - before:.1f} s)", flush=True)
    return seconds


def survivors(target: Target, chosen: Sequence[Mutant], limit: int, jobs: int) -> list[Mutant]:
    """Those that no test of the target notices, within so many processor seconds."""
    queue, running, found = list(reversed(chosen)), {}, []
    while queue or running:
        while queue and len(running) < jobs:
            mutant = queue.pop()
            pid = started(lambda m=mutant: run_tests(target, m, limit))  # type: ignore[misc]
            running[pid] = mutant, time.monotonic() + 10 * limit
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            mutant, _ = running.pop(pid)
            if status == 0:
                found.append(mutant)
                print(f"survives: {mutant}", flush=True)
            continue
        for pid, (_, end) in running.items():
            if time.monotonic() > end:  # asleep, and so beyond any limit of processor time
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
    return found


def equivalent() -> dict[tuple[str, str, str], str]:
    """Mutants that no test can notice, each with the reason."""
    listed = yaml.safe_load(EQUIVALENT.read_text(encoding="utf-8")) or {}
    return {
        (file, " ".join(x["old"].split()), " ".join(x["new"].split())): x["why"]
        for file, changes in listed.items()
        for x in changes
    }


def main() -> int:
    """0 where each target has its share killed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("targets", nargs="*", help=f"of {', '.join(t.name for t in TARGETS)}; all by default")
    parser.add_argument("--number", type=int, default=60, help="mutants of each target, 0 for all")
    parser.add_argument("--seed", type=int, default=0, help="which of them")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
    _import_libraries()
    known, worst = equivalent(), 1.0
    lines, stale = [], set(known)
    for target in TARGETS:
        if asked.targets and target.name not in asked.targets:
            continue
        every = [m for file in _files(target) for m in mutants(file, ROOT)]
        stale -= {m.key for m in every}
        judged = [m for m in every if m.key not in known]
        chance = random.Random(f"{asked.seed} {target.name}")
        number = min(asked.number or len(judged), len(judged))
        chosen = sorted(chance.sample(judged, number), key=lambda m: (m.file, m.line))
        limit = int(4 * clean(target)) + 5
        start = time.monotonic()
        left = survivors(target, chosen, limit, asked.jobs)
        share = 1 - len(left) / max(1, number)
        worst = min(worst, share)
        of = f"{len(every)} in all, {len(every) - len(judged)} of them equivalent"
        took = f"{time.monotonic() - start:.0f} s"
        lines.append(
            f"{target.name:9} {number - len(left)} of {number} killed, {100 * share:.0f}% ({of}; {took})"
        )
        print(lines[-1], flush=True)
    print("\n".join(["", *lines]))
    if stale and not asked.targets:
        print(
            "\n".join(
                ["listed as equivalent, and no mutants any more:", *(" | ".join(k) for k in sorted(stale))]
            )
        )
        return 1
    return int(worst < GOAL)


def _files(target: Target) -> list[Path]:
    found = [ROOT / name for name in target.files]
    return [f for path in found for f in (sorted(path.rglob("*.py")) if path.is_dir() else [path])]


def _import_libraries() -> None:
    """What all children need and no mutant changes, once."""
    import click
    import hypothesis.strategies
    import networkx
    import numpy
    import pytest

    assert click and hypothesis and networkx and numpy and pytest


if __name__ == "__main__":
    sys.exit(main())
