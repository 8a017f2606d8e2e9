"""What reads what others wrote, each with valid inputs to begin from."""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import llmir
from llmir import hw
from llmir.cli import cli
from llmir.errors import InputError
from llmir.frontends import presets
from llmir.frontends.weights import expected
from llmir.graph import Program
from llmir.passes.modules import plan_file
from llmir.passes.quantize import Quantize
from llmir.text import read_program
from tests.commands import TINY

ROOT = Path(__file__).resolve().parents[2]
IR = ROOT / "tests" / "ir"
HW = ROOT / "hw"
MOE: dict[str, Any] = TINY | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "moe_intermediate_size": 32,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "head_dim": 16,
}
DEVICE = b"name: X\nvector_tflops: {fp32: 1}\nmemory_GiB: 8\nmemory_GBps: 100\n"


class BrokenError(AssertionError):
    """A result that cannot be right."""


@dataclass(frozen=True)
class Reader:
    """Bytes of a kind, what takes them, and valid ones."""

    name: str
    suffix: str
    take: Callable[[bytes], object]
    corpus: Callable[[], list[bytes]]
    seconds: float = 1.0  # of processor time, at most


READERS: dict[str, Reader] = {}


def reader(suffix: str, corpus: Callable[[], list[bytes]]) -> Callable[[Any], Any]:
    def register(take: Callable[[bytes], object]) -> Callable[[bytes], object]:
        name = take.__name__.removeprefix("read_")
        READERS[name] = Reader(name, suffix, take, corpus)
        return take

    return register


def _file(data: bytes, name: str) -> Path:
    path = Path(name)
    path.write_bytes(data)
    return path


@cache
def _tiny() -> Program:
    return llmir.run(llmir.load(TINY), llmir.DEFAULT_PIPELINE)


def _files(folder: Path, pattern: str, most: int = 5000) -> list[bytes]:
    return [data for path in sorted(folder.rglob(pattern)) if len(data := path.read_bytes()) <= most]


def _configs() -> list[bytes]:
    golden = json.loads((ROOT / "tests/data/configs.json").read_text())
    bundled = [p.config for name in presets.names() if (p := presets.find(name))]
    return [json.dumps(dict(c)).encode() for c in (TINY, MOE, *_leaves(golden), *bundled)]


def _leaves(group: Any) -> Iterator[dict[str, Any]]:
    """The configs in a tree of them."""
    if "architectures" in group:
        yield group
    else:
        for inner in group.values():
            if isinstance(inner, dict):
                yield from _leaves(inner)


@reader(".json", _configs)
def read_config(data: bytes) -> None:
    """A config.json, up to the times of a request."""
    program = llmir.load(_file(data, "config.json"))
    llmir.workload(llmir.run(program, llmir.DEFAULT_PIPELINE), "h100", batch=2, prompt=16, generate=4)


@reader(".yaml", lambda: [DEVICE, *_files(HW / "devices", "*.yaml"), *_files(HW / "clusters", "*.yaml")])
def read_device(data: bytes) -> None:
    """A device's file, up to times on it and its own page."""
    device = hw.load(_file(data, "device.yaml"))
    llmir.devices(device)
    llmir.workload(_tiny(), device, batch=2, prompt=16, generate=4)


def _calibrations() -> list[bytes]:
    head = DEVICE + b"calibration:\n  engine: x\n  x:\n"
    files = _files(HW / "calibrations", "*.yaml", 12_000)
    return [head + b"".join(b"    " + line + b"\n" for line in data.splitlines()) for data in files]


@reader(".yaml", _calibrations)
def read_calibration(data: bytes) -> None:
    """A device's file with a calibration of its own."""
    read_device(data)


@reader(".yaml", lambda: _files(HW / "engines", "*.yaml"))
def read_engine(data: bytes) -> None:
    """What an engine adds, up to times with it."""
    _file(data, "engine.yaml")
    llmir.workload(_tiny(), "h100", batch=2, prompt=16, generate=4, engine="./engine.yaml")


def _plans() -> list[bytes]:
    return [
        b"lm_head: fp8\nmlp: {weights: fp8, activations: fp8}\n",
        b"'*_proj': int4_g32\ndown_proj: {weights: bf16, activations: keep}\nlayer.k_cache: {kv: int8}\n",
        b"model.layers.*.mlp.down_proj: nvfp4\nmlp: {collectives: int8}\n",
    ]


@cache
def _sharded() -> Program:
    return llmir.run(llmir.load(TINY), "shard{tp=2}")


@reader(".yaml", _plans)
def read_plan(data: bytes) -> None:
    """A plan of dtypes, up to the model that it changes."""
    llmir.run(_sharded(), Quantize(activations="fp8", plan=plan_file(_file(data, "plan.yaml"))))


def _programs() -> list[bytes]:
    """A file may hold two, one after another."""
    texts = [re.split(rb"^(?=program )", data, flags=re.MULTILINE) for data in _files(IR, "*.ir", 9000)]
    return [part for parts in texts for part in parts if b"graph" in part]


@reader(".ir", _programs)
def read_ir(data: bytes) -> None:
    """A program: it prints as itself, and its step has a time."""
    program = read_program(_file(data, "program.ir"))
    text = llmir.print_program(program)
    if llmir.parse_program(text) != program:
        raise BrokenError("what is printed parses to another program")
    llmir.analyze(program, "h100", batch=2, new=3, context=5).time_s  # noqa: B018 (it is computed when asked for)


@reader(".txt", lambda: [llmir.DEFAULT_PIPELINE.encode(), *_PIPELINES])
def read_pipeline(data: bytes) -> None:
    """The passes that `-p` names."""
    llmir.run(_moe(), data.decode("utf-8", "surrogateescape"))


