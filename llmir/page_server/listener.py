"""The server's socket, from start until interrupt."""

from __future__ import annotations

import errno
import socket
import sys
import webbrowser
from contextlib import closing, suppress

import uvicorn

from llmir.base.errors import InputError

from .app import app
from .guard import is_loopback
from .worker import Worker

_NEAR = 100  # ports after one in use that are tried
_TAKEN = {errno.EADDRINUSE, errno.EACCES}


def serve(host: str, port: int, token: str | None, *, opens: bool = False) -> None:
    """Serve until interrupted, and say where on stderr; `opens` a browser there.

    InputError for a port in use, with the next free one, for an address that is not this machine's, and for
    one that others reach where there is no token.
    """
    if token is not None and (not token.isascii() or not token.isprintable() or not token or " " in token):
        raise InputError("--token: expected printable ASCII without spaces")
    if not is_loopback(host) and token is None:
        raise InputError(f"--host {host}: others reach it, say --token too")
    with closing(bound(host, port)) as listener:
        own = listener.getsockname()[1]
        shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        address = f"http://{f'[{shown}]' if ':' in shown else shown}:{own}/"
        worker = Worker()
        served = app(host, token, worker)
        server = _Server(uvicorn.Config(served, log_level="error", access_log=False, server_header=False))
        server.address, server.link = address, f"{address}?token={token}" if token and opens else address
        server.opens = opens
        with suppress(KeyboardInterrupt):
            server.run(sockets=[listener])
        worker.end()


class _Server(uvicorn.Server):
    address = link = ""
    opens = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and say so."""
        await super().startup(sockets)
        print(f"llmir serves {self.address}, until Ctrl+C", file=sys.stderr, flush=True)
        if self.opens:
            webbrowser.open(self.link)


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens there."""
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
