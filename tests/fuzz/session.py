"""One reader under test for a while, and finds made small."""

from __future__ import annotations

import mmap
import os
import pickle
import random
import signal
import tempfile
import time
from pathlib import Path

from . import child
from .child import Outcome, attempt
from .mutate import LARGEST, Mutator
from .reader import ROOT, Reader

FINDS = ROOT / "tests" / "data" / "finds"
_ROUND = 3000  # inputs of one process, after which it starts anew: caches grow
_STUCK_S = 20  # without a word, of a process that no signal reaches
_STUCK, _DIED = "stuck", "died"


class Session:
    """One reader under test: inputs, one process after another, until the time is over."""

    def __init__(self, reader: Reader, seconds: float, seed: int) -> None:
        self.reader, self.seed = reader, seed
        self.end = time.monotonic() + seconds
        self.corpus = list(dict.fromkeys(reader.corpus()))
        self.good: list[bytes] = []  # those of the corpus that give a result
        self.seen: set[str] = set()
        self.finds: dict[str, tuple[bytes, Outcome]] = {}
        self.tried = self.results = 0
        self.note = mmap.mmap(-1, LARGEST + 16)  # shared with the process: a count, and the input it is at

    def run(self) -> None:
        """All rounds."""
        for data in tuple(self.corpus):  # what is imported and cached now is so in every process
            outcome = attempt(self.reader, data)
            self.take(data, outcome)
            self.good += [data] if outcome.kind == "result" else []
        self.tried = self.results = 0
        number = 0
        while time.monotonic() < self.end:
            self.round(number)
            number += 1

    def take(self, data: bytes, outcome: Outcome) -> None:
        """Keep what ends where no input before did."""
        self.tried += 1
        self.results += outcome.kind == "result"
        if outcome.broken:
            if outcome.kind not in self.finds or len(data) < len(self.finds[outcome.kind][0]):
                self.finds[outcome.kind] = data, outcome
        elif outcome.kind not in self.seen:
            self.seen.add(outcome.kind)
            self.corpus.append(data)

    def round(self, number: int) -> None:
        """One process; what it saw comes back by a file, and what it died of by the shared note."""
        self.note[:8] = bytes(8)
        with tempfile.NamedTemporaryFile() as answer:
            pid = os.fork()
            if not pid:
                self.work(number, Path(answer.name))
            ended = _wait(pid, self.note)
            back = pickle.loads(Path(answer.name).read_bytes() or pickle.dumps(([], 0, 0)))
        kept, tried, results = back
        for data, outcome in kept:
            self.take(data, outcome)
        self.tried += tried - len(kept)
        self.results += results - sum(o.kind == "result" for _, o in kept)
        if ended:
            data = bytes(self.note[16 : 16 + int.from_bytes(self.note[8:16], "little")])
            self.take(data, Outcome(True, ended, f"the process {ended}"))

    def work(self, number: int, answer: Path) -> None:
        """In the child: mutate, try, and say so before."""
        child.limit_memory()
        chance = random.Random(f"{self.seed} {self.reader.name} {number}")
        mutate = Mutator(chance, self.corpus)
        kept: list[tuple[bytes, Outcome]] = []
        known, tried, results = set(self.seen), 0, 0
        while tried < _ROUND and time.monotonic() < self.end:
            start = chance.choice(self.good if self.good and chance.random() < 0.6 else self.corpus)
            data = mutate(start, chance.choice(self.corpus))
            self.note[8:16] = len(data).to_bytes(8, "little")
            self.note[16 : 16 + len(data)] = data
            self.note[:8] = (tried + 1).to_bytes(8, "little")
            outcome = attempt(self.reader, data)
            tried += 1
            results += outcome.kind == "result"
            if outcome.kind not in known:
                known.add(outcome.kind)
                kept.append((data, outcome))
                if not outcome.broken:
                    self.corpus.append(data)
                answer.write_bytes(pickle.dumps((kept, tried, results)))
            if outcome.kind in ("slow", "memory"):  # what it left behind is not known
                break
        answer.write_bytes(pickle.dumps((kept, tried, results)))
        os._exit(0)

    def minimized(self, data: bytes, kind: str) -> bytes:
        """Fewer bytes that end alike: pieces are left out as long as that holds."""
        end = time.monotonic() + 20
        size = max(1, len(data) // 2)
        while size and time.monotonic() < end:
            at = 0
            while at < len(data) and time.monotonic() < end:
                less = data[:at] + data[at + size :]
                if tried(self.reader, less).kind == kind:
                    data = less
                else:
                    at += size
            size //= 2
        return data


def tried(reader: Reader, data: bytes) -> Outcome:
    """What comes of one input in a process of its own."""
    note = mmap.mmap(-1, 16)
    with tempfile.NamedTemporaryFile() as answer:
        pid = os.fork()
        if not pid:
            child.limit_memory()
            Path(answer.name).write_bytes(pickle.dumps(attempt(reader, data)))
            os._exit(0)
        ended = _wait(pid, note)
        said = Path(answer.name).read_bytes()
    outcome: Outcome = pickle.loads(said) if said else Outcome(True, ended or _DIED, "the process died")
    return outcome


def _wait(pid: int, note: mmap.mmap) -> str:
    """How a child ended, if not well; it is killed where it says nothing for long."""
    count, since = note[:8], time.monotonic()
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return "" if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0 else _DIED
        if note[:8] != count:
            count, since = note[:8], time.monotonic()
        if time.monotonic() - since > _STUCK_S:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return _STUCK
        time.sleep(0.002)
