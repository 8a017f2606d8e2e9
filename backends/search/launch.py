"""Launch commands: the command that starts a replica of a plan, with flags of the engine's release.

First the flags and files of speculative decoding (`DRAFT_FLAGS`), then the flags of each engine with the
release and page that document them (`LAUNCHERS`), its container images (`IMAGES`), `check_launch` and
`launch_command`. `export.manifests` writes files with these commands.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from llmir.backends.request.speculation import LAYER, LOOKUP, MODEL
from llmir.backends.simulate.engine import engine_capacity, engine_policy, max_request_tokens
from llmir.backends.step.facts import precision
from llmir.base.arguments import choice
from llmir.base.errors import InputError
from llmir.hw.device import Device
from llmir.hw.engine import Engine, number
from llmir.hw.engine_sections import CudaGraphs
from llmir.hw.link import BOX

from .plan import Candidate, PoolCandidate
from .structures import ElementTypes, Split

# Speculative decoding


class DraftOptions(NamedTuple):
    """The options of drafts: the tokens per step, and the draft model, if there is one.

    `weights` is the dtype to which a command quantizes its weights, "" for the checkpoint's dtype.
    """

    tokens: int
    model: str
    weights: str


class DraftFlags(NamedTuple):
    """The flags of an engine for drafts, and `lines` of an options file; the first release that has them, and
    the source.
    """

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
        if of.model and of.weights not in (
            "",
            *_CASTS,
        ):  # by default, the drafter has the dtype of its checkpoint
            said["quantization"] = of.weights
        return [f"--speculative-config {shlex.quote(json.dumps(said))}"]

    return flags


def _sglang(algorithm: str, *more: str) -> Callable[[DraftOptions], list[str]]:
    """The flags for drafts that are generated one after another; their number of tokens includes the last
    verified token.
    """

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


# Commands

_CASTS = ("bf16", "fp16")  # dtypes to which an engine casts unquantized weights


class Flag(NamedTuple):
    """How an engine spells an option, the first release in which its options were checked, and the source."""

    name: str
    since: str
    source: str


class Launcher(NamedTuple):
    """The start command of an engine, and its flags for `tp`, `pp`, `dp`, `ep`, `batch`, `chunk` and dtypes.

    - Flags of `utilization`, `chunked` and `whole` (prompts, without chunks) are written if a plan sets them.
      `kv fp8` is the flag of an fp8 KV cache. A flag without dashes is a line of the options file.
    - The server listens on `port`; `host` is the flag for all addresses.
    - The flag `longest` limits the length of requests. It is written if the engine would not start otherwise:
      if caches, or steps with whole prompts, have fewer tokens than the model allows.
    - `expert_ranks`: The flag of `ep` takes the number of ranks. If an engine has a flag for `dp`, its flag
      for `batch` applies to each rank.
    """

    command: str
    flags: dict[str, Flag]
    expert_ranks: bool = True
    port: int = 8000
    host: str = "--host 0.0.0.0"


_VLLM = "docs.vllm.ai/en/v0.5.3/models/engine_args.html"
_SGLANG = "docs.sglang.io/advanced_features/server_arguments.html"
_TRTLLM = "nvidia.github.io/TensorRT-LLM/0.18.2/commands/trtllm-serve.html"
_TRTLLM_ARGUMENTS = "tensorrt_llm/llmapi/llm_args.py"
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
            "chunked": Flag("--enable-chunked-prefill", "0.5.3", _VLLM),
            "whole": Flag("--no-enable-chunked-prefill", "0.9", "vllm/engine/arg_utils.py, scheduler_group"),
            "longest": Flag("--max-model-len", "0.5.3", _VLLM),
            "fp8": Flag("--quantization fp8", "0.5.3", _VLLM),
            "bf16": Flag("--dtype bfloat16", "0.5.3", _VLLM),
            "fp16": Flag("--dtype float16", "0.5.3", _VLLM),
            "kv fp8": Flag("--kv-cache-dtype fp8", "0.5.3", _VLLM),
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
            "whole": Flag("--chunked-prefill-size -1 --max-prefill-tokens", "0.5", _SGLANG),
            "fp8": Flag("--quantization fp8", "0.5", _SGLANG),
            "bf16": Flag("--dtype bfloat16", "0.5", _SGLANG),
            "fp16": Flag("--dtype float16", "0.5", _SGLANG),
            "kv fp8": Flag("--kv-cache-dtype fp8_e4m3", "0.5", _SGLANG),
        },
        port=30000,
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
            "chunked": Flag("enable_chunked_prefill: true", "0.18.2", _TRTLLM_ARGUMENTS),
            "whole": Flag("enable_chunked_prefill: false", "0.18.2", _TRTLLM_ARGUMENTS),
            "graphs": Flag("cuda_graph_config:", "1.0", _TRTLLM_ARGUMENTS),
            "bf16": Flag("dtype: bfloat16", "1.0", _TRTLLM_ARGUMENTS),
            "fp16": Flag("dtype: float16", "1.0", _TRTLLM_ARGUMENTS),
            "kv fp8": Flag("kv_cache_config: {dtype: fp8}", "1.0", _TRTLLM_ARGUMENTS),
        },
    ),
}


# Prefill and decode servers


class PoolFlags(NamedTuple):
    """The flags that connect prefill and decode servers, with the first release and the source.

    `words` and `lines` (of the options file) receive the `role`, prefill or decode, and the longest request.
    A server with a shell variable as `port` also gets `environment`.
    """

    words: Callable[[str, str], list[str]]
    lines: Callable[[str, int], list[str]]
    environment: str
    since: str
    source: str


PREFILL, DECODE = "prefill", "decode"


def _nixl(role: str, port: str) -> list[str]:
    kind = {PREFILL: "kv_producer", DECODE: "kv_consumer"}[role]
    return [f"--kv-transfer-config '{json.dumps({'kv_connector': 'NixlConnector', 'kv_role': kind})}'"]


def _sglang_pools(role: str, port: str) -> list[str]:
    backend = "--disaggregation-transfer-backend nixl"
    return [f"--disaggregation-mode {role}", backend, f"--disaggregation-bootstrap-port {port}"]


def _transceiver(role: str, longest: int) -> list[str]:
    """A buffer for the longest prompt, as the source recommends; prefill servers do not support overlapped
    steps yet.
    """
    alone = [_ALONE] if role == PREFILL else []
    return [*alone, "cache_transceiver_config:", "  backend: UCX", f"  max_tokens_in_buffer: {longest}"]


POOL_FLAGS: Mapping[str, PoolFlags] = {
    "vllm": PoolFlags(
        _nixl,
        lambda role, longest: [],
        "VLLM_NIXL_SIDE_CHANNEL_HOST=$(hostname -i) VLLM_NIXL_SIDE_CHANNEL_PORT=$((PORT + 10000))",
        "0.12",
        "docs.vllm.ai/en/v0.12.0/features/nixl_connector_usage",
    ),
    "sglang": PoolFlags(
        _sglang_pools,
        lambda role, longest: [],
        "",
        "0.5",
        "docs.sglang.io/advanced_features/pd_disaggregation",
    ),
    "trtllm": PoolFlags(
        lambda role, port: [],
        _transceiver,
        "",
        "1.0",
        "docs/source/features/disagg-serving.md of TensorRT-LLM",
    ),
}


def check_pool_launch(emit: str, runs: Engine | None) -> None:
    """InputError for prefill and decode servers that no file of this kind starts."""
    engine = launched_engine(emit, runs)
    assert runs is not None
    if emit in ("compose", "k8s"):
        why = f"the image of {engine} has no router of prefill and decode servers"
        raise InputError(f"emit: {emit}; {why}, use {engine}{'' if engine == 'trtllm' else ' or dynamo'}")
    told = POOL_FLAGS[engine]
    _known(engine, release_of(runs), "a link of prefill and decode servers", told.since, told.source)


def pool_sides(candidate: PoolCandidate) -> dict[str, Candidate]:
    """The prefill servers and the decode servers of a plan with pools, each as a plan with replicas."""
    pools = candidate.pools
    assert pools is not None
    found = {}
    sides = zip((PREFILL, DECODE), (pools.prefill, pools.decode), candidate.servers, strict=True)
    for role, server, count in sides:
        s, job = candidate.reads if role == PREFILL else candidate.structure, server.job
        found[role] = Candidate(
            s,
            job.max_batched_tokens or candidate.chunk,
            (job.max_num_seqs or 1) * s.split.dp,
            candidate.replicas * count,
            candidate.ttft_s,
            candidate.tpot_s,
            candidate.traffic,
            candidate.trial,
        )
    return found


def pool_command(
    candidate: Candidate, role: str, emit: str, model: str, draft_model: str = "", port: str = "12345"
) -> LaunchCommand:
    """The command of a prefill or decode server; `port` is the handshake port, if it has one."""
    command = launch_command(candidate, emit, model, draft_model)
    told, file = POOL_FLAGS[command.engine], f"{role}.yaml"
    lines = tuple(dict.fromkeys((*command.lines, *told.lines(role, candidate.traffic.longest))))
    words = [*command.words, *told.words(role, port)]
    words += _file() if lines and not command.lines else []
    words = [word.replace(FILE, file) for word in words]
    sources = (*command.sources, told.source)
    return command._replace(words=tuple(words), lines=lines, sources=sources, file=file)


# Container images of an engine, by the vendor of the device; the tag is a release.
IMAGES: Mapping[str, Mapping[str, Flag]] = {
    "vllm": {
        "NVIDIA": Flag("vllm/vllm-openai:v{}", "0.5.3", "docs.vllm.ai/en/stable/deployment/docker.html"),
        "AMD": Flag("vllm/vllm-openai-rocm:v{}", "0.14", "docs.vllm.ai/en/stable/deployment/docker.html"),
    },
    "sglang": {"NVIDIA": Flag("lmsysorg/sglang:v{}", "0.5", "docs.sglang.io/get_started/install.html")},
    "trtllm": {
        "NVIDIA": Flag(
            "nvcr.io/nvidia/tensorrt-llm/release:{}", "1.0", "nvidia.github.io/TensorRT-LLM/quick-start-guide"
        )
    },
}
CONTAINERS = ("compose", "k8s", "dynamo")  # files that start containers of the engine of a plan
EMITS = (*LAUNCHERS, *CONTAINERS)


def launched_engine(emit: str, runs: Engine | None) -> str:
    """The engine that `emit` starts; InputError if the plan uses another engine."""
    engine = emit if choice("emit", emit, EMITS) in LAUNCHERS else runs.name if runs else ""
    if engine in LAUNCHERS and runs is not None and runs.name == engine:
        return engine
    known = engine if emit in LAUNCHERS else " or ".join(LAUNCHERS)
    raise InputError(f"emit: {emit}; the plan uses {runs or 'no engine'}; set --engine {known}")


def release_of(runs: Engine) -> str:
    """The release of an estimated engine: the requested one, else the newest measured one."""
    return runs.release or runs.versions[-1]


def check_launch(
    emit: str,
    runs: Engine | None,
    weights: str = "",
    split: Split | None = None,
    drafter: str = "",
    device: Device | None = None,
) -> None:
    """Raise InputError if a plan cannot be launched.

    The reasons are another engine than that of the plan, and an option without a known flag in its release.
    Containers also need an image for the device, and replicas within one node. `drafter` is the kind of
    drafter, if any.
    """
    engine = launched_engine(emit, runs)
    assert runs is not None
    if split and split.sp:
        raise InputError(f"emit: {emit}; llmir knows no flag for sequence parallelism (sp)")
    release, flags = release_of(runs), LAUNCHERS[engine].flags
    for name in _options(weights, split):
        if name not in flags:
            what = f"makes weights {name}; serve such weights" if name == weights else f"sets {name}"
            raise InputError(f"emit: {emit}; llmir knows no flag that {what}")
        _known(engine, release, flags[name].name, flags[name].since, flags[name].source)
    if drafter:
        told = DRAFT_FLAGS[engine][drafter]
        _known(engine, release, f"drafting by {drafter}", told.since, told.source)
    if emit in CONTAINERS and device is not None:
        _check_container(emit, engine, release, device, split)


def check_types(
    emit: str, runs: Engine | None, own: str, asked: ElementTypes, run: ElementTypes, implied: ElementTypes
) -> None:
    """Raise InputError for dtypes that no flag can set, because the engine would run other dtypes than the
    estimate assumes.

    `own` is the dtype of the checkpoint's weights, and `implied` contains the dtypes that an engine runs if
    only weights are set.
    """
    if asked.weights and own not in (*_CASTS, "fp32") and asked.weights != own:
        why = f"the checkpoint's weights are {own}, and llmir knows no flag that makes them {asked.weights}"
        raise InputError(f"emit: {emit}; {why}")
    if run.activations != implied.activations:
        usual = implied.activations or "the checkpoint's"
        why = f"weights {run.weights or own} run with {usual} activations"
        raise InputError(f"emit: {emit}; {why}, and llmir knows no flag for {run.activations}")
    if (
        run.kv not in ("", "fp32", *_CASTS)
        and f"kv {run.kv}" not in LAUNCHERS[launched_engine(emit, runs)].flags
    ):
        raise InputError(f"emit: {emit}; llmir knows no flag that sets kv {run.kv}")


def _check_container(emit: str, engine: str, release: str, device: Device, split: Split | None) -> None:
    image = IMAGES[engine].get(device.vendor)
    if image is None:
        raise InputError(f"emit: {emit}; no image of {engine} is known for {device.name}")
    _known(engine, release, image.name.format(release), image.since, image.source)
    if emit == "dynamo" and engine == "trtllm":
        raise InputError("emit: dynamo; no flags of its TensorRT-LLM workers are known, use vllm or sglang")
    if split and split.devices > (node := node_devices(device)):
        raise InputError(f"emit: {emit}; a replica of {split.devices} GPUs is larger than a node of {node}")


def node_devices(device: Device) -> int:
    """The number of devices in a node of its cluster, or of a typical machine."""
    return device.node.devices if device.node else BOX


def launchable(
    emit: str, runs: Engine | None, types: Sequence[str], drafter: str, device: Device
) -> tuple[tuple[str, ...], dict[str, InputError]]:
    """Weight types that a launch command can set, and errors of the others; InputError if none can be set."""
    errors: dict[str, InputError] = {}
    for kind in types:
        try:
            check_launch(emit, runs, kind, None, drafter, device)
        except InputError as error:
            errors[kind] = error
    kept = tuple(kind for kind in types if kind not in errors)
    if not kept:
        raise next(iter(errors.values()))
    return kept, errors


def _known(engine: str, release: str, what: str, since: str, source: str) -> None:
    if number(release) < number(since):
        raise InputError(f"emit: {engine} {release}; {what} is known from {since} on, from {source}")


def _options(weights: str, split: Split | None) -> list[str]:
    """The options in a command: tp, other degrees above 1, the dtype of weights, and limits of a step."""
    more = [name for name in ("pp", "dp", "ep") if split and getattr(split, name) > 1]
    return ["tp", *more, *([weights] if weights else []), "batch", "chunk"]


class LaunchCommand(NamedTuple):
    """The command of one replica: shell `words`, and `lines` of the file that it reads.

    `sources` are the pages that document its flags.
    """

    engine: str
    release: str
    words: tuple[str, ...]
    lines: tuple[str, ...]
    sources: tuple[str, ...]
    file: str = FILE

    @property
    def arguments(self) -> list[str]:
        """Words that need no quotes in a shell."""
        return shlex.split(" ".join(self.words))


def launch_command(candidate: Candidate, emit: str, model: str, draft_model: str = "") -> LaunchCommand:
    """The command that serves the checkpoint `model` with one replica of a plan.

    `draft_model` is the name of the draft model, if any. InputError as in `check_launch`.
    """
    s = candidate.structure
    drafter = s.drafts and s.drafts.kind(s.program)
    check_launch(emit, s.model.runs, s.weights, s.split, drafter or "", s.device)
    runs = s.model.runs
    assert runs is not None
    engine = launched_engine(emit, runs)
    launcher = LAUNCHERS[engine]
    values: dict[str, Any] = s.split._asdict()
    batch = candidate.batch // s.split.dp if s.sequences is None else s.sequences
    values |= {"batch": batch, "chunk": candidate.chunk, s.weights: None}
    if not launcher.expert_ranks:
        values["ep"] = None
    words, sources = [launcher.command.format(model=shlex.quote(model))], []
    names = _options(s.weights, s.split)
    if longest := _longest(candidate, launcher):
        names.append("longest")
        values["longest"] = longest
    values |= {"utilization": s.utilization, "chunked": None, "whole": None}
    names += ["utilization"] if s.utilization is not None else []
    # SGLang's size of a chunk is then -1, and another flag has the tokens.
    if s.chunked is False and engine == "sglang":
        names = ["whole" if name == "chunk" else name for name in names]
        values["whole"] = candidate.chunk
    elif s.chunked is not None and engine != "sglang":
        names.append("chunked" if s.chunked else "whole")
    graphs = runs.section(CudaGraphs)
    if graphs and graphs.unstated(s.device, s.split.tp):  # the estimate assumes graphs up to the batch
        names.append("graphs")
        values["graphs"] = f"{{enable_padding: true, max_batch_size: {values['batch']}}}"
    if kv := _kv_option(candidate):
        names.append(kv)
        values[kv] = None
    lines: list[str] = []
    for name in names:
        if name not in launcher.flags:
            raise InputError(f"emit: {emit}; llmir knows no flag that sets {name}")
        flag, value = launcher.flags[name], values[name]
        _known(engine, release_of(runs), *flag)
        text = flag.name if value is None else f"{flag.name} {value}"
        (words if flag.name.startswith("-") else lines).append(text)
        sources.append(flag.source)
    if s.drafts and drafter:
        told, said = DRAFT_FLAGS[engine][drafter], DraftOptions(s.drafts.tokens, draft_model, s.weights)
        words += [word for word in told.flags(said) if not told.lines]
        sources.append(told.source)
        lines += told.lines(said) if told.lines else []
    lines = _one_cache_config(lines, s.utilization)
    words += _file() if lines else []
    sources = list(dict.fromkeys(sources))
    return LaunchCommand(engine, release_of(runs), tuple(words), tuple(lines), tuple(sources))


def _one_cache_config(lines: list[str], utilization: float | None) -> list[str]:
    """The lines of a file with the memory share inside `kv_cache_config`.

    The `kv_cache_config` of the file replaces the one of the command (update_llm_args_with_extra_dict,
    tensorrt_llm/llmapi/llm_args.py of release 1.0).
    """
    if utilization is None:
        return lines
    share = f", free_gpu_memory_fraction: {utilization}}}"
    return [line.replace("}", share) if line.startswith("kv_cache_config") else line for line in lines]


def _kv_option(candidate: Candidate) -> str:
    """The option for a low-precision KV cache; "" if the cache has the dtype of activations."""
    kind = precision(candidate.structure.program)["kv_cache"] or ""
    return f"kv {kind}" if kind not in ("", "fp32", *_CASTS) else ""


def _longest(candidate: Candidate, launcher: Launcher) -> int | None:
    """Tokens of the longest request, if the engine needs the number; None for the model's length.

    vLLM starts without chunked prefill only if a step has tokens for the longest request
    ("max_num_batched_tokens … is smaller than max_model_len", vllm/config/scheduler.py).
    """
    s, traffic = candidate.structure, candidate.traffic
    job = s.job(*traffic.tokens, candidate.chunk, candidate.batch)
    most = max_request_tokens(engine_capacity(job, s.drafts), engine_policy(job))
    if s.chunked is False:
        most = min(most, candidate.chunk)
    if "longest" not in launcher.flags or not traffic.positions or most >= traffic.positions:
        return None
    if most < traffic.longest:
        asked = f"requests have up to {traffic.longest:,} tokens, and steps of whole prompts {most:,}"
        raise InputError(f"max_batched_tokens: {candidate.chunk:,}; {asked}")
    return most
