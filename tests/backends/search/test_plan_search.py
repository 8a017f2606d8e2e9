"""Plans: the search against brute force, and questions that such tools get wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

import llmir
from llmir.backends.search.front import front
from llmir.backends.search.plan import Candidate, Plans
from llmir.backends.search.traffic import LatencyLimit, latency_limit
from llmir.base.budget import Pace
from llmir.base.errors import InputError, WorkError
from llmir.cli.main import cli
from tests.flat import records

RATE = 80
TRAFFIC: dict[str, Any] = {"rate": RATE, "prompt": 1000, "generate": 100, "seed": 3}
LIMITS = {"max_ttft": "0.3s", "max_tpot": "20ms"}


@pytest.fixture(scope="module")
def plans() -> Plans:
    """Two devices, of which one misses nothing and one is dearer."""
    return llmir.plan(
        "llama3.1-8b", "h100-sxm,a100-80-sxm", **records(llmir.plan, gpus=16, **LIMITS, **TRAFFIC)
    )


def simulated(candidate: Candidate, seed: int) -> Any:
    """One of replicas that are dealt requests in turn, by the public simulator."""
    traffic, s = candidate.traffic, candidate.structure
    limits = {
        "max_ttft_s": traffic.ttft and traffic.ttft.seconds,
        "max_tpot_s": traffic.tpot and traffic.tpot.seconds,
    }
    return llmir.simulate(
        s.program,
        s.device,
        **records(
            llmir.simulate,
            rate=traffic.rate / candidate.replicas,
            burstiness=candidate.replicas,
            prompt=traffic.prompt,
            generate=traffic.generate,
            requests=traffic.requests,
            max_num_seqs=candidate.batch // s.split.dp,
            max_batched_tokens=candidate.chunk,
            seed=seed,
            **limits,
        ),
    )


def steady(seconds: Any) -> Any:
    """Without the first and the last tenth of the requests."""
    return seconds[len(seconds) // 10 : -(len(seconds) // 10)]


def best_of(points: Sequence[tuple[float, float]]) -> list[int]:
    """The front, point against point."""
    near = 1 + 1e-9

    def beaten(p: tuple[float, float]) -> bool:
        return any(
            q[0] * near >= p[0] and q[1] * near >= p[1] and (q[0] > p[0] * near or q[1] > p[1] * near)
            for q in points
        )

    return [i for i, p in enumerate(points) if not beaten(p)]


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=30))
def test_a_front_is_what_nothing_beats_ties_included(points: list[tuple[int, int]]) -> None:
    found = front(np.array([float(x) for x, _ in points]), np.array([float(y) for _, y in points]))
    assert np.flatnonzero(found).tolist() == best_of([(float(x), float(y)) for x, y in points])


def closed_form(
    program: Any, pp: int, dp: int, prompt: int, generate: int, chunk: int, batch: int
) -> tuple[float, float]:
    """Seconds of a later token and requests a second, step by step through `analyze`."""
    decode = llmir.analyze(program, "h100-sxm", batch=-(-batch // pp), new=1, context=prompt + generate // 2)
    alone, one = (
        llmir.analyze(program, "h100-sxm", batch=n, new=1, context=prompt + generate // 2) for n in (dp, 1)
    )
    each = max(float(decode.period_s), pp * float(decode.interval_s))
    busy = held = 0.0
    starts = range(0, prompt, chunk)
    for start in starts:
        new = min(chunk, prompt - start)
        read, first = (llmir.analyze(program, "h100-sxm", batch=n, new=new, context=start) for n in (dp, 1))
        busy += float(read.interval_s) - float(alone.interval_s)
        held += float(first.interval_s if start + chunk < prompt else first.period_s)
    busy, held = max(busy, 0.0) / dp, held - (len(starts) + pp - 1) / pp * float(one.period_s)
    if dp * pp > 1:  # prompts come by Poisson's law: in a share of all steps there are some
        come = batch / (generate - 1)
        busy = max(busy, held * (1 - np.exp(-come)) / come)
    cycle = (generate - 1) * each + batch * busy
    return (cycle - busy) / (generate - 1), batch / cycle


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama3.1-8b", "gemma2-9b", "qwen3-30b-a3b"])
def test_the_search_is_brute_force_through_analyze(name: str) -> None:
    """Every split of 16 GPUs, at a few batches: the same figures, and the same front."""
    batches, chunk, prompt, generate = (8, 64), 2048, 3000, 200
    asked = {"prompt": prompt, "generate": generate, "batch": batches, "chunk": chunk}
    found = llmir.plan(
        name, **records(llmir.plan, rate=1e6, gpus=16, **asked)
    )  # a rate that nothing serves: there is no simulation
    assert found.best is None and not found.missed
    expected: list[tuple[float, float]] = []
    keys: list[tuple[Any, ...]] = []
    passes, plain = llmir.pipeline_of("vllm"), llmir.load(name)
    powers = [1 << n for n in range(5)]
    experts = name == "qwen3-30b-a3b"
    for tp, pp, dp in ((t, p, d) for t in range(1, 17) for p in powers for d in powers):
        if tp * pp * dp > 16 or (dp > 1 and not experts):
            continue
        for ep in {1, tp * dp} if experts else {1}:
            for sp in (0, 1) if tp > 1 else (0,):
                stages = f"stages{{pp={pp}}}" if pp > 1 else ""
                shard = f"shard{{tp={tp},dp={dp},ep={ep},sp={sp}}}" if tp * dp > 1 else ""
                gather = "dispatch{by=gather}" if experts and dp > 1 and ep > 1 else ""
                sliced = "slice-sends" if pp > 1 and tp > 1 and not sp else ""
                steps = ",".join(filter(None, (stages, passes, shard, gather, sliced)))
                try:
                    program = llmir.run(plain, steps)
                except llmir.LlmirError:
                    continue
                at: dict[str, Any] = {"prompt": prompt, "generate": generate, "max_batched_tokens": chunk}
                job = llmir.workload(
                    program, "h100-sxm", **records(llmir.workload, max_model_len=prompt + generate, **at)
                )
                assert job.pool is not None and job.pool.kv_tokens is not None
                room = job.pool.kv_tokens // 16 // -(-(prompt + generate - 1) // 16)
                for batch in batches:
                    if batch <= min(room, job.pool.sequences * dp) and batch % dp == 0:
                        tpot, rate = closed_form(program, pp, dp, prompt, generate, chunk, batch)
                        expected.append((1 / tpot, rate * generate / (tp * pp * dp)))
                        keys.append((tp, pp, dp, ep, bool(sp), batch))
    points = found.points
    splits = [found.structures[int(i)].split for i in points.structure]
    own = [(s.tp, s.pp, s.dp, s.ep, s.sp, int(batch)) for s, batch in zip(splits, points.batch, strict=True)]
    assert sorted(own) == sorted(keys)
    places = {key: i for i, key in enumerate(own)}
    order = [places[key] for key in keys]
    figures = np.stack([found.tokens_per_s_user, found.tokens_per_s_device], axis=1)[order]
    assert figures == pytest.approx(np.array(expected), rel=1e-9, abs=0)
    assert {keys[i] for i in best_of(expected)} == {own[i] for i in found.front}


@pytest.mark.slow
def test_the_first_plan_meets_the_limits_in_seeds_that_the_search_did_not_use(plans: Plans) -> None:
    best = plans.best
    assert best is not None
    for seed in range(100, 105):
        run = simulated(best, seed)
        assert np.percentile(steady(run.ttft_s), 99) <= 0.3
        assert np.percentile(steady(run.tpot_s), 99) <= 0.02


@pytest.mark.slow
def test_what_stands_beside_a_plan_is_what_the_simulator_says(plans: Plans) -> None:
    for candidate in plans.shown:
        run = simulated(candidate, plans.seeds[0])
        own = candidate.trial.runs[0]
        for spread, seconds in ((own.ttft_s, run.ttft_s), (own.tpot_s, run.tpot_s)):
            each = [np.mean(steady(seconds)), *np.percentile(steady(seconds), [50, 90, 99])]
            assert [*spread] == pytest.approx(each, rel=1e-9, abs=0)
        assert own.within == pytest.approx(steady(run.within).mean())


def test_every_plan_that_meets_the_limits_honours_them(plans: Plans) -> None:
    assert plans.ranked
    for candidate in plans.ranked:
        assert candidate.trial.upper(0) <= 0.3 and candidate.trial.upper(1) <= 0.02
    for candidate in plans.missed:
        assert candidate.trial.upper(0) > 0.3 or candidate.trial.upper(1) > 0.02


def test_a_replica_less_does_not_do(plans: Plans) -> None:
    """The fewest: with fewer devices of the first plan's kind there is none of its split."""
    best = plans.best
    assert best is not None and best.replicas > 1
    split = best.structure.split
    gpus = best.devices - split.devices
    fewer = llmir.plan(
        "llama3.1-8b", best.structure.device.name, **records(llmir.plan, gpus=gpus, **LIMITS, **TRAFFIC)
    )
    assert all(each.structure.split != split for each in fewer.ranked)


