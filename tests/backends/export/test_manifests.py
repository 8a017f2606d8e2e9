"""Files that start a plan: they state the plan, and the schemas of their tools accept them."""

from __future__ import annotations

import json
import os
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import llmir
from llmir.api.plan import checkpoint, launch_files
from llmir.backends.export import files as output_files
from llmir.backends.export.manifests import Checkpoint
from llmir.backends.search.launch import CONTAINERS, EMITS, LAUNCHERS
from llmir.backends.search.plan import Plans
from llmir.base.errors import InputError, OutputError
from llmir.frontends.models.presets import PRESETS
from tests.commands import Run
from tests.flat import records

TRAFFIC: dict[str, Any] = {"rate": 90, "prompt": 500, "generate": 50, "requests": 100, "prefix_hits": 0.2}
LIMITS: dict[str, Any] = {"max_ttft": "1s", "max_tpot": "15ms", "gpus": 8}
ENGINES = ("vllm", "sglang", "trtllm")
PAIRS = [(engine, emit) for engine in ENGINES for emit in EMITS if emit in (engine, *CONTAINERS)]
PAIRS.remove(("trtllm", "dynamo"))


@pytest.fixture(scope="module")
def plans() -> dict[str, Plans]:
    asked = {**TRAFFIC, **LIMITS, "weights": "bf16,fp8"}
    return {
        name: llmir.plan("llama3.1-8b", "h100-sxm", **records(llmir.plan, engine=name, emit=name, **asked))
        for name in ENGINES
    }


def written(plans: dict[str, Plans], engine: str, emit: str) -> tuple[str, str]:
    """What starts the plan, and its benchmark."""
    files = launch_files(plans[engine], emit, "llama3.1-8b")
    start, benchmark = files.values()
    return start, benchmark


def script(text: str) -> list[str]:
    """The words of the last command of a script."""
    command = text.rpartition("\nEND\n")[2].replace("\\\n", "")
    return shlex.split(command, comments=True)


def containers(emit: str, text: str) -> list[tuple[list[str], int]]:
    """Each server's words and how many of them there are."""
    documents = list(yaml.safe_load_all(text))
    if emit == "compose":
        services = documents[0]["services"]
        return [(of["entrypoint"], 1) for name, of in services.items() if name.startswith("replica")]
    if emit == "k8s":
        spec = next(each["spec"] for each in documents if each["kind"] == "Deployment")
        return [(spec["template"]["spec"]["containers"][0]["command"], spec["replicas"])]
    worker = documents[0]["spec"]["services"]["Worker"]
    main = worker["extraPodSpec"]["mainContainer"]
    return [(main["command"] + main["args"], worker["replicas"])]


def option(words: list[str], name: str) -> str:
    return words[words.index(name) + 1]


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "emit"), PAIRS)
def test_the_files_state_the_plan(plans: dict[str, Plans], engine: str, emit: str) -> None:
    """The published id, every setting of the plan, and so many replicas of so many GPUs."""
    best = plans[engine].best
    assert best is not None
    start, _ = written(plans, engine, emit)
    servers = containers(emit, start) if emit in CONTAINERS else [(script(start), best.replicas)]
    assert sum(count for _, count in servers) == best.replicas
    flags = LAUNCHERS[engine].flags
    for words, _ in servers:
        assert "meta-llama/Llama-3.1-8B" in words
        assert option(words, flags["tp"].name) == str(best.structure.split.tp)
        assert option(words, flags["batch"].name) == str(best.batch)
        assert option(words, flags["chunk"].name) == str(best.chunk)
        assert ("--quantization" in words) == (best.structure.weights == "fp8")
    assert f"# precision: {'weights fp8' if best.structure.weights == 'fp8' else 'bf16'}" in start


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_equal_words_start_a_script_and_a_container(plans: dict[str, Plans], engine: str) -> None:
    words = script(written(plans, engine, engine)[0])
    for emit in ("compose", "k8s"):
        for own, _ in containers(emit, written(plans, engine, emit)[0]):
            assert [word.replace("/options/", "") for word in own[: len(words)]] == words
            assert own[len(words) :] == ["--host", "0.0.0.0", "--port", str(LAUNCHERS[engine].port)]


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "emit"), PAIRS)
def test_the_benchmark_sends_the_traffic_of_the_plan(plans: dict[str, Plans], engine: str, emit: str) -> None:
    best = plans[engine].best
    assert best is not None
    start, benchmark = written(plans, engine, emit)
    words = script(benchmark)
    numbers = dict(re.findall(r"--([a-z-]+) ([\d.]+)(?= |$)", shlex.join(words)))
    names = ("gsp-system-prompt-len", "gsp-question-len", "gsp-output-len")
    if engine != "sglang":
        names = ("random-prefix-len", "random-input-len", "random-output-len")
    assert [numbers[name] for name in names] == ["100", "400", "50"]
    assert numbers["num-prompts"] == "100"
    share = 1 if emit in CONTAINERS else best.replicas
    assert float(numbers["request-rate"]) * share == pytest.approx(90, rel=1e-4)
    assert int(numbers.get("burstiness", 1)) == (share if engine != "sglang" else 1)
    assert option(words, "--model") == "meta-llama/Llama-3.1-8B"
    assert f"# benchmark: {shlex.join(words)}" in start


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_kubernetes_accepts_its_file(plans: dict[str, Plans], engine: str) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    documents = list(yaml.safe_load_all(written(plans, engine, "k8s")[0]))
    assert {each["kind"] for each in documents} >= {"Deployment", "Service"}
    for each in documents:
        validate.validate(each, "1.31", strict=True)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("replicas", [1, 3, 30])
