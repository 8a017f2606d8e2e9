"""Files that start a plan: a script, Compose, Kubernetes or Dynamo, and the benchmark that verifies it.

`manifest` returns one text that starts the replicas, with comments about the estimate; `launch_files` also
returns the benchmark, by file name. Commands and flags come from `search.launch`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from llmir.backends.search.launch import (
    CONTAINERS,
    DECODE,
    FILE,
    IMAGES,
    LAUNCHERS,
    POOL_FLAGS,
    PREFILL,
    LaunchCommand,
    check_pool_launch,
    launch_command,
    node_devices,
    pool_command,
    pool_sides,
)
from llmir.backends.search.plan import Candidate, PoolCandidate
from llmir.backends.search.traffic import DEFAULT_STATISTIC, LatencyLimit, Traffic
from llmir.backends.simulate.router import FIRST, LeastLoaded
from llmir.backends.step.facts import precision_text
from llmir.base.errors import InputError
from llmir.hw.engine import number

from . import units, wording

SCRIPT, BENCHMARK = "serve.sh", "benchmark.sh"
PORT = 8000  # port of the router of all replicas
NAMES = {"compose": "compose.yaml", "k8s": "kubernetes.yaml", "dynamo": "dynamo.yaml"}


class Checkpoint(NamedTuple):
    """The checkpoint that an engine loads: an id on Hugging Face's hub or a `folder`, and a note for the
    user.
    """

    id: str
    note: str = ""
    folder: bool = False


def file_names(emit: str) -> tuple[str, str]:
    """The names of the file that starts a plan, and of its benchmark."""
    return NAMES.get(emit, SCRIPT), BENCHMARK


def launch_files(
    candidate: Candidate, emit: str, model: Checkpoint, draft: Checkpoint | None = None
) -> dict[str, str]:
    """The files of a plan by name: the start script, and the benchmark that verifies the plan.

    InputError if the plan cannot be launched (`search.launch.check_launch`).
    """
    first, second = file_names(emit)
    return {first: manifest(candidate, emit, model, draft), second: benchmark_script(candidate, emit, model)}


def manifest(candidate: Candidate, emit: str, model: Checkpoint, draft: Checkpoint | None = None) -> str:
    """The file that starts the replicas of a plan: a script for one replica, or a container file for all."""
    for each in (model, draft):
        check_checkpoint(emit, each)
    if isinstance(candidate, PoolCandidate):
        return _pool_manifest(candidate, emit, model, draft)
    command = launch_command(candidate, emit, model.id, draft.id if draft else "")
    lines = [*_head(candidate, command), *_notes(model, draft)]
    words, remarks = benchmark(candidate, emit, model)
    lines += [f"# benchmark: {' '.join(words)}", *remarks] if words else remarks
    if emit in CONTAINERS:
        more, documents = _WRITERS[emit](candidate, command, model)
        return "\n".join([*lines, *more, _yaml(documents)])
    return "\n".join([*lines, _script(command)])


def check_checkpoint(emit: str, model: Checkpoint | None) -> None:
    """Raise InputError for a local folder in a file that starts pods on other machines."""
    if model and model.folder and emit in ("k8s", "dynamo"):
        raise InputError(
            f"emit: {emit}; {model.id} is a local folder, which pods cannot read; use a model of the hub"
        )


def _script(command: LaunchCommand) -> str:
    """The shell command that starts the engine, after the options file that it reads."""
    file = "\n".join([f"cat > {command.file} <<'END'", *command.lines, "END", ""]) if command.lines else ""
    return file + " \\\n  ".join(command.words) + "\n"


def _head(candidate: Candidate, command: LaunchCommand) -> list[str]:
    """Comments about the plan, its estimate, and the sources of its flags."""
    s, count = candidate.structure, candidate.replicas
    each = "one replica" if count == 1 else f"one of {count:,} replicas"
    return [
        f"# starts {each} on {s.split.devices:,} × {s.device.name} with {command.engine} {command.release}",
        *_estimates(candidate),
        *(f"# flags: {source}" for source in command.sources),
    ]


def _estimates(candidate: Candidate) -> list[str]:
    """Comments about the estimate of a plan, and about its precision."""
    trial = candidate.trial
    figures = zip(
        candidate.traffic.limits, ("TTFT", "TPOT"), (trial.ttft_s.p99, trial.tpot_s.p99), strict=True
    )
    times = [_estimate(of, name, p99, trial.limited(i)) for i, (of, name, p99) in enumerate(figures)]
    rate = units.digits(candidate.traffic.rate)
    return [
        f"# estimate: {', '.join(times)} at {rate} requests/s",
        f"# precision: {', '.join(precision_text(candidate.structure.program))}",
        *(f"# {label}: {words}" for label, words in wording.left_out_line(candidate.structure.program)),
    ]


def _estimate(limit: LatencyLimit | None, name: str, p99: float, limited: float) -> str:
    if limit is None:
        return f"{name} {DEFAULT_STATISTIC} {units.time(p99)}"
    return f"{name} {limit.of} {units.time(limited)} (limit {units.time(limit.seconds)})"


def _notes(*models: Checkpoint | None) -> list[str]:
    return [f"# model: {each.note}" for each in models if each and each.note]


# Prefill and decode servers


def _pool_manifest(
    candidate: PoolCandidate, emit: str, model: Checkpoint, draft: Checkpoint | None = None
) -> str:
    """A script that starts a prefill server, a decode server or their router; or a graph of Dynamo."""
    check_pool_launch(emit, candidate.structure.model.runs)
    sides, drafter = pool_sides(candidate), draft.id if draft else ""
    port = "12345" if emit in CONTAINERS else "$((PORT + 10000))"
    commands = {role: pool_command(side, role, emit, model.id, drafter, port) for role, side in sides.items()}
    command = commands[DECODE]
    servers = " and ".join(
        f"{side.replicas:,} {role} server{'s' * (side.replicas > 1)} on {side.structure.split.devices:,}"
        f" × {side.structure.device.name}{' each' * (side.replicas > 1)}"
        for role, side in sides.items()
    )
    words, remarks = benchmark(candidate, emit, model)
    lines = [
        f"# {servers}; {command.engine} {command.release}",
        *_estimates(candidate),
        f"# caches go over {candidate.link} in the estimate",
        *(f"# flags: {source}" for source in dict.fromkeys((*commands[PREFILL].sources, *command.sources))),
        *_notes(model, draft),
        *([f"# benchmark: {' '.join(words)}"] if words else []),
        *remarks,
    ]
    if emit in CONTAINERS:
        more, documents = _dynamo_pools(sides, commands, model)
        return "\n".join([*lines, *more, _yaml(documents)])
    return "\n".join([*lines, _pool_script(candidate, commands)])


def _pool_script(candidate: PoolCandidate, commands: Mapping[str, LaunchCommand]) -> str:
    """A script with an argument that selects the server to start."""
    engine = commands[DECODE].engine
    launcher, environment = LAUNCHERS[engine], POOL_FLAGS[engine].environment
    router, remarks = _POOL_ROUTERS[engine]
    lines = [
        "# start each server: PORT=8100 sh serve.sh prefill, or decode; CUDA_VISIBLE_DEVICES chooses its",
        "# GPUs, and ports of one host are 100 apart",
        '# then start the router: PREFILL="HOST:PORT …" DECODE="HOST:PORT …" sh serve.sh router',
        *(f"# router: {remark}" for remark in remarks),
        *_router_remarks(candidate.traffic),
        "set -eu",
        'case "${1:-}" in',
    ]
    for role, command in commands.items():
        words = [*command.words, launcher.host, '--port "$PORT"']
        told = [f"export {environment}"] if environment else []
        lines += [f"{role})", *told, _script(command._replace(words=tuple(words))).rstrip(), ";;"]
    usage = 'echo "usage: sh serve.sh prefill|decode|router" >&2; exit 2 ;;'
    return "\n".join([*lines, "router)", router, ";;", f"*) {usage}", "esac", ""])


def _router_remarks(traffic: Traffic) -> list[str]:
    """Say in a comment that the engine's router chooses servers in another way than the plan assumes."""
    if traffic.router == FIRST:
        return []
    return [f"# the plan's router is {traffic.router}; this one deals requests in turn"]


