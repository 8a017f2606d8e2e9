"""Whether verdicts and reasons of plans hold, on plans drawn at random.

    python benchmarks/verdicts.py certainty [--plans N] [--seeds N] [--longer N] [--seed N]
    python benchmarks/verdicts.py reasons [--plans N] [--seed N]

Both draw models, devices, engines, traffic and limits, and search plans as `llmir.plan` does.

`certainty` simulates each plan that is shown with other seeds and longer runs, and compares the verdicts.
`reasons` applies the change that the reason of a losing plan names, and a part of it: half, or one less of
whole numbers.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

ONE_CORE = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
for variable in ONE_CORE:  # read when numpy is first imported
    os.environ[variable] = "1"

import llmir  # noqa: E402
from llmir.backends.cost.models import faster_ops  # noqa: E402
from llmir.backends.search.plan import Candidate, Plans, SmallestChange  # noqa: E402
from llmir.backends.search.search import Search  # noqa: E402
from llmir.backends.search.trial import MEETS, MISSES, RATE_ERROR, UNDECIDED, Replica, SeedRun, Trial  # noqa: E402

MODELS = {  # requests/s of the least rate that is drawn
    "llama3.1-8b": 2.0,
    "qwen3-32b": 0.5,
    "qwen3-14b": 1.0,
    "qwen3-30b-a3b": 2.0,
    "llama3.3-70b": 0.3,
}
DEVICES = ("h100-sxm", "h200", "b200", "a100-80-sxm", "mi300x", "l40s")
ENGINES = ("vllm", "sglang", "trtllm")


class Problem(NamedTuple):
    """What a search of plans is called with."""

    model: str
    hw: str
    traffic: llmir.Traffic
    engine: str
    limits: dict[str, Any]
    gpus: int

    def plans(self) -> Plans:
        """The plans that the product finds."""
        return llmir.plan(
            self.model,
            self.hw,
            self.traffic,
            gpus=self.gpus,
            estimation=llmir.Estimation(engine=self.engine),
            **self.limits,
        )


def drawn(draw: random.Random) -> Problem:
    """A search for one or two devices, with one or two limits."""
    model = draw.choice(sorted(MODELS))
    devices = draw.sample(DEVICES, draw.choice((1, 1, 2)))
    prompt, generate = int(100 * 2 ** draw.uniform(0, 6)), int(50 * 2 ** draw.uniform(0, 4))
    law = draw.choice(("{}", "{}", "lognormal:{},0.6"))
    rate = float(f"{MODELS[model] * 2 ** draw.uniform(0, 6):.2g}")
    limits: dict[str, Any] = {}
    if (kind := draw.choice(("ttft", "tpot", "both", "both"))) != "tpot":
        of = draw.choice(("", "", "p90:", "p50:", "mean:"))
        limits["max_ttft"] = f"{of}{100 * 2 ** draw.uniform(0, 6):.3g}ms"
    if kind != "ttft":
        of = draw.choice(("", "", "p90:", "p50:", "mean:"))
        limits["max_tpot"] = f"{of}{8 * 2 ** draw.uniform(0, 3.5):.3g}ms"
    traffic = llmir.Traffic(rate=rate, prompt=law.format(prompt), generate=law.format(generate))
    return Problem(model, ",".join(devices), traffic, draw.choice(ENGINES), limits, draw.choice((4, 16, 64)))


def problems(seed: int) -> Iterator[tuple[Problem, Plans]]:
    """Searches without end, with their plans; what an engine or a device cannot run is left out."""
    draw = random.Random(seed)
    while True:
        problem = drawn(draw)
        try:
            yield problem, problem.plans()
        except llmir.LlmirError:
            continue


# Certainty

CLEAR, CLEAR_RUNS = 0.1, 3  # a share of a limit, and runs that are enough beyond it


def verdict_again(plans: Plans, candidate: Candidate, seeds: int, longer: int) -> tuple[str, float]:
    """The verdict by the estimates of other runs alone, and what they use of the limit that is used most.

    `CLEAR_RUNS` are enough where each of them is `CLEAR` of all limits on one side.
    """
    search = plans.search
    assert isinstance(search, Search)
    first = plans.seeds[-1] + 2  # the hour has the seed before
    replica = search.replica(search._number_of(candidate))
    length = longer * round(len(candidate.trial.runs[0].seconds[0]) / 0.8)
    at = candidate.chunk, candidate.batch
    limits = candidate.trial.limits

    def used(runs: list[SeedRun]) -> float:
        trial = Trial(tuple(runs), limits)
        return max((trial.limited(i) / of.seconds for i, of in enumerate(limits) if of), default=0.0)

    runs: list[SeedRun] = []
    for seed in range(first, first + seeds):
        latencies = replica.run(*at, candidate.replicas, seed, length)
        runs.append(SeedRun.of(latencies, replica.traffic))
        each = [used([run]) for run in runs]
        if len(runs) == CLEAR_RUNS and (max(each) < 1 - CLEAR or min(each) > 1 + CLEAR):
            break
    verdict = MEETS if used(runs) <= 1 else MISSES
    if candidate.largest_rate is not None:
        others = (replace(replica.traffic, seed=seed) for seed in range(first, first + 5))
        rates = [Replica(replica.structure, other, replica.steps).largest_rate(*at) for other in others]
        rate = candidate.replicas * sum(rates) / len(rates) / replica.traffic.stretch
        leaves = plans.traffic.stable_rate * (1 + RATE_ERROR * (1 if candidate.overloaded else -1))
        verdict = verdict if rate >= leaves else MISSES
    return verdict, used(runs)


def certainty(options: argparse.Namespace) -> int:
    """Counts verdicts; returns how many certain ones do not hold."""
    counts: Counter[str] = Counter()
    begin, search_s, again_s = time.process_time(), 0.0, 0.0
    for problem, plans in problems(options.seed):
        search_s += time.process_time() - begin
        for candidate in plans.shown:
            verdict = candidate.verdict
            counts[verdict] += 1
            trial = candidate.trial
            used = [
                f"{trial.limited(i) / of.seconds:.4f} [{low / of.seconds:.4f}, {high / of.seconds:.4f}]"
                for i, of in enumerate(trial.limits)
                if of
                for low, high in [trial.bounds(i)]
            ]
            text = f"{candidate.structure.name} × {candidate.replicas}"
            if candidate.largest_rate:
                text += f", {plans.traffic.rate / candidate.largest_rate:.1%} of its largest rate"
            text += f"; used {', '.join(used)}; {len(trial.runs)} runs of {len(trial.runs[0].seconds[0])}"
            if verdict != UNDECIDED:
                start = time.process_time()
                again, use = verdict_again(plans, candidate, options.seeds, options.longer)
                again_s += time.process_time() - start
                if again != verdict:
                    counts["wrong"] += 1
                    print(f"WRONG {verdict}, again {again} ({use:.4f}): {problem}: {text}", flush=True)
            if verdict == UNDECIDED or options.verbose:
                print(f"{verdict}: {problem.model}, {problem.engine}, {problem.limits}: {text}", flush=True)
        if sum(counts[each] for each in (MEETS, MISSES, UNDECIDED)) >= options.plans:
            break
        begin = time.process_time()
    decided = counts[MEETS] + counts[MISSES]
    every = decided + counts[UNDECIDED]
    print(f"{every} plans: {counts[MEETS]} meet their limits, {counts[MISSES]} miss them")
    held, open_ = decided - counts["wrong"], counts[UNDECIDED]
    print(f"certain and held: {held} of {decided} ({held / decided:.1%})")
    print(f"undecided: {open_} of {every} ({open_ / every:.1%})")
    print(f"CPU seconds: {search_s:.0f} for searches, {again_s:.0f} for runs again")
    return counts["wrong"]


# Reasons


def wins(plans: Plans, candidate: Candidate, change: SmallestChange) -> bool:
    """Whether a plan with a change meets all limits, by a new search for its structure alone.

    One that meets its limits without the change must also cost less than the first plan, or as much with more
    tokens/s for each user.
    """
    search, best = plans.search, plans.first_like(candidate)
    assert isinstance(search, Search)
    price = candidate.rank[1] / candidate.devices
    traffic, structure = plans.traffic, search.structures[search.number_of(candidate)]
    if change.what == "price":
        price = change.needed
    elif change.what == "op":
        structure = structure._replace(model=faster_ops(structure.model, change.op, change.needed))
    elif change.what == "times":
        traffic = replace(traffic, margin=(1 + traffic.margin) * change.needed - 1)
    else:
        limit = getattr(traffic, change.what)
        traffic = replace(traffic, **{change.what: limit._replace(seconds=change.needed)})
    found = Search([structure], traffic, None, None, None).simulated(0, change.replicas, patient=True)
    if not found.meets or not candidate.meets or best is None:
        return found.meets
    cost = price * change.replicas * structure.split.devices / best.rank[1]
    return cost < 1 - 1e-9 or (cost <= 1 + 1e-9 and found.tokens_per_s_user >= best.tokens_per_s_user)


def reasons(options: argparse.Namespace) -> int:
    """Counts changes that make a losing plan win where half of them does not; returns how many fail."""
    counts: Counter[str] = Counter()
    constraints: Counter[str] = Counter()
    changes: Counter[str] = Counter()
    draw = random.Random(options.seed)
    for problem, plans in problems(options.seed):
        losing = [each for each in plans.shown if each is not plans.first_like(each)]
        for candidate in draw.sample(losing, min(2, len(losing))):
            why = plans.search and plans.search.losing_reason(plans, candidate)
            assert why is not None
            text = f"{candidate.structure.name} × {candidate.replicas} ({candidate.verdict}): {why}"
            counts["plans"] += 1
            constraints[why.constraint] += 1
            if why.change is None:
                result = "no change"
            elif not wins(plans, candidate, why.change):
                result = "not enough"
            elif wins(plans, candidate, why.change.part(0.5)):
                result = "half is enough"
            else:
                result = "holds"
            counts[result] += 1
            changes[why.change.what if why.change else "none"] += 1
            changes[why.change.what if why.change else "none"] += 1
            if result != "holds" or options.verbose:
                print(f"{result}: {problem}: {text}", flush=True)
        if counts["plans"] >= options.plans:
            break
    print(f"{counts.pop('plans')} losing plans: {dict(counts)}")
    print(f"constraints: {dict(constraints)}; changes: {dict(changes)}")
    return counts["not enough"] + counts["half is enough"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=("certainty", "reasons"))
    parser.add_argument("--plans", type=int, default=0, help="200 of certainty, 50 of reasons")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--longer", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--verbose", action="store_true", help="a line for each plan")
    options = parser.parse_args()
    options.plans = options.plans or (200 if options.what == "certainty" else 50)
    return certainty(options) if options.what == "certainty" else reasons(options)


if __name__ == "__main__":
    raise SystemExit(main())
