"""Files that start plans of prefill and decode servers: scripts run with stand-ins for the engines."""

from __future__ import annotations

import shlex
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

import llmir
from llmir.backends.export.manifests import Checkpoint, benchmark_script, manifest
from llmir.backends.search.plan import PoolCandidate
from tests.commands import Run
from tests.flat import records

ENGINES = ("vllm", "sglang", "trtllm")
MODEL = Checkpoint("meta-llama/Llama-3.1-8B")
PREFILL, DECODE = "10.0.0.1:8100 10.0.0.1:8200", "10.0.0.2:8100"


@pytest.fixture(scope="module")
def plans() -> dict[str, PoolCandidate]:
    """The first plan of pools on each engine."""
    asked = {"rate": 10, "prompt": 2000, "generate": 100, "requests": 100, "gpus": 3, "link": "nvlink"}
    limits = {"max_ttft": "500ms", "max_tpot": "10ms", "chunk": 8192, "batch": "8,32"}
    found = {}
    for engine in ENGINES:
        shown = llmir.plan(
            "llama3.1-8b", "h100-sxm", **records(llmir.plan, engine=engine, emit=engine, **asked, **limits)
        ).shown
        found[engine] = next(each for each in shown if isinstance(each, PoolCandidate))
    return found


def started(script: str, what: str, folder: Path, **environment: str) -> tuple[list[str], dict[str, str]]:
    """The words and the variables of what a script starts; a command writes both and ends."""
    for name in ("vllm", "python", "trtllm-serve"):
        stand_in = folder / name
        stand_in.write_text(f'#!/bin/sh\nenv > {folder}/env\nprintf "%s\\n" {name} "$@" > {folder}/words\n')
        stand_in.chmod(0o755)
    (folder / "serve.sh").write_text(script)
    variables = {"PATH": f"{folder}:/usr/bin:/bin", **environment}
    subprocess.run(["sh", "serve.sh", what], cwd=folder, env=variables, check=True, timeout=30)
    pairs = (line.partition("=")[::2] for line in (folder / "env").read_text().splitlines())
    return (folder / "words").read_text().splitlines(), dict(pairs)


