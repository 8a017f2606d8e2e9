"""Measured closed loops as they are played, and hosts fitted without them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import llmir
from llmir.api import measure
from llmir.backends.cost.models import model, with_scheduler
from llmir.backends.request.workload import Workload
from llmir.backends.silicon.closed_loop import InteractiveRun, MeasurementMethod
from llmir.backends.silicon.validate.estimates import kernel_relation
from llmir.backends.work.rows import Basis
from llmir.base.errors import InputError
from llmir.base.values import FrozenDict
from llmir.hw import library
from llmir.hw.transfer import ENGINE

MODEL = llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of("vllm"))
ENGINES = "vllm@0.12", "sglang", "trtllm"


def job(engine: str, prompt: int = 700, generate: int = 60, **scheduler: float) -> Workload:
    by = with_scheduler(model(library.load("h100"), engine=engine), FrozenDict(scheduler))
    return Workload(MODEL, by.device, 1, prompt, generate, model=by)


@pytest.mark.parametrize("engine", ENGINES)
def test_it_is_what_simulate_says_of_users_who_begin_together(engine: str) -> None:
    played = InteractiveRun(job(engine), 8, MeasurementMethod(rounds=4))
    simulated = llmir.simulate(
        MODEL,
        "h100",
        llmir.Traffic(closed=8, prompt=700, generate=60, lengths="fixed", requests=32),
        warm_up=0,
        memory=llmir.Memory(max_model_len=761),
        estimation=llmir.Estimation(engine=engine),
    )
    assert played.ttft_s == pytest.approx(simulated.ttft_s.mean(), rel=1e-12, abs=0)
    assert played.tpot_s == pytest.approx(simulated.tpot_s.mean(), rel=1e-12, abs=0)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("metric", ["ttft", "tpot"])
def test_a_figure_is_its_events_each_by_its_weight(engine: str, metric: str) -> None:
    played = InteractiveRun(job(engine), 12, MeasurementMethod(rounds=5, shortest=0.5))
    seconds = {"ttft": played.ttft_s, "tpot": played.tpot_s}[metric]
    assert played.weights(metric) @ played.events[1] == pytest.approx(seconds, rel=1e-9, abs=0)


def test_lengths_are_drawn_around_the_stated_mean() -> None:
    load = InteractiveRun(job("vllm@0.12", 900, 90), 16, MeasurementMethod(rounds=50, shortest=0.8)).load
    assert load.prompt.min() >= 800
    assert load.prompt.max() <= 1000
    assert load.prompt.mean() == pytest.approx(900, rel=0.02)
    assert load.generate.mean() == pytest.approx(90, rel=0.02)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_front_takes_one_request_at_a_time(engine: str) -> None:
    apart_s, users = 0.004, 8
    course = InteractiveRun(job(engine), users, MeasurementMethod(rounds=3, apart_s=apart_s)).server.course
    waits = np.sort(np.array(course.start_s)[:users] - np.array(course.arrival_s)[:users])
    assert (waits >= apart_s * np.arange(1, users + 1) - 1e-12).all()
    assert np.isfinite(course.end_s).all()


def test_a_step_that_was_filled_ahead_takes_nobody_in() -> None:
    """Alone nothing waits; of several each waits for a step more at most than it did."""
    manner = MeasurementMethod(rounds=6, apart_s=0.001)
    alone = [InteractiveRun(job("vllm@0.12", ahead=ahead), 1, manner) for ahead in (False, True)]
    assert alone[0].ttft_s == alone[1].ttft_s
    prompt, ahead = (InteractiveRun(job("vllm@0.12", ahead=each), 8, manner) for each in (False, True))
    longest = ahead.events[1][ahead.events[2] == 1].max()
    assert prompt.ttft_s < ahead.ttft_s <= prompt.ttft_s + longest


def test_prompts_wait_for_others_so_many_steps() -> None:
    """TensorRT-LLM's batch_wait_timeout_iters: a prompt is read after so many steps of decodes at most."""
    manner = MeasurementMethod(rounds=6, shortest=0.8)
    now, later = (InteractiveRun(job("trtllm", patience=steps, enough=0.9), 8, manner) for steps in (0, 20))
    starts, counts = later.events[0], np.cumsum(later.events[2])
    course = later.server.course
    came, read = (np.searchsorted(starts, np.array(times)) for times in (course.arrival_s, course.start_s))
    steps = np.concatenate([[0.0], counts])
    assert (steps[read] - steps[came] <= 20 + 1).all()  # and the step that was filled before it came
    assert later.ttft_s > 2 * now.ttft_s
    assert later.events[6].max() > now.events[6][now.events[0] > 0].max()  # more are read together


