"""What is known of measured rows beside their columns."""

from __future__ import annotations

from pathlib import Path

import pytest

import llmir
from llmir.backends.silicon.closed_loop import MeasurementMethod
from llmir.backends.silicon.rows import DeviceLookup
from llmir.backends.silicon.tables.table import load
from llmir.backends.silicon.validate.estimates import cost_model_choice, with_graphs
from llmir.backends.silicon.validate.requests import MeasuredRequest, measured_request
from llmir.backends.step.report import Report
from llmir.base.errors import InputError
from llmir.hw import library

COLUMNS = "model,gpu,num_gpus,kind,isl,osl,batch_or_concurrency,ttft_ms,framework,note,source"


@pytest.mark.parametrize(
    ("note", "source", "gpu", "prompt"),
    [
        ("01ccad58:running-llamas", "optimum_benchmark", "A100-80-SXM-Station", 512),
        ("74cdf473:running-llamas", "optimum_benchmark", "A100-80-SXM-Station", 256),
        ("", "someone", "A100-80-SXM", 512),
    ],
)
def test_a_source_may_say_what_ran_a_row_and_how_long_it_was(
    tmp_path: Path, note: str, source: str, gpu: str, prompt: int
) -> None:
    table = tmp_path / "e2e.csv"
    table.write_text(
        f"{COLUMNS}\nllama-2-7b,a100_sxm,1,static_batch_latency,512,,4,113,transformers,{note},{source}\n"
    )
    _, rows = load(table)
    assert DeviceLookup(tmp_path)(rows["gpu"][0]).name == gpu
    assert measured_request(rows, 0).prompt == prompt


def test_a_station_is_an_a100_whose_matrix_units_are_slower() -> None:
    machines = DeviceLookup(Path())
    station, card = machines("a100-station"), machines("a100_sxm")
    assert station.calibration == card.calibration
    assert station.memory_Bps == card.memory_Bps
    assert {d: f for d, f in station.matrix_flops.items() if f >= card.matrix_flops[d]}.keys() <= {"fp64"}


SERVED = "model,gpu,num_gpus,tp,kind,isl,osl,batch_or_concurrency,tpot_ms,framework,weight_dtype,source"


def served(folder: Path, line: str, columns: str = SERVED) -> MeasuredRequest:
    table = folder / "e2e.csv"
    table.write_text(f"{columns}\n{line}\n")
    return measured_request(load(table)[1], 0)


@pytest.mark.parametrize(
    ("model", "gpu", "framework", "source", "types"),
    [
        ("meta-llama/Llama-3.1-70B", "b200_sxm", "trtllm", "aic_silicon_inferencex", ("fp8_t", "fp8_t")),
        ("meta-llama/Llama-3.1-70B", "h100_sxm", "vllm", "aic_silicon_inferencex", ("fp8_t", "fp8_t")),
        ("Qwen/Qwen3-32B", "h100_sxm", "trtllm-1.0.0rc3", "aic_silicon_gap", ("fp8_b128x128", "fp8")),
        ("Qwen/Qwen3-32B", "h100_sxm", "vllm-0.12.0", "aic_silicon_gap", ("fp8", "fp8")),
        ("Qwen/Qwen3-32B", "h100_sxm", "trtllm-1.0.0rc3", "someone", ("fp8", "fp8")),
    ],
)
def test_a_source_may_say_which_checkpoint_a_row_ran(
    tmp_path: Path, model: str, gpu: str, framework: str, source: str, types: tuple[str, str]
) -> None:
    line = f"{model},{gpu},2,2,serving_closed_loop,1024,1024,16,12,{framework},fp8,{source}"
    layout = served(tmp_path, line).layout
    assert (layout.weights, layout.activations) == types
    fused = "70B" in model and (framework, gpu) != ("vllm", "h100_sxm")
    assert layout.passes == ("fuse-all-reduce" if fused else "")


@pytest.mark.parametrize(("source", "graphs"), [("aic_silicon_gap", 224), ("someone", 0)])
def test_a_source_may_say_how_large_graphs_are(tmp_path: Path, source: str, graphs: int) -> None:
    line = f"Qwen/Qwen3-32B,h100_sxm,8,8,serving_closed_loop,4000,1000,224,21,trtllm-1.2.0rc6.post1,,{source}"
    assert served(tmp_path, line).manner.graphs == graphs