SIZES = {
    "vllm": ("--tensor-parallel-size", "--max-num-seqs", "--max-num-batched-tokens"),
    "sglang": ("--tp", "--max-running-requests", "--chunked-prefill-size"),
    "trtllm": ("--tp_size", "--max_batch_size", "--max_num_tokens"),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_each_server_starts_with_its_own_sizes(
    plans: dict[str, PoolCandidate], engine: str, role: str, tmp_path: Path
) -> None:
    candidate = plans[engine]
    words, variables = started(manifest(candidate, engine, MODEL), role, tmp_path, PORT="8100")
    pools = candidate.pools
    assert pools is not None
    job = (pools.prefill if role == "prefill" else pools.decode).job
    structure = candidate.reads if role == "prefill" else candidate.structure
    said = dict(pairwise(words))
    sizes = structure.split.tp, job.max_num_seqs, job.max_batched_tokens
    assert tuple(int(said[flag]) for flag in SIZES[engine]) == sizes
    assert said["--port"] == "8100" and MODEL.id in words
    if engine == "vllm":
        told = yaml.safe_load(said["--kv-transfer-config"])
        role_of = {"prefill": "kv_producer", "decode": "kv_consumer"}
        assert told == {"kv_connector": "NixlConnector", "kv_role": role_of[role]}
        assert variables["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "18100"
    elif engine == "sglang":
        assert said["--disaggregation-mode"] == role
        assert said["--disaggregation-bootstrap-port"] == "18100"
    else:
        options = yaml.safe_load((tmp_path / said["--extra_llm_api_options"]).read_text())
        assert options["cache_transceiver_config"]["max_tokens_in_buffer"] >= 2100
        assert ("disable_overlap_scheduler" in options) == (role == "prefill")


@pytest.mark.parametrize("engine", ENGINES)
def test_the_router_knows_all_servers(plans: dict[str, PoolCandidate], engine: str, tmp_path: Path) -> None:
    script = manifest(plans[engine], engine, MODEL)
    words, _ = started(script, "router", tmp_path, PREFILL=PREFILL, DECODE=DECODE)
    said = " ".join(words)
    if engine == "vllm":
        assert "--prefiller-hosts 10.0.0.1 10.0.0.1 --prefiller-ports 8100 8200" in said
        assert "--decoder-hosts 10.0.0.2 --decoder-ports 8100" in said
    elif engine == "sglang":
        first, second = "--prefill http://10.0.0.1:8100 18100", "--prefill http://10.0.0.1:8200 18200"
        assert f"{first} {second} --decode http://10.0.0.2:8100" in said
    else:
        told = yaml.safe_load((tmp_path / "disaggregated.yaml").read_text())
        assert words == ["trtllm-serve", "disaggregated", "-c", "disaggregated.yaml"]
        assert told["context_servers"] == {"num_instances": 2, "urls": PREFILL.split()}
        assert told["generation_servers"] == {"num_instances": 1, "urls": [DECODE]}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_script_says_how_it_is_called(plans: dict[str, PoolCandidate], engine: str, tmp_path: Path) -> None:
    (tmp_path / "serve.sh").write_text(manifest(plans[engine], engine, MODEL))
    done = subprocess.run(
        ["sh", "serve.sh"], cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 2 and done.stderr == "usage: sh serve.sh prefill|decode|router\n"


@pytest.mark.parametrize("engine", ENGINES)
def test_the_benchmark_sends_all_requests_to_the_router(plans: dict[str, PoolCandidate], engine: str) -> None:
    script = benchmark_script(plans[engine], engine, MODEL)
    words = shlex.split(script, comments=True)
    said = dict(pairwise(words))
    assert (said["--request-rate"], said["--port"]) == ("10", "8000")
    assert script.startswith("# sends the plan its traffic")


def test_the_frontend_of_dynamo_is_asked_by_the_api_of_openai(plans: dict[str, PoolCandidate]) -> None:
    """SGLang's own client asks /generate by default, which Dynamo does not have."""
    assert "--backend sglang-oai " in benchmark_script(plans["sglang"], "dynamo", MODEL).replace("\\\n", "")
    assert "--backend sglang " in benchmark_script(plans["sglang"], "sglang", MODEL).replace("\\\n", "")


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_graph_of_dynamo_has_both_kinds_of_workers(plans: dict[str, PoolCandidate], engine: str) -> None:
    """As in examples/backends/*/deploy/disagg.yaml of Dynamo."""
    candidate = plans[engine]
    services = yaml.safe_load(manifest(candidate, "dynamo", MODEL))["spec"]["services"]
    assert list(services) == ["Frontend", "Prefill", "Decode"]
    gpus = 0
    for role in ("prefill", "decode"):
        worker = services[role.capitalize()]
        assert (worker["componentType"], worker["subComponentType"]) == ("worker", role)
        gpus += worker["replicas"] * int(worker["resources"]["limits"]["gpu"])
        arguments = worker["extraPodSpec"]["mainContainer"]["args"]
        assert arguments[arguments.index("--disaggregation-mode") + 1] == role
        assert not any("$" in each for each in arguments)
    assert gpus == candidate.devices


@pytest.mark.parametrize(
    ("emit", "engine", "why"),
    [
        ("k8s", "vllm", "the image of vllm has no router of prefill and decode servers, use vllm or dynamo"),
        ("compose", "trtllm", "the image of trtllm has no router of prefill and decode servers, use trtllm"),
    ],
)
def test_files_without_a_router_are_refused(run: Run, emit: str, engine: str, why: str) -> None:
    words = f"--rate 1 --engine {engine} --link nvlink --emit {emit}"
    done = run("plan", "llama3.1-8b", *words.split())
    assert (done.code, done.err) == (2, f"error: --emit: {emit}; {why}\n")
