"""Measured rows are priced as closed forms say, counted when they cannot be, and summed up as statistics say.

The numbers in the tables are made up here.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import llmir
from llmir.backends.cost.transfer import basis
from llmir.backends.kernels.attention import AttentionShape
from llmir.backends.request.closed_loop import ClosedLoopWorkload
from llmir.backends.silicon.validate import bounds
from llmir.backends.silicon.validate.rows import Validation, ValidationRow
from llmir.hw import library

H100, B200 = library.load("h100-sxm"), library.load("b200")
GEMM = "gpu,dtype,m,n,k,latency_us,framework\n"
HEADS = "gpu,dtype,kv_dtype,batch,q_len,context,num_heads,num_kv_heads,head_dim,window,latency_us,framework\n"
MOE = "gpu,dtype,num_tokens,hidden,inter,topk,num_experts,moe_tp,moe_ep,latency_us,framework\n"
MOVED = "gpu,dtype,op,rows,cols,bytes_moved_ideal,latency_us,framework\n"
SENT = "gpu,op,dtype,num_gpus,bytes,latency_us,framework,note\n"
MODEL = (
    "model,gpu,num_gpus,tp,pp,ep,dp,weight_dtype,kv_dtype,batch_or_concurrency,isl,osl,ttft_ms,tpot_ms,"
    "e2e_latency_ms,throughput_tok_s,throughput_kind,kind,framework,mode,flag,note,source\n"
)


def model(**changes: Any) -> str:
    row = {
        **{"model": "llama-2-7b", "gpu": "a100_sxm", "kind": "static_batch_latency", "framework": "x-1.0"},
        **{"tp": 1, "batch_or_concurrency": 2, "isl": 64, "osl": 16, **changes},
    }
    return ",".join(str(row.get(c, "")) for c in MODEL.strip().split(",")) + "\n"


def only(found: Validation) -> ValidationRow:
    assert not found.refused, found.refused
    [row] = found.rows
    return row


@pytest.mark.parametrize(("m", "n", "k"), [(1, 4096, 4096), (8192, 8192, 8192), (16, 128, 57344)])
def test_a_gemm_takes_the_longer_of_its_flops_and_its_bytes(judge: Any, m: int, n: int, k: int) -> None:
    found = judge(GEMM + f"h100_sxm,bfloat16,{m},{n},{k},100,x-1\nh100_sxm,fp8,{m},{n},{k},100,x-1\n")
    wide, narrow = found.rows
    moved = 2 * (m * k + k * n + m * n)
    expected = max(2 * m * n * k / H100.matrix_flops["bf16"], moved / H100.memory_Bps)
    assert wide.predicted_s == wide.ideal_s == pytest.approx(expected, rel=1e-12, abs=0)
    moved = 2 * m * k + k * n + 4 * n + 2 * m * n  # x is narrowed in the call; with a scale a channel
    expected = max(2 * m * n * k / H100.matrix_flops["fp8"], moved / H100.memory_Bps)
    assert narrow.ideal_s == pytest.approx(expected, rel=1e-12, abs=0)


def test_attention_reads_the_cache_once_and_a_window_no_more_than_itself(judge: Any) -> None:
    rows = "".join(
        f"h100_sxm,bfloat16,fp8,8,1,{c},32,8,128,{w},9999,x\n" for c, w in ((4096, 0), (4096, 128), (64, 128))
    )
    found = judge(HEADS + rows + "h100_sxm,bfloat16,bfloat16,1,4096,4096,32,8,128,0,9999,x\n")
    assert [r.kind for r in found.rows].count("attention_prefill") == 1
    for row, keys in zip(found.rows, (4096, 128, 64), strict=False):
        moved = 8 * (2 * keys * 8 * 128 + 2 * 2 * 32 * 128)
        assert row.ideal_s == pytest.approx(moved / H100.memory_Bps, rel=1e-12, abs=0)
    pairs = 4096 * 4097 // 2
    assert found.rows[-1].ideal_s == pytest.approx(
        4 * 32 * 128 * pairs / H100.matrix_flops["bf16"], rel=1e-12, abs=0
    )


@pytest.mark.parametrize(
    ("new", "seen", "window"), [(4096, 4096, 128), (4096, 4096, 5000), (64, 4160, 1024), (300, 400, 256)]
)
def test_a_window_leaves_the_pairs_of_its_band(judge: Any, new: int, seen: int, window: int) -> None:
    past = seen - new
    pairs = sum(min(past + i + 1, window) for i in range(new))
    found = judge(HEADS + f"h100_sxm,bfloat16,bfloat16,64,{new},{seen},64,8,128,{window},99999,x\n")
    compute = 64 * 4 * 64 * 128 * pairs / H100.matrix_flops["bf16"]
    softmax = 64 * 5 * 64 * pairs / H100.vector_flops["fp32"]
    memory = 64 * 2 * 128 * (2 * 64 * new + 2 * 8 * seen) / H100.memory_Bps
    row = only(found)
    assert max(compute, softmax) <= row.ideal_s * (1 + 1e-9)
    assert row.ideal_s <= max(compute, softmax, memory) * (1 + 1e-9)


def test_experts_are_read_where_they_are_touched_and_rows_are_shared_over_ranks(judge: Any) -> None:
    row = only(judge(MOE + "h100_sxm,bfloat16,4,2048,768,8,128,1,2,9999,x\n"))
    # Each rank has all tokens and half of their rows, of as many experts: loads are even by default.
    moved = 2 * 8 * 3 * 2048 * 768 * 2 + 2 * (4 * 2048 * 2) + 2 * (4 * 8 * 4)
    assert row.ideal_s == pytest.approx(moved / H100.memory_Bps, rel=1e-6)


@pytest.mark.parametrize("routing", ["{x}", "{", "{law.__class__}", "{ranks:>999999999999}", "chance{"])
def test_a_routing_that_is_no_law_is_refused(judge: Any, routing: str) -> None:
    columns = MOE.replace("framework", "framework,routing")
    [refused] = judge(columns + f"h100_sxm,bfloat16,4,2048,768,8,128,1,2,9999,x,{routing}\n").refused
    assert refused.reason.startswith("routing ")


def test_experts_of_more_ranks_than_there_can_be_are_refused(judge: Any) -> None:
    ranks = 2**31 - 1  # a prime
    [refused] = judge(MOE + f"h100_sxm,bfloat16,4,2048,768,8,{ranks},1,{ranks},9999,x\n").refused
    assert "1,048,576" in refused.reason


def test_a_norm_that_narrows_reads_wide_rows_whatever_its_type_is_called(judge: Any) -> None:
    wide, narrow = (
        only(judge(MOVED + f"h100_sxm,{dtype},rms_norm_quant_fp8,64,4096,0,9,x\n")).ideal_s
        for dtype in ("bfloat16", "fp8")
    )
    assert wide == narrow


@pytest.mark.parametrize(
    ("op", "gpus", "sent"), [("all_reduce", 4, 2 * 3 / 4), ("all_gather", 8, 7 / 8), ("alltoall", 2, 1 / 2)]
)
def test_collectives_take_what_a_ring_sends(judge: Any, op: str, gpus: int, sent: float) -> None:
    a100 = library.load("a100")
    size = 1 << 26
    row = only(judge(SENT + f"a100_sxm,{op},half,{gpus},{size},9999,nccl-2.27.3,\n"))
    sending = sent * size / a100.link(gpus)[1].Bps
    assert sending <= row.ideal_s <= sending * 1.02  # and a hop's latency
    assert row.engine == "nccl"


def test_rows_faster_than_the_roofline_get_the_rule_that_explains_them(judge: Any) -> None:
    l2 = H100.l2_bytes
    assert l2
    cases = [
        (l2, 0.5, bounds.RESIDENT),
        (l2 * 2, 0.75, bounds.PARTLY),
        (l2 * 100, 0.9, bounds.MEMORY),
        (l2 * 100, 1.1, ""),
    ]
    lines = (  # as many bytes read as written
        f"h100_sxm,fp16,gelu,1,{n // 4},{n},{share * n / H100.memory_Bps * 1e6},x\n" for n, share, _ in cases
    )
    found = judge(MOVED + "".join(lines))
    assert [r.exceeds for r in found.rows] == [rule for _, _, rule in cases]
    flops = 2 * 8192**3 / H100.matrix_flops["bf16"]
    fast = judge(GEMM + f"h100_sxm,bfloat16,8192,8192,8192,{flops * 0.9e6},x\n")
    assert only(fast).exceeds == bounds.COMPUTE
    assert bounds.COMPUTE not in bounds.EXCLUDED


def test_a_static_batch_is_a_workload_and_its_throughput_says_the_same(judge: Any) -> None:
    program = llmir.run(llmir.load("llama2-7b"), [llmir.pipeline_of(), "shard{tp=2}"])
    job = llmir.workload(
        program, "a100", batch=2, prompt=64, generate=16, estimation=llmir.Estimation(cost="ideal")
    )
    e2e = 1234.0
    both = 2 * (64 + 16) / e2e * 1e3
    out = 2 * 16 / e2e * 1e3
    rows = [
        model(tp=2, num_gpus=2, e2e_latency_ms=e2e, throughput_tok_s=9),
        model(
            tp=2,
            kind="static_batch_throughput",
            throughput_tok_s=both,
            throughput_kind="total (input+output)",
        ),
        model(
            tp=2, kind="static_batch_throughput", throughput_tok_s=out / 2, throughput_kind="output per GPU"
        ),
        model(
            num_gpus=2,
            tp="",
            pp=1,
            dp=1,
            kind="single_stream",
            throughput_tok_s=out,
            throughput_kind="output",
        ),
    ]
    found = judge(MODEL + "".join(rows))
    assert not found.refused
    for row in found.rows:
        assert (row.metric, row.measured_s) == ("e2e", pytest.approx(e2e / 1e3))
        assert row.predicted_s == row.ideal_s == job.e2e_s


def test_ttft_and_tpot_are_judged(judge: Any) -> None:
    program = llmir.run(llmir.load("llama2-7b"), llmir.pipeline_of())
    job = llmir.workload(
        program, "a100", batch=2, prompt=64, generate=16, estimation=llmir.Estimation(cost="ideal")
    )
    found = judge(MODEL + model(ttft_ms=50, tpot_ms=20) + model(ttft_ms=50, osl=""))
    assert [(r.row, r.metric, r.predicted_s) for r in found.rows] == [
        (1, "tpot", job.tpot_s),
        (1, "ttft", job.ttft_s),
        (2, "ttft", job.ttft_s),
    ]
    serving = judge(MODEL + model(kind="serving_closed_loop", ttft_ms=50, tpot_ms=20))
    assert [r.metric for r in serving.rows] == ["tpot", "ttft"]


def test_a_closed_loop_is_what_analyze_prints(judge: Any) -> None:
    program = llmir.run(llmir.load("llama2-7b"), llmir.pipeline_of())
    row = only(
        judge(MODEL + model(kind="serving_closed_loop", batch_or_concurrency=8, isl=512, osl=32, tpot_ms=99))
    )
    job = llmir.workload(
        program, "a100", concurrency=8, prompt=512, generate=32, estimation=llmir.Estimation(cost="ideal")
    )
    assert isinstance(job, ClosedLoopWorkload)
    assert row.predicted_s == job.loop.tpot_s
    decode, prompt = (
        llmir.analyze(
            program, "a100", batch=batch, new=new, context=cached, estimation=llmir.Estimation(cost="ideal")
        ).time_s
        for batch, new, cached in ((8, 1, 512 + 15), (1, 512, 0))
    )
    assert 0.9 * decode < row.ideal_s <= row.predicted_s < decode + 7 / 31 * prompt


@pytest.mark.parametrize(
    ("note", "degrees"),
    [
        ("PP", {"tp": 1, "pp": 4, "ep": 1}),
        ("TP", {"tp": 4, "pp": 1, "ep": 1}),
        ("EP", {"tp": 4, "pp": 1, "ep": 4}),
        ("Hybrid TP = 2 and PP = 2", {"tp": 2, "pp": 2, "ep": 1}),
        ("Hybrid TP = 2 and EP = 2", {"tp": 4, "pp": 1, "ep": 2}),
    ],
)
def test_a_note_says_how_gpus_are_used_where_no_column_does(
    judge: Any, note: str, degrees: dict[str, int]
) -> None:
    name = "mixtral-8x7b" if "EP" in note else "llama3.1-8b"
    given = {"model": name, "num_gpus": 4, "e2e_latency_ms": 9999, "dp": 1}
    noted = only(judge(MODEL + model(**given, tp="", pp="", ep="", note=note)))
    stated = only(judge(MODEL + model(**given, **degrees)))
    assert noted.predicted_s == stated.predicted_s


def test_a_batch_beyond_memory_runs_in_waves_and_the_bound_does_not(judge: Any) -> None:
    program = llmir.run(llmir.load("llama2-7b"), llmir.pipeline_of())
    one = llmir.workload(
        program, "a100", batch=1, prompt=1024, generate=1024, estimation=llmir.Estimation(cost="ideal")
    )
    batch = 2 * one.max_batch + 1
    row = only(judge(MODEL + model(batch_or_concurrency=batch, isl=1024, osl=1024, e2e_latency_ms=99999)))
    full = llmir.workload(
        program,
        "a100",
        batch=one.max_batch,
        prompt=1024,
        generate=1024,
        estimation=llmir.Estimation(cost="ideal"),
    )
    assert row.predicted_s == pytest.approx(2 * full.e2e_s + one.e2e_s)
    assert row.ideal_s < row.predicted_s


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": "nobody/has-it-7b"}, "unknown model"),
        ({"gpu": "mi100"}, "unknown device 'mi100'"),
        ({"tp": "", "pp": "", "num_gpus": 4}, "the row does not state how 4 GPUs are used"),
        ({"num_gpus": 8, "pp": 1, "dp": 1}, "num_gpus is 8, but tp·pp·dp is 1"),
        ({"weight_dtype": "int3"}, "weight_dtype 'int3'"),
        ({"kind": "warmup"}, "kind 'warmup'"),
        ({"mode": "disagg"}, "disagg"),
        ({"flag": "spec-decode possible/on"}, "speculative"),
        ({"isl": "long"}, "isl must be a number"),
        ({"isl": -5}, "isl must be an integer"),
        ({"batch_or_concurrency": 0}, "batch_or_concurrency must be an integer"),
        ({"osl": ""}, "osl is empty"),
        ({"e2e_latency_ms": ""}, "no measured value"),
        ({"tp": 3}, "cannot be split"),
        ({"model": "llama3-70b"}, "does not fit"),
    ],
)
def test_a_row_that_cannot_be_priced_is_counted_with_its_reason(
    judge: Any, changes: dict[str, Any], reason: str
) -> None:
    found = judge(MODEL + model(e2e_latency_ms=10) + model(**{"e2e_latency_ms": 10, **changes}))
    assert len(found.rows) == 1
    [refused] = found.refused
    assert refused.row == 2
    assert reason in refused.reason


def test_names_of_releases_and_machines_are_known(judge: Any) -> None:
    rows = [
        model(model="TheBloke/LLaMa-7B-GPTQ", weight_dtype="gptq4", e2e_latency_ms=9),
        model(model="lmsys/vicuna-7b-v1.5", gpu="a100_argonne", e2e_latency_ms=9),
    ]
    found = judge(MODEL + "".join(rows))
    assert [r.device for r in found.rows] == ["A100-80-SXM", "A100-40-SXM"]


def test_the_statistics_are_those_of_the_relative_errors(judge: Any) -> None:
    m = n = k = 8192
    seconds = 2 * m * n * k / H100.matrix_flops["bf16"]
    errors = (-0.5, -0.2, 0.25, -0.1)
    lines = (f"h100_sxm,bfloat16,{m},{n},{k},{seconds / (1 + e) * 1e6!r},vllm-1\n" for e in errors)
    found = judge(GEMM + "".join(lines) + "h100_sxm,int3,1,1,1,5,vllm-1\n")
    [group] = found.groups()
    assert group.keys == {"kind": "gemm", "metric": "latency", "device": "H100-SXM", "framework": "vllm-1"}
    assert (group.n, group.refused) == (4, 1)
    assert group.mape == pytest.approx(1.05 / 4)
    assert group.bias == pytest.approx(-0.55 / 4)
    assert group.median == pytest.approx(0.225)
    assert group.all_mape == pytest.approx((1.05 + 1) / 5)
    apart = found.groups(("engine", "dtype", "size"))
    assert sum(g.n for g in apart) == 4
    with pytest.raises(llmir.LlmirError, match=r"by: unknown key 'modell'.*did you mean model"):
        found.groups(("modell",))


@pytest.mark.parametrize(
    "text",
    [
        GEMM + "h100_sxm,fp8,{},4096,4096,100,vllm-1\n",
        HEADS + "h100_sxm,bfloat16,bfloat16,{},2048,2048,32,8,128,0,100,vllm-1\n",
        HEADS + "h100_sxm,bfloat16,fp8,{},1,2048,32,8,128,0,100,vllm-1\n",
        HEADS + "h100_sxm,float16,float16,{},1,2048,32,8,128,0,100,vllm-1\n",
        MOE + "h100_sxm,bfloat16,{},4096,1536,8,128,1,1,100,vllm-1\n",
        MOE + "h100_sxm,int8_wo,{},4096,1536,8,128,1,1,100,vllm-1\n",
        MOVED + "a100_sxm,float16,rms_norm,{0},4096,{0}0000,100,vidur\n",
        MOVED + "a100_sxm,float16,layernorm,{0},4096,{0}0000,100,vidur\n",
        SENT + "h100_sxm,all_reduce,half,8,{}000,100,nccl-2,\n",
    ],
)
def test_a_calibrated_row_takes_at_least_its_bound_and_grows(judge: Any, text: str) -> None:
    few, many = (only(judge(text.format(n), cost="calibrated")) for n in (4, 400))
    assert few.ideal_s <= few.predicted_s <= many.predicted_s
    assert many.ideal_s <= many.predicted_s < math.inf


MEASURED = Path(__file__).parents[4] / "shared" / "measured"


@pytest.mark.slow
@pytest.mark.skipif(not MEASURED.is_dir(), reason="no measured tables beside the checkout")
@pytest.mark.parametrize(
    "name", ["gemm", "attention_decode", "attention_prefill", "moe", "elementwise", "collective"]
)
def test_ideal_exceeds_no_measured_kernel_but_by_a_stated_rule(name: str) -> None:
    found = llmir.validate(MEASURED / f"{name}.csv", cost="ideal")
    assert len(found.rows) > 1000
    assert {r.exceeds for r in found.exceeding} <= set(bounds.EXCLUDED)
    # Reading half of the experts counted would do, as a router limited to half of its groups reads.
    least = [r for r in found.exceeding if r.exceeds == bounds.MEMORY and r.kind != "elementwise"]
    assert all(r.kind == "moe" and r.ideal_s < 2 * r.measured_s for r in least)


@pytest.mark.slow
@pytest.mark.skipif(not MEASURED.is_dir(), reason="no measured tables beside the checkout")
@pytest.mark.parametrize(
    ("name", "within"), [("gemm", 0.10), ("attention_prefill", 0.17), ("attention_decode", 0.17)]
)
def test_calibrated_kernels_of_large_gpus_are_as_near_as_their_fits(name: str, within: float) -> None:
    found = llmir.validate(MEASURED / f"{name}.csv", cost="calibrated")
    of = {group.keys["device"]: group.all_mape for group in found.groups(("device",))}
    assert max(of[gpu] for gpu in ("A100-80-SXM", "H100-SXM", "B200")) < within


def test_a_public_benchmark_says_what_its_table_leaves_out(judge: Any) -> None:
    """InferenceMAX's 70B keep the cache in fp8, scales are static, requests nine tenths as long as stated."""
    loop = {"kind": "serving_closed_loop", "gpu": "h100", "tp": 4, "batch_or_concurrency": 8, "tpot_ms": 10}
    loop |= {"model": "Llama-3.1-70B", "weight_dtype": "fp8"}
    public = model(**loop, isl=1000, osl=500, source="aic_silicon_inferencex")
    loop |= {"weight_dtype": "fp8_static"}
    stated = model(**loop, isl=900, osl=450, kv_dtype="fp8")
    other = model(**loop, isl=900, osl=450)
    one, same, wide = (r.predicted_s for r in judge(MODEL + public + stated + other).rows)
    assert one == same < wide


