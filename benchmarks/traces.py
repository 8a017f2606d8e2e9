"""Compare the kernels of profiled engine steps with the printed steps, summed by name and by kind.

    python benchmarks/traces.py DIR [--names N]

DIR has profiles by torch.profiler (Kineto JSON, gzip). `STEPS` says which model, device, engine and sizes
ran in each, and which of its kernels are of the step. A kernel's kind follows from its name (`KINDS`).
The step is estimated as `llmir analyze` does, without learning from the profile; `engine_cpu` and launch
gaps are no kernels and do not count. Prints for each profile the time by kind, its error and the printed
±, and the N names with the most time.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import llmir

Event = Mapping[str, Any]


def last(events: Sequence[Event], kernels: list[Event]) -> list[Event]:
    """The kernels after the longest gap: a whole step, without the kernels that precede it in the profile."""
    gaps = [after["ts"] - before["ts"] for before, after in pairwise(kernels)]
    return kernels[1 + gaps.index(max(gaps)) :]


def launched(events: Sequence[Event], kernels: list[Event]) -> list[Event]:
    """The kernels whose launch is in the profile: one forward pass, without the end of the previous one."""
    known = {e["args"]["correlation"] for e in events if e.get("cat") == "cuda_runtime"}
    return [kernel for kernel in kernels if kernel["args"]["correlation"] in known]


class Step(NamedTuple):
    """The deployment of a profile, and the function that selects the kernels of one step."""

    model: Any
    device: str
    engine: str
    at: Mapping[str, Any]
    kernels: Callable[[Sequence[Event], list[Event]], list[Event]] = lambda events, kernels: kernels


# huggingface.co/Qwen/Qwen1.5-0.5B, config.json
QWEN = {
    "architectures": ["Qwen2ForCausalLM"],
    **{"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 24, "num_attention_heads": 16},
    **{"num_key_value_heads": 16, "vocab_size": 151936, "tie_word_embeddings": True, "dtype": "bfloat16"},
}
STEPS = {
    # execute_…_generation_32(sq32sk32785…)
    "sglang_qwen3-8b_decode_mi300x": Step(
        "qwen3-8b", "mi300x", "sglang", {"batch": 32, "new": 1, "context": 1024}, last
    ),
    # execute_8192_context_9(sq8155sk8430…)_generation_37(sq37sk34489…)
    "vllm_gpt-oss-20b_mixed_mi300x": Step(
        "gpt-oss-20b",
        "mi300x",
        "vllm",
        {"batch": 9, "new": 906, "context": 31, "beside": [{"batch": 37, "new": 1, "context": 931}]},
    ),
    "hf_qwen1.5-0.5b_eager_h100": Step(
        QWEN, "h100-sxm", "hf-transformers", {"batch": 16, "new": 559, "context": 0}, launched
    ),
}
KINDS = {  # the first that is found in a kernel's name
    "experts": r"matmul_ogs|finalize_matmul|routing|topk|bitmatrix|moe|fused_experts",
    "attention": r"flash_fwd|fmha|paged_attention|unified_attention|mla",
    "gemm": r"Cijk|gemm|nvjet|cutlass",
    "collective": r"nccl|all_?reduce|reduce_scatter|all_?gather",
    "other": r"",  # norms, activations, rope, copies
}
OURS = {"moe": "experts", "attention": "attention", "gemm": "gemm", "collective": "collective"}


def measured(path: Path, step: Step) -> list[Event]:
    """The kernels of a step, in order of time."""
    with gzip.open(path, "rt") as file:
        events = json.load(file)["traceEvents"]
    kernels = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    return step.kernels(events, sorted(kernels, key=lambda e: e["ts"]))


def kind_of(name: str) -> str:
    """The kind of a kernel by its name."""
    return next(kind for kind, pattern in KINDS.items() if re.search(pattern, name, re.IGNORECASE))


def estimated(step: Step) -> tuple[dict[str, float], float]:
    """Seconds of kernels by kind as printed, and the printed error."""
    found = llmir.analyze(step.model, step.device, estimation=llmir.Estimation(engine=step.engine), **step.at)
    sums: dict[str, float] = {}
    for op in found.ops:
        if op.kind != "overhead":
            experts = op.block.startswith("moe") or "expert" in op.name
            kind = "experts" if experts else OURS.get(op.kind, "other")
            sums[kind] = sums.get(kind, 0.0) + float(op.time_s) * op.repeat
    return sums, float(found.error or 0.0)


class Comparison(NamedTuple):
    """Kernels of a step, or of one kind: their number, measured and printed seconds, and the printed ±."""

    kernels: int
    measured_s: float
    printed_s: float
    band: float | None = None

    @property
    def error(self) -> float:
        """The relative error of the printed time."""
        return self.printed_s / self.measured_s - 1


def comparisons(folder: Path) -> dict[str, dict[str, Comparison]]:
    """Each profile in a folder: the whole step under its own name, then each kind of kernels."""
    found = {}
    for name, step in STEPS.items():
        if not (path := folder / f"{name}.json.gz").exists():
            continue
        kernels = measured(path, step)
        times: dict[str, list[float]] = {}
        for event in kernels:
            times.setdefault(kind_of(event["name"]), []).append(event["dur"] * 1e-6)
        printed, error = estimated(step)
        kinds = {
            kind: Comparison(len(each), sum(each), printed.get(kind, 0.0))
            for kind, each in sorted(times.items())
        }
        total = sum(line.measured_s for line in kinds.values())
        found[name] = {name: Comparison(len(kernels), total, sum(printed.values()), error), **kinds}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Kernels of profiled steps beside printed steps.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--names", type=int, default=0, help="Names of kernels to print, of each profile.")
    given = parser.parse_args()
    print("| profile | kernels | measured | printed | error | ± |\n|---|---|---|---|---|---|")
    for name, lines in comparisons(given.folder).items():
        for kind, line in lines.items():
            band = "" if line.band is None else f"{line.band:.0%}"
            times = f"{1e3 * line.measured_s:.2f} ms | {1e3 * line.printed_s:.2f} ms"
            print(f"| {kind} | {line.kernels} | {times} | {line.error:+.0%} | {band} |")
        kernels = measured(given.folder / f"{name}.json.gz", STEPS[name]) if given.names else []
        for event_name, (count, seconds) in _most(kernels, given.names):
            print(f"| `{event_name[:60]}` | {count} | {1e3 * seconds:.2f} ms | | | |")


def _most(kernels: Sequence[Event], number: int) -> list[tuple[str, tuple[int, float]]]:
    """The names with the most time: how many kernels, and their seconds."""
    found: dict[str, tuple[int, float]] = {}
    for event in kernels:
        count, seconds = found.get(event["name"], (0, 0.0))
        found[event["name"]] = count + 1, seconds + event["dur"] * 1e-6
    return sorted(found.items(), key=lambda each: -each[1][1])[:number]


if __name__ == "__main__":
    main()
