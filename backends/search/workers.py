"""Tasks on the workers of an executor, in order, whichever of them die."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ProcessPoolExecutor
from contextlib import ExitStack
from typing import Any, Generic, Protocol, TypeVar

LOST = "its worker died twice, as one that is killed or out of memory does"
MANY = 1000  # tasks that wait at once, so that one that takes long keeps no worker idle


class Task(Protocol):
    """What a worker is given."""

    @property
    def size(self) -> int:
        """How much room its result takes, in any unit."""


T = TypeVar("T", bound=Task)
R = TypeVar("R")


def processes(jobs: int) -> ProcessPoolExecutor:
    """Processes of this machine, which leave an interrupt to the one that waits for them."""
    return ProcessPoolExecutor(jobs, initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN))


class Workers(Generic[T, R]):
    """The results of `call`, which can be pickled if the executor needs that, of some tasks.

    Tasks and results that wait take so much `room` at most. A worker that dies loses what it works on, which
    is tried again alone: where it dies again, the result is None.
    """

    def __init__(self, call: Callable[[T], R], executor: Executor | None, room: int) -> None:
        self.call, self.executor, self.room = call, executor, room

    def results(self, tasks: Iterable[T]) -> Iterator[tuple[T, R | None]]:
        """Each task and what came of it, in their order."""
        if self.executor is None:
            yield from ((task, self.call(task)) for task in tasks)
            return
        self._waiting: deque[tuple[T, Future[R]]] = deque()
        held = 0
        with ExitStack() as self._pools:
            try:
                for task in tasks:
                    self._waiting.append((task, self._submit(task)))
                    held += task.size
                    while held > self.room or len(self._waiting) > MANY:
                        held -= self._waiting[0][0].size
                        yield self._take()
                while self._waiting:
                    yield self._take()
            finally:
                for _, future in self._waiting:
                    future.cancel()

    def _submit(self, task: T) -> Future[R]:
        assert self.executor is not None
        try:
            return self.executor.submit(self.call, task)
        except BrokenExecutor:
            self._renew()
            return self.executor.submit(self.call, task)

    def _take(self) -> tuple[T, R | None]:
        task, future = self._waiting.popleft()
        try:
            return task, future.result()
        except BrokenExecutor:
            again = self._waiting
            self._renew()
            # The others lost their worker through no fault of theirs.
            self._waiting = deque((t, f if _done(f) else self._submit(t)) for t, f in again)
            with processes(1) as pool:
                return task, _tried(pool, self.call, task)
        except Exception as error:  # dask's, which is not imported here, has classes of its own
            if not _lost(error):
                raise
            assert self.executor is not None
            return task, _tried(self.executor, self.call, task)

    def _renew(self) -> None:
        """Processes in place of an executor that takes no more tasks, as many as it had."""
        self.executor = processes(getattr(self.executor, "_max_workers", 1))
        self._pools.callback(self.executor.shutdown, cancel_futures=True)


def _done(future: Future[Any]) -> bool:
    """Whether it has a result, or an error of its own."""
    return future.done() and not isinstance(future.exception(), BrokenExecutor)


def _tried(executor: Executor, call: Callable[[T], R], task: T) -> R | None:
    try:
        return executor.submit(call, task).result()
    except Exception as error:  # as above
        if not _lost(error):
            raise
        return None


def _lost(error: Exception) -> bool:
    """Whether a worker died, and not what it did was wrong; dask has errors of its own."""
    dask = type(error).__module__.partition(".")[0] == "distributed"
    return dask or isinstance(error, (BrokenExecutor, CancelledError))
