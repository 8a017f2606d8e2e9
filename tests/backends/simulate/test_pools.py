"""Prefill and decode pools: against a plain simulator, as a tandem of queues, and what engines refuse."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st

import llmir
from llmir.api.deployment import Deployment
from llmir.backends.simulate.cluster import RunningPools, run_pools
from llmir.backends.simulate.engine import check_pools
from llmir.backends.simulate.load import Load
from llmir.backends.simulate.policies.vllm import Vllm
from llmir.backends.simulate.result import PoolSimulation
from llmir.backends.simulate.router import ROUTERS
from llmir.backends.simulate.server import FOREVER, Capacity, Policy, RequestTimeline, Server
from llmir.backends.simulate.server_kinds import DecodeServer, decode_load
from llmir.backends.simulate.step_times import StepTimes
from llmir.base.errors import InputError
from llmir.cli.main import cli
from tests.flat import records

from .naive_pools import NaiveDecoder
from .naive_pools import Pools as NaivePools
from .naive_server import Request
from .serving_cases import Case, Toy, alike, cases, in_use, journeys, left, load, plain, policy, requests
from .test_simulation import MODEL


def served(
    many: tuple[int, int], router: str, load: Load, room: Capacity, fills: Policy, seconds: Any
) -> tuple[RunningPools, RequestTimeline, RequestTimeline]:
    read, rest = replace(load, generate=np.ones_like(load.generate), asked=None), decode_load(load)
    courses = RequestTimeline(load.arrival_s.tolist()), RequestTimeline([FOREVER] * len(load))
    mixes = replace(fills, mixes=True)
    first = (
        Server(StepTimes(Toy()), fills, room, read, courses[0]),
        DecodeServer(StepTimes(Toy()), mixes, room, rest, courses[1]),
    )
    routers = tuple(ROUTERS[router](n, one, room) for n, one in zip(many, (read, rest), strict=True))
    way = [float(s) if g > 1 else None for s, g in zip(seconds, load.generate, strict=True)]
    return run_pools(first, routers, load, way), *courses  # type: ignore[arg-type]


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    cases().filter(lambda case: case[0].mixes),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.sampled_from(["round-robin", "least-loaded"]),
    st.sampled_from([0.0, 1e-5, 1e-3]),
)
@example((Vllm(), load([40, 40], [2, 2]), Capacity(90, 1, 20, 1)), (2, 2), "round-robin", 0.0)  # all at once
def test_they_are_the_plain_simulators(case: Case, many: tuple[int, int], router: str, pace: float) -> None:
    fills, load, capacity = case
    rng = np.random.default_rng(1)
    seconds = pace * load.prompt * rng.uniform(0.9, 1.1, len(load))  # no two things at one time
    alone = replace(load, generate=np.ones_like(load.generate), asked=None)
    ways = journeys(load, requests(alone, capacity.block))
    for j, whole in zip(ways, requests(load, capacity.block), strict=True):
        count = whole.prompt
        j.rest = Request(whole.number, 0.0, count + 1, whole.generate - 1, whole.asked - 1, count)
        j.rest.stays = whole.stays
        j.seconds = float(seconds[whole.number])
    readers = [plain(fills, capacity) for _ in range(many[0])]
    writers = [plain(fills, capacity, kind=NaiveDecoder) for _ in range(many[1])]
    NaivePools(readers, writers, router == "least-loaded").run(ways, load.users, load.apart_s)
    found, read, rest = served(many, router, load, capacity, fills, seconds)
    assert found.prefill.place == [j.sender for j in ways]
    assert found.decode.place == [j.receiver - many[0] if j.receiver >= 0 else -1 for j in ways]
    alike(read, [j.read for j in ways])
    for i, j in enumerate(ways):
        if j.receiver >= 0:
            assert j.rest
            assert found.sent_s[i] == pytest.approx(j.sent, rel=1e-9, abs=0)
            assert found.came_s[i] == pytest.approx(j.came, rel=1e-9, abs=0)
            assert rest.start_s[i] == pytest.approx(j.rest.start, rel=1e-9, abs=0)
            assert rest.end_s[i] == pytest.approx(j.rest.end, rel=1e-9, abs=0)
            assert rest.made[i] == len(j.rest.times)
            assert rest.preemptions[i] == j.rest.preemptions
    for server, naive in zip(
        [*found.prefill.servers, *found.decode.servers], [*readers, *writers], strict=True
    ):
        in_use(server, naive)
        left(server)


@pytest.mark.parametrize("pace", [0.0, 2e-5, 2e-4])
def test_servers_of_one_sequence_are_queues_in_tandem(pace: float) -> None:
    """Reading, link and decoding are each a queue with one server: Lindley's recursion three times."""
    rng = np.random.default_rng(2)
    prompt = rng.integers(1, 4000, 2000)
    reading = 3e-3 + 2e-5 * prompt + 1e-8 * prompt * prompt
    way = pace * prompt
    decoding = np.array([float(Toy()(1, [int(p)], ())) for p in prompt])
    slowest = max(reading.mean(), way.mean(), decoding.mean())
    arrival = np.cumsum(rng.exponential(slowest / 0.9, len(prompt)))
    one = Capacity(blocks=10_000, block=16, tokens=4001, sequences=1)
    given_load = load(prompt, np.full(len(prompt), 2), arrival)

    class Alone(Toy):
        """What is read beside nothing costs as a token that decodes, if it is one."""

        def __call__(self, decodes: int, sums: Any, chunks: Any) -> Any:
            if len(chunks) == 1 and chunks[0][0] == 1 and chunks[0][1]:
                return super().__call__(1, [chunks[0][1]], ())
            return super().__call__(decodes, sums, chunks)

    read, rest = replace(given_load, generate=np.ones_like(prompt)), decode_load(given_load)
    courses = RequestTimeline(arrival.tolist()), RequestTimeline([FOREVER] * len(prompt))
    first = (
        Server(StepTimes(Alone()), Vllm(), one, read, courses[0]),
        DecodeServer(StepTimes(Alone()), Vllm(), one, rest, courses[1]),
    )
    turn = ROUTERS["round-robin"]
    found = run_pools(first, (turn(1, read, one), turn(1, rest, one)), given_load, way.tolist())
    leaves = arrival
    for service, starts, ends in (
        (reading, courses[0].start_s, courses[0].end_s),
        (way, found.sent_s, found.came_s),
        (decoding, courses[1].start_s, courses[1].end_s),
    ):
        free, comes, begun = 0.0, leaves, []
        for i in range(len(prompt)):
            begun.append(max(free, comes[i]))
            free = begun[-1] + service[i]
        leaves = np.array(begun) + service
        assert starts == pytest.approx(begun, rel=1e-9, abs=0)
        assert ends == pytest.approx(leaves.tolist(), rel=1e-9, abs=0)