_PARTS = '$(for each in ${name}; do echo "${{each{part}}}"; done)'


def _addresses(name: str, part: str = "") -> str:
    """The shell words for a variable that contains addresses, or for the `part` of each address."""
    return _PARTS.format(name=name, part=part)


_HOST, _AFTER = "%:*", "##*:"  # shell expansions of HOST:PORT
# Routers to prefill and decode servers, and their documentation.
_POOL_ROUTERS: Mapping[str, tuple[str, list[str]]] = {
    "vllm": (
        " \\\n  ".join(
            [
                f"python toy_proxy_server.py --port {PORT}",
                f"--prefiller-hosts {_addresses('PREFILL', _HOST)}",
                f"--prefiller-ports {_addresses('PREFILL', _AFTER)}",
                f"--decoder-hosts {_addresses('DECODE', _HOST)}",
                f"--decoder-ports {_addresses('DECODE', _AFTER)}",
            ]
        ),
        [
            "tests/v1/kv_connector/nixl_integration/toy_proxy_server.py of vLLM's repository, a proxy",
            "for tests; --emit dynamo has one for production",
        ],
    ),
    "sglang": (
        " \\\n  ".join(
            [
                f"python -m sglang_router.launch_router --pd-disaggregation --host 0.0.0.0 --port {PORT}",
                "--policy round_robin",
                '$(for each in $PREFILL; do echo "--prefill http://$each $((${each##*:} + 10000))"; done)',
                '$(for each in $DECODE; do echo "--decode http://$each"; done)',
            ]
        ),
        ["docs.sglang.io/advanced_features/router.html; pip install sglang-router"],
    ),
    "trtllm": (
        "\n".join(
            [
                "cat > disaggregated.yaml <<END",
                "hostname: 0.0.0.0",
                f"port: {PORT}",
                "backend: pytorch",
                "context_servers:",
                "  num_instances: $(echo $PREFILL | wc -w)",
                "  urls: [$(echo $PREFILL | sed 's/ /, /g')]",
                "generation_servers:",
                "  num_instances: $(echo $DECODE | wc -w)",
                "  urls: [$(echo $DECODE | sed 's/ /, /g')]",
                "END",
                "trtllm-serve disaggregated -c disaggregated.yaml",
            ]
        ),
        ["docs/source/features/disagg-serving.md of TensorRT-LLM"],
    ),
}


