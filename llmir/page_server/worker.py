"""A worker process that computes configurations.

The process ends if a configuration takes too long or if the server ends. To free memory, it also ends after
many configurations or when it has grown. The next configuration starts a new process.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from llmir.base.errors import LlmirError, UnreadableError
from llmir.base.names import plain
from llmir.base.processes import start_worker
from llmir.base.registry import load_plugin, loaded_plugins

from . import request
from .guard import RejectionError

LONGEST = 20.0  # seconds per configuration
LARGEST = 5_000_000  # number of bytes of a configuration, as for a page
# A new process replaces one whose memory has grown by this many bytes since its first configuration.
GROWTH = 40 << 20
MOST = 500  # configurations per process
ADDRESS_SPACE = 8 << 30  # bytes
_START = 60.0  # seconds for a process to start


def answer_setup(body: bytes) -> bytes:
    """The JSON of the configuration that a request needs; RefusedError if it is impossible."""
    from llmir.backends.export.page.bundle import answer

    try:
        said = request.read(body)
    except UnreadableError as error:
        raise RejectionError(400, f"body: {error}") from None
    except LlmirError as error:
        raise RejectionError(422, str(error)) from None
    try:
        found = json.dumps(answer(said.setup(), said.name), separators=(",", ":")).encode()
    except LlmirError as error:
        raise RejectionError(422, str(error)) from None
    except RecursionError:
        raise RejectionError(422, "nested too deeply for Python's stack") from None
    except MemoryError:
        raise RejectionError(422, "not enough memory for such a model") from None
    except OverflowError as error:
        raise RejectionError(422, f"a number is too large to compute with: {error}") from None
    if len(found) > LARGEST:
        more = f"{len(found):,} bytes, more than {LARGEST:,}"
        raise RejectionError(422, f"this set-up has {more}; fewer stages or layers that differ have less")
    return found


class Worker:
    """Calls a function from bytes to bytes in a separate process, one call at a time."""

    def __init__(self, does: Callable[[bytes], bytes] = answer_setup, longest: float = LONGEST) -> None:
        self.does, self.longest = does, longest
        self._process: Any = None
        self._pipe: Connection | None = None
        self._closed = False
        self._calls = self._first_size = 0

    def __call__(self, body: bytes) -> bytes:
        """The result of the function.

        Raises `RejectionError` like the function, if the call takes too long, and if its process ends.
        """
        pipe = self._started()
        try:
            pipe.send_bytes(body)
            if not pipe.poll(self.longest):
                self.end()
                raise RejectionError(422, f"this set-up takes longer than {self.longest:g} s to make here")
            status, found, size = pipe.recv()
        except (EOFError, OSError):
            self.end()
            raise RejectionError(422, "the process that made this ended, as for lack of memory") from None
        self._calls += 1
        self._first_size = self._first_size or size
        if self._calls >= MOST or size > self._first_size + GROWTH:
            self.end()
        if status != 200:
            raise RejectionError(status, found)
        done: bytes = found
        return done

    def _started(self) -> Connection:
        if (pipe := self._pipe) is not None and self._process.is_alive():
            return pipe
        self.end()
        if self._closed:
            raise RejectionError(503, "the server is stopping")
        how = multiprocessing.get_context("spawn")
        pipe, theirs = how.Pipe()
        self._process = how.Process(target=_work, args=(theirs, self.does, loaded_plugins()), daemon=True)
        self._process.start()
        self._pipe, self._calls, self._first_size = pipe, 0, 0
        theirs.close()
        with suppress(EOFError, OSError):
            if pipe.poll(_START):
                pipe.recv()
        return pipe

    def end(self) -> None:
        """End the process, if there is one; a call that waits for it in another thread is rejected."""
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            self._process.kill()  # this wakes a thread that waits at the pipe
            self._process.join()
            pipe.close()

    def close(self) -> None:
        """End the process, and reject calls from now on."""
        self._closed = True
        self.end()


def _work(pipe: Connection, does: Callable[[bytes], bytes], plugins: tuple[str, ...]) -> None:
    start_worker()
    _limit_memory()
    for name in plugins:
        load_plugin(name)
    pipe.send("ready")
    with suppress(EOFError, OSError):
        while True:
            body = pipe.recv_bytes()
            found: tuple[int, bytes | str]
            try:
                found = 200, does(body)
            except RejectionError as refused:
                found = refused.status, refused.why
            except Exception as error:
                found = 500, f"a bug in llmir: {plain(f'{type(error).__name__}: {error}', 300)}"
            pipe.send((*found, _size()))


def _limit_memory() -> None:
    """Limit the address space of this process, if the system supports it."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))


def _size() -> int:
    """Current or peak memory of this process in bytes; 0 if the system does not report it."""
    with suppress(OSError, ValueError):  # on Linux `getrusage` also counts the parent before the fork
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    try:
        import resource
    except ImportError:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024  # bytes on macOS, kilobytes elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
