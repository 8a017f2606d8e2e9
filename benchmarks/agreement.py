"""Whether commands agree: requests that fit, closed loops, and the split of a step, on random deployments.

    python benchmarks/agreement.py [--cases N] [--programs N] [--seed N] [--jobs N]

A case is a model with one kind of KV cache, an engine, a device, ranks, element types, lengths and users.

- Requests at once without preemption: `max`, `analyze`, `serve-sim` and `plan` differ by one at most.
- Closed loops: output tokens/s and TPOT of `analyze --concurrency` and `serve-sim --closed` differ by 5% at
  most, TTFT by 10%.
- Programs: table, JSON, CSV, timeline, trace and page split a step equally to 1e-12. No row is below 0 s, and
  no share above 100% (`tests/backends/export/test_split.py`).

All figures are those of JSON. A deployment that all commands refuse is drawn again. One that only some of
them refuse is a difference. The exit code is 1 if a bound is broken.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import Pool
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import llmir
from llmir.api.estimate import deploy
from llmir.backends.request.largest import largest_load
from llmir.backends.search.structures import ElementTypes, Split, Structure, feasible_structures
from llmir.backends.search.traffic import Traffic
from llmir.base.errors import InputError, LlmirError
from llmir.ir.tools.ranks import independent_ranks
from tests.backends.export import test_split

MODELS = {
    "full": "llama3.1-8b llama3.3-70b qwen3-32b qwen3-30b-a3b mixtral-8x7b-v0.1 falcon-40b glm-4.5-air gpt-2",
    "windows": "mistral-7b-v0.1 phi-3-mini-3.8b-4k starcoder2-15b",
    "windows, few full": "gemma-3-1b gemma3-12b gemma-3n-e4b gemma-4-26b-a4b command-r-7b olmo-3-7b",
    "windows, half full": "gemma-2-9b gpt-oss-20b gpt-oss-120b",
    "full, chunks": "llama-4-scout llama-4-maverick",
    "latent": "deepseek-v2-lite deepseek-v3 deepseek-v3.2 glm-4.7-flash kimi-k2 glm-5",
    "compressed": "deepseek-v4-flash minimax-m3",
    "states": "mamba-2.8b falcon-mamba-7b mamba-codestral-7b",
    "full, states": "bamba-9b jamba-v0.1 zamba2-1.2b nemotron-h-8b qwen3-next-80b-a3b qwen3.5-9b lfm2-8b-a1b",
}
ENGINES = ("vllm", "sglang", "trtllm")
DEVICES = ("a10", "rtx4090", "l40s", "a100-80-sxm", "h100-sxm", "h200", "b200", "b300", "mi300x")
BOUNDS = {"requests": 1.0, "output tokens/s": 0.05, "TPOT": 0.05, "TTFT": 0.10}


@dataclass(frozen=True)
class Case:
    """A deployment, and its requests."""

    caches: str
    model: str
    engine: str
    device: str
    ranks: dict[str, int]
    types: dict[str, str]
    prompt: int
    generate: int
    users: int

    def __str__(self) -> str:
        ranks = [f"{name} {n}" for name, n in self.ranks.items() if n > 1]
        types = [f"{name} {of}" for name, of in self.types.items()]
        where = " ".join((self.model, self.engine, self.device, *ranks, *types))
        return f"{where}, {self.prompt:,} + {self.generate:,} tokens, {self.users} users"

    @property
    def lengths(self) -> dict[str, int]:
        return {"prompt": self.prompt, "generate": self.generate}

    @property
    def deployed(self) -> dict[str, Any]:
        """Where and how the model runs."""
        return {
            "parallel": llmir.Parallel(**self.ranks),
            "precision": llmir.Precision(**self.types),
            "estimation": llmir.Estimation(engine=self.engine),
        }


def draw(rng: random.Random) -> Case:
    """A random deployment, which may be one that commands refuse."""
    caches = rng.choice([*MODELS])
    where = rng.choice(MODELS[caches].split()), rng.choice(ENGINES), rng.choice(DEVICES)
    tp, dp = rng.choice((1, 1, 2, 4, 8)), rng.choice((1, 1, 1, 2, 4))
    ranks = {"tp": tp, "dp": dp, "ep": rng.choice((1, tp * dp))}
    types = {name: "fp8" for name in ("weights", "kv") if rng.random() < 0.3}
    prompt, generate, users = (round(2 ** rng.uniform(*of)) for of in ((3, 15), (1, 11), (0, 7)))
    return Case(caches, *where, ranks, types, prompt, generate, users)


def has_positions(case: Case) -> bool:
    """Whether the model has positions for the requests, or no limit of them."""
    positions = llmir.load(case.model).facts.get("positions")
    return not isinstance(positions, int) or case.prompt + case.generate <= positions


# Requests at once


def ask_max(case: Case) -> dict[str, Any]:
    job = llmir.workload(case.model, case.device, **case.lengths, **case.deployed)
    found = largest_load(job).to_dict()  # without the simulation of the most users
    return {"max": found["batch"]["most"], "max, users": found["requests"]["most"]}


def ask_analyze(case: Case) -> dict[str, Any]:
    """The largest batch and the KV capacity, with as many sequences as the engine runs by default."""
    found = llmir.workload(case.model, case.device, **case.lengths, **case.deployed).to_dict()
    runs = found["memory"]["max_num_seqs"] * found["parallel"]["dp"]
    capacity = found["memory"]["max_requests"]
    return {"analyze": min(found["max_batch"], runs), "analyze, KV capacity": min(capacity, runs)}


def ask_plan(case: Case) -> dict[str, Any]:
    """The largest batch that a search for plans tries with the engine's own limit."""
    how = (case.deployed[name] for name in ("estimation", "parallel", "precision"))
    replicas, (one,) = independent_ranks(deploy(case.model, case.device, *how)[0])
    model = deploy(case.model, case.device, case.deployed["estimation"])[1]
    ranks = one.parallelism
    structure = Structure(one, model, ElementTypes(), Split(ranks.tp, ranks.pp, ranks.dp, ranks.ep))
    traffic = Traffic(1e-3, case.prompt, case.generate, 100)
    found = feasible_structures([structure], traffic, None, None)
    if found.points is None:
        raise InputError(next(iter(found.refused.values())).why)
    room = structure.capacity(traffic)  # with the engine's own tokens of a step
    batches = found.points.batch[found.points.chunk == room.tokens]
    most = batches[batches <= room.requests].max(initial=0)
    return {"plan": replicas * int(most)}


