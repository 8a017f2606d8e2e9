"""Logs of memory beside what the engine's rule says; the rows are made up here, or facts of public logs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import llmir
from llmir.backends.silicon.validate.rows import Validation

GIB = 2**30
STARTS = (
    "engine,gpu,gpu_total_gib,util,model,tp,pp,dtype,quant,kv,max_batched_tokens,max_num_seqs,"
    "weights_gib,act_gib,nontorch_gib,kv_gib,tokens\n"
)
# Two starts of vLLM 0.19 on H100 (jgchn/llm-d-planner)
LLAMA = "0.19.0,H100,79.19,0.95,Llama-3.1-8B,1,1,bf16,,auto,8192,1024,14.99,1.89,0.25,58.11,476016\n"
MIXTRAL = "vllm@0.19.0,H100,79.19,0.95,Mixtral-8x7B,2,1,bf16,,auto,8192,1024,43.51,1.21,2.07,28.44,465936\n"
PEAKS = "model,gpu,weight_dtype,kv_dtype,batch,tokens_in,tokens_out,metric,value_gib,value_gb,framework\n"


@pytest.fixture
def judge(tmp_path: Path) -> Any:
    def run(text: str) -> Validation:
        path = tmp_path / "rows.csv"
        path.write_text(text)
        return llmir.validate(path)

    return run


@pytest.mark.parametrize("row", [LLAMA, MIXTRAL])
def test_each_term_stands_beside_the_log(judge: Any, row: str) -> None:
    found = judge(STARTS + row)
    assert not found.refused and not found.rows
    assert [a.metric for a in found.amounts] == ["weights", "activations", "overhead", "kv", "tokens"]
    for amount in found.amounts:
        assert abs(amount.error) < 0.01, amount
    said = dict(zip(STARTS.strip().split(","), row.strip().split(","), strict=True))
    assert found.amounts[0].measured == pytest.approx(float(said["weights_gib"]) * GIB)


def test_what_a_log_does_not_say_is_not_judged(judge: Any) -> None:
    row = "0.19.0,H100,79.19,0.95,Llama-3.1-8B,1,1,bf16,,fp8,,,,,,,952032\n"
    [amount] = judge(STARTS + row).amounts
    assert amount.metric == "tokens"
    assert abs(amount.error) < 0.01


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("Llama-3.1-8B", "Nobody-8B", "unknown model"),
        ("H100", "H9000", "unknown device"),
        ("bf16", "int3", "dtype 'int3'; known are bf16, fp16, fp32"),
        (",,auto", ",q3,auto", "quant 'q3'; known are fp8dyn, w8a8, w4a16"),
        ("0.19.0", "deepspeed", "the memory rule of engine deepspeed is not known"),
    ],
)
def test_a_start_of_something_unknown_is_refused(judge: Any, old: str, new: str, says: str) -> None:
    found = judge(STARTS + LLAMA.replace(old, new))
    assert not found.amounts
    assert says in found.refused[0].reason


def test_a_peak_is_that_of_all_tensors(judge: Any) -> None:
    job = llmir.workload(
        llmir.run(llmir.load("llama-2-7b"), llmir.pipeline_of()),
        "a100",
        **{"batch": 4, "prompt": 512, "generate": 64},
        estimation=llmir.Estimation(cost="ideal"),
    )
    gib = job.peak_bytes(4) / GIB
    rows = f"llama-2-7b,a100,fp16,fp16,4,512,64,max_memory_allocated,{gib},,x\n"
    rows += f"llama-2-7b,a100,fp16,fp16,4,512,64,max_memory_allocated,,{2 * gib * GIB / 1e9},x\n"
    same, half = judge(PEAKS + rows).amounts
    assert (same.error, half.error) == (pytest.approx(0, abs=1e-6), pytest.approx(-0.5, abs=1e-6))
    assert "no amount" in judge(PEAKS + "llama-2-7b,a100,fp16,fp16,4,512,64,x,,,x\n").refused[0].reason


def test_the_table_sums_terms_up_by_engine(judge: Any) -> None:
    from llmir.backends.silicon.validate import show

    found = judge(STARTS + LLAMA + MIXTRAL.replace("vllm@0.19.0", "0.19.0"))
    lines = [line.split() for line in str(found).splitlines()]
    [tokens] = [line for line in lines if line[:1] == ["tokens"]]
    assert tokens[1:3] == ["0.19.0", "2"]
    assert "2 of 2 rows priced" in str(found)
    data = json.loads(json.dumps(show.to_dict(found)))
    assert [a["metric"] for a in data["amounts"]].count("tokens") == 2


@pytest.mark.parametrize("column", ["token", "time_s"])
def test_a_series_follows_the_request(tmp_path: Path, column: str) -> None:
    """A cache grows by its bytes a token; weights stay; prefill holds more activations than decode."""
    program = llmir.run(llmir.load("llama-2-7b"), llmir.pipeline_of())
    step = llmir.workload(
        program, "a100", batch=2, prompt=512, generate=1000, estimation=llmir.Estimation(cost="ideal")
    )
    at = [1, 2, 900] if column == "token" else [step.ttft_s, step.ttft_s + 1.01 * step.tpot_s, step.e2e_s * 2]
    path = tmp_path / "series.csv"
    rows = "".join(f"512,{x},20000,13000,500\n" for x in at)
    path.write_text(f"input_tokens,{column},memory_MiB,weights_MiB,kv_MiB\n{rows}")
    found = llmir.validate(path, program=program, hw="a100", batch=2, cost="ideal").amounts
    kv = [a.predicted for a in found if a.metric == "kv"]
    per = 2 * 2 * 32 * 32 * 128 * 2  # two requests: keys and values, layers, heads, head size, fp16
    assert kv[0] == 512 * per
    assert kv[1] == 513 * per
    if column == "token":
        assert kv[2] == (512 + 899) * per
    assert {a.predicted for a in found if a.metric == "weights"} == {2 * 6_738_415_616}
    whole = [a.predicted for a in found if a.metric == "memory"]
    assert whole[0] == step.prefill.peak_memory_bytes
    assert whole[1] < whole[0]


def test_a_pool_is_there_from_the_start(tmp_path: Path) -> None:
    program = llmir.run(llmir.load("llama-2-7b"), llmir.pipeline_of())
    path = tmp_path / "series.csv"
    path.write_text("input_tokens,token,memory_MiB\n512,1,70000\n512,400,70000\n")
    first, last = llmir.validate(path, program=program, hw="a100", engine="vllm").amounts
    assert first.predicted == last.predicted
    assert first.predicted == pytest.approx(0.92 * 79.25 * GIB, rel=1e-6)


@pytest.mark.parametrize(
    ("text", "options", "says"),
    [
        ("input_tokens,memory_MiB\n512,1\n", {}, "needs token or time_s"),
        ("input_tokens,token,memory_MiB\n512,1,1\n", None, "a memory series requires --model and --hw"),
    ],
)
def test_a_series_without_its_place_is_refused(tmp_path: Path, text: str, options: Any, says: str) -> None:
    path = tmp_path / "series.csv"
    path.write_text(text)
    given = {} if options is None else {"program": llmir.load("llama-2-7b"), "hw": "a100", **options}
    with pytest.raises(llmir.LlmirError, match=says):
        llmir.validate(path, **given)


def test_a_fit_finds_the_rule_behind_the_starts(tmp_path: Path) -> None:
    """Logs that were made by another rule give its parameters back."""
    from benchmarks.memory import fitted, under
    from llmir.api.measure import _built
    from llmir.backends.silicon.tables.table import load
    from llmir.backends.silicon.validate.memory import start
    from llmir.hw.library import load as device

    names = ("Llama-3.1-8B", "Gemma-2-9B", "Qwen1.5-MoE-A2.7B", "Mixtral-8x7B")
    path = tmp_path / "rows.csv"
    path.write_text(STARTS + "".join(LLAMA.replace("Llama-3.1-8B", name) for name in names))
    _, rows = load(path)
    starts = [start(rows, i, device("h100"), _built) for i in range(len(names))]
    rule = starts[0].pool.rule
    hidden = {"sampler": 5.0, "experts": 2.0, "kept_bytes": 0.5 * GIB, "outside": {1: 0.75 * GIB}}
    other = replace(rule, **hidden)
    logs = [of._replace(said=under(of, other).predicted()) for of in starts]
    found = fitted(rule, logs)
    for name in ("sampler", "experts", "kept_bytes"):
        assert getattr(found, name) == pytest.approx(hidden[name], rel=1e-3), name
    assert found.outside[1] == hidden["outside"][1]