def test_a_batch_is_one_that_the_engine_admits(plans: Plans) -> None:
    points = plans.points
    for i in range(0, len(points.batch), 7):
        s = plans.structures[int(points.structure[i])]
        chunk, batch = int(points.chunk[i]), int(points.batch[i])
        at = {"prompt": 1000, "generate": 100, "max_batched_tokens": chunk}
        default = {"H100-SXM": 1024, "A100-80-SXM": 256}[s.device.name] * s.split.dp
        if batch > default:  # the plan hands the limit to the engine
            at["max_num_seqs"] = batch // s.split.dp
        server = llmir.workload(s.program, s.device, **records(llmir.workload, max_model_len=1100, **at)).pool
        assert server is not None and server.kv_tokens is not None
        assert batch * -(-1099 // 16) <= server.kv_tokens // 16
        assert batch <= server.sequences * s.split.dp


@pytest.mark.slow
def test_a_mean_is_no_percentile() -> None:
    """At this rate the mean is within a limit that a percent of requests are far beyond."""
    asked = {"rate": 8, "prompt": "lognormal:1500,1", "generate": 50, "gpus": 1}
    found = llmir.plan("llama3.1-8b", **records(llmir.plan, max_ttft=10, **asked))
    assert found.best is not None
    mean, _, _, p99 = found.best.trial.ttft_s
    between = (mean * p99) ** 0.5
    assert mean < between / 1.3 < between * 1.3 < p99
    assert llmir.plan("llama3.1-8b", **records(llmir.plan, max_ttft=between, **asked)).best is None
    assert (
        llmir.plan("llama3.1-8b", **records(llmir.plan, max_ttft=f"mean:{between:.6f}s", **asked)).best
        is not None
    )


@pytest.mark.slow
def test_little_traffic_takes_few_devices() -> None:
    """One node serves it, and nobody is told to buy eleven; one GPU does where the model fits."""
    found = llmir.plan(
        "llama3.1-8b",
        max_ttft="1s",
        max_tpot="50ms",
        traffic=llmir.Traffic(rate=0.2, prompt=500, generate=50),
    )
    assert found.best is not None and found.best.devices == 1


def test_cost_decides_where_all_devices_have_a_price(plans: Plans) -> None:
    assert plans.priced and plans.best is not None
    hourly = [candidate.cost_per_hour_usd or 0.0 for candidate in plans.ranked]
    assert hourly == sorted(hourly)
    million = plans.best.cost_usd_per_mtok
    assert million == pytest.approx(hourly[0] / 3600 / (RATE * 100) * 1e6)


@pytest.mark.slow
def test_why_adds_up(plans: Plans) -> None:
    best = plans.best
    for candidate in plans.shown:
        why = plans.why(candidate)
        assert 0 < why.share <= 1 and why.op
        if candidate is best:
            assert why.constraint in ("ttft", "tpot") and why.by <= 0
        elif candidate.meets:
            assert best is not None
            assert why.constraint == "cost"
            assert why.by == pytest.approx(candidate.cost_per_hour_usd / best.cost_per_hour_usd - 1)
        else:
            assert why.by > 0


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("1s", LatencyLimit(1.0, "p99")),
        ("30ms", LatencyLimit(0.03, "p99")),
        ("p50:30ms", LatencyLimit(0.03, "p50")),
        ("mean:0.5s", LatencyLimit(0.5, "mean")),
        ("p99.9:2s", LatencyLimit(2.0, "p99.9")),
        (0.25, LatencyLimit(0.25, "p99")),
    ],
)
def test_limits_are_read(said: object, expected: LatencyLimit) -> None:
    found = latency_limit("max_ttft", said)
    assert found.of == expected.of and found.seconds == pytest.approx(expected.seconds)


