"""A server asked without a network, what its answers compute, and requests of all kinds.

    PYTHONPATH=. python -m tests.page_server.serve_cases 10000

asks so many that hypothesis draws, and then as many over sockets of a real process, whole, cut or changed.
`LLMIR_SERVE_REQUESTS` says how many the tests draw.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmir.backends.export.page import bundle
from llmir.backends.export.page.setups import Setup
from llmir.backends.work.rows import AMOUNTS, BOUNDS
from llmir.hw import library
from llmir.page_server.app import app
from llmir.page_server.guard import App
from llmir.page_server.worker import LONGEST, Worker
from tests.backends.export.page.page_cases import MODULES, OP, SAID, STEP, Way, by_node
from tests.commands import TINY, environment

OWN = (b"host", b"127.0.0.1:8765")
JSON = (b"content-type", b"application/json")
SLOWEST = LONGEST + 70  # seconds of an answer, with the start of a process


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def said(self) -> Any:
        return json.loads(self.body)


class Client:
    """Asks an app of which nothing but ASGI is known; a path goes as it is."""

    def __init__(self, portal: Any, asked: App) -> None:
        self.portal, self.app = portal, asked

    def ask(
        self,
        method: str,
        path: str,
        *pieces: bytes,
        headers: Iterable[tuple[bytes, bytes]] = (OWN, JSON),
        query: bytes = b"",
        ends: bool = True,
    ) -> Answer:
        """An answer to a body in pieces, of which the last may not be the end."""
        came = [
            {"type": "http.request", "body": piece, "more_body": not ends or i + 1 < len(pieces)}
            for i, piece in enumerate(pieces or (b"",))
        ]
        sent: list[Any] = []

        async def receive() -> Any:
            return came.pop(0) if came else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            **{"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http"},
            **{"method": method, "path": path, "raw_path": path.encode(), "root_path": ""},
            **{"query_string": query, "headers": [*headers], "server": ("127.0.0.1", 8765)},
        }
        self.portal.call(self.app, scope, receive, send)
        start, *rest = sent
        told = {name.decode(): value.decode("latin-1") for name, value in start["headers"]}
        return Answer(start["status"], told, b"".join(m.get("body", b"") for m in rest))

    def program(self, said: Any, **how: Any) -> Answer:
        """The set-up that something of JSON asks for."""
        return self.ask("POST", "/api/program", json.dumps(said).encode(), **how)


@contextmanager
def client(host: str = "127.0.0.1", token: str | None = None) -> Iterator[Client]:
    """One of a server at a host."""
    from anyio.from_thread import start_blocking_portal

    worker = Worker()
    with start_blocking_portal() as portal:
        yield Client(portal, app(host, token, worker))
    worker.end()


RUN = (
    """
