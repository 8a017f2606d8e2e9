"""Cases of a covering that there are, as many as are asked for, by several processes."""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple, TypeVar

from tests.backends.step.code_cases import cases
from tests.browser import OFF

Case = dict[str, Any]
T = TypeVar("T")
Finding = Callable[[], AbstractContextManager[Callable[[Case], T | None]]]


class Far(NamedTuple):
    """The largest relative difference of figures, how many exact ones differ, and at how many points."""

    most: float = 0.0
    wrong: int = 0
    points: int = 0

    def __add__(self, other: Any) -> Far:
        return Far(max(self.most, other.most), self.wrong + other.wrong, self.points + other.points)

    def __str__(self) -> str:
        return f"at most {self.most:.1e} off, {self.wrong} exact ones wrong at {self.points:,} points"


def found(
    finding: Finding[T], cases: Iterable[Case], count: int, processes: int = 1
) -> Iterator[tuple[Case, T]]:
    """The first cases that are found, in order, each with what was.

    Each process opens what finds them, and closes it. An error of one of them is raised here.
    """
    own, known = multiprocessing.get_context("fork"), list(itertools.islice(cases, 50 * count))
    asked, said, end = own.Value("i", 0), own.Queue(), own.Event()

    def work() -> None:
        try:
            with finding() as find:
                while not end.is_set():
                    with asked.get_lock():
                        number, asked.value = asked.value, asked.value + 1
                    if number >= len(known):
                        break
                    said.put((number, find(known[number])))
        except BaseException as error:
            said.put((-1, f"{type(error).__name__}: {error}"))  # its process prints where
            raise

    workers = [own.Process(target=work) for _ in range(processes)]
    for worker in workers:
        worker.start()
    try:
        yield from _ordered(known, said.get, count)
    finally:
        end.set()
        while any(worker.is_alive() for worker in workers):
            while not said.empty():
                said.get()
            for worker in workers:
                worker.join(0.1)


def _ordered(known: list[Case], get: Callable[[], tuple[int, Any]], count: int) -> Iterator[tuple[Case, Any]]:
    came: dict[int, Any] = {}
    for number, case in enumerate(known):
        while number not in came:
            place, what = get()
            if place < 0:
                raise RuntimeError(what)
            came[place] = what
        if came[number] is not None:
            yield case, came.pop(number)
            count -= 1
            if not count:
                return


Comparing = Callable[[int, Iterable[str]], AbstractContextManager[Callable[[Case], dict[str, Far] | None]]]


def command(comparing: Comparing, axes: Mapping[str, Any]) -> None:
    """Prints how far programs of a covering are, as the command line asks, and each that is too far."""
    asked = argparse.ArgumentParser()
    asked.add_argument("programs", type=int)
    asked.add_argument("--points", type=int, default=1000)
    asked.add_argument("--in", dest="places", default="node,chromium")
    asked.add_argument("--processes", type=int, default=1)
    told = asked.parse_args()
    compare, count = partial(comparing, told.points, told.places.split(",")), told.programs
    start, before, most = time.monotonic(), list[Case](), dict[str, Far]()
    every = sum(len(a) * len(b) for a, b in itertools.combinations(axes.values(), 2))
    for case, fars in found(compare, cases(0, axes), count, told.processes):
        before.append(case)
        most = {place: far + most.get(place, Far()) for place, far in fars.items()}
        if any(far.most > OFF or far.wrong for far in fars.values()):
            print(fars, case, flush=True)
        if len(before) % 20 == 0 or len(before) == count:
            minutes = (time.monotonic() - start) / 60
            said = "; ".join(f"{place}: {far}" for place, far in most.items())
            words = (
                f"{len(before)} programs, {len(pairs(before))} of {every} pairs, {minutes:.1f} min; {said}"
            )
            print(words, flush=True)


def pairs(cases: Iterable[Case]) -> set[Any]:
    """What any two axes are at once in some of them."""
    return {pair for case in cases for pair in itertools.combinations(case.items(), 2)}
