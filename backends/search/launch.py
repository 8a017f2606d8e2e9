"""Launch commands: the command that starts a replica of a plan, with flags of the engine's release.

First the flags and files of speculative decoding (`DRAFT_FLAGS`), then the flags of each engine with the
release and page that document them (`LAUNCHERS`), `check_launch` and `launch`.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from llmir.backends.request.speculation import LAYER, LOOKUP, MODEL
from llmir.backends.simulate.engine import engine_capacity
from llmir.base.arguments import choice
from llmir.base.errors import InputError
from llmir.hw.engine import Engine, number

from .plan import Candidate
from .structures import Split

# Speculative decoding


class DraftOptions(NamedTuple):
    """What is said of drafts: how many a step verifies, and the model that makes them, if one does.

    `weights` is the type that a command has weights made, "" as the checkpoints have them.
    """

    tokens: int
    model: str
    weights: str


class DraftFlags(NamedTuple):
    """What an engine is told: `flags`, and `lines` of a file; since which release, and where it says so."""

    flags: Callable[[DraftOptions], list[str]]
    since: str
    source: str
    lines: Callable[[DraftOptions], list[str]] | None = None


FILE = "options.yaml"


def _vllm(method: str, **more: int) -> Callable[[DraftOptions], list[str]]:
    def flags(of: DraftOptions) -> list[str]:
        said: dict[str, str | int] = {"method": method, "num_speculative_tokens": of.tokens, **more}
        if of.model:
            said["model"] = of.model
        if of.model and of.weights:  # by default what drafts is as its checkpoint is
            said["quantization"] = of.weights
        return [f"--speculative-config {shlex.quote(json.dumps(said))}"]

    return flags


def _sglang(algorithm: str, *more: str) -> Callable[[DraftOptions], list[str]]:
    """A chain of drafts: its tokens are those of a step, the last one that was verified among them."""

    def flags(of: DraftOptions) -> list[str]:
        path = [f"--speculative-draft-model-path {shlex.quote(of.model)}"] if of.model else []
        count = f"--speculative-num-draft-tokens {of.tokens + 1}"
        said = (flag.format(steps=of.tokens) for flag in more)
        return [f"--speculative-algorithm {algorithm}", *path, *said, count]

    return flags


def _trtllm(kind: str, *more: str) -> Callable[[DraftOptions], list[str]]:
    def lines(of: DraftOptions) -> list[str]:
        model = [f"  speculative_model_dir: {json.dumps(of.model)}"] if of.model else []
        said = [line.format(tokens=of.tokens) for line in more]
        return ["speculative_config:", f"  decoding_type: {kind}", *model, *said]

    return lines


def _file(*of: DraftOptions) -> list[str]:
    return [f"--extra_llm_api_options {FILE}"]


_CHAIN = "--speculative-num-steps {steps}", "--speculative-eagle-topk 1"
_LENGTH, _ALONE = "  max_draft_len: {tokens}", "disable_overlap_scheduler: true"
_TRTLLM_DRAFTS = (
    "docs/source/features/speculative-decoding.md of TensorRT-LLM; --extra_llm_api_options, trtllm-serve"
)
_SGLANG_DRAFTS = (
    "docs.sglang.io/docs/advanced_features/speculative_decoding.md; github.com/sgl-project/sglang/"
)
DRAFT_FLAGS: Mapping[str, Mapping[str, DraftFlags]] = {
    "vllm": {
        MODEL: DraftFlags(_vllm("draft_model"), "0.16", "vllm, docs/features/speculative_decoding/README.md"),
        LAYER: DraftFlags(_vllm("mtp"), "0.11", "docs.vllm.ai/en/v0.11.0/api/vllm/config/speculative.html"),
        LOOKUP: DraftFlags(
            _vllm("ngram", prompt_lookup_max=4),
            "0.11",
            "docs.vllm.ai/en/v0.11.0/api/vllm/config/speculative.html",
        ),
    },
    "sglang": {
        MODEL: DraftFlags(_sglang("STANDALONE", *_CHAIN), "0.5.4", _SGLANG_DRAFTS + "pull/10090"),
        LAYER: DraftFlags(_sglang("EAGLE", *_CHAIN), "0.5.4", _SGLANG_DRAFTS + "issues/24795"),
        LOOKUP: DraftFlags(
            _sglang("NGRAM", "--speculative-ngram-max-bfs-breadth 1"),
            "0.5.4",
            _SGLANG_DRAFTS + "issues/12726",
        ),
    },
    "trtllm": {
        MODEL: DraftFlags(_file, "1.0", _TRTLLM_DRAFTS, _trtllm("DraftTarget", _LENGTH, _ALONE)),
        LAYER: DraftFlags(
            _file, "1.0", _TRTLLM_DRAFTS, _trtllm("MTP", "  num_nextn_predict_layers: {tokens}")
        ),
        LOOKUP: DraftFlags(
            _file, "1.0", _TRTLLM_DRAFTS, _trtllm("NGram", _LENGTH, "  max_matching_ngram_size: 4", _ALONE)
        ),
    },
}


def option_file(lines: list[str]) -> str:
    """What a shell writes into the file."""
    return "\n".join([f"cat > {FILE} <<'END'", *lines, "END", ""])


# Commands


class Flag(NamedTuple):
    """How an engine spells an option, the first release whose list of options was read, and where."""

    name: str
    since: str
    source: str


class Launcher(NamedTuple):
    """What starts an engine, and its flags: of `tp`, `pp`, `dp`, `ep`, `batch`, `chunk`, types of weights.

    Flags of `utilization` and `chunked` are stated where a plan changed them. A flag without dashes is a line
    of the file of options.

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
            "utilization": Flag("--gpu-memory-utilization", "0.5.3", _VLLM),
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
            "utilization": Flag("--mem-fraction-static", "0.5", _SGLANG),
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
            "utilization": Flag("--kv_cache_free_gpu_memory_fraction", "0.18.2", _TRTLLM),
            "chunked": Flag("enable_chunked_prefill: true", "0.18.2", "tensorrt_llm/llmapi/llm_args.py"),
        },
    ),
}