def test_compose_accepts_its_file(plans: dict[str, Plans], engine: str, replicas: int) -> None:
    """By the schema of the Compose specification, which check-jsonschema ships."""
    package = pytest.importorskip("check_jsonschema")
    schemas = Path(package.__file__).parent / "builtin_schemas" / "vendor"
    schema = json.loads((schemas / "compose-spec.json").read_text(encoding="utf-8"))
    best = plans[engine].best
    assert best is not None
    more = replace(plans[engine], ranked=(replace(best, replicas=replicas),))
    text = launch_files(more, "compose", "llama3.1-8b")["compose.yaml"]
    pytest.importorskip("jsonschema").validate(yaml.safe_load(text), schema)


@pytest.mark.slow
def test_a_node_has_as_many_replicas_as_it_has_devices_for(plans: dict[str, Plans]) -> None:
    best = plans["vllm"].best
    assert best is not None
    more = replace(plans["vllm"], ranked=(replace(best, replicas=30),))
    text = launch_files(more, "compose", "llama3.1-8b")["compose.yaml"]
    services = yaml.safe_load(text)["services"]
    gpus = [
        number
        for of in services.values()
        for each in of.get("deploy", {}).get("resources", {}).get("reservations", {}).get("devices", ())
        for number in each["device_ids"]
    ]
    assert gpus == [str(n) for n in range(8)]
    router = yaml.safe_load(text)["configs"]["router"]["content"]
    assert router.count("server replica-") == 8 // best.structure.split.devices
    assert "# one of " in text


def test_a_preset_is_served_by_its_published_id() -> None:
    for name, preset in PRESETS.items():
        if preset.hf_id:
            assert checkpoint(name) == Checkpoint(preset.hf_id)
        else:
            assert "name the folder" in checkpoint(name).note
    assert checkpoint("Qwen/Qwen3-32B-FP8") == Checkpoint("Qwen/Qwen3-32B-FP8")
    other = checkpoint("Llama-3.1-8B-Instruct")
    assert other.id == "meta-llama/Llama-3.1-8B" and "name the release" in other.note


def test_a_checkpoint_in_a_folder_is_that_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    for said in (str(tmp_path), str(tmp_path / "config.json")):
        assert checkpoint(said) == Checkpoint(str(tmp_path.resolve()), folder=True)


ASKED = ("plan", "llama3.1-8b", "--rate", "10", "--gpus", "2", "--requests", "100", "--max-tpot", "20ms")