# The benchmark


def benchmark(candidate: Candidate, emit: str, model: Checkpoint) -> tuple[list[str], list[str]]:
    """The words of the command that sends the plan's traffic, and comments on differences from it.

    If a script starts one replica, the benchmark sends its share of the requests; if containers start all
    replicas, it sends all requests.
    """
    traffic, runs = candidate.traffic, candidate.structure.model.runs
    assert runs is not None
    whole = emit in CONTAINERS or isinstance(candidate, PoolCandidate)
    share = 1 if whole else candidate.replicas
    release = runs.release or runs.versions[-1]
    words, since, source = _CLIENTS[runs.name](traffic, share)
    if number(release) < number(since):
        return [], [f"# benchmark: none is known of {runs.name} {release}; {source}, is of {since}"]
    port = PORT if whole else LAUNCHERS[runs.name].port
    first, *rest = words
    if emit == "dynamo":  # its frontend has only the OpenAI API
        first = first.replace("--backend sglang", "--backend sglang-oai")
    common = [f"--model {shlex.quote(model.id)}", f"--host 127.0.0.1 --port {port}"]
    remarks = [f"# flags of the benchmark: {source}", *_differences(traffic)]
    if share > 1 and traffic.router == FIRST and runs.name == "sglang":
        remarks.append(
            f"# benchmark: arrivals are random; of {share:,} replicas in turn each has more even ones"
        )
    return [first, *common, *rest], remarks


def _differences(traffic: Traffic) -> list[str]:
    """Say in a comment that the benchmark sends requests of mean length if the plan uses a distribution."""
    laws = {"prompt": (traffic.prompt, traffic.read), "generate": (traffic.generate, traffic.answer)}
    return [
        f"# benchmark: {name} {law} has lengths of its own; all have its mean of {mean:,} tokens here"
        for name, (law, mean) in laws.items()
        if not str(law).isdigit()
    ]


def benchmark_script(candidate: Candidate, emit: str, model: Checkpoint) -> str:
    """The benchmark as a separate script."""
    words, remarks = benchmark(candidate, emit, model)
    whole = emit in CONTAINERS or candidate.replicas == 1 or isinstance(candidate, PoolCandidate)
    what = "the plan" if whole else "one replica"
    head = [f"# sends {what} its traffic; compare with the estimate in {file_names(emit)[0]}", *remarks]
    return "\n".join([*head, " \\\n  ".join(words)]) + "\n"


Client = tuple[list[str], str, str]  # words without model and address, the first release, the source


def _rate(traffic: Traffic, share: int) -> str:
    rate = f"{traffic.rate / share:.6f}".rstrip("0").rstrip(".")
    return f"--request-rate {rate} --num-prompts {traffic.requests}"