def test_one_request_takes_its_steps_and_the_way() -> None:
    job = llmir.workload(MODEL, "h100-sxm", prompt=1000, generate=300)
    one = llmir.server(MODEL, "h100-sxm")
    pools = llmir.pools(one, one, "50GBps,5us")
    alone = llmir.traffic(llmir.Traffic(rate=1, prompt=1000, generate=300, requests=1))
    found = pools.run(alone)
    way = 5e-6 + MODEL.cache_bytes(1000) / 50e9
    assert found.ttft_s[0] == pytest.approx(job.ttft_s, rel=1e-12, abs=0)
    assert found.transfer_s[0] == pytest.approx(way, rel=1e-9, abs=0)
    assert found.e2e_s[0] == pytest.approx(job.e2e_s + way, rel=1e-9, abs=0)
    assert found.admission_s[0] == 0


def test_the_whole_is_made_of_both() -> None:
    found = llmir.simulate(
        MODEL,
        "h100-sxm",
        llmir.Traffic(rate=40, requests=200, prompt="uniform:10,3000", generate="uniform:1,60"),
        warm_up=20,
        servers=llmir.Servers(prefill_replicas=3, decode_replicas=2, link="50GBps", router="least-loaded"),
    )
    assert isinstance(found, PoolSimulation)
    assert found.prefill is not None
    assert found.decode is not None
    goes_on = found.load.generate > 1
    assert 0 < goes_on.sum() < 200
    assert found.end_s[~goes_on].tolist() == found.first_s[~goes_on].tolist()
    assert len(found.decode.load) == goes_on.sum()
    assert np.isnan(found.transfer_s).tolist() == (~goes_on).tolist()
    assert (found.transfer_s[goes_on] > 0).all()
    assert (found.admission_s[goes_on] >= 0).all()
    assert found.steps == found.prefill.steps + found.decode.steps
    whole = tuple(replace(one, warm_up=0) for one in found.decode.replicas)
    seconds, counts = replace(found, warm_up=0, decode=replace(found.decode, replicas=whole))._gaps
    assert counts.sum() == (found.load.generate - 1).sum()
    assert seconds @ counts == pytest.approx((found.end_s - found.first_s).sum(), rel=1e-9, abs=0)
    assert found.latencies["transfer"] is not None
    assert found.largest_rate == min(
        found.prefill.largest_rate, found.carried_rate, found.decode.largest_rate * 200 / goes_on.sum()
    )
    assert found.overloaded is False


