"""Access checks: refuse requests with another host, origin or token, with one line of JSON."""

from __future__ import annotations

import hmac
import json
import re
import socket
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from hashlib import sha256
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from typing import Any
from urllib.parse import parse_qs

from llmir.base.names import plain

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LOOPBACK = ("localhost", "127.0.0.1", "::1")
COOKIE = "llmir"
_HOST = re.compile(r"(\[[0-9a-fA-F:.]{2,45}\]|[a-zA-Z0-9._-]{1,253})(:[0-9]{1,5})?")
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)


class RejectionError(Exception):
    """A rejected request, with its status and a one-line reason."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


def is_loopback(host: str) -> bool:
    """Whether a host is reachable from this machine only."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


class AllowedHosts:
    """The host names that requests may use; other names indicate DNS rebinding.

    A server on all addresses allows every IP address, which DNS cannot redirect, and the machine's own name.
    """

    def __init__(self, bound: str) -> None:
        self.bound = bound.lower()
        self.known = {self.bound, *LOOPBACK} if is_loopback(bound) else {self.bound}
        self.any = bound in ("0.0.0.0", "::")
        if self.any:
            self.known |= {"localhost", socket.gethostname().lower()}

    def __contains__(self, said: object) -> bool:
        found = _HOST.fullmatch(said) if isinstance(said, str) else None
        if not found:
            return False
        name = found[1].strip("[]").lower()
        return name in self.known or (self.any and _is_address(name))


def _is_address(name: str) -> bool:
    try:
        return bool(ip_address(name))
    except ValueError:
        return False


class Guard:
    """ASGI middleware that admits requests from the served page and from programs.

    With a `token`, a request must carry `Authorization: Bearer TOKEN`, or the cookie that `/?token=TOKEN`
    sets, which stores a hash of it.
    """

    def __init__(self, app: App, hosts: AllowedHosts, token: str | None = None) -> None:
        self.app, self.hosts, self.token = app, hosts, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or reject it with a reason."""
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":
            return await send({"type": "websocket.close", "code": 1008})
        started = False

        async def marked(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message = {**message, "headers": [*message.get("headers", ()), *_HEADERS]}
            await send(message)

        try:
            if (cookie := self._checked(scope)) is None:
                await self.app(scope, receive, marked)
            else:
                await marked(_start(303, [(b"location", b"/"), (b"set-cookie", cookie)]))
                await marked({"type": "http.response.body", "body": b""})
        except RejectionError as refused:
            if not started:
                await _say(refused, marked)
        except Exception as error:  # a bug in llmir, reported like any other rejection
            if not started:
                name = f"{type(error).__name__}: {error}"
                await _say(RejectionError(500, f"a bug in llmir: {plain(name, 300)}"), marked)

    def _checked(self, scope: Scope) -> bytes | None:
        """`RefusedError` for a client that is not allowed. Returns the cookie for a client that sent the
        token, and otherwise None.
        """
        headers = _Headers(scope.get("headers", ()))
        host, origin, site = headers.one("host"), headers.one("origin"), headers.one("sec-fetch-site")
        if host is None or host not in self.hosts:
            raise RejectionError(
                403, f"Host {_shown(host)}: this server is asked as {self.hosts.bound} alone"
            )
        if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
            raise RejectionError(403, f"Origin {_shown(origin)}: only pages of this server may ask")
        visits = scope.get("path") == "/" and headers.one("sec-fetch-mode") == "navigate"
        if site not in (None, "same-origin", "none") and not visits:
            raise RejectionError(403, f"Sec-Fetch-Site {_shown(site)}: only pages of this server may ask")
        query = scope.get("query_string", b"")
        said = parse_qs(query.decode("latin-1"), max_num_fields=4) if len(query) < 2048 else {}
        token = said["token"][0] if scope.get("path") == "/" and list(said) == ["token"] else None
        if self.token is not None:
            return self._let_in(headers, token)
        if query:
            raise RejectionError(400, "this address has no query parameters")
        return None

    def _let_in(self, headers: _Headers, token: str | None) -> bytes | None:
        assert self.token is not None
        kept = sha256(self.token.encode()).hexdigest()
        if token is not None and _equal(token, self.token):
            return f"{COOKIE}={kept}; HttpOnly; SameSite=Strict; Path=/".encode()
        scheme, _, own = (headers.one("authorization") or "").partition(" ")
        if scheme.lower() == "bearer" and _equal(own.strip(), self.token):
            return None
        if token is None and _equal(_cookie(headers.one("cookie") or ""), kept):
            return None
        raise RejectionError(
            401, "a token is required: open /?token=TOKEN, or send Authorization: Bearer TOKEN"
        )


class _Headers:
    """The headers of a request; duplicates are rejected."""

    def __init__(self, raw: Iterable[tuple[bytes, bytes]]) -> None:
        self.found: dict[str, list[str]] = {}
        for name, value in raw:
            self.found.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))

    def one(self, name: str) -> str | None:
        """The value, or None if it is absent; `RefusedError` for several values."""
        values = self.found.get(name, [])
        if len(values) > 1 and name != "cookie":
            raise RejectionError(400, f"header {name} is there {len(values)} times")
        return "; ".join(values) if values else None


def _cookie(said: str) -> str:
    try:
        found = SimpleCookie(said).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found else ""


def _equal(said: str, own: str) -> bool:
    return hmac.compare_digest(said.encode("utf-8", "replace"), own.encode())


def _shown(value: str | None) -> str:
    return "is missing" if value is None else repr(plain(value, 80))


def _start(status: int, headers: list[tuple[bytes, bytes]]) -> Message:
    return {"type": "http.response.start", "status": status, "headers": headers}


async def _say(refused: RejectionError, send: Send) -> None:
    body = json.dumps({"error": refused.why}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if refused.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if refused.status in (400, 408, 413):  # the rest of these bodies is not read
        headers.append((b"connection", b"close"))
    await send(_start(refused.status, headers))
    await send({"type": "http.response.body", "body": body})