def _random(traffic: Traffic) -> str:
    """Lengths as flags of vLLM and TensorRT-LLM; all prompts begin with the same cached tokens."""
    prefix = f"--random-prefix-len {traffic.cached} " if traffic.cached else ""
    lengths = f"--random-input-len {traffic.read - traffic.cached} --random-output-len {traffic.answer}"
    return f"--dataset-name random {prefix}{lengths} --ignore-eos"


_FIGURES = "--percentile-metrics ttft,tpot,itl,e2el --metric-percentiles 50,99"


def _burstiness(traffic: Traffic, share: int) -> list[str]:
    """State the gaps between the requests of one of n replicas behind a round-robin router: a gamma
    distribution with shape n.
    """
    return [f"--burstiness {share}"] if share > 1 and traffic.router == FIRST else []


def _vllm(traffic: Traffic, share: int) -> Client:
    words = ["vllm bench serve", _random(traffic), _rate(traffic, share), *_burstiness(traffic, share)]
    return (
        [*words, f"--seed {traffic.seed}", _FIGURES],
        "0.10",
        "docs.vllm.ai/en/v0.10.1.1/cli/bench/serve.html",
    )


def _trtllm(traffic: Traffic, share: int) -> Client:
    words = ["python -m tensorrt_llm.serve.scripts.benchmark_serving --backend openai", _random(traffic)]
    words += ["--random-ids", _rate(traffic, share), *_burstiness(traffic, share), _FIGURES]
    return words, "1.0", "tensorrt_llm/serve/scripts/benchmark_serving.py"


def _sglang(traffic: Traffic, share: int) -> Client:
    """Make all lengths equal: a range ratio of 1 means that lengths start at 1 times the stated length."""
    lengths = (
        f"--random-input-len {traffic.read} --random-output-len {traffic.answer} --random-range-ratio 1.0"
    )
    data = f"--dataset-name random-ids {lengths}"
    if traffic.cached:
        question = f"--gsp-question-len {traffic.read - traffic.cached} --gsp-output-len {traffic.answer}"
        group = f"--gsp-num-groups 1 --gsp-prompts-per-group {traffic.requests}"
        prefix = f"--gsp-system-prompt-len {traffic.cached}"
        data = f"--dataset-name generated-shared-prefix {group} {prefix} {question}"
    words = ["python -m sglang.bench_serving --backend sglang", data, _rate(traffic, share)]
    return [*words, f"--seed {traffic.seed}"], "0.5", "docs.sglang.io/developer_guide/bench_serving.html"


_CLIENTS: Mapping[str, Callable[[Traffic, int], Client]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "trtllm": _trtllm,
}


# Containers

Documents = tuple[list[str], list[dict[str, Any]]]  # additional comments, and the documents of a file
_CACHE = "/root/.cache/huggingface"  # in the containers, which run as root
_FOLDER = "/options"
_TOKEN = "hf-token"  # the secret with the token of the hub, HF_TOKEN