@pytest.mark.parametrize("said", ["30", "fast", "p100:3s", "median:1s", "0s", "-1s", 0, -1.0, None, "1h"])
def test_what_is_no_limit_is_refused(said: object) -> None:
    with pytest.raises(InputError, match="max_ttft"):
        latency_limit("max_ttft", said)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["plan", *arguments])


ASKED = ("llama3.1-8b", "--rate", "10", "--prompt", "500", "--generate", "50", "--gpus", "2")


def test_the_best_of_each_goal_is_among_the_plans_that_meet_the_limits(plans: Plans) -> None:
    for name, figure in (("ttft", "ttft_s"), ("tpot", "tpot_s")):
        best = getattr(plans.goals[name].trial, figure).p99
        assert best == min(getattr(each.trial, figure).p99 for each in plans.ranked)
    assert plans.goals["cost"] is plans.best
    most = plans.goals["tokens_per_s_device"]
    assert most.devices == min(each.devices for each in plans.ranked)


def test_energy_is_that_of_boards_at_the_limit_of_their_power(plans: Plans) -> None:
    best = plans.best
    assert best is not None
    watts = {"H100-SXM": 700, "A100-80-SXM": 400}[best.structure.device.name]
    assert best.energy_j_per_token == pytest.approx(best.devices * watts / (RATE * 100))