import { readFileSync } from "fs";
import { Setup, once } from "./price.js";
import { functionsOf } from "./lists.js";
const { told, lists, points, typed, step, op } = JSON.parse(readFileSync("given.json"));
const first = new Setup(told.setups[0], told.tables, once(functionsOf(lists)), told);
"""
    + SAID
)


def told_of(answer: Any) -> tuple[Any, Any]:
    """What a page is told of an answer, or of a set-up as it is answered, and its lists."""
    if isinstance(answer, Setup):
        answer = json.loads(json.dumps(bundle.answer(answer, "it")))
    names = {"bounds": BOUNDS, "amounts": AMOUNTS, "rates": answer["rates"]}
    return {"setups": [answer["setup"]], "tables": answer["tables"], **names}, answer["functions"]


def run(told: Any, lists: Any, points: list[Any], typed: list[Any]) -> Any:
    """What the page computes at points, for each set of rates that are typed in, by node."""
    given = {"told": told, "lists": lists, "points": points, "typed": typed, "step": STEP, "op": OP}
    return by_node({"given.json": json.dumps(given), "run.js": RUN}, (*MODULES, "lists"))


AS_DATA = Way(told_of, run)


# What clients send: of anything, of nearly what is asked for, and of what is.
_TEXT = st.text(max_size=20)
_TRICKS = st.sampled_from(
    [
        *("/etc/passwd", "../../secrets.yaml", "file:///etc/passwd", "http://evil.example/c.json", "~/x.ir"),
        *("config.json", "x.yaml", "vllm@/x.yaml", "a\0b", "{plan=/etc/passwd}", "routing{file=x}", "C:\\x"),
    ]
)
_ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _TEXT | _TRICKS,
    lambda each: st.lists(each, max_size=3) | st.dictionaries(_TEXT, each, max_size=3),
    max_leaves=8,
)
_SMALL = ("llama3.2-1b", "qwen3-0.6b", "mamba-130m", "gemma-3-1b", "Llama-4-Scout-17B-16E")
_COUNT = st.sampled_from([1, 1, 2, 4, 8, 3, 0, -1, 65536, 10**30])
_KNOWN = st.fixed_dictionaries(
    {"model": st.sampled_from(_SMALL)},
    optional={
        "hw": st.sampled_from([*library.names(), *library.clusters()]),
        **dict.fromkeys(("tp", "pp", "dp", "ep", "micro_batches", "redundant_experts"), _COUNT),
        **dict.fromkeys(("weights", "kv"), st.sampled_from(["bf16", "fp8", "int4", "fp9", "mxfp4"])),
        "engine": st.sampled_from(["vllm", "sglang", "trtllm", "vllm@0.6", "vllm@0.12", "llama.cpp"]),
        **{"cost": st.sampled_from(["ideal", "calibrated"]), "sp": st.booleans()},
    },
)
_CONFIGS = st.dictionaries(st.sampled_from([*TINY]), st.integers(-2, 70) | _ANY, max_size=2).map(
    lambda changed: {**TINY, **changed}
)
_DEVICES = st.dictionaries(
    st.sampled_from(["memory_GBps", "memory_GiB", "name", "links", "extend", "sources", "calibration"]),
    st.floats(0.1, 1e4) | _ANY,
    max_size=3,
).map(lambda changed: {"extend": "h100-sxm", **changed})
_FIELDS = st.sampled_from(["model", "config", "hw", "tp", "engine", "weights", "routing", "plan", "pipeline"])
_SAID = st.one_of(
    st.dictionaries(_FIELDS | _TEXT, _ANY, max_size=4),
    st.tuples(_KNOWN, st.dictionaries(_FIELDS, _ANY, max_size=2)).map(lambda of: {**of[0], **of[1]}),
    st.builds(lambda config: {"config": config, "cost": "ideal"}, _CONFIGS),
    st.builds(lambda device: {"model": "llama3.2-1b", "hw": device}, _DEVICES),
    _KNOWN,
    _ANY,
)
_BODIES = st.one_of(
    _SAID.map(lambda said: json.dumps(said).encode()),
    st.binary(max_size=200),
    st.builds(
        lambda n, piece: piece * n, st.integers(1, 400_000), st.sampled_from([b"[", b'{"a":', b"1", b" "])
    ),
)
_PATHS = st.sampled_from(
    [
        *("/", "/api/models", "/api/hw", "/api/program", "/api/program/", "//", "/api", "/index.html"),
        *("/../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/api/..%2f..%2fsetup.cfg", "/api/program\0", "/é"),
        *("/static/style.css", "/.git/config", "\\windows", "", "http://evil.example/"),
    ]
)
_HEADER = st.tuples(
    st.sampled_from(
        [
            b"host",
            b"origin",
            b"sec-fetch-site",
            b"content-type",
            b"content-length",
            b"cookie",
            b"authorization",
        ]
    ),
    st.binary(max_size=30) | st.sampled_from([b"127.0.0.1:8765", b"null", b"same-origin", b"99999999999999"]),
)
REQUESTS = st.one_of(
    st.tuples(st.just("POST"), st.just("/api/program"), _BODIES, st.just([OWN, JSON]), st.just(b"")),
    st.tuples(
        st.sampled_from(["GET", "POST", "PUT", "HEAD", "OPTIONS", "DELETE", "TRACE", "X" * 50]),
        _PATHS,
        _BODIES,
        st.lists(_HEADER, max_size=3).map(lambda more: [OWN, *more]) | st.lists(_HEADER, max_size=3),
        st.binary(max_size=20),
    ),
)
STATUSES = {200, 400, 401, 403, 404, 405, 413, 415, 422}


def holds(asked: Client, request: Any) -> int:
    """The status of a request, whose answer is soon there, of one line, and no bug."""
    method, path, body, headers, query = request
    began = time.monotonic()
    answer = asked.ask(
        method, path, body[: len(body) // 2], body[len(body) // 2 :], headers=headers, query=query
    )
    assert time.monotonic() - began < SLOWEST
    assert answer.status in STATUSES, (answer.status, answer.body[:300])
    if answer.status != 200:
        (why,) = answer.said.values() if answer.body else ("",)
        assert "\n" not in why
        assert "Traceback" not in why
    return answer.status


def fuzzed(count: int) -> dict[int, int]:
    """How often each status came of so many requests."""
    statuses: dict[int, int] = {}
    with client() as asked:

        @settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(REQUESTS)
        def draw(request: Any) -> None:
            status = holds(asked, request)
            statuses[status] = statuses.get(status, 0) + 1

        draw()
    return statuses


# Requests over a socket

WAYS = ("whole", "cut", "changed")


@contextmanager
def served() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A server as a process of its own, and its port."""
    command = [sys.executable, "-m", "llmir", "serve", "--port", "0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment(), text=True, **pipes) as process:  # type: ignore[call-overload]
        try:
            assert process.stderr is not None
            found = re.search(r":(\d+)/", process.stderr.readline())
            assert found
            yield process, int(found[1])
        finally:
            process.kill()


def raw(request: Any, port: int) -> bytes:
    """A request as bytes, whose length is stated unless its headers say something else."""
    method, path, body, headers, query = request
    host = f"127.0.0.1:{port}".encode()
    head = [f"{method} {path}".encode("utf-8", "surrogatepass") + b"?" * bool(query) + query + b" HTTP/1.1"]
    head += [name + b": " + (host if name == b"host" else value) for name, value in headers]
    return b"\r\n".join([*head, b"content-length: %d" % len(body), b"", body])


def answered(port: int, data: bytes, whole: bool) -> int:
    """The status of the first answer to some bytes; 0 if the server closes the connection without one."""
    with socket.create_connection(("127.0.0.1", port), timeout=SLOWEST) as connection:
        found = b""
        with suppress(ConnectionResetError, BrokenPipeError):
            connection.sendall(data)
            if not whole:  # so that the server does not wait for the rest
                with suppress(OSError):  # it has closed the connection already
                    connection.shutdown(socket.SHUT_WR)
            found = connection.recv(4096)
        if not found:
            return 0
        status = re.match(rb"HTTP/1\.1 (\d{3}) ", found)
        assert status, found[:100]
        assert b"Traceback" not in found
        return int(status[1])


def fuzzed_over_sockets(count: int) -> dict[int, int]:
    """How often each status came of so many requests, a third of them cut and a third with a byte changed.

    The server is there at the end, has said nothing, and stops as asked.
    """
    statuses: dict[int, int] = {}
    with served() as (process, port):

        @settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(
            REQUESTS, st.sampled_from(("whole", "cut", "changed")), st.floats(0, 0.999), st.integers(0, 255)
        )
        def draw(request: Any, way: str, place: float, byte: int) -> None:
            data = bytearray(raw(request, port))
            at = int(place * len(data))
            if way == "cut":
                del data[at:]
            if way == "changed":
                data[at] = byte
            status = answered(port, bytes(data), way == "whole")
            statuses[status] = statuses.get(status, 0) + 1

        draw()
        process.send_signal(signal.SIGINT)
        out, said = process.communicate(timeout=30)
        assert (process.returncode, out, said) == (0, "", "")
    return statuses


SOME = int(os.environ.get("LLMIR_SERVE_REQUESTS", "300"))

if __name__ == "__main__":
    print(fuzzed(int(sys.argv[1])))
    print(fuzzed_over_sockets(int(sys.argv[1])))
