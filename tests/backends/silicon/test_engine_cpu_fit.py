"""Hosts fitted to whole runs: what made the times is found again, by version; errors of what is left out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import llmir
from llmir.backends.kernels.engine_cpu import (
    EagerEngineCpu,
    EngineCpu,
    OverlappedEngineCpu,
    RunShape,
    StepShape,
    rank_skew,
)
from llmir.backends.silicon.calibrate import engine_cpu
from llmir.backends.silicon.calibrate.engine_cpu import _held_out_engine_cpus, common_engine_cpu
from llmir.backends.silicon.calibrate.runs import RunMeasurement
from llmir.hw import engine as versions
from llmir.hw import library

pytest.importorskip("scipy")
H100 = library.load("h100")


def runs(
    host: EngineCpu, engine: str, span: tuple[str, ...], tps: tuple[int, ...], seed: int
) -> Iterator[RunMeasurement]:
    """Decode steps of three models, and static batches of them, as an engine with this host runs them."""
    random = np.random.default_rng(seed)
    for model, kernels in ("a", 400), ("b", 900), ("c", 1500):
        for tp in tps:
            for batch in (1, 4, 16, 64):
                late = kernels / 8 * rank_skew(tp)
                busy = kernels * random.uniform(3e-6, 30e-6)
                step = StepShape(busy, kernels * 2.5e-6, kernels, batch, late)
                prompt = StepShape(batch * busy, kernels * 2.5e-6, kernels, batch, late)
                shape = RunShape(step.times(100), prompt.times(batch % 2))
                seconds = float(host.seconds(H100, shape))
                yield RunMeasurement(engine, span, "H100-SXM", model, tp, shape, seconds)


OLD = EngineCpu(hidden=0.7, step_us=2000, sequence_us=60, kernel_us=3, skew_us=9)
NEW = EngineCpu(hidden=0.7, step_us=400, sequence_us=20, kernel_us=3, skew_us=9)


@pytest.fixture(scope="module")
def found() -> list[engine_cpu.EngineCpuFit]:
    old = runs(OLD, "e", ("1.0", "1.4"), (1, 2, 4, 8), 0)
    new = runs(NEW, "e", ("1.6",), (1,), 1)
    return engine_cpu.fit_engine_cpus([*new, *old])


@pytest.mark.slow
def test_the_host_that_made_the_times_is_found(found: list[engine_cpu.EngineCpuFit]) -> None:
    old, new = found  # the one with most runs first
    for name in ("step_us", "sequence_us", "skew_us"):
        assert getattr(old.host, name) == pytest.approx(getattr(OLD, name), rel=0.15)
    assert max(old.errors(of).mape for of in (old.fitted, old.by_model, old.by_tp)) < 0.01
    assert new.host.step_us == pytest.approx(NEW.step_us, rel=0.3)
    assert new.host.skew_us == pytest.approx(old.host.skew_us, rel=0.01)  # of which one rank tells nothing
    *_, next_major = engine_cpu.fit_engine_cpus(
        [*old.runs, *(run._replace(versions=("2.0",)) for run in new.runs)]
    )
    assert next_major.host.skew_us == pytest.approx(EngineCpu().skew_us, rel=0.01)


@pytest.mark.slow
def test_other_versions_are_further_off_than_what_was_left_out(found: list[engine_cpu.EngineCpuFit]) -> None:
    for host in found:
        assert host.elsewhere is not None
        assert host.elsewhere > 3 * max(host.errors(host.fitted).mape, host.errors(host.by_model).mape)
    _, new = found
    assert np.isnan(new.by_tp).all()
    assert new.error == max(new.errors(of).mape for of in (new.fitted, new.by_model))


@pytest.mark.slow
def test_what_tells_no_error_takes_that_of_most_runs() -> None:
    """Runs of one model and tp, or no more of them than a host has parameters, which meet them all."""
    old = list(runs(OLD, "e", ("1.0",), (1, 2, 4, 8), 0))
    new = list(runs(NEW, "e", ("2.0",), (1,), 1))
    alone = [run for run in new if run.model == "a"]
    for few in (alone, new[:8:2]):
        near, found = engine_cpu.fit_engine_cpus([*old, *few])
        assert found.error == max(near.error, found.errors(found.fitted).mape)


@pytest.mark.slow
def test_few_runs_do_not_change_what_graphs_hide() -> None:
    """Four runs of a release are met by its time a step; what a graph hides is that of the other release."""
    old = list(runs(OLD, "e", ("1.0",), (1, 2, 4, 8), 0))
    new = list(runs(NEW, "e", ("1.1",), (1,), 1))
    near, few = engine_cpu.fit_engine_cpus([*old, *new[:8:2]])
    _, many = engine_cpu.fit_engine_cpus([*old, *new])
    assert few.host.hidden == near.host.hidden
    assert few.host.step_us != pytest.approx(near.host.step_us, rel=0.01)
    assert many.host.hidden != near.host.hidden


def test_an_eager_host_is_hidden_behind_kernels_that_take_longer() -> None:
    host = EagerEngineCpu(hidden=0, step_us=1000, sequence_us=0.1, kernel_us=20, skew_us=2)
    short, long = (StepShape(busy, 0, 1000, 1) for busy in (5e-3, 50e-3))
    launches, token = 1e-3 + 1000 * 20e-6, 1e-7
    assert host.step(short, np) == pytest.approx(launches + token)
    assert host.step(long, np) == pytest.approx(50e-3 + token)
    assert host.step(long.times(10), np) == pytest.approx(10 * host.step(long, np))


def test_eager_steps_take_the_longer_of_launches_and_kernels() -> None:
    """One token waits for the launches, a prompt for its kernels."""
    program = llmir.run(llmir.load("llama-2-7b"), llmir.pipeline_of("hf-transformers"))
    for new, launching in ((1, True), (1024, False)):
        step = llmir.analyze(
            program, "a100", batch=1, new=new, estimation=llmir.Estimation(engine="hf-transformers")
        )
        assert (step.overhead["launching_s"] > 0) is launching, new


@pytest.mark.slow
def test_groups_add_up(found: list[engine_cpu.EngineCpuFit]) -> None:
    for host in found:
        rows = list(host.rows)
        assert sum(row["n"] for row in rows) == len(host.runs)
        mean = sum(row["n"] * row["mape"] for row in rows) / len(host.runs)
        assert mean == pytest.approx(host.row["mape"])


@pytest.mark.slow
def test_a_file_keeps_what_else_it_says(
    found: list[engine_cpu.EngineCpuFit], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "e" / "1.0.yaml"
    file.parent.mkdir()
    text = 'versions: ["1.0", "1.4"]\n# Why.\nhost:\n  origin: "x"\n  rows: 1\nmemory:\n  tokens: 3\n'
    file.write_text(text)
    monkeypatch.setattr(engine_cpu, "FOLDER", tmp_path)
    name, written = found[0].file
    assert name == "engines/e/1.0.yaml"
    assert written.endswith("# Why.\nmemory:\n  tokens: 3\n")
    assert written.count("host:") == 1
    file.write_text(written.partition("# Why.")[0])
    engine = versions.read_engine(file)
    assert engine.host.parameters == pytest.approx(vars(found[0].host), rel=0.01)
    assert (engine.host.error, engine.elsewhere) == pytest.approx(
        (found[0].error, found[0].elsewhere), rel=0.01
    )


def test_a_version_that_was_not_measured_is_as_doubtful_as_others_are() -> None:
    for name in library.engines():
        for engine in versions.ranges(name):
            assert engine.error == engine.host.error
            assert versions.engine_at(name, "99").error >= versions.engine_at(name).error


COMMON = EngineCpu(hidden=0.7, step_us=1500, sequence_us=40, kernel_us=3, skew_us=5)


def served(
    host: EngineCpu, engine: str, versions: tuple[str, ...], tps: tuple[int, ...], seed: int
) -> list[RunMeasurement]:
    release = f"{engine}@{versions[-1]}"
    own = runs(host, engine, versions, tps, seed)
    return [run._replace(served=True, release=release) for run in own]


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> list[RunMeasurement]:
    """Of two engines with one host."""
    monkeypatch.setattr(EngineCpu, "starts", 2)
    spans = enumerate((("a", ("1.0",)), ("b", ("3.0",))))
    return [run for seed, (name, span) in spans for run in served(COMMON, name, span, (1, 2, 8), seed)]


def test_a_server_of_which_little_is_known_is_as_others_are(servers: list[RunMeasurement]) -> None:
    """One rank says nothing of skew, one batch nothing of sequences apart from steps; batches do."""
    slow = EngineCpu(hidden=0.7, step_us=6000, sequence_us=160, kernel_us=3, skew_us=5)
    own = served(slow, "c", ("2.0",), (1,), 2)
    alone = [run for run in own if run.shape.decode.sequences == 100]
    for few, beyond in ((alone, False), (own, True)):
        *_, found = engine_cpu.fit_engine_cpus([*servers, *few])
        assert found.engine == "c"
        assert found.host.skew_us == pytest.approx(COMMON.skew_us, rel=0.15)
        assert (found.host.sequence_us > 2 * COMMON.sequence_us) is beyond
    *_, static = engine_cpu.fit_engine_cpus([*servers, *(run._replace(served=False) for run in alone)])
    assert static.host.skew_us == pytest.approx(EngineCpu().skew_us, rel=0.05)  # no server


def test_what_servers_have_in_common_does_not_hang_on_how_many_runs_each_has(
    servers: list[RunMeasurement],
) -> None:
    slow = EngineCpu(hidden=0.7, step_us=1800, sequence_us=40, kernel_us=3, skew_us=5)
    own = served(slow, "c", ("2.0",), (1, 2, 8), 2)
    once, often = (common_engine_cpu((*servers, *own * times)) for times in (1, 5))
    assert once.step_us == pytest.approx(often.step_us, rel=0.02)
    assert COMMON.step_us < once.step_us < slow.step_us


def test_a_range_that_was_left_out_takes_the_nearest_of_its_major_version(
    servers: list[RunMeasurement],
) -> None:
    """Of trtllm 1.1 that of 1.0, not of 0.17; where neither is there, that of other servers."""
    old = served(OLD, "trtllm", ("0.17", "0.17"), (1, 2), 3)
    near = [run._replace(serial=True) for run in served(NEW, "trtllm", ("1.0", "1.0"), (1, 2), 4)]
    left = served(NEW, "trtllm", ("1.1", "1.1"), (1, 2), 5)

    def found(rest: list[RunMeasurement]) -> EngineCpu:
        return _held_out_engine_cpus(left, rest, engine_cpu.fit_engine_cpus(rest))["trtllm", "1.1"]

    both = found([*servers, *old, *near])
    assert isinstance(both, OverlappedEngineCpu)
    assert both.sequence_us == pytest.approx(NEW.sequence_us, rel=0.25)
    other = found([*servers, *old])
    assert abs(other.sequence_us - COMMON.sequence_us) < abs(other.sequence_us - OLD.sequence_us)
    assert vars(other) == pytest.approx(vars(common_engine_cpu((*servers, *old))))


def test_a_run_that_did_not_overlap_its_steps_is_fitted_as_a_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts that overlap show nothing of their work behind long steps; switched off, they show all of it."""
    monkeypatch.setattr(EngineCpu, "starts", 2)
    truth = EngineCpu(hidden=0.6, step_us=2500, sequence_us=50, kernel_us=20, skew_us=2)
    made = served(truth, "trtllm", ("1.0", "1.0"), (1, 2, 4), 6)
    (found,) = engine_cpu.fit_engine_cpus([run._replace(serial=True) for run in made])
    assert type(found.host) is OverlappedEngineCpu
    assert found.host.step_us == pytest.approx(truth.step_us, rel=0.15)
    assert found.host.sequence_us == pytest.approx(truth.sequence_us, rel=0.15)
    assert found.errors(found.fitted).mape < 0.01
    (hidden,) = engine_cpu.fit_engine_cpus(made)
    assert hidden.errors(hidden.fitted).mape > 5 * found.errors(found.fitted).mape
