"""Engines by version: ranges, what lies between them, files of one's own, and what output names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import llmir
from llmir.base.array_namespace import SCALARS
from llmir.base.errors import HardwareError
from llmir.hw import engine as versions
from llmir.hw import library
from llmir.hw.engine import number
from llmir.hw.engine_sections import CudaGraphs, GraphSizes
from llmir.hw.engine_sections import graphs as section
from tests.commands import Run
from tests.flat import records

HOST = "{origin: by hand, rows: 3, error_percent: 5, step_us: 5000}"


@pytest.mark.parametrize("name", library.engines())
def test_ranges_are_apart_and_named_after_their_first_version(name: str) -> None:
    found = versions.ranges(name)
    assert library.engine(name) == found[0]
    edges = [number(v) for engine in reversed(found) for v in (engine.versions[0], engine.versions[-1])]
    assert edges == sorted(edges)
    assert len({number(engine.versions[0]) for engine in found}) == len(found)
    files = {file.stem for file in (versions.FOLDER / name).iterdir()}
    assert files == {engine.versions[0] for engine in found}


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("vllm", "vllm 0.21"),
        ("vllm@0.21.0", "vllm 0.21"),
        ("vllm@v0.12.0rc1", "vllm 0.11–0.12"),
        ("vllm@0.6.3", "vllm 0.2–0.10"),
        ("vllm@0.13", "vllm 0.11–0.12, nearest to 0.13"),
        ("vllm@0.15", "vllm 0.18, nearest to 0.15"),  # the newer of two that are as near
        ("vllm@2", "vllm 0.21, nearest to 2"),
        ("trtllm@0.9", "trtllm 0.5–0.12"),
        ("trtllm@0.20", "trtllm 0.17, nearest to 0.20"),
        ("trtllm@1.0.0rc3", "trtllm 1.0"),
        ("trtllm@1.2.0rc6.post1", "trtllm 1.1, nearest to 1.2.0rc6.post1"),
    ],
)
def test_a_version_is_its_range_or_the_nearest(asked: str, found: str, run: Run) -> None:
    assert str(library.engine(asked)) == found
    head = " ".join(run("analyze", "qwen3-0.6b", "--hw", "h100", "--engine", asked).out.split())
    assert f"kernels, CPU time of {found} basis" in head
    program = llmir.load("qwen3-0.6b")
    job = llmir.workload(
        program, "h100", prompt=8, generate=2, estimation=llmir.Estimation(engine=asked)
    ).to_dict()
    name, _, span = found.partition(",")[0].partition(" ")
    assert (job["engine"], job["engine_version"]) == (name, span)


def test_kernels_are_those_of_the_name(run: Run) -> None:
    steps = [
        llmir.analyze(llmir.load("qwen3-0.6b"), "h100", estimation=llmir.Estimation(engine=e))
        for e in ("sglang", "sglang@0.5.6")
    ]
    assert steps[0].time_s == steps[1].time_s
    triton = run("analyze", "qwen3-0.6b", "--hw", "h100", "--engine", "sglang-triton@0.5").out
    assert "calibrated, sglang-triton kernels, CPU time of sglang 0.5–0.5.16 basis" in " ".join(
        triton.split()
    )


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("vllm@", "engine vllm: '' is no version; known are 0.21,"),
        ("vllm@new", "engine vllm: 'new' is no version; known are 0.21,"),
        ("vllm@0.12@1", "engine vllm: '0.12@1' is no version; known are 0.21,"),
        ("vllm@0..1", "engine vllm: '0..1' is no version; known are 0.21,"),
        ("vlm@0.12", "unknown engine 'vlm'; did you mean vllm"),
        ("vidur@1", "engine 'vidur@1': no version of vidur is known; leave @1 out"),
    ],
)
def test_what_is_no_version(asked: str, says: str) -> None:
    with pytest.raises(HardwareError, match=re.escape(says)):
        llmir.analyze(llmir.load("qwen3-0.6b"), "h100", estimation=llmir.Estimation(engine=asked))


@dataclass(frozen=True)
class Pages:
    """A section for tests."""

    tokens: int


@pytest.fixture
def pages() -> Iterator[None]:
    def read(value: object, where: str) -> Pages:
        if not isinstance(value, int):
            raise HardwareError(f"{where} must be a number, got {value!r}")
        return Pages(value)

    versions.SECTIONS["pages"] = read
    yield
    del versions.SECTIONS["pages"]


@pytest.mark.usefixtures("pages")
def test_older_versions_say_only_what_differs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files: dict[str, dict[str, Any]] = {
        "e/2.yaml": {"versions": ["2.0", "2.3"], "host": yaml.safe_load(HOST), "pages": 16},
        "e/1.yaml": {"versions": ["1.4"], "host": {"step_us": 9000}},
        "e/0.yaml": {"versions": ["0.9"], "pages": 32},
        "f/1.yaml": {"versions": ["1"], "extend": "e@1.4", "pages": None},
    }
    for name, doc in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(yaml.safe_dump(doc))
    monkeypatch.setattr(versions, "FOLDER", tmp_path)
    for cached in (versions.names, versions.ranges, versions.engine_at, versions._documents):
        cached.cache_clear()
    found = [library.engine(e) for e in ("e", "e@1.4", "e@0.9", "f")]
    assert [e.host.parameters["step_us"] for e in found] == [5000, 9000, 9000, 9000]
    assert [e.section(Pages) for e in found] == [Pages(16), Pages(16), Pages(32), None]
    for cached in (versions.names, versions.ranges, versions.engine_at, versions._documents):
        cached.cache_clear()


@pytest.mark.usefixtures("pages")
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("extend: vllm@0.12\nhosts: {}\n", "ours.yaml: unknown key 'hosts'; did you mean"),
        ("extend: vlm\n", "unknown engine 'vlm'; did you mean vllm"),
        ("extend: vllm\nhost: null\n", "ours.yaml: missing key host"),
        (
            "extend: vllm\nversions: 0.12\n",
            'ours.yaml: versions must be the first and the last, such as ["0.11"',
        ),
        ("extend: vllm\npages: many\n", "ours.yaml: pages must be a number, got 'many'"),
        ("step_us: 3\norigin: x\n", "ours.yaml: host.rows must be"),
    ],
)
def test_what_a_file_may_not_say(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "ours.yaml").write_text(text)
    with pytest.raises(HardwareError, match=re.escape(says)):
        library.engine(str(tmp_path / "ours.yaml"))


def test_a_file_may_be_of_a_host_alone_or_extend_a_version(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "ours.yaml"
    path.write_text("origin: by hand\nrows: 3\nerror_percent: 5\nstep_us: 5000\n")
    assert (library.engine(str(path)).host.parameters, library.engine(str(path)).kernels) == (
        {"step_us": 5000},
        "",
    )
    path.write_text(f"extend: trtllm@0.9\nhost: {HOST}\n")
    head = " ".join(run("analyze", "qwen3-0.6b", "--hw", "h100", "--engine", str(path)).out.split())
    assert "calibrated, trtllm kernels, CPU time of ours.yaml basis" in head


def test_ranks_wait_for_the_last_in_each_collective(tmp_path: Path) -> None:
    """Of n exponential times of mean 1 the longest is H(n) on average, by simulation as by the term."""
    host = "origin: by hand\nrows: 3\nerror_percent: 5\nskew_us: {}\nkernel_us: 0.1\n"
    for skew in (1, 10):
        (tmp_path / f"{skew}.yaml").write_text(host.format(skew))
    draws = np.random.default_rng(0).exponential(size=(200_000, 8))
    for tp in (2, 4, 8):
        program = llmir.run(llmir.load("llama3.1-8b"), f"{llmir.pipeline_of()},shard{{tp={tp}}}")
        at = {"batch": 4, "context": 100}
        one, some = (
            llmir.analyze(program, "h100", **records(llmir.analyze, **at, engine=str(tmp_path / f"{n}.yaml")))
            for n in (1, 10)
        )
        calls = sum(op.repeat for op in some.ops if op.comm_bytes)
        each = 10e-6 * (draws[:, :tp].max(axis=1) - draws[:, :tp].mean(axis=1)).mean()
        assert some.overhead["skew_s"] == pytest.approx(calls * each, rel=0.01)
        assert some.time_s - one.time_s == pytest.approx(0.9 * some.overhead["skew_s"])
    shown = llmir.explain(some, "rank_skew").to_dict()
    assert "each is 10 µs late" in str(shown)
    staged = llmir.run(llmir.load("llama3.1-8b"), f"{llmir.pipeline_of()},stages{{pp=2}}")
    sent = llmir.analyze(staged, "h100", **records(llmir.analyze, **at, engine=str(tmp_path / "10.yaml")))
    assert any(op.comm_bytes for op in sent.ops)
    assert sent.overhead["skew_s"] == 0  # a send waits for nobody


def graphs_of(version: str) -> CudaGraphs:
    found = library.engine(version).section(CudaGraphs)
    assert found
    return found


def graphs(version: str, device: str = "h100-sxm", tp: int = 1) -> GraphSizes:
    return graphs_of(version).on(library.load(device), tp)


def test_steps_that_read_prompts_are_in_no_graph_but_small_ones_of_vllm_and_new_ones_of_sglang() -> None:
    """vLLM V1 has them of any step up to 512 tokens, SGLang since 0.5.10 of chunks; others of decodes."""
    decode, draft, prompt = (True, False), (True, True), (False, True)  # may be a decode step, read prompts
    assert [graphs("vllm@0.12").hold(n, *prompt) for n in (512, 513)] == [True, False]
    assert graphs("vllm@0.6").hold(256, *decode)
    assert not graphs("vllm@0.6").hold(256, *prompt)
    for engine in ("trtllm", "sglang@0.5.8"):
        assert [graphs(engine).hold(2, *step) for step in (decode, draft, prompt)] == [True, True, False]
    assert [graphs("sglang").hold(n, *prompt) for n in (8192, 8193)] == [True, False]
    assert [graphs("sglang").hold(n, *draft) for n in (8192, 8193)] == [True, False]
    assert [graphs("sglang").hold(n, *decode) for n in (256, 257)] == [True, False]
    assert not graphs("hf-transformers").hold(1, *decode)  # which launches kernel by kernel


@pytest.mark.parametrize(("version", "device", "tp", "decodes"), [
    ("0.5.1", "h100-sxm", 4, 160), ("0.5.1", "h200", 1, 256), ("0.5.1", "b200", 1, 512),
    ("0.5.8", "h100-sxm", 1, 256), ("0.5.8", "h100-sxm", 4, 512), ("0.5.8", "b200", 1, 512),
    ("0.5.8", "l40s", 2, 32), ("0.5.8", "l40s", 8, 160), ("0.5.8", "rtx4090", 1, 24), ("0.5.8", "t4", 8, 8),
])  # fmt: skip
def test_sglang_captures_by_memory_and_ranks(version: str, device: str, tp: int, decodes: int) -> None:
    """Comments beside the branches of its server_args.py, of before and after pull request 10975."""
    assert graphs(f"sglang@{version}", device, tp).decodes == decodes


def is_shorter(step: llmir.Report) -> bool:
    """Whether a norm takes less time than its kernel alone."""
    found = llmir.explain(step, "add_post_norm")
    assert found.kernel is not None
    return found.time_s < found.kernel.alone_s


@pytest.mark.parametrize(("engine", "batch", "new", "captured"), [
    ("vllm", 512, 1, True), ("vllm", 513, 1, False), ("vllm", 1, 512, True), ("vllm", 1, 513, False),
    ("trtllm", 8, 1, True), ("trtllm", 8, 4, True), ("trtllm", 8, 64, False),
])  # fmt: skip
def test_what_is_in_no_graph_hides_no_launch(engine: str, batch: int, new: int, captured: bool) -> None:
    model = llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of())
    step = llmir.analyze(
        model, "h100", batch=batch, new=new, context=64, estimation=llmir.Estimation(engine=engine)
    )
    assert is_shorter(step) == captured
    grid = llmir.analyze(
        model,
        "h100",
        batch=np.array([batch, 1]),
        new=new,
        context=64,
        estimation=llmir.Estimation(engine=engine),
    )
    assert np.asarray(grid.time_s)[0] == pytest.approx(step.time_s)


def test_a_decode_step_runs_at_the_size_that_was_captured() -> None:
    """Products of 33 sequences take the time of 40; caches are read of 33, which alone have logits."""
    assert [graphs_of("vllm").padded(n, SCALARS) for n in (3, 9, 33, 257, 513)] == [4, 16, 40, 272, 513]
    assert [graphs_of("sglang").padded(n, SCALARS) for n in (3, 9, 33, 257)] == [4, 12, 40, 272]
    model = llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of())
    at: dict[str, Any] = {"new": 1, "context": 64, "engine": "vllm"}
    for dp in (1, 4):
        some, full = (
            llmir.analyze(
                llmir.run(model, f"shard{{dp={dp}}}"), "h100", **records(llmir.analyze, batch=dp * n, **at)
            )
            for n in (33, 40)
        )
        for a, b in zip(some.work, full.work, strict=True):
            own = a.kind == "attention" or a.name in ("last_token", "lm_head")
            assert (a.time_s == b.time_s) != own
        assert some.flops * 40 == pytest.approx(full.flops * 33, rel=0.01)
        assert sum(op.repeat * op.time_s for op in some.ops) == pytest.approx(some.time_s)
        grid = (
            llmir.analyze(model, "h100", **records(llmir.analyze, batch=np.array([33, 600]), **at))
            if dp == 1
            else None
        )
        assert grid is None or np.asarray(grid.time_s)[0] == pytest.approx(some.time_s)
    prompts = [
        llmir.analyze(model, "h100", **records(llmir.analyze, batch=n, **at | {"new": 9})) for n in (33, 40)
    ]
    assert prompts[0].time_s < prompts[1].time_s


@pytest.mark.parametrize(("version", "noted"), [("trtllm", True), ("trtllm@0.9", False)])
def test_a_batch_beyond_the_default_graph_of_tensorrt_llm_is_captured(version: str, noted: bool) -> None:
    """Operators state `cuda_graph_config.max_batch_size`; a note says what holds without it."""
    at: dict[str, Any] = {"prompt": 128, "generate": 32, "estimation": llmir.Estimation(engine=version)}
    inside, beyond = (llmir.workload("llama3.1-8b", "h100-sxm", batch=n, **at) for n in (128, 129))
    assert inside.tpot_s and beyond.tpot_s
    assert beyond.tpot_s < 1.12 * inside.tpot_s
    assert not any("captures" in note for note in inside.notes)
    assert any("captures graphs of up to 128 sequences" in note for note in beyond.notes) == noted


@pytest.mark.parametrize("sizes", [{8: 3}, {4: 4, 2: 2}, {0: 1}, {4: 0.5}, [], "all"])
def test_sizes_of_graphs_that_are_none_are_refused(sizes: object) -> None:
    with pytest.raises(HardwareError, match="sizes"):
        section({"1": {"largest": [{"decodes": 8}], "sizes": sizes, "source": "s"}}, "graphs")


def test_a_chunk_beside_decodes_is_no_decode_step() -> None:
    model = llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of())
    beside = [{"batch": 1, "new": 20, "context": 0}]
    for engine, captured in (("vllm", True), ("trtllm", False)):
        step = llmir.analyze(
            model, "h100", batch=4, context=64, beside=beside, estimation=llmir.Estimation(engine=engine)
        )
        assert is_shorter(step) == captured


def test_a_scheduler_counts_the_sequences_of_its_own_rank() -> None:
    model = llmir.load("qwen3-30b-a3b")
    host = {}
    for dp in (1, 4):
        program = llmir.run(model, [llmir.pipeline_of(), f"shard{{tp=2,dp={dp}}}"])
        host[dp] = llmir.analyze(
            program, "h100", batch=64 * dp, context=64, estimation=llmir.Estimation(engine="vllm")
        ).overhead["host_s"]
    assert host[1] == pytest.approx(host[4])
