"""Memory as engines hold it: closed forms, what public logs say, and what must never happen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import llmir
from llmir.backends.memory.kv_capacity import MemoryBreakdown
from llmir.base.errors import HardwareError, InputError
from llmir.hw import library
from llmir.hw.engine_sections import EngineMemory
from llmir.ir.core.program import Program
from tests.commands import Run
from tests.flat import records

GIB = 2**30
BLOCK = 16 * 2 * 32 * 8 * 128 * 2  # of Llama-3.1-8B: tokens, keys and values, layers, heads, head size, bf16


def built(model: str = "llama3.1-8b", *before: str, after: str = "") -> Program:
    return llmir.run(llmir.load(model), [*before, llmir.pipeline_of(), *([after] if after else [])])


def memory(program: Program, device: Any = "h100-sxm", **options: Any) -> MemoryBreakdown:
    return llmir.workload(program, device, **records(llmir.workload, **{"engine": "vllm", **options})).memory


def test_the_terms_of_a_known_model_are_closed_forms() -> None:
    rule = library.engine("vllm").section(EngineMemory)
    assert rule
    found = memory(built(), memory_utilization=0.95)
    assert found.physical_bytes == round(79.19 * GIB)
    assert found.weight_bytes == 2 * 8_030_261_248
    logits, hidden = 1024 * 128256, (8192 + 2 * 1024) * 4096
    made = logits * (2 + 4 * 3) + 132 * 128256 * 4 + 2 * hidden  # bf16 and fp32; a row on each SM
    assert found.activation_bytes == pytest.approx(made + rule.kept_bytes, abs=1)
    left = 0.95 * found.physical_bytes - found.weight_bytes - found.activation_bytes - found.overhead_bytes
    assert found.usable_bytes == pytest.approx(0.95 * found.physical_bytes, abs=1)
    assert found.kv_bytes == pytest.approx(left, abs=2)
    assert found.kv_tokens == 16 * (found.kv_bytes // BLOCK)
    assert found.max_requests == found.kv_bytes // (BLOCK // 16 * 2176)  # of 2,175 tokens, in whole blocks


# What public logs say ("GPU KV cache size", "KV Cache is allocated. #tokens"), to the share that is near.
LOGS: list[tuple[str, list[str], str, str, dict[str, Any], int, float]] = [
    ("llama3.1-8b", [], "", "vllm@0.19", {"memory_utilization": 0.95}, 476_016, 0.002),
    ("llama3.1-8b", ["quantize{kv=fp8}"], "", "vllm@0.19", {"memory_utilization": 0.95}, 952_032, 0.002),
    ("gemma2-9b", [], "", "vllm@0.19", {"memory_utilization": 0.95}, 168_880, 0.002),
    ("mixtral-8x7b", [], "shard{tp=2}", "vllm@0.19", {"memory_utilization": 0.95}, 465_936, 0.002),
    ("llama3.1-8b", [], "shard{tp=4}", "vllm@0.19", {"memory_utilization": 0.95}, 2_209_792, 0.002),
    ("llama3.1-8b", ["stages{pp=4}"], "", "vllm@0.19", {"memory_utilization": 0.95}, 2_257_264, 0.005),
    # sgl-project/sglang and vllm-project/vllm#21348, in blocks of 128 × 128, on 4 × H100
    (
        "qwen3-235b-a22b",
        ["quantize{weights=fp8_b128x128, activations=fp8}"],
        *("shard{tp=4}", "sglang", {"memory_utilization": 0.93}),
        *(367_404, 0.01),
    ),
]


@pytest.mark.parametrize(("model", "before", "after", "engine", "options", "tokens", "near"), LOGS)
def test_tokens_are_those_of_public_logs(
    model: str,
    before: list[str],
    after: str,
    engine: str,
    options: dict[str, Any],
    tokens: int,
    near: float,
) -> None:
    found = memory(built(model, *before, after=after), engine=engine, **options)
    assert found.kv_tokens == pytest.approx(tokens, rel=near)


def test_tensorrt_llm_holds_the_tokens_that_its_log_says() -> None:
    """NVIDIA/TensorRT-LLM#1400: 0.8 on an A100, Llama-2-7B in int8, a step of 4,096 tokens and 5 beams."""
    program = built("llama2-7b", "quantize{weights=int8, activations=int8}")
    limits = {"max_model_len": 5120, "max_batched_tokens": 4096, "max_num_seqs": 5}
    found = memory(program, "a100-80-sxm", engine="trtllm@0.8", **limits)
    assert found.weight_bytes == pytest.approx(6683 * 2**20, rel=0.005)
    assert found.kv_tokens == pytest.approx(132_608, rel=0.005)


