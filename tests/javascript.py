"""Where tests run JavaScript: in node, and in Chromium, which asks a server on loopback for what it imports.

A script is the module `run.js`. It imports from `outside.js` what differs between the two: `text(name)` is a
file beside it, `say(found)` gives bytes or text back.
"""

from __future__ import annotations

import queue
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory

from . import browser

Run = Callable[[Mapping[str, str]], bytes]  # what files with `run.js` among them say

OUTSIDE = """
import { readFileSync, writeFileSync } from "fs";
export const text = async (name) => readFileSync(name, "utf8");
const bytes = (found) => typeof found === "string" ? found : new Uint8Array(found);
export const say = async (found) => writeFileSync("found", bytes(found));
"""
FETCHED = """
export const text = async (name) => (await fetch(name)).text();
export const say = (found) => fetch("found", { method: "POST", body: found });
"""
PAGE = """<!doctype html><link rel="icon" href="data:,"><script type="module">
import("./run.js").catch((error) => fetch("wrong", { method: "POST", body: String(error.stack) }));
</script>"""
PATIENCE = 600  # seconds of a script
KINDS = {"": "text/html", ".js": "text/javascript", ".json": "application/json"}


def in_node(texts: Mapping[str, str]) -> bytes:
    """By node."""
    with TemporaryDirectory() as folder:
        for name, text in {**texts, "outside.js": OUTSIDE, "package.json": '{"type": "module"}'}.items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
        ask = ["node", "run.js"]
        done = subprocess.run(ask, cwd=folder, capture_output=True, text=True, check=False)
        assert not done.returncode, done.stderr
        return (Path(folder) / "found").read_bytes()


class _Served(ThreadingHTTPServer):
    """Files by name, and what is said of them."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.texts: Mapping[str, str] = {}
        self.said: queue.Queue[tuple[str, bytes]] = queue.Queue()


class _Handler(BaseHTTPRequestHandler):
    server: _Served

    def do_GET(self) -> None:
        name = self.path.rpartition("/")[2]
        text = PAGE if not name else self.server.texts.get(name)
        self.send_response(200 if text is not None else 404)
        self.send_header("Content-Type", KINDS.get(Path(name).suffix, "text/plain") + "; charset=utf-8")
        self.end_headers()
        self.wfile.write((text or "").encode())

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.said.put((self.path.rpartition("/")[2], body))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def chromium() -> Iterator[Run]:
    """By one browser, in a new document each time."""
    server = _Served()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with browser.browser(reaches="127.0.0.1", watched=False) as driver:

        def run(texts: Mapping[str, str]) -> bytes:
            server.texts = {**texts, "outside.js": FETCHED}
            driver.get(f"http://127.0.0.1:{server.server_port}/")
            what, found = server.said.get(timeout=PATIENCE)
            assert what == "found", found.decode()
            driver.get("about:blank")
            return found

        yield run
    server.shutdown()
    server.server_close()


@contextmanager
def node() -> Iterator[Run]:
    """By a process each time."""
    yield in_node


PLACES = {"node": node, "chromium": chromium}


@contextmanager
def opened(places: Iterable[str]) -> Iterator[dict[str, Run]]:
    """Some of them."""
    with ExitStack() as stack:
        yield {place: stack.enter_context(PLACES[place]()) for place in places}
