"""The server says what `workload` says, to those who may ask, and names no file to anybody."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import llmir
from llmir.cli.main import cli
from llmir.frontends.models import presets
from llmir.hw import library
from llmir.page_server.guard import AllowedHosts, RejectionError
from tests.backends.export import emit_cases
from tests.backends.export.page import page_cases
from tests.backends.export.page.page_cases import differs
from tests.browser import OFF, program_of
from tests.commands import TINY

from . import serve_cases
from .serve_cases import JSON, OWN, Client

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def asked() -> Iterator[Client]:
    with serve_cases.client() as made:
        yield made


# What is answered.


def test_lists_are_those_of_the_bundle(asked: Client) -> None:
    models = asked.ask("GET", "/api/models").said["models"]
    assert [model["name"] for model in models] == presets.names()
    found = asked.ask("GET", "/api/hw").said
    assert (found["names"], found["clusters"], found["engines"]) == (
        library.names(),
        library.clusters(),
        library.engines(),
    )
    assert {device["name"] for device in found["devices"]} == {*library.names(), *library.clusters()}


@pytest.mark.slow
@pytest.mark.skipif(not emit_cases.available(), reason="needs node")
@pytest.mark.parametrize(
    ("structure", "hw"),
    [
        ({}, "h100-sxm"),
        ({"tp": 4, "weights": "fp8"}, "h200"),
        ({"tp": 2, "weights": "fp8"}, {"extend": "h100-sxm", "name": "more", "memory_GBps": 4000}),
    ],
)
def test_figures_are_those_of_workload(structure: dict[str, Any], hw: Any, asked: Client) -> None:
    answer = asked.program({"model": "qwen3-32b", "hw": hw, **structure})
    assert answer.status == 200
    points = [(1, 1, 1), (8, 3000, 400), (132, 4099, 9)]
    device = hw if isinstance(hw, str) else library.from_keys(hw)
    program = program_of("qwen3-32b", structure)
    (told,) = serve_cases.run(*serve_cases.told_of(answer.said), points, [{}])
    for found, (batch, prompt, generate) in zip(told["points"], points, strict=True):
        job = llmir.workload(program, device, batch=batch, prompt=prompt, generate=generate)
        assert differs(found, job) < OFF


@pytest.mark.slow
@pytest.mark.skipif(not emit_cases.available(), reason="needs node")
@pytest.mark.parametrize("seed", range(2))
def test_lists_of_numbers_compute_what_functions_do(seed: int) -> None:
    known = page_cases.known(page_cases.POINTS, seed + 7, serve_cases.AS_DATA)
    for _, (case, found) in zip(range(4), known, strict=False):
        assert max(found.plain, found.typed) < OFF, case


def test_a_config_is_taken_as_an_object(asked: Client) -> None:
    answer = asked.program({"config": TINY, "cost": "ideal"})
    assert answer.status == 200
    assert answer.said["asked"] == "config.json"
    assert not re.search(r"=>|return |function ?\w*\(", answer.body.decode())  # no code travels


def test_the_page_comes_with_its_policy(asked: Client) -> None:
    answer = asked.ask("GET", "/")
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "connect-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["cache-control"] == "no-store"


# What is refused.


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example:8765",
        "10.0.0.1:8765",
        "",
        "a b",
        "::1",
    ],
)
def test_names_that_are_pointed_here_are_refused(host: str, asked: Client) -> None:
    """DNS rebinding: a stranger's name that means this machine is still the stranger's."""
    for path in ("/", "/api/models", "/api/program"):
        answer = asked.ask("GET", path, headers=[(b"host", host.encode())])
        assert answer.status == 403
        assert "asked as 127.0.0.1 alone" in answer.said["error"]
    assert asked.ask("GET", "/api/hw", headers=[]).status == 403
    assert asked.ask("GET", "/api/hw", headers=[OWN, OWN]).status == 400


@pytest.mark.parametrize("host", ["127.0.0.1:8765", "localhost:9000", "[::1]:8765", "LOCALHOST"])
def test_this_machine_is_asked_by_its_own_names(host: str, asked: Client) -> None:
    assert asked.ask("GET", "/api/hw", headers=[(b"host", host.encode())]).status == 200


@pytest.mark.parametrize(
    "header",
    [
        (b"origin", b"http://evil.example"),
        (b"origin", b"null"),
        (b"origin", b"http://127.0.0.1:9999"),
        (b"origin", b"http://localhost:8765"),
        (b"sec-fetch-site", b"cross-site"),
        (b"sec-fetch-site", b"same-site"),
    ],
)
def test_other_sites_are_refused(header: tuple[bytes, bytes], asked: Client) -> None:
    said = {"model": "llama3.2-1b"}
    assert asked.program(said, headers=[OWN, JSON, header]).status == 403
    assert asked.ask("GET", "/api/models", headers=[OWN, header]).status == 403
    own = (b"origin", b"http://127.0.0.1:8765")
    assert asked.program(said, headers=[OWN, JSON, own]).status == 200


def test_forms_of_other_sites_cannot_ask(asked: Client) -> None:
    """What a page may send elsewhere without asking first is no JSON."""
    for kind in (
        b"text/plain",
        b"application/x-www-form-urlencoded",
        b"multipart/form-data; boundary=x",
        b"",
    ):
        answer = asked.program({"model": "llama3.2-1b"}, headers=[OWN, (b"content-type", kind)])
        assert answer.status == 415
    assert asked.ask("OPTIONS", "/api/program").status == 405


def test_a_link_from_elsewhere_opens_the_page_but_nothing_else(asked: Client) -> None:
    link = [OWN, (b"sec-fetch-site", b"cross-site"), (b"sec-fetch-mode", b"navigate")]
    assert asked.ask("GET", "/", headers=link).status == 200
    assert asked.ask("GET", "/api/models", headers=link).status == 403


@pytest.mark.parametrize(
    "path",
    [
        *(
            "/../etc/passwd",
            "/..",
            "/%2e%2e/%2e%2e/etc/passwd",
            "/api/../setup.cfg",
            "/api/program/../models",
        ),
        *(
            "/static/style.css",
            "//etc/passwd",
            "/api/models/",
            "/index.html",
            "\\etc\\passwd",
            "",
            "/api/models\0",
        ),
        "file:///etc/passwd",
    ],
)
def test_other_paths_are_none(path: str, asked: Client) -> None:
    answer = asked.ask("GET", path)
    assert answer.status == 404
    assert len(answer.body) < 300
    assert list(answer.said) == ["error"]


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "./m", "~/m", "m/config.json", "m.ir", "http://x.example/m", "a\0"]
)
def test_files_and_addresses_are_no_models_and_devices(
    name: str, asked: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even those that there are."""
    for field in ("model", "hw", "engine", "weights", "routing", "dispatch", "cost", "kv"):
        answer = asked.program({"model": "llama3.2-1b", field: name})
        assert answer.status == 422, field
        assert "No such file" not in answer.said["error"]
    assert asked.program({"model": "llama3.2-1b", "hw": {"extend": name}}).status == 422


