"""What engines do with memory, fitted to their logs, and judged on models that were left out of the fit.

    python -m benchmarks.memory measured/engine_memory.csv

Of each release of `hw/engines` that logs are of: the parameters of its section `memory` that its rows tell,
and each start with the error of its tokens of cache, by a fit without the rows of its model and as the file
has it. Activations are linear in the parameters of the moment that is the fullest: first those of the sampler
are fitted, to the starts in which it is, then those of the forward pass to the others. What lies outside of
the allocator is the median of the log's by tp, where there are no pipeline stages.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import median

import numpy as np

from llmir.api.measure import _built
from llmir.backends.memory.kv_capacity import FORWARD, SAMPLER
from llmir.backends.silicon.rows import DeviceLookup
from llmir.backends.silicon.tables.table import load
from llmir.backends.silicon.validate.memory import GIB, EngineStart, start
from llmir.base.errors import LlmirError
from llmir.hw.engine_sections import EngineMemory

UNITS = {"states": 1.0, "sampler": 1.0, "experts": 1.0, "kept_bytes": float(GIB)}
MOMENTS = {SAMPLER: ("sampler", "experts", "kept_bytes"), FORWARD: ("states",)}


def activations(of: EngineStart) -> float:
    """What the log leaves for them: of old versions it names a part alone. Of stages it speaks of several."""
    said, pool = of.said, of.pool
    if pool.program.parallelism.pp > 1:
        return said["activations"]
    left = pool.share * pool.device.capacity_bytes - said["weights"] - said["overhead"] - said["kv"]
    return said["activations"] if math.isnan(left) else left


def under(of: EngineStart, rule: EngineMemory) -> EngineStart:
    """The start as another rule has it."""
    return of._replace(pool=replace(of.pool, rule=rule))


def fitted(rule: EngineMemory, rows: Sequence[EngineStart]) -> EngineMemory:
    """The rule with parameters fitted to rows: those that any of them tells."""
    alone = [of for of in rows if of.pool.program.parallelism.pp == 1]
    for tp in {of.pool.program.parallelism.tp for of in alone}:
        known = [of.said["overhead"] for of in alone if of.pool.program.parallelism.tp == tp]
        if known := [value for value in known if not math.isnan(value)]:
            rule = replace(rule, outside={**rule.outside, tp: median(known)})
    for moment, names in MOMENTS.items():
        told = [of for of in rows if under(of, rule).room.fullest.what == moment]
        told = [of for of in told if not math.isnan(activations(of))]
        rule = replace(rule, **least_squares(rule, told, names)) if told else rule
    return rule


def least_squares(rule: EngineMemory, rows: Sequence[EngineStart], names: Sequence[str]) -> dict[str, float]:
    """Parameters by which activations are nearest to those of the rows."""
    at = np.array([under(of, rule).room.activations for of in rows])
    short = np.array([activations(of) for of in rows]) - at
    slopes = []
    for name in names:
        more = replace(rule, **{name: getattr(rule, name) + 1e-3 * UNITS[name]})
        changed = np.array([under(of, more).room.activations for of in rows])
        slopes.append((changed - at) / 1e-3)
    steps, *_ = np.linalg.lstsq(np.array(slopes).T / GIB, short / GIB, rcond=1e-3)
    found = zip(names, steps, strict=True)
    return {name: max(0.0, float(getattr(rule, name) + step * UNITS[name])) for name, step in found}


def tokens(of: EngineStart) -> float:
    """What the log says, or what lies in its bytes."""
    if not math.isnan(of.said["tokens"]):
        return of.said["tokens"]
    each = of.pool.held(1, 16000)[0] / 16000
    return of.said["kv"] / each


def shown(rule: EngineMemory) -> str:
    found = [f"{name} {getattr(rule, name) / unit:.3f}" for name, unit in UNITS.items()]
    outside = ", ".join(f"{tp}: {value / GIB:.2f}" for tp, value in sorted(rule.outside.items()))
    return ", ".join([*found, f"outside_GiB {{{outside}}}"])


def main(path: Path) -> None:
    _, table = load(path)
    machines, build = DeviceLookup(path.parent), cache(_built)
    releases: dict[EngineMemory, list[tuple[str, EngineStart]]] = {}
    for i in range(len(table)):
        try:
            of = start(table, i, machines(table["gpu"][i]), build)
        except LlmirError as error:
            print(f"row {i + 1}: {error}")
            continue
        releases.setdefault(of.pool.rule, []).append((str(table["model"][i]), of))
    for rule, rows in releases.items():
        names = list(dict.fromkeys(of.engine for _, of in rows))
        print(f"\n{', '.join(names)}: {len(rows)} starts\n  now     {shown(rule)}")
        print(f"  fitted  {shown(fitted(rule, [of for _, of in rows]))}")
        off: dict[str, list[float]] = {"without the model": [], "as in the file": []}
        for model in dict.fromkeys(model for model, _ in rows):
            without = fitted(rule, [of for other, of in rows if other != model])
            for _, of in (row for row in rows if row[0] == model):
                if math.isnan(measured := tokens(of)):
                    continue
                error = [(under(of, by).pool.kv_tokens or 0) / measured - 1 for by in (without, rule)]
                for found, value in zip(off.values(), error, strict=True):
                    found.append(value)
                about = f"{model:16} {words(of):32} {measured:10,.0f} tokens"
                print(f"    {about} {100 * error[0]:+6.2f}% {100 * error[1]:+6.2f}%")
        for how, found in off.items():
            mean, worst = np.mean(np.abs(found)), max(found, key=abs)
            print(f"  {how}: mean {100 * mean:.2f}%, worst {100 * worst:+.2f}% of {len(found)}")


def words(of: EngineStart) -> str:
    """Whose start it is, in words."""
    parallel = of.pool.program.parallelism
    return f"{of.engine.removeprefix('vllm@')} {of.pool.device.name} tp {parallel.tp} pp {parallel.pp}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