_PIPELINES = [
    b"fuse-attention,fuse,dce,quantize{weights=fp8, activations=fp8, kv=int8}",
    b"quantize{activations=fp8, plan=(lm_head:fp8, mlp:(weights=fp8, activations=keep))},fuse",
    b"stages{pp=2, micro_batches=2},shard{tp=2, dp=2, ep=4, sp=true}",
    b"unroll,route{skew=1.1}",
]


@cache
def _moe() -> Program:
    return llmir.load(MOE)


def _tables() -> list[bytes]:
    return [text.encode() for text in _TABLES]


_TABLES = (
    "gpu,dtype,m,n,k,latency_us,framework,kernel,turns\nh100_sxm,bfloat16,64,4096,4096,12,vllm-1,,\n"
    "b200_sxm,fp8,8192,8192,8192,900,trtllm-1.0,fp8_gemm,3\nrtx3090,float16,1,128,128,5,y,,0\n",
    "gpu,dtype,kv_dtype,batch,q_len,context,num_heads,num_kv_heads,head_dim,window,latency_us,framework,kernel\n"
    "h100_sxm,bfloat16,bfloat16,8,1,2048,32,8,128,0,40,vllm-1,decode\n"
    "a100_sxm,bfloat16,fp8,1,512,0,32,8,128,256,90,sglang-1,prefill\n",
    "gpu,dtype,num_tokens,hidden,inter,topk,num_experts,moe_tp,moe_ep,latency_us,framework,op,kernel,source,distribution\n"
    "h100_sxm,bfloat16,64,2048,768,8,128,1,1,90,vllm-1,,,,power_law_1.2\n"
    "h100_sxm,fp8_block,64,2048,768,8,128,2,4,90,sglang-1,moe,,,balanced\n",
    "gpu,dtype,op,rows,cols,bytes_moved_ideal,latency_us,framework,kernel\n"
    "h100_sxm,bfloat16,rmsnorm,64,4096,1048576,4,vllm-1,\nh100_sxm,bfloat16,mem_op,1,1,1048576,4,x,\n",
    "gpu,op,dtype,num_gpus,bytes,latency_us,framework,note\n"
    "h100_sxm,all_reduce,bfloat16,8,1048576,30,nccl,\nh100_sxm,all_gather,half,2,1024,9,nccl,x\n",
    "model,gpu,num_gpus,tp,pp,ep,dp,weight_dtype,kv_dtype,batch_or_concurrency,isl,osl,ttft_ms,tpot_ms,"
    "e2e_latency_ms,throughput_tok_s,throughput_kind,kind,framework,mode,flag,source\n"
    "llama-2-7b,a100_sxm,1,1,1,1,1,bf16,,2,64,16,30,9,200,,,static_batch_latency,x-1.0,,,\n"
    "llama-3.1-8b,h100_sxm,2,2,1,1,1,fp8,fp8,8,64,16,,,,5000,output,static_batch_latency,vllm-0.6,,,\n",
    "id,input_tokens,output_tokens,ttft_ms,tpot_ms,e2e_s\na,16,8,9,1.5,1\nb,40,1,,,\n",
)


@reader(".csv", _tables)
def read_table(data: bytes) -> None:
    """A measured table or a chat log, up to errors by group."""
    path = _file(data, "table.csv")
    chat = b"input_tokens" in data.split(b"\n", 1)[0]
    on: dict[str, Any] = {"program": _tiny(), "hw": "h100"} if chat else {}
    llmir.validate(path, **on).groups()  # type: ignore[operator]


@cache
def _plain() -> Program:
    return llmir.load(TINY)


def _headers() -> list[bytes]:
    named = expected(_plain())
    header = {
        name: {"dtype": "BF16", "shape": t.shape, "data_offsets": [0, t.bytes]} for name, t in named.items()
    }
    totals = {"total_size": 12345, "total_parameters": 77}
    index = {"metadata": totals, "weight_map": dict.fromkeys(named, "a.safetensors")}
    few = dict(list(header.items())[:3]) | {"__metadata__": {"format": "pt"}}
    dumps = [json.dumps(x).encode() for x in (header, few, index)]
    return dumps + [len(d).to_bytes(8, "little") + d for d in dumps[:2]]


@reader(".safetensors", _headers)
def read_safetensors(data: bytes) -> None:
    """A header, alone or dumped as JSON, or an index, beside the weights of a model."""
    path = _file(data, "index.json" if data[:1] == b"{" else "model.safetensors")
    found = llmir.check(_plain(), path)
    found.to_dict(), found.pairs()  # type: ignore[union-attr]


# --- command lines: an argument a line ---------------------------------------------------------------

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
    "max M --prompt 8 --generate 4 --max-ttft 1s --max-tpot 20ms --max-num-seqs 8 --price h100=2 -o out.csv",
    "models llama --format json",
    "models llama3.1-8b",
    "ops linear --format md",
    "ops -o out.csv",
    "opt M -p fuse-attention,unroll,dce -o out.ir",
    "opt M -p quantize{weights=int4_g32},shard{tp=2}",
    "passes --format csv",
    "validate gemm.csv --by kind,size --format csv -o out.csv",
    "validate chat.csv --model M --hw h100 --engine vllm --batch 2 --tp 2 --cost ideal",
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
        "tiny.ir": (IR / "tiny-llama.ir").read_bytes(),
        "plan.yaml": _plans()[0],
        "device.yaml": DEVICE,
        "gemm.csv": _tables()[0],
        "chat.csv": _tables()[-1],
        "model.safetensors": _headers()[-1],
    }


def _state() -> dict[str, tuple[int, int]]:
    return {p.name: ((s := p.lstat()).st_size, s.st_mtime_ns) for p in Path().iterdir()}


@reader(".txt", _lines)
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
        _file(content, name)
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
