"""What `validate` says of a measured row is what a report says of the same ops, alone and inside a model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import llmir
from llmir.backends.silicon.rows import DeviceLookup
from llmir.backends.silicon.tables.table import FORMATS, KernelTable, TablePoints, load
from llmir.backends.silicon.validate.estimates import cost_model_choice
from llmir.backends.step.report import Report
from llmir.backends.work.rows import rows
from llmir.hw import library
from llmir.ir.core.program import Program
from llmir.ir.ops.sources import Source
from llmir.ir.sizes.binding import Binding
from llmir.ir.tools.build import Builder

EXACT = 1e-12
ENGINES = ("vllm", "sglang", "trtllm", "sglang-triton", "another")
DEVICES = ("h100_sxm", "b200_sxm", "a100_sxm", "l40s", "h200", "mi300x")

BLOCK, DTYPES = "module:DeepseekV3ForCausalLM:gemm=", ("bfloat16", "fp8_block", "nvfp4")
PRODUCTS = (("pre", "bfloat16", 7), ("post", "fp8", 900))

# A few rows of each table: columns, and cells beside device and framework.
TABLES = {
    "gemm": (
        "dtype,m,n,k,turns,timed",
        [
            "bfloat16,16,4096,4096,6,",
            "fp8,300,2048,8192,5,",
            "fp8,300,2048,8192,1,product",
            "fp8_block,64,4096,4096,0,",
            "nvfp4,7,6144,2048,,static+product",
            "int4_wo,1,4096,14336,,",
            "sq,99,4096,4096,,",
        ],
    ),
    "attention": (
        "dtype,kv_dtype,batch,q_len,context,num_heads,num_kv_heads,head_dim,window",
        [
            "bfloat16,bfloat16,4,1,4000,32,8,128,0",
            "bfloat16,fp8,4,1,4000,32,8,128,1024",
            "bfloat16,bfloat16,2,512,512,32,8,128,0",
            "bfloat16,fp8,2,300,1300,32,32,64,128",
            "fp8,fp8,1,2048,2048,64,8,128,0",
            "bfloat16,bfloat16,3,1,1,32,8,128,0",
        ],
    ),
    "encoder": ("dtype,batch,q_len,num_heads,head_dim", ["bfloat16,3,512,16,64", "bfloat16,1,77,12,64"]),
    "latent": (
        "phase,scope,dtype,kv_dtype,batch,q_len,context,num_heads,timed",
        [
            "decode,attn_core,bfloat16,fp8,8,1,4000,16,absorbed",
            "prefill,attn_core,bfloat16,bfloat16,2,500,500,128,naive",
            *(f"bmm,mla_gen_{part},{dtype},,{tokens},1,0,128," for part, dtype, tokens in PRODUCTS),
            *(f"decode,{BLOCK}{dtype},bfloat16,fp8,4,1,900,64,absorbed" for dtype in DTYPES),
            *(f"prefill,{BLOCK}{dtype},bfloat16,bfloat16,2,300,301,16,naive" for dtype in DTYPES),
        ],
    ),
    "scan": (
        "family,phase,timed,batch,seq_len,num_k_heads,head_k_dim,num_v_heads,head_v_dim"
        ",nheads,head_dim,d_state,n_groups,d_conv",
        [
            f"{family},{how},{sizes}"
            for family, sizes in (
                ("gdn", "16,128,64,128,,,,,4"),
                ("kda", "12,128,12,128,,,,,4"),
                ("mamba2", ",,,,64,64,128,8,4"),
            )
            for how in (
                *("context,,2,700", "context,,64,1", "generation,,200,1", "verify,,8,4"),
                *("context,conv,2,700", "context,conv_qkv,1,9", "generation,conv,200,1", "verify,conv,8,4"),
            )
        ],
    ),
    "elementwise": (
        "dtype,op,rows,cols",
        [
            f"float16,{op},{rows},4608"
            for rows in (1, 700)
            for op in (
                *("add", "rms_norm", "add_rms_norm", "layernorm", "softmax", "mlp_act", "gelu"),
                *("attn_rope", "rope_append", "scale_matrix", "rms_norm_quant_fp8"),
            )
        ],
    ),
    "moe": (
        "dtype,num_tokens,hidden,inter,topk,num_experts,moe_tp,moe_ep,distribution,routing,timed",
        [
            "bfloat16,64,2048,768,8,128,1,8,balanced,,",
            "fp8,700,4096,1536,8,128,2,4,power_law_1.2,,",
            "fp8_block,4096,7168,2048,8,256,1,8,balanced,groups,",
            "nvfp4,16,2048,768,8,128,1,1,balanced,chance,",
            "w4a16_mxfp4,512,2880,2880,4,32,1,2,balanced,,",
            "fp8_block,100,7168,2048,8,256,1,1,balanced,,products",
        ],
    ),
    "collective": (
        "op,dtype,num_gpus,bytes",
        [
            f"{op},{dtype},4,{size}"
            for op in ("all_reduce", "all_gather", "reduce_scatter", "alltoall")
            for dtype in ("half", "int8")
            for size in (4096, 1 << 26)
        ],
    ),
}


def written(folder: Path, table: str, device: str, engine: str) -> Path:
    """The rows of a table, each as if it had taken 100 µs."""
    columns, rows = TABLES[table]
    framework, _, kernel = engine.partition("-")
    head = f"gpu,framework,kernel,{columns},latency_us\n"
    path = folder / f"{table}.csv"
    path.write_text(head + "".join(f"{device},{framework}-1.0,{kernel},{row},100\n" for row in rows))
    return path


def concrete(points: TablePoints, number: int) -> Program:
    """The program of one row, its sizes as numbers."""
    at = Binding(**{name: float(value[number]) for name, value in points.at.symbols.items()})
    b = Builder()
    for node in points.program["main"].nodes:
        if isinstance(node.op, Source):
            type = node.op.type
            for dim, size in enumerate(type.shape):
                type = type.resized(dim, round(at(size)))
            b.apply(replace(node.op, type=type), name=node.name)
        else:
            b.apply(node.op, *node.operands, name=node.name)
    b.output(*points.program["main"].outputs)
    return Program("row", {"main": b.graph()}, mesh=points.program.mesh)


def kernel_time(step: Any, op: str) -> float:
    """Seconds of an op's kernel alone: a table times kernels one by one, not in an engine's graph."""
    explained = llmir.explain(step, op)
    return float(explained.time_s if explained.kernel is None else explained.kernel.alone_s)


def points_of(path: Path) -> Iterator[tuple[Any, TablePoints]]:
    """A table's points with the rows' numbers in the file."""
    format, rows = load(path)
    assert isinstance(format, KernelTable)
    for points in format.points(rows, DeviceLookup(path.parent)(rows["gpu"][0])):
        assert isinstance(points, TablePoints), points
        yield rows["line"], points


@pytest.mark.mostly_slow(11)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("table", TABLES)
def test_a_row_takes_what_a_report_says_of_its_ops(
    tmp_path: Path, table: str, device: str, engine: str
) -> None:
    path = written(tmp_path, table, device, engine)
    found = llmir.validate(path)
    assert not found.refused
    assert not found.problems
    said = {row.row: row for row in found.rows}
    assert len(said) == len(TABLES[table][1])
    model = cost_model_choice("calibrated").model(library.load(device), engine)
    for lines, points in points_of(path):
        for number, row in enumerate(points.rows):
            step = Report(concrete(points, number), model.device, batch=1, new=1, context=0, model=model)
            timed = [op for op in step.ops if op.name not in points.untimed and op.kind != "overhead"]
            judged = said[int(lines[row])]
            assert judged.predicted_s == pytest.approx(sum(op.time_s for op in timed), rel=EXACT)
            bases = {str(op.basis) for op in timed}
            assert {*judged.basis.split("; ")} == bases
            assert engine != "another" or "calibrated" not in bases  # nobody measured it


def only(path: Path, text: str) -> Any:
    """The one row of a table, judged."""
    path.write_text(text)
    (row,) = llmir.validate(path).rows
    return row


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("device", ["h100-sxm", "b200"])
@pytest.mark.parametrize(
    ("batch", "new", "context"), [(8, 1, 4096), (2, 512, 0), (4, 1, 1)]
)  # steps of captured sizes
def test_a_row_takes_what_the_same_op_takes_inside_a_model(
    tmp_path: Path, device: str, engine: str, batch: int, new: int, context: int
) -> None:
    """Of products, attention, streams and sums of a model over four ranks, in 16 bits and in fp8."""
    heads, groups, hidden, inter = 32 // 4, 8 // 4, 4096, 14336 // 4
    tokens, keys = batch * new, new + context
    base = f"gpu,framework,latency_us,dtype,{{}}\n{device},{engine}-1.0,100,{{}}\n"

    def row(columns: str, cells: str) -> float:
        return float(only(tmp_path / "x.csv", base.format(columns, cells)).predicted_s)

    for narrow in (False, True):
        pipeline: list[Any] = [llmir.pipeline_of(), "shard{tp=4}"]
        pipeline += ["quantize{weights=fp8, activations=fp8, kv=fp8}"] * narrow
        program = llmir.run(llmir.load("llama3.1-8b"), pipeline)
        step = llmir.analyze(
            program, device, batch=batch, new=new, context=context, estimation=llmir.Estimation(engine=engine)
        )
        names = [op.name for op in step.ops if op.kind != "overhead"]
        times = {name.removeprefix("layer."): kernel_time(step, name) for name in names}
        timed = f"{tokens},{hidden},{inter}"
        if narrow:
            product = row("timed,m,n,k", f"fp8,product,{timed}")
            both = row("timed,m,n,k", f"fp8,,{timed}")
            assert both - product == pytest.approx(times["quantize_silu_mul"], rel=1e-9, abs=0)
        else:
            product = row("m,n,k", f"bfloat16,{timed}")
        assert product == pytest.approx(times["down_proj"], rel=EXACT)
        kv = "fp8" if narrow else "bfloat16"
        attention = "kv_dtype,batch,q_len,context,num_heads,num_kv_heads,head_dim"
        cells = f"bfloat16,{kv},{batch},{new},{keys},{heads},{groups},128"
        assert row(attention, cells) == pytest.approx(times["flash_attention"], rel=EXACT)
    assert row("op,rows,cols", f"bfloat16,add_rms_norm,{tokens},{hidden}") == pytest.approx(
        times["add_post_norm"], rel=EXACT
    )
    assert row("op,rows,cols", f"bfloat16,mlp_act,{tokens},{inter}") == pytest.approx(
        times["silu_mul"], rel=EXACT
    )
    sums = f"bfloat16,all_reduce,4,{tokens * hidden * 2}"
    assert row("op,num_gpus,bytes", sums) == pytest.approx(times["all_reduce_o_proj"], rel=EXACT)


@pytest.mark.parametrize("narrow", ["", "weights=fp8, activations=fp8", "weights=mxfp4"])
@pytest.mark.parametrize("engine", ["vllm", "trtllm"])
def test_experts_take_what_they_take_inside_a_model(tmp_path: Path, engine: str, narrow: str) -> None:
    dtype = {"": "bfloat16", "weights=mxfp4": "w4a16_mxfp4"}.get(narrow, "fp8")
    pipeline = [*([f"quantize{{{narrow}}}"] if narrow else []), llmir.pipeline_of(), "shard{tp=4, ep=4}"]
    program = llmir.run(llmir.load("qwen3-30b-a3b"), pipeline)
    for batch, new in ((64, 1), (1, 900)):
        step = llmir.analyze(
            program, "h100-sxm", batch=batch, new=new, context=100, estimation=llmir.Estimation(engine=engine)
        )
        ops = [op for op in step.ops if op.block == "routed_experts" and op.kind != "collective"]
        ops = [op for op in ops if not op.name.endswith("mlp_add")]  # the residual's
        cells = f"{dtype},chance,{batch * new},2048,768,8,128,1,4"
        text = (
            "gpu,framework,latency_us,dtype,routing,num_tokens,hidden,inter,topk,num_experts,moe_tp,moe_ep\n"
        )
        found = only(tmp_path / "x.csv", f"{text}h100-sxm,{engine}-1.0,100,{cells}\n")
        assert found.predicted_s == pytest.approx(
            sum(kernel_time(step, op.name) for op in ops), rel=1e-9, abs=0
        )


@pytest.mark.parametrize(("phase", "new", "form"), [("decode", 1, "absorbed"), ("prefill", 700, "naive")])
def test_a_block_of_latent_attention_is_that_of_the_model(phase: str, new: int, form: str) -> None:
    """Products, attention and cache of one of DeepSeek-V3's layers, however projections are merged."""
    model = llmir.run(llmir.load("deepseek-v3"), llmir.pipeline_of())
    cached = 1000 if new == 1 else 0
    step = llmir.analyze(model, "h100-sxm", batch=3, new=new, context=cached)
    blocks = ("attention", "attention_core")
    layer = [op for op in step.ops if op.name.startswith("dense_layer.") and op.block in blocks]
    table = FORMATS["mla"]
    assert isinstance(table, KernelTable)
    program = table.program("bfloat16", "bfloat16", BLOCK + "fp8_block", form, "c")
    at = Binding(b=3, t=new, c=cached + new, p=cached, g=128)
    found = rows(program)
    reads = ("kv_cache_read_bytes",) * (form == "absorbed")  # a whole prompt is not read back
    for figure in ("matmul_flops", "kv_cache_write_bytes", *reads):
        said = sum(getattr(op, figure) for op in layer)
        assert sum(float(at(row.amounts[figure])) for row in found) == pytest.approx(
            said, rel=1e-12, abs=0
        ), figure
    weights = sum(op.weight_read_bytes for op in layer)
    assert sum(float(at(row.amounts["weight_read_bytes"])) for row in found) == pytest.approx(
        weights, rel=2e-3
    )