@pytest.mark.slow
def test_files_are_written_next_to_the_table(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    done = run(*ASKED, "--weights", "bf16,int4", "--emit", "k8s", "--emit-to", str(folder))
    assert done.code == 0 and done.out.startswith("cheapest plan: "), done.err
    assert sorted(path.name for path in folder.iterdir()) == ["benchmark.sh", "kubernetes.yaml"]
    assert "llmir knows no flag that makes weights int4" in " ".join(done.out.split())
    printed = run(*ASKED, "--weights", "bf16,int4", "--emit", "k8s")
    assert printed.out == (folder / "kubernetes.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--emit-to", "out"), "--emit-to: needs --emit"),
        (("--emit", "vllm", "--emit-to", ""), "--emit-to: expected the name"),
        (("--emit", "vllm", "--emit-to", "config.json"), "is a file; expected a folder"),
        (("--emit", "vllm", "--emit-to", "none/out"), "there is no folder"),
        (
            ("--emit", "k8s", "--hw", "kubernetes.yaml", "--emit-to", "."),
            "is an input of this command, and is not overwritten",
        ),
        (("--emit", "vllm", "--emit-to", ".", "-o", "serve.sh"), "serve.sh"),
        (("--emit", "k8s", "--hw", "tpu-v6e"), "the plan uses no engine"),
        (("--emit", "k8s", "--hw", "mi300x", "--engine", "sglang"), "no image of sglang is known for MI300X"),
        (("--emit", "dynamo", "--engine", "trtllm"), "no flags of its TensorRT-LLM workers are known"),
    ],
)
def test_what_cannot_be_written_is_refused_before_the_search(
    run: Run, arguments: tuple[str, ...], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "kubernetes.yaml").write_text("extend: h100-sxm\nname: Own\n")
    before = {path.name: path.read_text() for path in tmp_path.iterdir()}
    monkeypatch.setattr("llmir.backends.search.search.search", None)
    done = run(*ASKED, *arguments)
    assert done.code != 0 and says in done.err and done.err.count("\n") == 1, done.err
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("exists", [True, False])
def test_nothing_half_written_is_left(tmp_path: Path, exists: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "out"
    if exists:
        folder.mkdir()
        (folder / "mine").write_text("1")
    move, moved = os.replace, list[object]()

    def failing(source: Any, target: Any) -> None:
        if moved:
            raise OSError(28, "No space left on device")
        moved.append(target)
        move(source, target)

    monkeypatch.setattr(output_files.os, "replace", failing)
    with pytest.raises(OutputError, match="No space left"):
        output_files.write_folder(folder, {"a": "1", "b": "2"})
    assert [path.name for path in tmp_path.rglob("*")] == (["out", "mine"] if exists else [])


def test_a_folder_of_this_machine_is_no_model_of_a_pod(run: Run, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    done = run("plan", str(tmp_path), "--rate", "1", "--emit", "k8s")
    assert done.code == 2 and "is a local folder, which pods cannot read" in done.err


def test_an_engine_without_a_command_is_refused() -> None:
    with pytest.raises(InputError, match="set --engine vllm or sglang or trtllm"):
        llmir.plan("llama3.1-8b", **records(llmir.plan, rate=1, emit="k8s", engine="hf-transformers"))


@pytest.mark.parametrize(
    ("model", "hw", "types", "why"),
    [
        # --quantization fp8 multiplies by fp8 activations on sm_89 and later, and by 16-bit ones before.
        ("llama3.1-8b", "h100-sxm", "--weights fp8 --activations bf16", "run with fp8 activations"),
        ("llama3.1-8b", "a100-80-sxm", "--weights fp8 --activations fp8", "run with the checkpoint's activ"),
        # --dtype and --quantization do not change weights that the checkpoint has in a narrow type.
        (
            "gpt-oss-20b",
            "h100-sxm",
            "--weights bf16",
            "the checkpoint's weights are mxfp4, and llmir knows no flag",
        ),
        (
            "deepseek-v3",
            "h200",
            "--weights fp8",
            "the checkpoint's weights are fp8_b128x128, and llmir knows no flag",
        ),
        ("llama3.1-8b", "h100-sxm", "--kv int8", "llmir knows no flag that sets kv int8"),
    ],
)
def test_types_that_the_engine_would_not_run_are_not_emitted(
    run: Run, model: str, hw: str, types: str, why: str
) -> None:
    words = f"--hw {hw} --rate 0.1 --gpus 8 --requests 100 --engine vllm --emit vllm"
    done = run("plan", model, *words.split(), *types.split())
    assert done.code == 2 and done.err.count("\n") == 1 and why in done.err


def test_a_type_without_a_flag_loses_to_one_with_a_flag() -> None:
    asked = {"rate": 1, "gpus": 1, "requests": 100, "kv": "int8,fp8", "engine": "vllm", "emit": "vllm"}
    found = llmir.plan("llama3.1-8b", "h100-sxm", **records(llmir.plan, **asked))
    assert found.best is not None and found.best.structure.types.kv == "fp8"
    assert "llmir knows no flag that sets kv int8" in found.refused["H100-SXM kv int8"].why


def test_one_cache_config_of_tensorrt_llm_has_type_and_share() -> None:
    asked = {"rate": 1, "gpus": 1, "requests": 100, "kv": "fp8", "engine": "trtllm", "emit": "trtllm"}
    found = llmir.plan("llama3.1-8b", "h100-sxm", **records(llmir.plan, **asked, memory_utilization=0.8))
    text = launch_files(found, "trtllm", "llama3.1-8b")["serve.sh"]
    options = yaml.safe_load(text.partition("<<'END'\n")[2].partition("\nEND")[0])
    assert options["kv_cache_config"] == {"dtype": "fp8", "free_gpu_memory_fraction": 0.8}
    assert options.keys() == {"kv_cache_config", "cuda_graph_config"}