def test_too_much_for_any_part_is_overload() -> None:
    asked: dict[str, Any] = {"prompt": 4000, "generate": 50, "requests": 200}
    one = llmir.server(MODEL, "h100-sxm")
    slow, fast = (llmir.pools(one, one, link) for link in ("1GBps", "400GBps"))
    read = fast.run(llmir.traffic(**records(llmir.traffic, rate=1, **asked))).prefill
    assert read is not None
    most = read.largest_rate
    assert fast.run(llmir.traffic(**records(llmir.traffic, rate=0.7 * most, **asked))).overloaded is False
    assert fast.run(llmir.traffic(**records(llmir.traffic, rate=1.3 * most, **asked))).overloaded
    carried = slow.run(llmir.traffic(**records(llmir.traffic, rate=5, **asked)))
    assert carried.overloaded
    assert carried.largest_rate == pytest.approx(1e9 / MODEL.cache_bytes(4000), rel=1e-6)


def of(name: str, engine: str, **asked: Any) -> Any:
    program = llmir.run(llmir.load(name), Deployment.of(asked).around(llmir.pipeline_of(engine)))
    return llmir.server(program, "h200", estimation=llmir.Estimation(engine=engine))


@pytest.mark.parametrize(
    ("name", "engine", "splits", "says"),
    [
        ("llama3.1-8b", "vllm", (1, 4), None),
        ("llama3.1-8b", "vllm", (4, 2), None),
        ("llama3.1-8b", "sglang", (2, 4), None),
        ("llama3.1-8b", "trtllm", (4, 1), None),
        ("gemma-3-27b", "vllm", (1, 2), None),
        ("gemma-3-27b", "sglang", (2, 2), None),
        ("gemma-3-27b", "sglang", (1, 2), "pools: sglang sends windows and states only where tp is the same"),
        (
            "qwen3-next-80b-a3b",
            "vllm",
            (2, 4),
            "pools: vllm sends states only where tp is the same in prefill",
        ),
        ("qwen3-next-80b-a3b", "trtllm", (2, 2), "pools: trtllm sends keys and values only; this model has"),
    ],
)
def test_pools_that_an_engine_refuses_are_refused(
    name: str, engine: str, splits: Any, says: str | None
) -> None:
    one, two = (of(name, engine, tp=tp) for tp in splits)
    if says is None:
        assert llmir.pools(one, two, "nvlink").channel.name == "nvlink"
        return
    with pytest.raises(InputError) as error:
        llmir.pools(one, two, "nvlink")
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_ranks_share_those_of_the_other_side_evenly() -> None:
    two, three = (llmir.run(llmir.load("gpt2"), f"pad-vocab,shard{{tp={tp}}}") for tp in (2, 3))
    with pytest.raises(InputError, match="tp is 2 and 3; ranks of one side share those of the other evenly"):
        check_pools("vllm", two, three)


def test_servers_that_do_not_match_are_refused() -> None:
    vllm, sglang, small = of("llama3.1-8b", "vllm"), of("llama3.1-8b", "sglang"), of("llama3.2-1b", "vllm")
    narrow = of("llama3.1-8b", "vllm", kv="fp8")
    for one, two, link, says in (
        (
            vllm,
            sglang,
            "nvlink",
            "pools: prefill is vllm's and decode sglang's; both must have the same engine",
        ),
        (
            vllm,
            small,
            "nvlink",
            "pools: both servers must have the same model and caches of one dtype; Llama-3.1-8B "
            "keeps 131,072",
        ),
        (vllm, narrow, "nvlink", "65,536 bytes a token"),
        (vllm, vllm, "host", "link: host does not connect servers; expected nvlink"),
        (vllm, vllm, "network", "H200-SXM has no network that joins several nodes"),
        (vllm, vllm, "string", "link: H200-SXM has the links host, nvlink, pcie, network"),
    ):
        with pytest.raises(llmir.LlmirError) as error:
            llmir.pools(one, two, link)
        assert says in str(error.value)
    with pytest.raises(InputError, match="decode servers have no work"):
        llmir.pools(vllm, vllm, "nvlink").run(llmir.traffic(llmir.Traffic(rate=1, generate=1, requests=3)))


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (
            {"prefill_replicas": 2},
            "link: required by pools, to send caches; expected nvlink, network, or a rate",
        ),
        ({"link": "nvlink", "replicas": 2}, "replicas: pools use prefill_replicas and decode_replicas"),
        ({"link": "nvlink", "decode_replicas": 0}, "decode_replicas: expected an integer from 1"),
        (
            {"link": "nvlink", "router": "least-loaded"},
            "router: least-loaded distributes requests over several",
        ),
        ({"link": "nvlink", "timeout_s": 1e-3}, "pools: every client leaves before its cache is sent"),
    ],
)
def test_what_pools_cannot_do_is_refused(asked: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError) as error:
        llmir.simulate(MODEL, "h100-sxm", **records(llmir.simulate, rate=1, **asked))
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_the_side_that_has_more_of_each_rank_decides_how_long_a_cache_takes() -> None:
    one, two, four = (of("llama3.1-70b", "vllm", tp=tp) for tp in (2, 4, 8))
    pairs = [llmir.pools(a, b, "50GBps") for a, b in ((one, two), (two, one), (two, two), (four, two))]
    at = [float(each.seconds(np.array([1000]))[0]) for each in pairs]
    whole = llmir.load("llama3.1-70b").cache_bytes(1000) / 50e9
    assert at == pytest.approx([whole / 2, whole / 2, whole / 4, whole / 4], rel=1e-9, abs=0)