# Closed loops


def ask_serve_sim(case: Case) -> dict[str, Any]:
    """With chunked prefill for prompts that a step of the engine is too short for, as in other commands."""
    job = llmir.workload(case.model, case.device, **case.lengths, **case.deployed)
    chunked = True if job.is_longer_than_step else None
    how = {**case.deployed, "memory": llmir.Memory(chunked_prefill=chunked)}
    traffic = llmir.Traffic(closed=case.users, **case.lengths)
    return llmir.simulate(case.model, case.device, traffic, **how).to_dict()


def ask_loop(case: Case) -> dict[str, Any]:
    how = {**case.lengths, **case.deployed, "concurrency": case.users}
    return llmir.workload(case.model, case.device, **how).to_dict()


# Cases


class Difference(NamedTuple):
    """What commands answer to a case, by how much they differ, and how much they may."""

    what: str
    answers: str
    by: float

    @property
    def broken(self) -> bool:
        return not self.by <= BOUNDS[self.what]


def answer(ask: Callable[[Case], dict[str, Any]], case: Case) -> tuple[dict[str, Any], str]:
    """The answer of a command, or no answer and the reason."""
    try:
        return ask(case), ""
    except LlmirError as error:
        return {}, str(error)


def differences(case: Case) -> list[Difference] | str:
    """How commands differ on a case; the reason if all refuse it, or if not one request fits."""
    if not has_positions(case):
        return "more tokens than positions"
    loop, simulated = answer(ask_loop, case), answer(ask_serve_sim, case)
    found = {ask.__name__: answer(ask, case) for ask in (ask_max, ask_analyze, ask_plan)}
    counts = {name: n for of, _ in found.values() for name, n in of.items()}
    if simulated[0]:
        counts["serve-sim"] = simulated[0]["max_requests"]
    reasons = {**{name: why for name, (_, why) in found.items() if why}}
    reasons |= {name: why for name, (_, why) in (("serve-sim", simulated), ("loop", loop)) if why}
    if not any(counts.values()):
        return next(iter(reasons.values()), "not one request fits")
    for name in reasons:
        counts[name] = 0
    text = ", ".join(f"{name} {n:,}" for name, n in counts.items())
    reason = "".join(f"; {name}: {why}" for name, why in reasons.items())
    listed = [Difference("requests", text + reason, max(counts.values()) - min(counts.values()))]
    if loop[0] and simulated[0]:
        serving, known = loop[0]["serving"], simulated[0]["latency_s"]
        pairs = {
            "output tokens/s": (serving["output_tokens_per_s"], simulated[0]["output_tokens_per_s"]),
            "TPOT": (serving["tpot_s"], known["tpot"] and known["tpot"]["mean"]),
            "TTFT": (serving["ttft_s"], known["ttft"]["mean"]),
        }
        for what, (one, two) in pairs.items():
            by = abs(one / two - 1) if one and two else float(bool(one or two))
            listed.append(Difference(what, f"analyze {one}, serve-sim {two}", by))
    return listed