MANNER = "rounds,shortest,apart_ms,ahead,patience,enough,utilization,chunk,graphs,receive"
RUN = "Qwen/Qwen3-32B,h100_sxm,2,2,serving_closed_loop,1000,100,64,19,trtllm-1.0.0rc3,fp8,aic_silicon_gap"


def test_a_row_says_how_it_was_measured_before_its_source_does(tmp_path: Path) -> None:
    source = served(tmp_path, RUN)
    assert served(tmp_path, RUN + 10 * ",", f"{SERVED},{MANNER}") == source
    own = served(
        tmp_path, f"{RUN},3,0.5,7,1,4,0.5,0.75,batch_or_concurrency + 10,256,30", f"{SERVED},{MANNER}"
    )
    stated = {"ahead": True, "patience": 4, "enough": 0.5, "utilization": 0.75, "graphs": 256, "receive": 30}
    manner = MeasurementMethod(3, 0.5, 7e-3, **stated)
    assert own == source._replace(manner=manner, chunk=74)
    for chunk, read in (("all", "all"), ("2048", 2048)):
        said = served(tmp_path, f"{RUN},{chunk},0", f"{SERVED},chunk,ahead")
        assert (said.chunk, said.manner) == (read, source.manner._replace(ahead=False))


@pytest.mark.parametrize(
    ("column", "cell", "message"),
    [
        ("chunk", "half", "chunk must be a number, got 'half'"),
        ("chunk", "isl + half", "chunk must be a number, got 'half'"),
        ("graphs", "0", "graphs must be an integer from 1 to 10,000,000, got '0'"),
    ],
)
def test_a_row_that_says_nonsense_of_how_it_was_measured_has_no_price(
    tmp_path: Path, column: str, cell: str, message: str
) -> None:
    with pytest.raises(InputError) as raised:
        served(tmp_path, f"{RUN},{cell}", f"{SERVED},{column}")
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("column", "cell"),
    [("rounds", "0"), ("ahead", "2"), ("enough", "1.5"), ("shortest", "0"), ("patience", "-1")],
)
def test_a_row_that_was_measured_in_no_possible_way_is_named(tmp_path: Path, column: str, cell: str) -> None:
    table = tmp_path / "e2e.csv"
    table.write_text(f"{SERVED},{column}\n{RUN},{cell}\n")
    (problem,) = load(table)[1].problems
    assert problem.startswith(f"e2e.csv: row 1: {column} must be")


def test_graphs_that_hold_a_step_spare_its_launches() -> None:
    program = llmir.run(llmir.load("qwen3-32b"), f"{llmir.pipeline_of('trtllm')},shard{{tp=8}}")
    by = cost_model_choice("calibrated").model(library.load("h100"), "trtllm@1.1")
    at = {"batch": 224, "new": 1, "context": 4500}
    models = [with_graphs(by, n) for n in (128, 256)]
    usual, larger = (Report(program, library.load("h100"), **at, model=model) for model in models)
    assert usual.time_s > 1.5 * larger.time_s
    below = {**at, "batch": 64}
    one, other = (Report(program, library.load("h100"), **below, model=model) for model in models)
    assert one.time_s == other.time_s


SERVING = "source,hardware,framework,model,precision,spec_method,tp,isl,osl,conc,tpot_s,tput_per_gpu"