def test_rows_are_priced_by_the_kernel_that_they_name(judge: Any) -> None:
    """Where a device's file has several of an engine's; by its first kernel otherwise."""
    calibration = B200.calibration
    assert calibration
    second = next(e for e in calibration.engines if "attention_decode" in calibration.engines[e] and "-" in e)
    engine, _, name = second.partition("-")
    row = f"b200_sxm,bfloat16,bfloat16,8,1,4096,32,8,128,0,100,{engine}-1.0,"
    table = HEADS.replace("framework", "framework,kernel")
    kernels = f"{engine}_{name}", "another", ""
    mine, unknown, none = judge(table + "".join(f"{row}{k}\n" for k in kernels), cost="calibrated").rows
    shape = AttentionShape(batch=8, new=1, cached=4095, kv_heads=8, group=4, head=128)
    for found, of in (mine, second), (unknown, engine), (none, engine):
        known = basis(B200, "attention_decode", of)
        assert known
        assert found.predicted_s == pytest.approx(known.kernel.seconds(B200, shape))
    assert mine.predicted_s != none.predicted_s


def test_a_model_that_is_published_in_few_bits_runs_as_it_is_stored(judge: Any) -> None:
    """Tables have one word for all formats of four bits: gpt-oss's is mxfp4, of its experts alone."""
    row = {"model": "openai/gpt-oss-20b", "e2e_latency_ms": 10}
    stored, [other] = (judge(MODEL + model(**row, weight_dtype=w)).rows for w in ("fp4", "fp8"))
    plain = judge(MODEL + model(**row, weight_dtype="")).rows
    assert [r.predicted_s for r in stored] == [r.predicted_s for r in plain] != [other.predicted_s]
