"""Command lines: an argument a line."""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path

from llmir.base.errors import InputError
from llmir.cli.main import cli
from tests.commands import TINY

from .reader import BrokenError, file, reader
from .readers import DEVICE, IR, MOE, headers, plans, tables, traces

_MODELS = ("tiny.json", "moe.json", "tiny.ir", "llama3.1-8b", "./tiny.json")
_COMMANDS = (
    "analyze M --hw h100-sxm --batch 8 --prompt 2048 --generate 16 --format json",
    "analyze M --cluster dgx-h100 --tp 2 --dp 2 --ep 4 --sp --routing-skew 1.1 -o out.csv",
    "analyze M --pp 2 --micro-batches 2 --cost ideal --attention eager --logits all --lenient",
    "analyze M --pp 1,1 --engine vllm --memory-utilization 0.8 --reserve 2GiB --require-fit",
    "analyze M --cost calibrated --weights int4_g32",
    "analyze M --efficiency compute=0.7,memory=0.8,launch=1e-6 --max-ttft 10 --max-tpot 5",
    "analyze M --weights fp8 --activations fp8 --kv int8 --collectives int8 --tp 2 --format md -o -",
    "analyze M --precision plan.yaml --hw device.yaml --format html -o out.html",
    "check M --index model.safetensors --format json",
    "check M --tp 2 --batch 2 --prompt 8",
    "diff M --pass fuse --hw h100 --hw-after h200 --format csv",
    "diff M M --before fuse-attention,fuse --after fuse-attention --batch 2 -o out.txt",
    "draw M --hw a100 --phase decode --level overview -o out.dot",
    "draw M --phase both --level full -o out.gv",
    "explain M qkv_proj --phase decode --batch 4 --format json -o out.json",
    "hw h100-sxm --format csv",
    "hw dgx-h100 -o out.md",
    "models llama --format json",
    "models llama3.1-8b",
    "ops linear --format md",
    "ops -o out.csv",
    "opt M -p fuse-attention,unroll,dce -o out.ir",
    "opt M -p quantize{weights=int4_g32},shard{tp=2}",
    "passes --format csv",
    "validate gemm.csv --by kind,size --format csv -o out.csv",
    "validate chat.csv --model M --hw h100 --engine vllm --batch 2 --tp 2 --cost ideal",
    "emit M --hw h100 --phase decode --to js -o out.js",
    "kv M --batch 2 --prompt 64 --link host --hw h100-sxm",
    "plan M --hw h100,h200 --gpus 2 --rate 20 --prompt 64 --generate 16 --max-ttft 1s --requests 100",
    "max M --prompt 8 --generate 4 --max-ttft 1s --max-tpot 20ms --max-num-seqs 8 --price h100=2 -o out.csv",
    "sensitivity M --hw h100 --batch 2 --format json",
    "serve-sim M --hw h100 --rate 20 --prompt lognormal:64,0.6 --generate 16 --requests 50 --seed 1",
    "serve-sim M --closed 4 --prompt 20 --generate uniform:1,9 --requests 40 --replicas 2 -o out.md",
    "serve-sim M --trace trace.csv --speed 2 --requests-out out.csv --steps-out steps.csv",
    "sweep M --hw h100,h200 --batch 1:4:x2 --context 16,32 --tp 1,2 --weights bf16,fp8 -o grid.csv",
    "sweep M --batch 1:8:+3 --pp 1,2 --format jsonl",
    "trace M --hw h100 --batch 2 --phase prefill -o out.json.gz",
    "--version",
    "analyze M --help",
)


def _lines() -> list[bytes]:
    return [
        "\n".join(line.replace("M", model).split()).encode() for line in _COMMANDS for model in _MODELS[:3]
    ] + ["\n".join(_MODELS).encode()]


@cache
def _folder() -> dict[str, bytes]:
    return {
        "tiny.json": json.dumps(TINY).encode(),
        "moe.json": json.dumps(MOE).encode(),
        "tiny.ir": (IR / "programs" / "tiny-llama.ir").read_bytes(),
        "plan.yaml": plans()[0],
        "device.yaml": DEVICE,
        "gemm.csv": tables()[0],
        "chat.csv": tables()[-1],
        "model.safetensors": headers()[-1],
        "trace.csv": traces()[0],
    }


def _state() -> dict[str, tuple[int, int]]:
    return {p.name: ((s := p.lstat()).st_size, s.st_mtime_ns) for p in Path().iterdir()}


@reader(".txt", _lines, seconds=5)  # which plans and simulations may take
def read_command(data: bytes) -> None:
    """A command line: it ends with 0, 1, 2 or 3, the last two with one line and no file left behind."""
    arguments = data.replace(b"\x00", b"").decode("utf-8", "surrogateescape").split("\n")
    # Nothing outside of this folder is touched, nothing is measured, and no plugin is run: anybody's code.
    if any(x in a for a in arguments for x in ("..", "~", "=/", "--plugin", "--run", "--traceback")) or any(
        a.startswith("/") for a in arguments
    ):
        return
    for path in Path().iterdir():
        if path.name not in _folder():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for name, content in _folder().items():
        file(content, name)
    before = _state()
    code, _, err = _ran(arguments)
    if code not in (0, 1, 2, 3):
        raise BrokenError(f"ends with {code}: {err.strip()[-200:]}")
    if code > 1:
        if not re.fullmatch(r"error: [^\n]+\n", err):
            raise BrokenError(f"{code} and not one line: {err[-300:]!r}")
        if _state() != before:
            raise BrokenError(f"ends with {code} and leaves files changed")
        raise InputError(err.strip())


def _ran(arguments: list[str]) -> tuple[int, str, str]:
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with redirect_stdout(out), redirect_stderr(err), suppress_input():
        try:
            cli.main(arguments)
        except SystemExit as ended:
            code = ended.code
    texts = [f.buffer.getvalue().decode("utf-8", "replace") for f in (out, err)]  # type: ignore[attr-defined]
    return (code if isinstance(code, int) else 0 if code is None else 1), *texts


@contextmanager
def suppress_input() -> Iterator[None]:
    """An empty stdin."""
    old, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO())
    try:
        yield
    finally:
        sys.stdin = old