def test_a_file_beside_the_server_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(json.dumps(TINY))
    (tmp_path / "tiny.yaml").write_text("extend: h100-sxm\nmemory_GBps: 1\n")
    monkeypatch.chdir(tmp_path)
    assert llmir.load("./mine").parameters
    assert library.load("tiny.yaml").memory_Bps == 1e9
    from llmir.page_server.worker import answer_setup

    for said in (
        {"model": "mine"},
        {"model": "./mine"},
        {"model": "llama3.2-1b", "hw": "tiny.yaml"},
        {"model": "llama3.2-1b", "hw": {"extend": "tiny.yaml"}},
        {"model": "llama3.2-1b", "engine": "tiny.yaml"},
    ):
        with pytest.raises(RejectionError) as refused:
            answer_setup(json.dumps(said).encode())
        assert refused.value.status == 422


@pytest.mark.parametrize(
    ("said", "status", "why"),
    [
        ({"model": "llama3.2-1b", "tp": 3}, 422, "cannot be split 3 ways"),
        ({"model": "llama3.2-1b", "tp": "2"}, 422, "tp: expected an integer"),
        ({"model": "llama3.2-1b", "tp": True}, 422, "tp: expected an integer"),
        ({"model": "llama3.2-1b", "plan": "x"}, 422, "'plan' is no field"),
        ({"model": "llama3.2-1b", "config": {}}, 422, "one of them"),
        ({}, 422, "one of them"),
        ({"config": []}, 422, "config: expected the object"),
        ({"model": "lama3.2-1b"}, 422, "did you mean"),
        ({"model": "llama3.2-1b", "cost": "own"}, 422, "cost: expected calibrated or ideal"),
        ([], 400, "expected a JSON object"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(said: Any, status: int, why: str, asked: Client) -> None:
    answer = asked.program(said)
    assert answer.status == status
    assert why in answer.said["error"]


def test_bodies_end_at_a_megabyte(asked: Client) -> None:
    most = json.dumps({"model": "llama3.2-1b"}).encode()
    most += b" " * (1_000_000 - len(most))
    assert asked.ask("POST", "/api/program", most).status == 200
    assert asked.ask("POST", "/api/program", most, b" ").status == 413
    assert asked.ask("POST", "/api/program", *[b" " * 300_000] * 5, ends=False).status == 413
    long = [OWN, JSON, (b"content-length", b"1000001")]
    assert asked.ask("POST", "/api/program", b"{}", headers=long).status == 413
    assert asked.ask("POST", "/api/program", b"{", ends=False).status == 400  # who left


@pytest.mark.slow
def test_a_token_is_asked_for() -> None:
    with serve_cases.client("0.0.0.0", "secret") as asked:
        host = (b"host", b"192.168.0.9:8765")
        assert asked.ask("GET", "/", headers=[host]).status == 401
        assert asked.ask("GET", "/", headers=[host], query=b"token=wrong").status == 401
        came = asked.ask("GET", "/", headers=[host], query=b"token=secret")
        assert (came.status, came.headers["location"]) == (303, "/")
        cookie = came.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert "secret" not in cookie
        kept = (b"cookie", cookie.partition(";")[0].encode())
        bearer = (b"authorization", b"Bearer secret")
        for header in (kept, bearer):
            assert asked.ask("GET", "/", headers=[host, header]).status == 200
            assert asked.program({"model": "llama3.2-1b"}, headers=[host, JSON, header]).status == 200
        for header in (
            (b"cookie", b"llmir=secret"),
            (b"authorization", b"Bearer secre"),
            (b"cookie", b'";='),
        ):
            assert asked.ask("GET", "/api/hw", headers=[host, header]).status == 401
        assert asked.ask("GET", "/api/hw", headers=[(b"host", b"evil.example"), bearer]).status == 403


def test_hosts_are_those_of_where_it_listens() -> None:
    assert "127.0.0.2:1" in AllowedHosts("127.0.0.2")
    assert "10.0.0.5" in AllowedHosts("10.0.0.5")
    assert "localhost" not in AllowedHosts("10.0.0.5")
    assert f"{socket.gethostname()}:8765" in AllowedHosts("0.0.0.0")
    assert "evil.example" not in AllowedHosts("0.0.0.0")


@pytest.mark.slow
def test_requests_of_all_kinds_are_answered() -> None:
    statuses = serve_cases.fuzzed(serve_cases.SOME)
    assert {200, 400, 403, 404, 422} <= statuses.keys()


# The command.


def _serve(*options: str, **how: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "llmir", "serve", *options]
    return subprocess.Popen(
        command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **how
    )


@pytest.mark.slow
def test_it_serves_until_it_is_interrupted_and_writes_nothing(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "HOME": str(tmp_path)}
    env |= {"TMPDIR": str(tmp_path)}
    process = _serve("--port", "0", env=env)
    assert process.stderr is not None
    said = process.stderr.readline()
    found = re.fullmatch(r"llmir serves (http://127\.0\.0\.1:(\d+)/), until Ctrl\+C\n", said)
    assert found, said
    with urllib.request.urlopen(found[1], timeout=30) as page:
        assert page.read().startswith(b"<!doctype html>")
    body = json.dumps({"model": "llama3.2-1b"}).encode()
    ask = urllib.request.Request(f"{found[1]}api/program", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(ask, timeout=60) as answer:
        assert json.load(answer)["model"] == "Llama-3.2-1B"
    again = _serve("--port", found[2], env=env)
    _, why = again.communicate(timeout=60)
    assert again.returncode == 2
    assert re.fullmatch(rf"error: --port {found[2]}: .*in use; \d+ is free, --port \d+\n", why)
    process.send_signal(signal.SIGINT)
    out, rest = process.communicate(timeout=30)
    assert (process.returncode, out, rest) == (0, "", "")
    assert list(tmp_path.rglob("*")) == []


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--host", "0.0.0.0"], "other machines can reach it; it requires --token"),
        (["--host", "192.0.2.1", "--token", "x"], os.strerror(errno.EADDRNOTAVAIL)),
        (["--token", "a b"], "printable ASCII"),
        (["--token", ""], "printable ASCII"),
        (["--port", "70000"], "--port: expected an integer from 0 to 65,535, got 70000"),
        (["--port", "x"], "--port: expected an integer from 0 to 65,535, got 'x'"),
    ],
)
def test_what_the_command_refuses(
    options: list[str], why: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["serve", *options])
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert why in said
    assert said.count("\n") == 1


@pytest.mark.slow
def test_without_the_extra_a_line_names_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("llmir.page_server")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(SystemExit) as ended:
        cli.main(["serve"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == "error: serve needs uvicorn: pip install llmir[serve]\n"