def test_cancelled_requests_get_as_many_tokens_as_they_wait_for() -> None:
    asked: dict[str, Any] = {"rate": 20, "prompt": 300, "generate": 60, "requests": 60, "cancel": 0.5}
    found = llmir.simulate(
        MODEL, "h100-sxm", **records(llmir.simulate, **asked, decode_replicas=2, link="nvlink")
    )
    assert 0 < found.cancelled < 60
    assert found.made.tolist() == found.load.generate.tolist()
    assert np.isfinite(found.e2e_s).all()


def test_users_are_answered_by_decode_servers() -> None:
    asked: dict[str, Any] = {"closed": 6, "prompt": 400, "generate": "uniform:1,60", "requests": 60}
    found = llmir.simulate(
        MODEL,
        "h100-sxm",
        **records(llmir.simulate, **asked, prefill_replicas=2, decode_replicas=2, link="nvlink"),
    )
    changes = sorted([(t, 1) for t in found.arrival_s] + [(t, -1) for t in found.end_s])
    assert np.max(np.cumsum([by for _, by in changes])) == 6
    assert found.overloaded is None


@pytest.mark.slow
def test_the_command_says_what_the_api_says(tmp_path: Any) -> None:
    asked = "--rate 9 --requests 60 --prompt uniform:1,500 --generate 40 --link nvlink --prefill-replicas 2"
    out = ["--requests-out", str(tmp_path / "r.csv"), "--steps-out", str(tmp_path / "s.csv")]
    runner = CliRunner()
    printed = runner.invoke(
        cli, ["serve-sim", "llama3.1-8b", *asked.split(), "--decode-tp", "2", *out, "--format", "json"]
    )
    split = llmir.run(llmir.load("llama3.1-8b"), Deployment.of({"tp": 2}).around(llmir.pipeline_of("vllm")))
    found = llmir.simulate(
        MODEL,
        "h100-sxm",
        llmir.Traffic(rate=9, requests=60, prompt="uniform:1,500", generate=40),
        servers=llmir.Servers(link="nvlink", prefill_replicas=2, decode_program=split),
    )
    said = json.loads(printed.stdout[: printed.stdout.rindex("}") + 1])
    assert said == json.loads(json.dumps(found.to_dict()))
    assert (tmp_path / "r.csv").read_text().splitlines()[0].endswith(",prefill,decode")
    assert {row.split(",")[-1] for row in (tmp_path / "s.csv").read_text().splitlines()[1:]} == {
        "0",
        "1",
        "2",
    }
    for form in ("table", "csv", "md", "html"):
        shown = runner.invoke(cli, ["serve-sim", "llama3.1-8b", *asked.split(), "--format", form])
        assert shown.exit_code == 0
        assert "transfer" in shown.output or "on its way" in shown.output
    assert runner.invoke(cli, ["serve-sim", "llama3.1-8b", "--rate", "1", "--decode-tp", "2"]).exit_code == 2


def test_there_is_room_before_anything_is_decoded() -> None:
    """Blocks at the decode server are enough for one request at a time: they follow one another."""
    tight = Capacity(blocks=8, block=16, tokens=256, sequences=8)
    given_load = load([100] * 4, [20] * 4, [0.0] * 4)
    found, _, rest = served(
        (1, 1), "round-robin", given_load, tight, policy("trtllm", chunked=True), [1e-4] * 4
    )
    for before, after in zip(rest.end_s, rest.start_s[1:], strict=False):
        assert after >= before
    assert found.decode.servers[0].most_held <= 8


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(cases(), st.tuples(st.integers(1, 2), st.integers(1, 2)))
def test_pools_of_any_engine_make_every_token(case: Case, many: tuple[int, int]) -> None:
    """However few blocks there are: who is preempted ends, too."""
    fills, load, capacity = case
    load = replace(load, timeout_s=None, leave_s=None)
    found, read, rest = served(many, "least-loaded", load, capacity, fills, 1e-5 * load.prompt)
    assert np.isfinite(read.first_s).all()
    assert (np.isfinite(rest.end_s) == (load.generate > 1)).all()
    for server in (*found.prefill.servers, *found.decode.servers):
        left(server)