def test_sglang_keeps_free_what_its_source_says() -> None:
    """`reserved_mem` of server_args.py on H100: before and after pull request 10975."""
    program = built(after="shard{tp=4}")
    now = 512 + 8192 * 1.5 + 512 * 2 + 4 / 8 * 1024
    for version, free in (("0.5.1", (9.5 + 4 / 2) * 1024), ("0.5.8", now)):
        found = memory(program, engine=f"sglang@{version}")
        assert (1 - found.share) * found.physical_bytes / 2**20 == pytest.approx(free, abs=1), version
    small = memory(program, engine="sglang@0.5.8", max_batched_tokens=2048)
    assert (1 - small.share) * small.physical_bytes == pytest.approx(10 * GIB, abs=1)


def test_each_rule_divides_memory_as_its_engine_says() -> None:
    """KV = u·P − W − A − O of vLLM, u·(P − O) − W of SGLang, u·(P − W − A − O) of TensorRT-LLM."""
    program, u = built(), 0.8
    parts = {e: memory(program, engine=e, memory_utilization=u) for e in ("vllm", "sglang", "trtllm")}
    kv = {
        "vllm": lambda m: u * m.physical_bytes - m.weight_bytes - m.activation_bytes - m.overhead_bytes,
        "sglang": lambda m: u * (m.physical_bytes - m.overhead_bytes) - m.weight_bytes,
        "trtllm": lambda m: u * (m.physical_bytes - m.weight_bytes - m.activation_bytes - m.overhead_bytes),
    }
    for engine, found in parts.items():
        assert found.kv_bytes == pytest.approx(kv[engine](found), abs=4), engine
        assert found.kv_tokens is not None
        assert found.kv_tokens % found.block == 0


@pytest.mark.parametrize("engine", ["vllm", "vllm@0.12", "vllm@0.6", "sglang", "trtllm"])
def test_what_is_taken_is_missing_and_what_is_given_is_there(engine: str) -> None:
    program = built()

    def tokens(**options: Any) -> int:
        found = memory(program, engine=engine, **options).kv_tokens
        assert found is not None
        return found

    shares = [tokens(memory_utilization=u) for u in (0.3, 0.5, 0.9, 0.92, 1.0)]
    assert shares == sorted(shares)
    assert shares[0] < shares[-1]
    for option in ("max_batched_tokens", "max_num_seqs"):
        fixed = {"max_batched_tokens": 16384} if option == "max_num_seqs" else {"max_num_seqs": 16}
        found = [tokens(**{**fixed, option: n}) for n in (16, 256, 2048, 4096)]
        assert found == sorted(found, reverse=True), option
    assert tokens(reserve_bytes=GIB) <= tokens() - GIB // BLOCK * 16 + 32
    assert tokens(max_model_len=8192) <= tokens()


def test_ranks_hold_more_together() -> None:
    one, two, four = (memory(built(after=f"shard{{tp={tp}}}" if tp > 1 else "")) for tp in (1, 2, 4))
    assert one.kv_tokens and two.kv_tokens and four.kv_tokens
    assert 2 * one.kv_tokens < two.kv_tokens < four.kv_tokens / 2 * 1.1
    copies = memory(built(after="shard{dp=2}"))
    assert copies.kv_tokens == 2 * one.kv_tokens
    assert copies.max_requests == 2 * one.max_requests


def test_the_fullest_batch_fits_and_one_more_does_not() -> None:
    job = llmir.workload(
        built(), "h100-sxm", prompt=4000, generate=97, estimation=llmir.Estimation(engine="vllm")
    )
    assert job.peak_bytes(job.max_batch) <= job.capacity_bytes < job.peak_bytes(job.max_batch + 1)
    assert job.max_batch == job.memory.max_requests
    for batch, fits in ((job.max_batch, True), (job.max_batch + 1, False)):
        again = llmir.workload(
            built(),
            "h100-sxm",
            batch=batch,
            prompt=4000,
            generate=97,
            estimation=llmir.Estimation(engine="vllm"),
        )
        assert again.fits is fits
    few = llmir.workload(
        built(),
        "h100-sxm",
        batch=9,
        memory=llmir.Memory(max_num_seqs=8),
        estimation=llmir.Estimation(engine="vllm"),
    )
    assert (few.fits, few.max_batch) == (False, 8)


def test_a_largest_batch_beyond_what_the_engine_runs_says_so(run: Run) -> None:
    """As many sampled at once take memory that caches have otherwise."""
    asked = ("analyze", "llama3.1-8b", "--hw", "b200", "--prompt", "500")
    job = llmir.workload(built(), "b200", prompt=500, estimation=llmir.Estimation(engine="vllm"))
    assert job.pool.sequences == 1024 < job.max_batch < job.memory.max_requests
    line = next(line for line in run(*asked).out.splitlines() if line.startswith("largest batch"))
    assert f"{job.max_batch:,} with --max-num-seqs; " in line
    assert "runs 1,024 by default" in line
    told = run(*asked, "--max-num-seqs", "2000").out
    assert "unless told" not in told