@pytest.mark.slow
def test_the_table_says_what_decides_and_of_what_a_limit_is() -> None:
    shown = run(*ASKED, "--max-ttft", "1s", "--max-tpot", "p50:20ms")
    assert shown.exit_code == 0
    assert shown.stdout.splitlines()[0] == "cheapest plan: 1 × H100-SXM as one replica of tp 1, bf16 weights"
    assert "TTFT p99 " in shown.stdout and "TPOT p50 " in " ".join(shown.stdout.split())
    assert max(map(len, shown.stdout.splitlines())) <= 80
    unpriced = run(*ASKED, "--hw", "h800", "--max-tpot", "20ms")
    assert unpriced.stdout.startswith("fewest GPUs: ")
    assert "no price is known for H800" in " ".join(unpriced.stdout.split())
    stated = run(*ASKED, "--hw", "h800", "--max-tpot", "20ms", "--price", "h800=3.5")
    assert stated.stdout.startswith("cheapest plan: ") and "$3.50 per hour" in stated.stdout


def test_no_plan_is_exit_1_with_the_closest_miss() -> None:
    missed = run(*ASKED, "--max-tpot", "1ms")
    assert missed.exit_code == 1
    assert missed.stdout.startswith("no plan meets the limits with 2 GPUs or fewer")
    least = re.search(r"closest plan is H100-SXM tp 2: TPOT is ([\d.]+) ms .* limit of 1", missed.output)
    assert least and float(least[1]) > 1e3 * 16e9 / 2 / 3.35e12  # a rank's weights, at its memory's peak
    late = run("llama3.1-8b", "--rate", "40", "--gpus", "1", "--prompt", "2000", "--max-ttft", "0.3s")
    assert late.exit_code == 1
    assert late.stdout.startswith("no plan meets the limits with one GPU\n")
    needs = re.search(r"closest plan is H100-SXM tp 1: needs (\d) GPUs, more than the 1 allowed", late.output)
    assert needs and int(needs[1]) >= 40 * 2000 * 2 * 8.03e9 / 989.5e12  # prompts alone, at the peak


@pytest.mark.slow
@pytest.mark.parametrize("form", ["json", "csv", "md", "html"])
def test_every_format_has_the_plans(form: str) -> None:
    found = run(*ASKED, "--max-tpot", "20ms", "--format", form)
    assert found.exit_code == 0 and "H100-SXM" in found.stdout
    if form == "json":
        report = json.loads(found.stdout)
        assert report["best"]["simulated"]["tpot_s"]["p99"] < 0.02
        assert report["decides"] == "cost"
        assert report["plans"][0]["why"]["constraint"] == "tpot"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("llama3.1-8b",), "--rate: missing; set the requests per second"),
        (("llama3.1-8b", "--rate", "0"), "--rate: expected a number from 0.000001 to 1,000,000,000"),
        ((*ASKED, "--max-tpot", "20m"), "--max-tpot: 20m has no unit; say 20ms or 20s"),
        ((*ASKED, "--hw", "h200,h200-sxm"), "--hw: H200-SXM occurs twice"),
        ((*ASKED, "--prompt", "pareto:3"), "--prompt: expected constant"),
        ((*ASKED, "--hw", "h100-sxm,h999"), "h999"),
        ((*ASKED, "--price", "h200=3"), "--price: h200 is not among the devices of this command"),
        ((*ASKED, "--gpus", "0"), "--gpus: expected an integer from 1"),
        ((*ASKED, "--gpus", "1e30"), "--gpus: expected an integer from 1 to 65,536"),
        (("gpt2", "--rate", "1"), "prompt: 2,048 tokens and 128 generated are more than the 1,024 positions"),
        ((*ASKED, "--generate", "1"), "a plan requires outputs of at least 2 tokens"),
        ((*ASKED, "--engine", "hf-transformers"), "requires --engine, one of atom, sglang, trtllm, vllm"),
    ],
)
def test_what_means_nothing_is_one_line(arguments: tuple[str, ...], says: str) -> None:
    refused = run(*arguments)
    assert refused.exit_code == 2
    assert says in refused.output and refused.output.count("\n") == 1