def test_prompts_wait_until_sglang_looks_for_requests() -> None:
    """A request is read after so many decode steps at most, half of them on average."""
    interval, manner = 20, MeasurementMethod(rounds=6, shortest=0.8)
    later = InteractiveRun(job("sglang", generate=200, receive_interval=interval), 8, manner)
    course, step_s = (
        later.server.course,
        later.events[1][later.events[6] == 0] / later.events[2][later.events[6] == 0],
    )
    waits = (np.array(course.start_s) - np.array(course.arrival_s))[8:]  # without the first burst
    prefill_s = later.events[1][later.events[6] > 0].max()
    assert waits.max() <= (interval + 1) * step_s.max() + prefill_s
    assert 0.3 * interval * step_s.mean() < waits.mean() < 0.7 * interval * step_s.mean()


HEAD = "model,gpu,kind,isl,osl,batch_or_concurrency,tp,framework,tpot_ms,ttft_ms\n"


def table(path: Path) -> Path:
    """Loops of two models on the engine as it is bundled, as if they had been measured."""
    rows = []
    for name in ("llama3.1-8b", "qwen3-8b"):
        program = llmir.run(llmir.load(name), llmir.pipeline_of("vllm@0.12"))
        by = model(library.load("h100"), engine="vllm@0.12")
        for users in (2, 8, 32):
            for generate in (20, 60):
                manner = MeasurementMethod(rounds=10, apart_s=0.003)  # as of all closed loops: sources.yaml
                loop = InteractiveRun(Workload(program, by.device, 1, 512, generate, model=by), users, manner)
                figures = f"{1e3 * loop.tpot_s},{1e3 * loop.ttft_s}"
                rows.append(f"{name},h100,serving_closed_loop,512,{generate},{users},1,vllm-0.12.0,{figures}")
    path.write_text(HEAD + "\n".join(rows) + "\n")
    return path


@pytest.mark.slow
def test_hosts_without_a_model_predict_it_where_it_is_of_the_same_engine(tmp_path: Path) -> None:
    pytest.importorskip("scipy")
    path = table(tmp_path / "e2e.csv")
    bundled = measure.validate(path)
    assert max(abs(row.error) for row in bundled.rows) < 1e-9
    found = measure.validate(path, folds="model,device,version")
    assert [(row.row, row.metric) for row in found.rows] == [(row.row, row.metric) for row in bundled.rows]
    # A fit leans on what other servers have in common.
    assert 0 < max(abs(row.error) for row in found.rows) < 0.08


@pytest.mark.mostly_slow(4)
@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"folds": "colour"}, "folds"),
        ({"folds": "device,version"}, "all rows have equal values"),
        ({"folds": "model", "cost": "ideal"}, "leave cost 'ideal' out"),
        ({"folds": "model", "without": "device"}, "leave without out"),
    ],
)
def test_folds_that_leave_nothing_out_are_refused(tmp_path: Path, asked: dict[str, str], says: str) -> None:
    with pytest.raises(InputError, match=says):
        measure.validate(table(tmp_path / "e2e.csv"), **asked)  # type: ignore[arg-type]


def test_a_library_lends_to_engines_that_call_it_and_not_to_another_library() -> None:
    device, lent = library.load("a100-80-sxm"), Basis("calibrated", engine="nccl")
    assert kernel_relation(device, lent, "vllm") == "calibrated"
    assert kernel_relation(device, lent, "torch.distributed nccl") == ENGINE
