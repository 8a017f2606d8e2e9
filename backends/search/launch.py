"""The command that starts a replica of a plan, with flags that the engine's release is known to take."""

from __future__ import annotations

import shlex
from typing import Any, NamedTuple

from llmir.convert import choice
from llmir.errors import InputError
from llmir.hw.releases import number

from .plan import Candidate


class Flag(NamedTuple):
    """How an engine spells an option, the first release whose list of options was read, and where."""

    name: str
    since: str
    source: str


class Launcher(NamedTuple):
    """What starts an engine, and its flags: of `tp`, `ep`, `batch`, `chunk`, and of each type of weights.

    `expert_ranks` says that the flag of `ep` takes their number.
    """

    command: str
    flags: dict[str, Flag]
    expert_ranks: bool = True


_VLLM = "docs.vllm.ai/en/v0.5.3/models/engine_args.html"
_SGLANG = "docs.sglang.io/advanced_features/server_arguments.html"
_TRTLLM = "nvidia.github.io/TensorRT-LLM/0.18.2/commands/trtllm-serve.html"
LAUNCHERS = {
    "vllm": Launcher(
        "vllm serve {model}",
        {
            "tp": Flag("--tensor-parallel-size", "0.5.3", _VLLM),
            "ep": Flag("--enable-expert-parallel", "0.11", "vllm/engine/arg_utils.py, parallel_group"),
            "batch": Flag("--max-num-seqs", "0.5.3", _VLLM),
            "chunk": Flag("--max-num-batched-tokens", "0.5.3", _VLLM),
            "fp8": Flag("--quantization fp8", "0.5.3", _VLLM),
        },
        expert_ranks=False,
    ),
    "sglang": Launcher(
        "python -m sglang.launch_server --model-path {model}",
        {
            "tp": Flag("--tp", "0.5", _SGLANG),
            "ep": Flag(
                "--ep-size", "0.5", "mlcommons/inference, language/gpt-oss/infer-sglang/run_server.sh"
            ),
            "batch": Flag("--max-running-requests", "0.5", _SGLANG),
            "chunk": Flag("--chunked-prefill-size", "0.5", _SGLANG),
            "fp8": Flag("--quantization fp8", "0.5", _SGLANG),
        },
    ),
    "trtllm": Launcher(
        "trtllm-serve {model}",
        {
            "tp": Flag("--tp_size", "0.18.2", _TRTLLM),
            "ep": Flag("--ep_size", "1.1.0", "tensorrt_llm/commands/serve.py"),
            "batch": Flag("--max_batch_size", "0.18.2", _TRTLLM),
            "chunk": Flag("--max_num_tokens", "0.18.2", _TRTLLM),
        },
    ),
}


def launch(candidate: Candidate, engine: str, model: str) -> str:
    """The command of one replica, as a shell takes it, below what it is and where its flags are listed.

    InputError for another engine than the one that is priced, and for what no flag is known of, or none of
    its release.
    """
    launcher = LAUNCHERS[choice("emit", engine, tuple(LAUNCHERS))]
    runs, split = candidate.structure.model.runs, candidate.structure.split
    if runs is None or runs.name != engine:
        raise InputError(f"emit: {engine}; the plan is of {runs or 'no engine'}, say --engine {engine}")
    if split.sp or split.pp > 1 or split.dp > 1:
        raise InputError(f"emit: {engine}; no flags are known for {split}")
    release = runs.release or runs.versions[-1]
    values: dict[str, Any] = {"tp": split.tp}
    if split.ep > 1:
        values["ep"] = split.ep if launcher.expert_ranks else None
    if candidate.structure.weights:
        values[candidate.structure.weights] = None
    values |= {"batch": candidate.batch, "chunk": candidate.chunk}
    words, sources = [launcher.command.format(model=shlex.quote(model))], []
    for name, value in values.items():
        flag = launcher.flags.get(name)
        if flag is None:
            raise InputError(
                f"emit: {engine}; no flag is known that makes weights {name}; serve such weights"
            )
        if number(release) < number(flag.since):
            first = f"{flag.name} is known from {flag.since} on"
            raise InputError(f"emit: {engine} {release}; {first}, from {flag.source}")
        words.append(flag.name if value is None else f"{flag.name} {value}")
        sources.append(flag.source)
    s, count = candidate.structure, candidate.replicas
    head = f"# each of {count:,} replicas, on {s.split.devices:,} × {s.device.name}; {engine} {release}"
    listed = [f"# flags: {source}" for source in dict.fromkeys(sources)]
    return "\n".join([head, *listed, " \\\n  ".join(words)]) + "\n"