def test_the_old_option_for_a_precision_file_says_its_new_name() -> None:
    refused = CliRunner().invoke(cli, ["analyze", "llama3.1-8b", "--plan", "mine.yaml"])
    assert refused.exit_code == 2
    assert "--plan: is now called --precision mine.yaml" in refused.output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "words"),
    [
        (
            "vllm",
            (
                "vllm serve meta-llama/Llama-3.1-8B",
                "--tensor-parallel-size 1",
                "--max-num-seqs",
                "--quantization fp8",
            ),
        ),
        (
            "sglang",
            ("sglang.launch_server --model-path meta-llama/Llama-3.1-8B", "--tp 1", "--quantization fp8"),
        ),
    ],
)
def test_a_plan_is_emitted_as_a_command(engine: str, words: tuple[str, ...]) -> None:
    asked = ("--weights", "fp8", "--engine", engine, "--emit", engine, "--max-tpot", "20ms")
    emitted = run(*ASKED, *asked)
    assert emitted.exit_code == 0, emitted.output
    comments = [line for line in emitted.output.splitlines() if line.startswith("#")]
    assert comments[0].startswith(("# starts each of ", "# starts one replica on "))
    assert [line.split()[1] for line in comments[1:]] == [
        *("estimate:", "precision:", "flags:", "benchmark:", "flags")
    ]
    command = " ".join(emitted.output.split("\n", len(comments))[-1].replace("\\\n", "").split())
    assert all(word in command for word in words)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--emit", "tgi"), "--emit: expected vllm, sglang, trtllm, compose, k8s or dynamo"),
        (("--emit", "sglang"), "emit: sglang; the plan uses vllm"),
        (("--emit", "vllm", "--weights", "int4"), "llmir knows no flag that makes weights int4"),
        (("--emit", "vllm", "--engine", "vllm@0.4"), "is known from 0.5.3 on"),
        (("--emit", "vllm", "--format", "json"), "prints no table; add --emit-to DIR"),
        (
            ("--emit", "trtllm", "--engine", "trtllm", "--weights", "fp8"),
            "llmir knows no flag that makes weights",
        ),
    ],
)
def test_a_command_that_an_engine_does_not_take_is_not_emitted(
    arguments: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said before the search, which takes seconds."""
    monkeypatch.setattr("llmir.backends.search.search.search", None)
    refused = run(*ASKED, "--max-tpot", "100ms", *arguments)
    assert refused.exit_code == 2
    assert says in refused.output


@pytest.mark.slow
def test_a_dearer_device_is_the_reason_where_fewer_of_them_cost_more() -> None:
    """An H200 is no slower: at thrice the price it costs more, and no op is to blame."""
    prices = ("--hw", "h100-sxm,h200", "--price", "h100-sxm=2,h200=6")
    shown = " ".join(run(*ASKED, "--max-tpot", "20ms", *prices).output.split())
    assert "cheapest plan: 1 × H100-SXM" in shown
    assert (
        "costs 200% more ($6.00 instead of $2.00 per hour): each GPU costs $6.00 per hour instead of $2.00"
        in shown
    )


def test_work_above_the_limit_is_an_error_and_no_reason_to_refuse_a_split(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def step(pace: Pace) -> None:
        if pace.what == "a search for plans":
            raise WorkError("a search for plans takes about 2 h")

    monkeypatch.setattr(Pace, "step", step)
    with pytest.raises(WorkError, match="a search for plans takes about 2 h"):
        llmir.plan(
            "llama3.2-1b", gpus=1, traffic=llmir.Traffic(rate=1, prompt=100, generate=10, requests=100)
        )