def test_what_counts_is_the_longest_request() -> None:
    short, long = (memory(built(), max_model_len=n) for n in (None, 100_000))
    assert (short.request_tokens, long.request_tokens) == (2048 + 128 - 1, 100_000)
    assert short.kv_tokens == long.kv_tokens
    assert long.max_requests == short.kv_tokens // 100_000


def test_json_has_the_sum(run: Run) -> None:
    data = json.loads(run("analyze", "llama3.1-8b", "--format", "json", "--max-model-len", "8192").out)
    found = data["memory"]
    parts = ("weight_bytes", "activation_bytes", "overhead_bytes", "kv_bytes")
    assert found["usable_bytes"] == pytest.approx(sum(found[p] for p in parts), abs=4)
    assert found["physical_bytes"] < found["nominal_bytes"]
    assert (found["max_requests"], found["request_tokens"]) == (found["kv_tokens"] // 8192, 8192)
    assert json.loads(run("explain", "llama3.1-8b", "memory", "--format", "json").out)["kv_bytes"]


def test_without_an_engine_all_requests_are_read_in_one_step() -> None:
    job = llmir.workload(built(), "h100-sxm", batch=8, estimation=llmir.Estimation(cost="ideal"))
    assert job.memory.engine is None
    assert job.memory.activation_bytes == job.prefill.activation_peak_bytes
    rest = job.capacity_bytes - job.memory.weight_bytes - job.memory.activation_bytes
    assert job.memory.kv_bytes == pytest.approx(rest, abs=2)
    assert job.memory.max_requests == job.max_batch


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm", "hf-transformers"])
def test_what_is_missing_is_said(run: Run, engine: str) -> None:
    said = run("explain", "llama3.1-70b", "memory", "--engine", engine).out
    of = memory(built("llama3.1-70b"), engine=engine)
    held = of.weight_bytes + (of.rule != "static") * (of.activation_bytes + of.overhead_bytes)
    assert of.usable_bytes <= of.physical_bytes
    assert f"nothing is left, {(held - of.usable_bytes) / 2**30:.2f} GiB are missing" in " ".join(
        said.split()
    )


def test_requests_that_are_no_quotient_of_tokens_say_why(run: Run) -> None:
    why = "by what windows and states keep"
    for model, unlike in (("llama3.1-8b", False), ("gemma-3-12b", True), ("qwen3-next-80b-a3b", True)):
        said = run("explain", model, "memory", "--hw", "h200", "--tp", "2").out
        assert (why in " ".join(said.split())) is unlike


def test_a_limit_of_sequences_is_no_lack_of_memory(run: Run) -> None:
    said = run("analyze", "llama3.1-8b", "--batch", "8", "--max-num-seqs", "1", "--require-fit")
    assert said.code == 1
    assert "NO, 1 of 8 requests may run at once" in " ".join(said.out.split())
    assert "--require-fit: 1 of 8 requests may run at once" in said.err


def test_a_loop_of_what_does_not_fit_breaks_the_limit_that_was_set(run: Run) -> None:
    asked = ("analyze", "llama3.1-70b", "--concurrency", "4")
    assert [run(*asked, *more).code for more in ((), ("--require-fit",))] == [2, 1]


def test_lines_are_those_of_the_log(run: Run) -> None:
    out = run("explain", "llama3.1-8b", "memory", "--memory-utilization", "0.95").out
    for term in (
        "79.19  the datasheet says 80.00 GiB",
        "75.23  95% of physical memory",
        " 14.96\n",
    ):
        assert term in out
    nominal = run("explain", "llama3.1-8b", "memory", "--hw", "a6000", "--cost", "ideal").out
    assert "48.00  nominal; the physical size is not known" in nominal


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ("analyze", "llama3.1-8b", "--max-num-seqs", "8", "--cost", "ideal"),
            "--max-num-seqs: requires an engine",
        ),
        (
            ("analyze", "llama3.1-8b", "--max-batched-tokens", "8", "--max-num-seqs", "9"),
            "fewer than 9 sequences",
        ),
        (
            ("analyze", "llama3.1-8b", "--max-model-len", "2000"),
            "--max-model-len: 2,000, and prompt and answer have 2,176",
        ),
        (("analyze", "llama3.1-8b", "--max-num-seqs", "0"), "expected an integer from 1"),
        (
            ("explain", "llama3.1-8b", "qkv_proj", "--max-num-seqs", "8"),
            "--max-num-seqs: applies only to memory",
        ),
        (("explain", "llama3.1-8b", "memory", "--phase", "decode"), "--phase: applies only to a step"),
    ],
)
def test_what_cannot_act_is_refused(run: Run, arguments: tuple[str, ...], says: str) -> None:
    ran = run(*arguments)
    assert ran.code == 2
    assert says in ran.err