def judged(seed: str) -> tuple[Case, list[Difference], list[str]]:
    """A case that fits, its differences, and the reasons why others were refused."""
    rng, refused = random.Random(seed), []
    while True:
        case = draw(rng)
        found = differences(case)
        if not isinstance(found, str):
            return case, found, refused
        refused.append(f"{case}: {found}")


# Programs


def split_differences(count: int, seed: int) -> int:
    """Prints the programs of which outputs split a step differently; their number."""
    broken = 0
    for number, job in enumerate(test_split.jobs(count, seed)):
        try:
            test_split.check_job(job, page=number % test_split.PAGES == 0)
        except AssertionError as error:
            broken += 1
            where = f"{job.program.name} on {job.device.name}, batch {job.batch}, prompt {job.prompt}"
            print(f"  {where}: {str(error).splitlines()[0] if str(error) else error!r}", flush=True)
    return broken


def main() -> None:
    parser = argparse.ArgumentParser(description="Whether commands agree on random deployments.")
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--programs", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--verbose", action="store_true", help="print each case, and why others are refused")
    asked = parser.parse_args()
    worst = dict.fromkeys(BOUNDS, 0.0)
    broken, caches, refused = Counter[str](), Counter[str](), 0
    with Pool(asked.jobs) as pool:
        seeds = (f"{asked.seed} {number}" for number in range(asked.cases))
        for case, found, others in pool.imap(judged, seeds):
            refused += len(others)
            caches[case.caches] += 1
            lines = [f"    {each.what}: {each.answers}" for each in found if each.broken or asked.verbose]
            if asked.verbose:
                lines += [f"    refused: {other}" for other in others]
            if lines:
                print(f"  {case}", *lines, sep="\n", flush=True)
            for each in found:
                worst[each.what] = max(worst[each.what], each.by)
                broken[each.what] += each.broken
    splits = split_differences(asked.programs, asked.seed)
    print(f"{asked.cases} deployments (" + ", ".join(f"{n} {name}" for name, n in caches.items()) + ")")
    print(f"{refused} more are refused by all commands, or have no room for a request")
    print(f"{'figure':18}{'worst':>10}{'allowed':>10}{'broken':>8}")
    for what, bound in BOUNDS.items():
        print(f"{what:18}{worst[what]:10.3g}{bound:10.3g}{broken[what]:8}")
    print(f"{'splits of steps':18}{'':10}{test_split.EQUAL:10.0e}{splits:8}  of {asked.programs} programs")
    sys.exit(bool(splits or broken.total()))


if __name__ == "__main__":
    main()