def check_launch(
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
        told = DRAFT_FLAGS[engine][drafter]
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
    check_launch(engine, s.model.runs, s.weights, s.split, drafter or "")
    launcher, runs = LAUNCHERS[engine], s.model.runs
    assert runs is not None
    values: dict[str, Any] = s.split._asdict()
    values |= {"batch": candidate.batch // s.split.dp, "chunk": candidate.chunk, s.weights: None}
    if not launcher.expert_ranks:
        values["ep"] = None
    words, sources = [launcher.command.format(model=shlex.quote(model))], []
    names = _options(s.weights, s.split)
    held, positions = _cache_tokens(candidate), candidate.traffic.positions
    if positions and held < positions and "longest" in launcher.flags:
        names.append("longest")
        values["longest"] = held
    values |= {"utilization": s.utilization, "chunked": None}
    names += [name for name in ("utilization", "chunked") if getattr(s, name) is not None]
    lines: list[str] = []
    for name in names:
        if name not in launcher.flags:
            raise InputError(f"emit: {engine}; no flag is known that sets {name}")
        flag, value = launcher.flags[name], values[name]
        text = flag.name if value is None else f"{flag.name} {value}"
        (words if flag.name.startswith("-") else lines).append(text)
        sources.append(flag.source)
    if s.drafts and drafter:
        told, said = DRAFT_FLAGS[engine][drafter], DraftOptions(s.drafts.tokens, draft_model, s.weights)
        words += [word for word in told.flags(said) if not told.lines]
        sources.append(told.source)
        lines += told.lines(said) if told.lines else []
    words += _file() if lines else []
    before = option_file(lines) if lines else ""
    release = runs.release or runs.versions[-1]
    each = "one replica" if count == 1 else f"each of {count:,} replicas"
    head = f"# {each}, on {s.split.devices:,} × {s.device.name}; {engine} {release}"
    listed = [f"# flags: {source}" for source in dict.fromkeys(sources)]
    if "/" not in model:  # the engine would look for it on the hub
        listed.append(f"# model: say the folder of the checkpoint, or its name on the hub, for {model}")
    return "\n".join([head, *listed, before + " \\\n  ".join(words)]) + "\n"


def _cache_tokens(candidate: Candidate) -> int:
    """Tokens that the caches of one data-parallel rank hold."""
    s, traffic = candidate.structure, candidate.traffic
    found = engine_capacity(s.job(*traffic.tokens, candidate.chunk, candidate.batch), s.drafts)
    return (found.blocks // found.ranks - found.state) * found.block