def _yaml(documents: list[dict[str, Any]]) -> str:
    import yaml

    class Dumper(yaml.SafeDumper):
        """Writes equal parts in full, without YAML anchors."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    options: dict[str, Any] = {"sort_keys": False, "allow_unicode": True, "width": 100}
    return "---\n".join(yaml.dump(each, Dumper=Dumper, **options) for each in documents)


def _image(candidate: Candidate, command: LaunchCommand) -> str:
    """The image of the release; a version without a patch number means its first patch."""
    tag = command.release if command.release.count(".") > 1 else f"{command.release}.0"
    return IMAGES[command.engine][candidate.structure.device.vendor].name.format(tag)


def _arguments(command: LaunchCommand) -> list[str]:
    """The command in a container; it listens on all addresses and reads its options file from a mounted
    folder.
    """
    launcher = LAUNCHERS[command.engine]
    host = [*shlex.split(launcher.host), "--port", str(launcher.port)]
    path = [f"{_FOLDER}/{FILE}" if word == FILE else word for word in command.arguments]
    return [*path, *host]


def _label(model: Checkpoint) -> str:
    """A name of lower-case letters, digits and dashes, as required by Kubernetes (RFC 1123)."""
    name = re.sub(r"[^a-z0-9]+", "-", model.id.rpartition("/")[2].lower()).strip("-")
    return name[:40].strip("-") or "model"


def _replicas_of_node(candidate: Candidate) -> int:
    return node_devices(candidate.structure.device) // candidate.structure.split.devices


def _compose(candidate: Candidate, command: LaunchCommand, model: Checkpoint) -> Documents:
    """The containers of one node of the plan: its replicas, and a router that distributes requests as the
    plan does.
    """
    each, most = candidate.structure.split.devices, _replicas_of_node(candidate)
    count, port = min(candidate.replicas, most), LAUNCHERS[command.engine].port
    names = [f"replica-{n}" for n in range(count)]
    services: dict[str, Any] = {}
    for n, name in enumerate(names):
        numbers = [str(i) for i in range(n * each, (n + 1) * each)]
        services[name] = {
            "image": _image(candidate, command),
            "entrypoint": _arguments(command),
            "environment": {"HF_TOKEN": "${HF_TOKEN:-}"},
            "ipc": "host",
            "volumes": [f"huggingface:{_CACHE}", *([f"{model.id}:{model.id}:ro"] if model.folder else [])],
            **({"configs": [{"source": "options", "target": f"{_FOLDER}/{FILE}"}]} if command.lines else {}),
        }
        if candidate.structure.device.vendor == "AMD":
            services[name]["devices"] = ["/dev/kfd", "/dev/dri"]
            services[name]["group_add"] = ["video"]
            services[name]["environment"]["HIP_VISIBLE_DEVICES"] = ",".join(numbers)
        else:
            gpus = {"driver": "nvidia", "device_ids": numbers, "capabilities": ["gpu"]}
            services[name]["deploy"] = {"resources": {"reservations": {"devices": [gpus]}}}
    configs = {"options": {"content": "\n".join(command.lines) + "\n"}} if command.lines else {}
    if count == 1:
        services[names[0]]["ports"] = [f"{PORT}:{port}"]
    else:
        configs["router"] = {"content": _router(candidate.traffic, names, port)}
        target = {"source": "router", "target": "/etc/nginx/conf.d/default.conf"}
        services["router"] = {
            "image": "nginx:stable",
            "ports": [f"{PORT}:{PORT}"],
            "configs": [target],
            "depends_on": names,
        }
    remarks = ["# start: docker compose up; ready when http://127.0.0.1:8000/health answers"]
    if candidate.replicas > count:
        nodes = -(-candidate.replicas // count)
        remarks.append(
            f"# one of {nodes:,} nodes: {count:,} of {candidate.replicas:,} replicas; deal requests to all"
        )
    document = {"name": _label(model), "services": services, "volumes": {"huggingface": {}}}
    return remarks, [{**document, **({"configs": configs} if configs else {})}]


def _router(traffic: Traffic, names: list[str], port: int) -> str:
    """The configuration of nginx: round-robin unless stated otherwise
    (nginx.org/en/docs/http/load_balancing.html).
    """
    method = {FIRST: "", LeastLoaded.name: "  least_conn;\n"}.get(traffic.router, "  random;\n")
    servers = "".join(f"  server {name}:{port};\n" for name in names)
    forward = "    proxy_pass http://replicas;\n    proxy_buffering off;\n    proxy_read_timeout 1h;\n"
    location = f"  location / {{\n{forward}  }}\n"
    return f"upstream replicas {{\n{method}{servers}}}\nserver {{\n  listen {PORT};\n{location}}}\n"


def _kubernetes(candidate: Candidate, command: LaunchCommand, model: Checkpoint) -> Documents:
    """A Deployment of all replicas and a Service; if the engine reads an options file, also a ConfigMap with
    it.
    """
    name, port = _label(model), LAUNCHERS[command.engine].port
    labels = {"app": name}
    vendor = "amd.com" if candidate.structure.device.vendor == "AMD" else "nvidia.com"
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}, {"name": "cache", "mountPath": _CACHE}]
    volumes: list[dict[str, Any]] = [
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
        {"name": "cache", "emptyDir": {}},
    ]
    documents: list[dict[str, Any]] = []
    if command.lines:
        mounts.append({"name": "options", "mountPath": _FOLDER})
        volumes.append({"name": "options", "configMap": {"name": f"{name}-options"}})
        data = {FILE: "\n".join(command.lines) + "\n"}
        about = {"name": f"{name}-options"}
        documents.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": about, "data": data})
    probe = {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 10}
    secret = {"secretKeyRef": {"name": _TOKEN, "key": "HF_TOKEN", "optional": True}}
    container = {
        "name": command.engine,
        "image": _image(candidate, command),
        "command": _arguments(command),
        "env": [{"name": "HF_TOKEN", "valueFrom": secret}],
        "ports": [{"name": "http", "containerPort": port}],
        "resources": {"limits": {f"{vendor}/gpu": str(candidate.structure.split.devices)}},
        "startupProbe": {**probe, "failureThreshold": 360},  # an hour to load the checkpoint
        "readinessProbe": probe,
        "volumeMounts": mounts,
    }
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [container], "volumes": volumes}}
    spec = {"replicas": candidate.replicas, "selector": {"matchLabels": labels}, "template": pod}
    service = {"selector": labels, "ports": [{"name": "http", "port": PORT, "targetPort": "http"}]}
    for version, kind, of in (("apps/v1", "Deployment", spec), ("v1", "Service", service)):
        documents.append({"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": of})
    remarks = [
        f"# start: kubectl apply -f kubernetes.yaml; kubectl port-forward service/{name} {PORT}:{PORT}"
    ]
    if candidate.replicas > 1 and candidate.traffic.router == FIRST:
        remarks.append(
            "# the plan deals requests in turn; a Service chooses replicas at random (--router random)"
        )
    return remarks, documents


_DYNAMO = "1.4.0"  # docs.nvidia.com/dynamo, kubernetes, rolling updates: vllm-runtime:1.4.0


def _dynamo(candidate: Candidate, command: LaunchCommand, model: Checkpoint) -> Documents:
    """A graph of Dynamo: a frontend and workers, which get the flags of their engine."""
    return _graph({"Worker": _worker(candidate, command, model)}, command, model)


def _dynamo_pools(
    sides: Mapping[str, Candidate], commands: Mapping[str, LaunchCommand], model: Checkpoint
) -> Documents:
    """A graph of Dynamo with prefill workers and decode workers (examples/backends/*/deploy/disagg.yaml)."""
    workers = {}
    for role, side in sides.items():
        worker = _worker(side, commands[role], model)
        if commands[role].engine == "vllm":
            worker["extraPodSpec"]["mainContainer"]["args"] += ["--disaggregation-mode", role]
        workers[role.capitalize()] = {"subComponentType": role, **worker}
    engine = commands[DECODE].engine
    source = f"# flags of Dynamo: examples/backends/{engine}/deploy/disagg.yaml of ai-dynamo/dynamo"
    remarks, documents = _graph(workers, commands[DECODE], model)
    return [*remarks, source], documents


def _worker(candidate: Candidate, command: LaunchCommand, model: Checkpoint) -> dict[str, Any]:
    """The workers of a structure."""
    start = len(shlex.split(LAUNCHERS[command.engine].command)) - 1  # the words before the model
    named = [{"vllm": "--model", "sglang": "--model-path"}[command.engine], model.id]
    container = {
        "image": _dynamo_image(command),
        "command": ["python3", "-m", f"dynamo.{command.engine}"],
        "args": [*named, *command.arguments[start + 1 :]],
    }
    return {
        "envFromSecret": _TOKEN,
        "componentType": "worker",
        "replicas": candidate.replicas,
        "resources": {"limits": {"gpu": str(candidate.structure.split.devices)}},
        "extraPodSpec": {"mainContainer": container},
    }


def _dynamo_image(command: LaunchCommand) -> str:
    return f"nvcr.io/nvidia/ai-dynamo/{command.engine}-runtime:{_DYNAMO}"


def _graph(workers: Mapping[str, Any], command: LaunchCommand, model: Checkpoint) -> Documents:
    """The document of a graph of a frontend and workers."""
    frontend = {
        "componentType": "frontend",
        "replicas": 1,
        "extraPodSpec": {"mainContainer": {"image": _dynamo_image(command)}},
    }
    name = _label(model)
    document = {
        "apiVersion": "nvidia.com/v1alpha1",
        "kind": "DynamoGraphDeployment",
        "metadata": {"name": name},
        "spec": {"services": {"Frontend": frontend, **workers}},
    }
    remarks = [
        f"# start: kubectl apply -f dynamo.yaml; kubectl port-forward service/{name}-frontend {PORT}:{PORT}",
        f"# start: before that, kubectl create secret generic {_TOKEN} --from-literal=HF_TOKEN=TOKEN",
        f"# image: Dynamo {_DYNAMO} has an engine of its own; take a release with {command.engine} "
        f"{command.release}",
    ]
    return remarks, [document]


Writer = Callable[[Candidate, LaunchCommand, Checkpoint], Documents]
_WRITERS: Mapping[str, Writer] = {"compose": _compose, "k8s": _kubernetes, "dynamo": _dynamo}
