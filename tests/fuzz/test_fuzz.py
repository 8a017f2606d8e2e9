"""Readers under mutated inputs: what was found stays mended, and what breaks the contract is found."""

from __future__ import annotations

import ctypes
import faulthandler
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from llmir.base.errors import InputError

from . import calls, lines, readers  # noqa: F401  (they register)
from .mutate import Mutator
from .reader import READERS, Reader
from .session import FINDS, Session, tried


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("path", sorted(FINDS.glob("*-*.*")), ids=lambda path: path.name)
def test_a_find_stays_mended(path: Path) -> None:
    outcome = tried(READERS[path.name.split("-")[0]], path.read_bytes())
    assert not outcome.broken, outcome.said


@pytest.mark.mostly_slow(11)
@pytest.mark.parametrize("name", READERS)
def test_inputs_near_to_valid_ones_give_a_result_or_one_line(name: str) -> None:
    """The first of `make fuzz`; and some of them do give a result, or else nothing deep is reached."""
    reader = READERS[name]
    corpus = reader.corpus()
    chance = random.Random(0)
    mutate = Mutator(chance, corpus)
    results = 0
    for _ in range(40):
        data = mutate(chance.choice(corpus), chance.choice(corpus))
        try:
            reader.take(data)
            results += 1
        except Exception as error:
            assert type(error).__module__ == "llmir.base.errors", (data, error)
            assert len(str(error).splitlines()) == 1
    assert results


def _wrong(_: bytes) -> None:
    raise KeyError("x")


def _two_lines(_: bytes) -> None:
    raise InputError("one\ntwo")


def _endless(_: bytes) -> None:
    while True:
        pass


def _large(_: bytes) -> None:
    bytearray(400 * 2**20)


def _crash(_: bytes) -> None:
    faulthandler.disable()  # which would write of it
    ctypes.string_at(0)


@pytest.mark.parametrize(
    ("take", "kind"),
    [(_wrong, "KeyError"), (_two_lines, "message"), (_endless, "slow"), (_large, "memory"), (_crash, "died")],
)
def test_each_breach_is_found(take: Callable[[bytes], object], kind: str) -> None:
    found = tried(Reader("bad", ".txt", take, list, seconds=0.2), b"anything")
    assert found.broken
    assert found.kind.split()[0] == kind


@pytest.mark.slow
def test_a_find_is_made_small() -> None:
    def take(data: bytes) -> None:
        if b"7" in data and b"x" in data:
            raise KeyError(data)

    session = Session(Reader("bad", ".txt", take, lambda: [b"7 a\n", b"b x\n"]), seconds=1, seed=1)
    session.run()
    (kind, (data, _)) = session.finds.popitem()
    assert sorted(session.minimized(data, kind)) == sorted(b"7x")
    assert session.tried > 100


def test_one_seed_makes_the_same_inputs() -> None:
    corpus = READERS["ir"].corpus()

    def inputs(seed: int) -> list[bytes]:
        mutate = Mutator(random.Random(seed), corpus)
        return [mutate(corpus[0], corpus[1]) for _ in range(50)]

    assert inputs(1) == inputs(1) != inputs(2)
