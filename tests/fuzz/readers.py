"""What reads what others wrote, each with valid inputs to begin from."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import llmir
from llmir.backends.simulate.load import trace_load
from llmir.frontends.checkpoints.weights import expected
from llmir.frontends.models import presets
from llmir.hw import library
from llmir.ir.core.program import Program
from llmir.ir.tools.text import read_program
from llmir.passes.modules import plan_file
from llmir.passes.quantize import Quantize
from tests.commands import TINY

from .reader import ROOT, BrokenError, file, reader

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


@cache
def _tiny() -> Program:
    return llmir.run(llmir.load(TINY), llmir.pipeline_of())


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
    program = llmir.load(file(data, "config.json"))
    llmir.workload(llmir.run(program, llmir.pipeline_of()), "h100", batch=2, prompt=16, generate=4)


@reader(".yaml", lambda: [DEVICE, *_files(HW / "devices", "*.yaml"), *_files(HW / "clusters", "*.yaml")])
def read_device(data: bytes) -> None:
    """A device's file, up to times on it and its own page."""
    device = library.load(file(data, "device.yaml"))
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
    file(data, "engine.yaml")
    llmir.workload(
        _tiny(), "h100", batch=2, prompt=16, generate=4, estimation=llmir.Estimation(engine="./engine.yaml")
    )


def plans() -> list[bytes]:
    return [
        b"lm_head: fp8\nmlp: {weights: fp8, activations: fp8}\n",
        b"'*_proj': int4_g32\ndown_proj: {weights: bf16, activations: keep}\nlayer.k_cache: {kv: int8}\n",
        b"model.layers.*.mlp.down_proj: nvfp4\nmlp: {collectives: int8}\n",
    ]


@cache
def _sharded() -> Program:
    return llmir.run(llmir.load(TINY), "shard{tp=2}")


@reader(".yaml", plans)
def read_plan(data: bytes) -> None:
    """A plan of dtypes, up to the model that it changes."""
    llmir.run(_sharded(), Quantize(activations="fp8", plan=plan_file(file(data, "plan.yaml"))))


def _programs() -> list[bytes]:
    """A file may hold two, one after another."""
    texts = [re.split(rb"^(?=program )", data, flags=re.MULTILINE) for data in _files(IR, "*.ir", 9000)]
    return [part for parts in texts for part in parts if b"graph" in part]


@reader(".ir", _programs)
def read_ir(data: bytes) -> None:
    """A program: it prints as itself, and its step has a time."""
    program = read_program(file(data, "program.ir"))
    text = llmir.print_program(program)
    if llmir.parse_program(text) != program:
        raise BrokenError("what is printed parses to another program")
    llmir.analyze(program, "h100", batch=2, new=3, context=5).time_s  # noqa: B018 (it is computed when asked for)


@reader(".txt", lambda: [llmir.pipeline_of().encode(), *_PIPELINES])
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


def tables() -> list[bytes]:
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


@reader(".csv", tables)
def read_table(data: bytes) -> None:
    """A measured table or a chat log, up to errors by group."""
    path = file(data, "table.csv")
    chat = b"input_tokens" in data.split(b"\n", 1)[0]
    on: dict[str, Any] = {"program": _tiny(), "hw": "h100"} if chat else {}
    llmir.validate(path, **on).groups()  # type: ignore[operator]


@cache
def _plain() -> Program:
    return llmir.load(TINY)


def headers() -> list[bytes]:
    named = expected(_plain())
    header = {
        name: {"dtype": "BF16", "shape": t.shape, "data_offsets": [0, t.bytes]} for name, t in named.items()
    }
    totals = {"total_size": 12345, "total_parameters": 77}
    index = {"metadata": totals, "weight_map": dict.fromkeys(named, "a.safetensors")}
    few = dict(list(header.items())[:3]) | {"__metadata__": {"format": "pt"}}
    dumps = [json.dumps(x).encode() for x in (header, few, index)]
    return dumps + [len(d).to_bytes(8, "little") + d for d in dumps[:2]]


@reader(".safetensors", headers)
def read_safetensors(data: bytes) -> None:
    """A header, alone or dumped as JSON, or an index, beside the weights of a model."""
    path = file(data, "index.json" if data[:1] == b"{" else "model.safetensors")
    found = llmir.check(_plain(), path)
    found.to_dict(), found.pairs()  # type: ignore[union-attr]


def traces() -> list[bytes]:
    """Each form, of three requests."""
    lines = [{"timestamp": 500 * i, "input_length": 600 + i, "output_length": 3} for i in range(3)]
    shared = [{**line, "hash_ids": [0, 10 + i]} for i, line in enumerate(lines)]
    return [
        b"arrival_s,prompt,generate\n0,16,4\n0.5,20,1\n0.5,7,9\n",
        b"arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,16,4\n1.25,20,1\n2,7,9\n",
        b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68059,374,44\n2023-11-16 18:15:50,9,9",
        *("\n".join(map(json.dumps, each)).encode() for each in (lines, shared)),
    ]


@reader(".txt", traces)
def read_trace(data: bytes) -> None:
    """A trace of requests, up to their latencies."""
    path = file(data, "trace.jsonl" if data[:1] == b"{" else "trace.csv")
    load = trace_load(path)
    if load.written.sum() < 1e5:
        found = llmir.simulate(_tiny(), "h100", llmir.Traffic(trace=path))
        if not (found.ttft_s >= 0).all():
            raise BrokenError("a first token before its request")
