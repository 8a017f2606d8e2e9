"""A server as a process of its own: connections that wait, clients that break off, signals, memory."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from llmir.page_server import listener, worker
from llmir.page_server.worker import Worker
from tests.commands import environment

from .serve_cases import SOME, fuzzed_over_sockets, served

pytestmark = pytest.mark.slow

MANY = 1200  # connections whose requests never come whole
POST = b"POST /api/program HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
HALF = (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-", POST + b"Content-Length: 90\r\n\r\n{")
BROKEN = (
    b"\x00\xff\r\n\r\n",
    b"GET\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"X: " + b"x" * 100_000 + b"\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 50,
    *HALF,
)


def ask(port: int, model: str = "llama3.2-1b", seconds: float = 60) -> float:
    """Seconds until a set-up is there."""
    start = time.monotonic()
    body, kind = json.dumps({"model": model}).encode(), {"Content-Type": "application/json"}
    asked = urllib.request.Request(f"http://127.0.0.1:{port}/api/program", body, kind)
    with urllib.request.urlopen(asked, timeout=seconds) as answer:
        assert json.load(answer)["model"]
    return time.monotonic() - start


def connected(port: int, sent: bytes) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port), timeout=30)
    made.sendall(sent)
    return made


def ends(process: subprocess.Popen[str], by: int, code: int, within: float) -> None:
    start = time.monotonic()
    process.send_signal(by)
    out, said = process.communicate(timeout=60)
    assert time.monotonic() - start < within
    assert (process.returncode, out) == (code, "")
    assert said == ("" if code == 0 else "error: terminated\n")


def test_half_sent_requests_are_closed_and_others_are_answered() -> None:
    with served() as (process, port), ExitStack() as held:
        ask(port)
        start = time.monotonic()
        waiting = [held.enter_context(connected(port, HALF[0])) for _ in range(MANY)]
        assert ask(port, seconds=10) < 10
        for each in waiting:
            each.settimeout(max(0.1, start + 25 - time.monotonic()))
            with suppress(ConnectionResetError):
                assert each.recv(100) == b""
        assert time.monotonic() - start < 15
        ends(process, signal.SIGINT, 0, 3)


@pytest.mark.parametrize(("by", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_it_stops_soon_whatever_clients_do(by: int, code: int) -> None:
    with served() as (process, port), ExitStack() as held:
        for sent in BROKEN * 3:
            held.enter_context(connected(port, sent))
        ask(port)
        ends(process, by, code, 3 + listener.STOP_S)


def children(pid: int) -> set[int]:
    """Processes that descend from one."""
    found = set()
    for each in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = each.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found |= {int(each.parent.name), *children(int(each.parent.name))}
    return found


def until(done: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not done() and time.monotonic() < end:
        time.sleep(0.02)
    return done()


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads /proc")
@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("command", ["serve", "sweep"])
def test_no_process_outlives_its_parent(command: str, by: int, tmp_path: Path) -> None:
    if command == "serve":
        with served() as (process, port):
            ask(port)
            workers = children(process.pid)
            process.send_signal(by)
            process.wait(60)
    else:
        asked = ["sweep", "llama3.2-1b", "--tp", "1,2,4,8", "--weights", "bf16,fp8", "--batch", "1:4000"]
        asked += ["--jobs", "2", "-o", "grid.jsonl"]
        ran = [sys.executable, "-m", "llmir", *asked]
        with subprocess.Popen(ran, cwd=tmp_path, env=environment(), stderr=subprocess.DEVNULL) as process:
            assert until(lambda: len(children(process.pid)) >= 2, 60)
            workers = children(process.pid)
            process.send_signal(by)
            try:
                process.wait(60)
            finally:
                process.kill()
            assert process.returncode == (143 if by == signal.SIGTERM else -by)
    assert workers
    # Within 2 s on an idle machine.
    assert until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), 10)


def test_a_worker_that_has_grown_or_worked_much_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "GROWTH", 20 << 20)
    monkeypatch.setattr(worker, "MOST", 4)
    one = Worker(_grows)
    seen = [one(body) for body in (b"", b"", b"", b"", b"", b"grow", b"")]
    assert seen[0] == seen[3] != seen[4] == seen[5] != seen[6]
    one.close()


KEPT = []


def _grows(body: bytes) -> bytes:
    import os

    if body:
        KEPT.append(bytearray(64 << 20))
    return str(os.getpid()).encode()


def test_requests_over_sockets_are_answered_or_closed() -> None:
    statuses = fuzzed_over_sockets(SOME)
    assert {200, 400, 404} <= statuses.keys()
    assert not {status for status in statuses if status >= 500} - {503}