def test_a_size_of_ones_own_is_not_what_the_driver_gives_of_another(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("extend: h100-sxm\nmemory_GiB: 94\n")
    assert library.load(path).capacity_bytes == 94 * GIB
    path.write_text("extend: h100-sxm\nphysical_GiB: 79.5\n")
    assert library.load(path).capacity_bytes == round(79.5 * GIB)
    path.write_text("extend: h100-sxm\nphysical_GiB: 81\n")
    with pytest.raises(HardwareError, match="physical_GiB exceeds the nominal memory"):
        library.load(path)


@pytest.mark.parametrize("name", library.names())
def test_drivers_give_a_little_less_than_is_sold(name: str) -> None:
    device = library.load(name)
    assert 0.9 * device.memory_bytes < device.capacity_bytes <= device.memory_bytes


@pytest.mark.parametrize(
    ("memory", "says"),
    [
        ("{rule: physical}", "expected the first release of each, such as \"0.17\", got 'rule'"),
        ('{"1": {rule: half}}', "rule must be physical, static, free, got 'half'"),
        ('{"1": {BASE, utilization: 1.5}}', "utilization must be a share above 0 up to 1"),
        ('{"1": {BASE}}', "set either utilization or aside"),
        ('{"1": {BASE, utilization: 0.9, outside_GiB: {2: 1}}}', "outside_GiB must contain tp 1"),
        (
            '{"1": {BASE, utilization: 0.9, budgets: [{tokens: 8, sequences: 8, unless: sm_80}]}}',
            "the last entry must apply",
        ),
        ('{"1": {BASE, utilization: 0.9, sampler: -1}}', "sampler must be a number above 0"),
        (
            '{"1": {BASE, utilization: 0.9, caches: {split: all, source: me}}}',
            "split must be one of shared, ratio, windows, got 'all'",
        ),
        (
            '{"1": {BASE, utilization: 0.9, caches: {split: ratio, source: me}}}',
            "caches: split: ratio and window_ratio require each other",
        ),
        (
            '{"1": {BASE, utilization: 0.9, caches: {keeps: [state], source: me}}}',
            "keeps must be a list of window, chunk",
        ),
        ('{"1": {BASE, utilization: 0.9, caches: {keeps: []}}}', "missing key source"),
    ],
)
def test_a_wrong_section_is_named(tmp_path: Path, memory: str, says: str) -> None:
    stated = {
        "budgets": "[{tokens: 8, sequences: 8}]",
        "outside_GiB": "{1: 0}",
    }
    more = ", ".join(f"{key}: {value}" for key, value in stated.items() if key not in memory)
    base = f"rule: physical, block: 16, origin: me, {more}"
    path = tmp_path / "mine.yaml"
    host = "host: {origin: by hand, rows: 3, error_percent: 5, step_us: 5000}\n"
    path.write_text(f"{host}memory: {memory.replace('BASE', base)}\n")
    with pytest.raises(HardwareError) as error:
        library.engine(str(path))
    assert says in str(error.value)


def test_ones_own_engine_has_its_own_rule(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text('extend: vllm\nmemory: {"0.21": {utilization: 0.5}}\n')
    found = memory(built(), engine=str(path))
    assert found.usable_bytes == pytest.approx(0.5 * found.physical_bytes, abs=1)


def test_releases_are_those_of_the_version_that_is_asked_for() -> None:
    def sampler(version: str) -> float:
        rule = library.engine(f"vllm@{version}").section(EngineMemory)
        assert rule
        return rule.sampler

    assert [sampler(v) for v in ("0.21", "0.17.1", "0.16", "0.8.4", "0.6")] == [3, 3, 9, 9, 9]
    with pytest.raises(InputError, match="max_num_seqs"):
        memory(built(), max_num_seqs=9, max_batched_tokens=8)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_the_memory_that_a_batch_is_held_against_is_that_of_the_sum(engine: str) -> None:
    """Stages of TensorRT-LLM may use a share of what weights and activations leave, which are unlike."""
    job = llmir.workload(
        built("llama3.1-8b", "stages{pp=2}"), "h100", estimation=llmir.Estimation(engine=engine)
    )
    assert job.capacity_bytes == pytest.approx(job.memory.usable_bytes, abs=1)
