"""The command that starts a replica of a plan, with flags that the engine's release is known to take."""

from __future__ import annotations

import shlex
from typing import Any, NamedTuple

from llmir.backends.simulate.engine import capacity
from llmir.base.arguments import choice
from llmir.base.errors import InputError
from llmir.hw.engine import Engine
from llmir.hw.releases import number

from .launch_drafts import TOLD, Drafted, written
from .plan import Candidate
from .splits import Split


class Flag(NamedTuple):
    """How an engine spells an option, the first release whose list of options was read, and where."""

    name: str
    since: str
    source: str


class Launcher(NamedTuple):
    """What starts an engine, and its flags: of `tp`, `pp`, `dp`, `ep`, `batch`, `chunk`, types of weights.

    That of `longest`, where there is one, is stated where caches hold fewer tokens than the model may have:
    the engine does not start otherwise.
    `expert_ranks` says that the flag of `ep` takes their number. That of `dp`, where there is one, is of
    ranks which take as many requests each as the flag of `batch` says.
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
            "pp": Flag("--pipeline-parallel-size", "0.5.3", _VLLM),
            "dp": Flag("--data-parallel-size", "0.11", "vllm/engine/arg_utils.py, parallel_group"),
            "ep": Flag("--enable-expert-parallel", "0.11", "vllm/engine/arg_utils.py, parallel_group"),
            "batch": Flag("--max-num-seqs", "0.5.3", _VLLM),
            "chunk": Flag("--max-num-batched-tokens", "0.5.3", _VLLM),
            "longest": Flag("--max-model-len", "0.5.3", _VLLM),
            "fp8": Flag("--quantization fp8", "0.5.3", _VLLM),
        },
        expert_ranks=False,
    ),
    "sglang": Launcher(
        "python -m sglang.launch_server --model-path {model}",
        {
            "tp": Flag("--tp", "0.5", _SGLANG),
            "pp": Flag("--pp-size", "0.5", _SGLANG),
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
            "pp": Flag("--pp_size", "0.18.2", _TRTLLM),
            "ep": Flag("--ep_size", "1.1.0", "tensorrt_llm/commands/serve.py"),
            "batch": Flag("--max_batch_size", "0.18.2", _TRTLLM),
            "chunk": Flag("--max_num_tokens", "0.18.2", _TRTLLM),
        },
    ),
}


def check(
    engine: str, runs: Engine | None, weights: str = "", split: Split | None = None, drafter: str = ""
) -> None:
    """InputError for what cannot be launched: another engine than the one that is priced, an option of
    which no flag is known, or none of its release. `drafter` is what drafts, if anything does.
    """
    launcher = LAUNCHERS[choice("emit", engine, tuple(LAUNCHERS))]
    if runs is None or runs.name != engine:
        raise InputError(f"emit: {engine}; the plan is of {runs or 'no engine'}, say --engine {engine}")
    if split and split.sp:
        raise InputError(f"emit: {engine}; no flag is known that splits tokens too (sp)")
    release = runs.release or runs.versions[-1]
    for name in _options(weights, split):
        flag = launcher.flags.get(name)
        if flag is None:
            what = f"makes weights {name}; serve such weights" if name == weights else f"sets {name}"
            raise InputError(f"emit: {engine}; no flag is known that {what}")
        _known(engine, release, flag.name, flag.since, flag.source)
    if drafter:
        told = TOLD[engine][drafter]
        _known(engine, release, f"drafting by {drafter}", told.since, told.source)


def _known(engine: str, release: str, what: str, since: str, source: str) -> None:
    if number(release) < number(since):
        raise InputError(f"emit: {engine} {release}; {what} is known from {since} on, from {source}")


def _options(weights: str, split: Split | None) -> list[str]:
    """What a command states: tp, further ranks that there are, the type of weights, and limits of a step."""
    more = [name for name in ("pp", "dp", "ep") if split and getattr(split, name) > 1]
    return ["tp", *more, *([weights] if weights else []), "batch", "chunk"]


def launch(candidate: Candidate, engine: str, model: str, draft_model: str = "") -> str:
    """The command of one replica, as a shell takes it, below what it is and where its flags are listed.

    `draft_model` names the model that drafts, where one does. InputError for what `check` refuses.
    """
    s, count = candidate.structure, candidate.replicas
    drafter = s.drafts and s.drafts.kind(s.program)
    check(engine, s.model.runs, s.weights, s.split, drafter or "")
    launcher, runs = LAUNCHERS[engine], s.model.runs
    assert runs is not None
    values: dict[str, Any] = s.split._asdict()
    values |= {"batch": candidate.batch // s.split.dp, "chunk": candidate.chunk, s.weights: None}
    if not launcher.expert_ranks:
        values["ep"] = None
    words, sources = [launcher.command.format(model=shlex.quote(model))], []
    names = _options(s.weights, s.split)
    held, positions = _held(candidate), candidate.traffic.positions
    if positions and held < positions and "longest" in launcher.flags:
        names.append("longest")
        values["longest"] = held
    for name in names:
        flag, value = launcher.flags[name], values[name]
        words.append(flag.name if value is None else f"{flag.name} {value}")
        sources.append(flag.source)
    before = ""
    if s.drafts and drafter:
        told, said = TOLD[engine][drafter], Drafted(s.drafts.tokens, draft_model, s.weights)
        words += told.flags(said)
        sources.append(told.source)
        before = written(told.lines(said)) if told.lines else ""
    release = runs.release or runs.versions[-1]
    each = "one replica" if count == 1 else f"each of {count:,} replicas"
    head = f"# {each}, on {s.split.devices:,} × {s.device.name}; {engine} {release}"
    listed = [f"# flags: {source}" for source in dict.fromkeys(sources)]
    if "/" not in model:  # the engine would look for it on the hub
        listed.append(f"# model: say the folder of the checkpoint, or its name on the hub, for {model}")
    return "\n".join([head, *listed, before + " \\\n  ".join(words)]) + "\n"


def _held(candidate: Candidate) -> int:
    """Tokens that the caches of one data-parallel rank hold."""
    s, traffic = candidate.structure, candidate.traffic
    found = capacity(s.job(*traffic.tokens, candidate.chunk, candidate.batch), s.drafts)
    return (found.blocks // found.ranks - found.state) * found.block