def test_a_serving_row_is_estimated_as_analyze_prints_a_closed_loop(tmp_path: Path) -> None:
    """Answers are drawn from 0.8 to 1.0 of the stated length, prompts are nine tenths of it."""
    table = tmp_path / "serving.csv"
    line = "inferencex_july2026_decoded,h200,vllm,llama70b,fp8,none,2,1024.0,1024.0,16,0.02,900"
    table.write_text(f"{SERVING}\n{line}\n")
    tpot, token = llmir.validate(table).rows
    printed = llmir.workload(
        "Llama-3.3-70B",
        "h200",
        prompt=922,
        generate=1024,
        concurrency=16,
        chunk=8192,
        parallel=llmir.Parallel(tp=2),
        precision=llmir.Precision(weights="fp8_t", activations="fp8_t", kv="fp8"),
        estimation=llmir.Estimation(engine="vllm@0.11"),
    ).to_dict()["serving"]
    assert tpot.predicted_s == pytest.approx(printed["tpot_s"], rel=0.03)  # the row ran asynchronously
    assert 1 / token.predicted_s == pytest.approx(printed["output_tokens_per_s"], rel=0.03)
    assert (token.measured_s, tpot.users) == (pytest.approx((922 + 922) / 922 / 1800), " 9 to 16")
    (group,) = llmir.validate(table).groups(("users", "relation"))[:1]
    assert 0 < group.band < 1 and 0 <= group.within <= group.within_twice <= 1


@pytest.mark.parametrize(("gpu", "kernels"), [("h200", "vllm-marlin"), ("b200", "vllm"), ("mi355x", "vllm")])
def test_a_source_may_say_which_kernels_ran(tmp_path: Path, gpu: str, kernels: str) -> None:
    """`VLLM_MXFP4_USE_MARLIN=1` on H200: experts are slower to multiply, and all else is vLLM's."""
    table = tmp_path / "serving.csv"
    line = f"inferencex_july2026_decoded,{gpu},vllm,gptoss120b,fp4,none,2,8192.0,1024.0,16,0.02,900"
    table.write_text(f"{SERVING}\n{line}\n")
    assert measured_request(load(table)[1], 0).layout.kernels == kernels
    main, marlin = (
        llmir.analyze(
            *("gpt-oss-120b", "h200"),
            batch=1,
            new=8192,
            parallel=llmir.Parallel(tp=2),
            estimation=llmir.Estimation(engine=engine),
        )
        for engine in ("vllm", "vllm-marlin")
    )
    assert main.overhead == marlin.overhead
    slower = {a.name for a, b in zip(main.ops, marlin.ops, strict=True) if b.time_s > 1.2 * a.time_s}
    assert slower == {
        "period.sliding_layer.experts_gate_up",
        "period.full_layer.experts_gate_up",
        "period.sliding_layer.down_proj",
        "period.full_layer.down_proj",
    }


def test_a_serving_row_with_drafts_is_refused(tmp_path: Path) -> None:
    table = tmp_path / "serving.csv"
    table.write_text(f"{SERVING}\nsomeone,b200,trt,dsr1,fp4,mtp,8,1024,1024,4,0.005,900\n")
    (row,) = llmir.validate(table).refused
    assert row.reason == "the row may include speculative decoding"


TTFT = (
    "source,hardware,framework,model,precision,spec_method,disagg,is_multinode,decode_tp,decode_ep,"
    "decode_dp_attention,isl,osl,conc,median_ttft"
)


def test_ttft_of_a_serving_row_is_estimated_as_analyze_prints_it(tmp_path: Path) -> None:
    table = tmp_path / "ttft.csv"
    head = "inferencex_app_fixture,b200,trt,llama70b,fp8,none"
    lines = [f"{head},{mode},1024,1024,16,0.12" for mode in ("False,False,1,1,False", "False,False,1,1,True")]
    table.write_text("\n".join([TTFT, *lines, f"{head},True,True,1,1,False,1024,1024,16,0.12"]))
    found = llmir.validate(table)
    (row,) = found.rows
    printed = llmir.workload(
        "Llama-3.3-70B",
        "b200",
        prompt=922,
        generate=1024,
        concurrency=16,
        chunk=16384,
        precision=llmir.Precision(weights="fp8_t", activations="fp8_t", kv="fp8"),
        estimation=llmir.Estimation(engine="trtllm@1.1"),
    ).to_dict()["serving"]
    assert (row.metric, row.measured_s) == ("ttft", pytest.approx(0.12))
    assert row.predicted_s == pytest.approx(printed["ttft_s"], rel=0.05)
    assert [r.reason.partition(":")[0] for r in found.refused] == [
        "attention data parallelism",
        "prefill and decode run on separate GPUs (disagg)",
    ]
