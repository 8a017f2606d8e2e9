"""The server's socket, from start until interrupt, with limits on connections and on their time."""

from __future__ import annotations

import asyncio
import errno
import socket
import sys
import webbrowser
from contextlib import closing
from typing import Any, ClassVar

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from llmir.base.errors import InputError
from llmir.base.processes import Terminated

from .app import app
from .guard import is_loopback
from .worker import Worker

_NEAR = 100  # number of ports after a used one that are tried
CONNECTIONS = 256  # number of connections at once; one more closes the oldest idle one
HEADERS_S = 10.0  # seconds to receive the head of a request
STOP_S = 2  # seconds for requests to end after the server stops
_TAKEN = {errno.EADDRINUSE, errno.EACCES}


def serve(host: str, port: int, token: str | None, *, opens: bool = False) -> None:
    """Serve until an interrupt, and print the address on stderr; with `opens`, a browser opens the page.

    InputError for a port in use (with the next free port), for an address of another machine, and for an
    address that other machines reach without a token.
    """
    if token is not None and (not token.isascii() or not token.isprintable() or not token or " " in token):
        raise InputError("--token: expected printable ASCII without spaces")
    if not is_loopback(host) and token is None:
        raise InputError(f"--host {host}: other machines can reach it; it requires --token")
    with closing(bound(host, port)) as listener:
        own = listener.getsockname()[1]
        shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        address = f"http://{f'[{shown}]' if ':' in shown else shown}:{own}/"
        worker = Worker()
        served = app(host, token, worker)
        config = uvicorn.Config(
            served,
            http=_Connection,
            ws="none",
            log_level="critical",  # broken connections of clients are not errors of the server
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=STOP_S,
        )
        server = _Server(config)
        server.address, server.link = address, f"{address}?token={token}" if token and opens else address
        server.opens, server.worker = opens, worker
        try:
            server.run(sockets=[listener])
        except Terminated:
            raise
        except KeyboardInterrupt:
            pass
        finally:
            worker.close()


class _Server(uvicorn.Server):
    address = link = ""
    opens = False
    worker: Worker

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the server and print its address."""
        await super().startup(sockets)
        print(f"llmir serves {self.address}, until Ctrl+C", file=sys.stderr, flush=True)
        if self.opens:
            webbrowser.open(self.link)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop the server and abandon the current configuration, so that no request waits for it."""
        await asyncio.to_thread(self.worker.close)
        await super().shutdown(sockets)


class _Connection(H11Protocol):
    """A connection that is closed if the head of its next request is not received in time."""

    _waiting: ClassVar[dict[_Connection, asyncio.TimerHandle]] = {}  # the oldest first

    def connection_made(self, transport: Any) -> None:
        """Wait for a request; too many waiting connections close the oldest one."""
        super().connection_made(transport)
        self._wait()
        if len(self.connections) > CONNECTIONS:
            next(iter(self._waiting))._give_up()

    def data_received(self, data: bytes) -> None:
        """Read until a request is received."""
        super().data_received(data)
        if self._is_idle():
            self._wait()
        else:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _wait(self) -> None:
        if self not in self._waiting:
            self._waiting[self] = self.loop.call_later(HEADERS_S, self._give_up)

    def _stop_waiting(self) -> None:
        if timer := self._waiting.pop(self, None):
            timer.cancel()

    def _give_up(self) -> None:
        self._stop_waiting()
        if self._is_idle():
            self.transport.abort()


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens at the address."""
    try:
        return _listener(host, port)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        if getattr(error, "errno", None) not in _TAKEN:
            raise InputError(f"--host {host}: {why}") from None
    free = next((n for n in range(port + 1, min(port + _NEAR, 65535) + 1) if _free(host, n)), None)
    instead = "none near is free" if free is None else f"{free} is free, --port {free}"
    raise InputError(f"--port {port}: {why.lower()}; {instead}") from None


def _listener(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(128)
    except OSError:
        made.close()
        raise
    return made


def _free(host: str, port: int) -> bool:
    try:
        _listener(host, port).close()
    except OSError:
        return False
    return True
