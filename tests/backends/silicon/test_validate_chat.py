"""Chat logs: each request is a workload, columns say their units, and nonsense is asked about."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

import llmir

GEMM = "gpu,dtype,m,n,k,latency_us,framework\n"


def logged(
    tokens: Sequence[tuple[int, int]], header: str = "input_tokens,output_tokens", more: str = ""
) -> str:
    return header + "\n" + "".join(f"{a},{b}{more}\n" for a, b in tokens)


def test_each_request_of_a_log_is_a_workload_of_its_own(judge: Any) -> None:
    program = llmir.run(llmir.load("llama2-7b"), llmir.pipeline_of())
    tokens = [(512, 32), (7, 1), (512, 200)]
    found = judge(logged(tokens), program=program, hw="rtx3090", batch=2)
    seconds = {(r.row, r.metric): r.predicted_s for r in found.rows}
    for row, (prompt, generate) in enumerate(tokens, 1):
        job = llmir.workload(
            program,
            "rtx3090",
            batch=2,
            prompt=prompt,
            generate=generate,
            estimation=llmir.Estimation(cost="ideal"),
        )
        assert seconds[row, "ttft"] == pytest.approx(job.ttft_s)
        assert seconds[row, "e2e"] == pytest.approx(job.e2e_s)
        assert seconds.get((row, "tpot")) == (pytest.approx(job.tpot_s) if job.tpot_s else None)
    assert found.measured == ()
    assert all(math.isnan(r.measured_s) for r in found.rows)


@pytest.mark.parametrize("column", ["ttft_ms", "TTFT (ms)", "time_to_first_token_ms"])
def test_measured_columns_of_a_log_say_their_unit(judge: Any, column: str) -> None:
    program = llmir.run(llmir.load("llama2-7b"), llmir.pipeline_of())
    found = judge(
        logged([(64, 8)], f"input_tokens,output_tokens,{column}", ",80"), program=program, hw="rtx3090"
    )
    assert [(r.metric, r.measured_s) for r in found.measured] == [("ttft", pytest.approx(0.08))]


def test_a_column_without_a_unit_needs_one_said(judge: Any) -> None:
    program = llmir.run(llmir.load("llama2-7b"), llmir.pipeline_of())
    log = logged([(64, 8)], "input_tokens,output_tokens,TTFT", ",80")
    with pytest.raises(
        llmir.LlmirError, match="TTFT states no unit; rename it to TTFT_s or TTFT_ms or TTFT_us, or set"
    ):
        judge(log, program=program, hw="rtx3090")
    with pytest.raises(llmir.LlmirError, match="unit: expected s, ms, us, got 'min'"):
        judge(log, program=program, hw="rtx3090", unit="min")
    found = judge(log, program=program, hw="rtx3090", unit="ms")
    assert [(r.metric, r.measured_s) for r in found.measured] == [("ttft", pytest.approx(0.08))]
    assert not found.questions


@pytest.mark.parametrize(
    ("unit", "how"), [("s", "times as long as predicted"), ("us", "shorter than any machine")]
)
def test_times_that_no_machine_has_are_asked_about(judge: Any, unit: str, how: str) -> None:
    """Milliseconds taken for something else, as in a log whose header says nothing."""
    program = llmir.run(llmir.load("llama2-7b"), llmir.pipeline_of())
    lines = [(64, 8, 80, 20), (300, 40, 120, 21), (900, 4, 300, 22)]
    text = "input_tokens,output_tokens,ttft,tpot\n" + "".join(f"{a},{b},{c},{d}\n" for a, b, c, d in lines)
    found = judge(text, program=program, hw="rtx3090", unit=unit)
    assert [how in question for question in found.questions] == [True, True]
    assert not judge(text, program=program, hw="rtx3090", unit="ms").questions


def test_a_log_and_a_table_are_not_taken_for_one_another(judge: Any) -> None:
    program = llmir.load("llama2-7b")
    with pytest.raises(llmir.LlmirError, match="a chat log requires --model and --hw"):
        judge(logged([(1, 1)]))
    with pytest.raises(llmir.LlmirError, match="says on what it ran"):
        judge(GEMM, program=program, hw="h100")
    with pytest.raises(llmir.LlmirError, match="requires program and hw"):
        judge(logged([(1, 1)]), program=program)
