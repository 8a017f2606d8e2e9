"""Devices from files of one's own, and from files gone wrong."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import llmir
from llmir.base.errors import HardwareError
from llmir.hw import library
from llmir.hw.link import Link

MINIMAL = "name: X\nvector_tflops: {fp32: 1}\nmemory_GiB: 16\nmemory_GBps: 900\n"
# Each line doubles the one above: fully expanded, the last would hold 2^40 keys.
WIDE = "k0: &k0 {x: 1}\n" + "".join(f"k{i}: &k{i} {{x: *k{i - 1}, y: *k{i - 1}}}\n" for i in range(1, 40))

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(content: str | bytes, name: str = "mine.yaml") -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def complaint(what: Any) -> str:
    """The error of loading `what`, which must be one line."""
    with pytest.raises(HardwareError) as error:
        library.load(what)
    message = str(error.value)
    assert message
    assert "\n" not in message
    return message


# --- a file of one's own -------------------------------------------------------------------------


def test_a_file_is_enough_and_units_become_si(write: Write) -> None:
    links = "links: {fabric: {GBps: 50, latency_us: 2, ranks: 2}}\nl2_MiB: 4\n"
    found = library.load(write(MINIMAL.replace("memory_GiB", "memory_GB") + links))
    assert (found.name, found.memory_bytes, found.memory_Bps, found.l2_bytes) == (
        "X",
        16 * 10**9,
        9e11,
        2**22,
    )
    assert found.links == {"fabric": Link(50e9, 2e-6, 2)}
    assert found.matrix_peak("bf16") == (1e12, "fp32")
    assert found.multiprocessors is found.price_per_hour_usd is None
    assert found.source("memory_GBps") == "user file mine.yaml"


def test_names_in_headers_are_one_line(write: Write) -> None:
    found = library.load(write(MINIMAL.replace("name: X", 'name: "X\\n1\\e[31m"\nvendor: "A\\tB"')))
    assert (found.name, found.vendor) == ("X1[31m", "AB")


def test_an_extending_file_wins_key_by_key_and_cites_itself(write: Write) -> None:
    path = write(
        "extend: H100_SXM\nmemory_GB: 94\nmatrix_tflops: {fp8: 1500}\n"
        "links: {nvlink: {GBps: 300}, pcie: null}\nprice_per_hour_usd: 1.5\n"
        "sources: {price_per_hour_usd: our contract}\n"
    )
    found, base = library.load(path), library.load("h100-sxm")
    assert found.memory_bytes == 94 * 10**9
    assert found.matrix_flops == {**base.matrix_flops, "fp8": 1.5e15}
    assert found.links == {"nvlink": Link(300e9, base.links["nvlink"].latency_s, direct=True, reduces=True)}
    assert found.vector_flops == base.vector_flops
    for key in ("memory_bytes", "matrix_tflops.fp8", "links.nvlink.GBps"):
        assert found.source(key) == "user file mine.yaml"
    assert found.source("price_per_hour_usd") == "our contract"
    for key in ("matrix_tflops.bf16", "links.nvlink.latency_us", "memory_GBps"):
        assert found.source(key) == base.source(key)
    assert not any(leaf.startswith("links.pcie") for leaf in found.sources)


def test_a_file_may_extend_another_beside_it(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write(MINIMAL, "base.yml")
    monkeypatch.chdir(Path(os.sep))
    found = library.load(os.fspath(write("extend: base.yml\nname: Y\n")))
    assert (found.name, found.source("name"), found.source("memory_GiB")) == (
        "Y",
        "user file mine.yaml",
        "user file base.yml",
    )


FITTED = "{origin: our own, rows: 3, error_percent: 5, rate: 0.5}"


def test_a_file_inherits_the_calibrations_of_the_device_that_it_extends(write: Write) -> None:
    base = library.load("h100-sxm").calibration
    assert base
    assert library.load(write("extend: h100-sxm\nmemory_GBps: 3000\n")).calibration == base
    assert library.load(write("extend: mine.yaml\n", "second.yaml")).calibration == base
    assert library.load("dgx-h100").calibration == base
    assert library.load(write("extend: h200\n")).calibration is None
    assert library.load(write("extend: h100-sxm\ncalibration: null\n")).calibration is None


def test_a_files_own_calibration_is_laid_over_the_one_that_it_inherits(write: Write) -> None:
    base = library.load("h100-sxm").calibration
    engines = f"ours: {{add: {FITTED}}}, sglang: null, vllm: {{gemm_bf16: {FITTED}}}"
    block = f"calibration: {{engine: ours, {engines}}}"
    found = library.load(write(f"extend: h100-sxm\n{block}\n")).calibration
    assert base
    assert found
    assert found.engine == "ours"
    assert set(found.engines) == {*base.engines, "ours"} - {"sglang"}
    assert found.engines["ours"]["add"].origin == found.engines["vllm"]["gemm_bf16"].origin == "our own"
    assert found.engines["vllm"]["quantize_fp8"] == base.engines["vllm"]["quantize_fp8"]
    assert found.engines["trtllm"] == base.engines["trtllm"]


# --- files gone wrong ----------------------------------------------------------------------------


def swap(key: str, value: str) -> str:
    """The minimal file with one key given another value."""
    return "".join(f"{k}: {v}\n" for k, v in ({**yaml.safe_load(MINIMAL), key: value}).items())


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "must be a mapping"),
        ("- 1\n- 2\n", "must be a mapping"),
        ("h100", "must be a mapping"),
        ("a: [1\nb: }", "broken YAML at line 2"),
        ("\tname: x", "broken YAML at line 1"),
        (b"\xff\xfe\x00", "mine.yaml"),
        (b"name: \xc3\x28", "mine.yaml"),
        ("memory_GBps: !!int x", "mine.yaml"),
        ("when: 2024-99-99", "mine.yaml"),
        ("when: !!timestamp x", "mine.yaml"),
        ("[" * 5000, "mine.yaml"),
        ("a: " + "{a: " * 3000 + "1" + "}" * 3000, "mine.yaml"),
        ("a: &a {a: *a}", "*a is inside of itself"),
        (WIDE, "more than 20,000 values"),
        ("? [a]\n: b", "mine.yaml"),
        (MINIMAL + "memory_GBps: 5\n", "key 'memory_GBps' twice"),
        (MINIMAL + "memory_gbps: 5\n", "unknown key 'memory_gbps'; did you mean memory_GBps"),
        (MINIMAL + "1: 5\n", "unknown key 1"),
        (MINIMAL + "memory_GB: 5\n", "give one of memory_GiB and memory_GB, not both"),
        (MINIMAL + "matrix_tflops: {fp9: 5}\n", "unknown dtype 'fp9', known are fp64"),
        (MINIMAL + "matrix_tflops: 989\n", "matrix_tflops must be a mapping"),
        (MINIMAL + "runs_as: {bf16: fp61}\n", "runs_as.'bf16': unknown dtype 'fp61'"),
        (MINIMAL + "links: {nvlink: {latency_us: 1}}\n", "links.nvlink: missing key GBps"),
        (MINIMAL + "links: {nvlink: {Gbps: 1}}\n", "links.nvlink: unknown key 'Gbps'; did you mean GBps"),
        (MINIMAL + "links: {nvlink: 450}\n", "links.nvlink must be a mapping"),
        (MINIMAL + "isa: 9.0\n", "isa must be text, got 9.0"),
        (MINIMAL + "aliases: x1\n", "aliases must be a list of names, got 'x1'"),
        (MINIMAL + "aliases: [3090]\n", "aliases must be text, got 3090"),
        (MINIMAL + "multiprocessors: 1.5\n", "multiprocessors must be an integer, got 1.5"),
        (MINIMAL + "zzz: 1\n", "calibration, extend, sources"),
        (MINIMAL + "source: {name: x}\n", "did you mean sources"),
        (swap("name", '"\\e\\n"'), "name must be text"),
        (MINIMAL + "sources: {memory_GBpz: x}\n", "sources names 'memory_GBpz'"),
        (MINIMAL + "sources: {'name, name': x}\n", "sources names 'name' twice"),
        (MINIMAL + "sources: 5\n", "sources must be a mapping"),
        (MINIMAL + "extend: h101\n", "unknown device 'h101'; did you mean"),
        (MINIMAL + "extend: 3090\n", "extend must be text, got 3090"),
        (MINIMAL + "extend: gone.yaml\n", "no such hardware file 'gone.yaml'"),
        (MINIMAL + "extend: mine.yaml\n", "extend is circular: mine.yaml -> mine.yaml"),
        (swap("vector_tflops", "{bf16: 1}"), "vector_tflops must contain fp32"),
        (swap("name", "''"), "name must be text, got ''"),
        *(
            (swap("memory_GBps", v), "memory_GBps must be")
            for v in ("-5", "0", ".nan", ".inf", "-.inf", "true")
        ),
        *(
            (swap("memory_GBps", v), "memory_GBps must be")
            for v in ("fast", "9.8e14", "[1]", "{a: 1}", "1e400", "1" * 99 + "e-999999")
        ),
        *((swap(key, "null"), f"missing key {key}") for key in ("name", "memory_GBps", "vector_tflops")),
        (swap("memory_GiB", "null"), "missing key memory_GiB or memory_GB"),
        (swap("memory_GBps", "1" * 400), "a number of more than 100 digits in line 4"),
    ],
)
def test_a_wrong_file_is_one_line_that_says_where(write: Write, content: str | bytes, says: str) -> None:
    message = complaint(write(content))
    assert "mine.yaml" in message or "extend: " in str(content)
    assert says in message
    assert len(message) < 500


def test_files_that_extend_each_other_are_a_circle(write: Write) -> None:
    write("extend: mine.yaml\n", "other.yaml")
    assert "mine.yaml -> other.yaml -> mine.yaml" in complaint(write("extend: other.yaml\n"))


@pytest.mark.parametrize("tag", ["!!python/object/apply:os.system", "!!python/object/new:os.system"])
def test_nothing_in_a_file_is_run(write: Write, tmp_path: Path, tag: str) -> None:
    touched = tmp_path / "touched"
    assert "python/object" in complaint(write(f"name: {tag} ['touch {touched}']\n"))
    assert not touched.exists()


@pytest.mark.parametrize(
    "name", ["", "h1000", "gpu", "nvidia", "a\0b", "x" * 5000, "~nobody/x", "line\nbreak"]
)
def test_an_unknown_name_says_what_is_known(name: str) -> None:
    assert complaint(name).startswith("unknown device ")


def test_a_near_miss_is_suggested() -> None:
    assert "did you mean h100-sxm" in complaint("h100-sxn")
    assert "did you mean h100-sxm" in complaint("h100-sxm.yaml")


@pytest.mark.parametrize("name", ["gone.yaml", "gone/gone.yml", "a\0.yaml", "x" * 5000 + ".yaml"])
def test_a_file_that_is_not_there_is_named(name: str) -> None:
    assert complaint(name).startswith("no such hardware file ")
    assert complaint(Path("gone.yaml")).startswith("no such hardware file 'gone.yaml'")


def test_a_folder_or_a_thing_that_is_no_name_is_refused(tmp_path: Path) -> None:
    assert "folder" in complaint(tmp_path)
    (tmp_path / "folder.yaml").mkdir()
    assert "folder.yaml: is a folder, not a file" in complaint(tmp_path / "folder.yaml")
    for thing in (None, 3090, 1.5, ["h100"], math.nan):
        assert complaint(thing).startswith("a device is a name or a YAML file, got ")


OPTIONAL = """vendor: NVIDIA
isa: sm_100
memory_kind: HBM3e
matrix_tflops: {bf16: 2000}
multiprocessors: 148
l2_MiB: 126
"""


def test_a_file_without_multiprocessors_is_told_so(write: Write) -> None:
    """Rooflines state their reason, and no other key that a file may leave out makes times rooflines."""
    program = llmir.load("qwen3-0.6b")
    reason = "kernel laws need `multiprocessors`, which X's file does not state"
    for line in OPTIONAL.splitlines():
        path = write(MINIMAL + OPTIONAL.replace(f"{line}\n", ""))
        report = llmir.analyze(program, path)
        if line.startswith("multiprocessors"):
            assert report.cost_model == "ideal"
            assert reason in " ".join(str(report).split())
            with pytest.raises(HardwareError, match=f"engine 'vllm': {reason}; leave it out"):
                llmir.analyze(program, path, estimation=llmir.Estimation(engine="vllm"))
            assert reason in str(llmir.diff(program, program, "h100", hw_after=path).basis)
        else:
            assert report.cost_model == "calibrated"
            assert all(op.basis.kind != "roofline" for op in report.ops)
    path = write(MINIMAL + "multiprocessors: 2\n")
    assert "X was not measured, nor was a GPU like it" in " ".join(str(llmir.analyze(program, path)).split())
