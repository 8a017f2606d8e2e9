"""Devices: the published numbers, and the names people type."""

from __future__ import annotations

import doctest
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from llmir.base.errors import HardwareError
from llmir.base.names import normalize
from llmir.hw import calibration, calibration_files, device, library, link, schema
from llmir.hw.calibration import ENGINES

HW = Path(library.__file__).parent / "devices"


def exactly(number: float, unit: str = "e12") -> float:
    """The float nearest to a decimal number in that unit: 66.9 tera is 66.9e12, which 66.9 * 1e12 is not."""
    return float(f"{number}{unit}")


# --- the bundled devices -------------------------------------------------------------------------

# Dense TFLOP/s in bf16 (fp16 before Ampere) and in fp8 or int8 as published, fp32 accumulation where cards
# differ; GB/s; GiB; multiprocessors, or cores of a CPU; NVLink or its like in GB/s of one direction.
PUBLISHED = {
    "v100-16": (125, None, 900, 16, 80, 150),
    "v100-32": (125, None, 900, 32, 80, 150),
    "t4": (65, ("int8", 130), 320, 16, 40, None),
    "a10": (125, ("int8", 250), 600, 24, 72, None),
    "a30": (165, ("int8", 330), 933, 24, 56, 100),
    "a40": (149.7, ("int8", 299.3), 696, 48, 84, 56.25),
    "a6000": (154.8, ("int8", 309.7), 768, 48, 84, 56.25),
    "a100-40-sxm": (312, ("int8", 624), 1555, 40, 108, 300),
    "a100-40-pcie": (312, ("int8", 624), 1555, 40, 108, 300),
    "a100-80-sxm": (312, ("int8", 624), 2039, 80, 108, 300),
    "a100-80-pcie": (312, ("int8", 624), 1935, 80, 108, 300),
    "l4": (121, ("fp8", 242.5), 300, 24, 58, None),
    "l40s": (362.05, ("fp8", 733), 864, 48, 142, None),
    "rtx3090": (71, ("int8", 284), 936, 24, 82, 56.25),
    "rtx4090": (165.2, ("fp8", 330.3), 1008, 24, 128, None),
    "rtx-pro-6000": (503.8, ("fp4", 2015.2), 1792, 96, 188, None),
    "h20": (148, ("fp8", 296), 4000, 96, 78, 450),
    "h800": (989.4, ("fp8", 1978.9), 3350, 80, 132, 200),
    "h100-sxm": (989.4, ("fp8", 1978.9), 3350, 80, 132, 450),
    "h100-pcie": (756, ("fp8", 1513), 2039, 80, 114, 300),
    "h200": (989.4, ("fp8", 1978.9), 4800, 141, 132, 450),
    "gh200": (989.4, ("fp8", 1978.9), 4000, 96, 132, 450),
    "b200": (2250, ("fp4", 9000), 8000, 180, 148, 900),
    "gb200": (2500, ("fp4", 10000), 8000, 186, 152, 900),
    "b300": (2250, ("fp4", 13500), 8000, 270, 148, 900),
    "mi250": (362.1, ("int8", 362.1), 3276.8, 128, 208, 300),
    "mi300x": (1307.4, ("fp8", 2614.9), 5300, 192, 304, 448),
    "mi325x": (1307.4, ("fp8", 2614.9), 6000, 256, 304, 448),
    "mi355x": (2516.6, ("fp4", 10066.3), 8000, 288, 256, 537.6),
    "tpu-v5p": (459, ("int8", 918), 2765, 95, 2, 600),
    "tpu-v6e": (918, ("int8", 1836), 1640, 32, 1, 400),
    "cpu": (114.7, ("int8", 229.4), 307.2, 512, 56, None),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_numbers_are_the_published_dense_ones(name: str) -> None:
    sixteen, narrow, gbps, gib, processors, link = PUBLISHED[name]
    found = library.load(name)
    assert found.matrix_peak("bf16")[0] == exactly(sixteen)
    if narrow is not None:
        assert found.matrix_peak(narrow[0]) == (exactly(narrow[1]), narrow[0])
    assert found.memory_Bps == exactly(gbps, "e9")
    assert found.memory_bytes == gib * 2**30
    assert (found.multiprocessors or found.cores) == processors
    fabric = [at for at in found.links if at in ("nvlink", "infinity-fabric", "ici")]
    assert [found.links[at].Bps for at in fabric] == ([] if link is None else [exactly(link, "e9")])


def test_every_bundled_device_is_in_the_published_table() -> None:
    assert library.names() == sorted(PUBLISHED) == sorted(p.stem for p in HW.glob("*.yaml"))


@pytest.mark.parametrize("name", library.names())
def test_every_number_of_a_bundled_device_has_a_source(name: str) -> None:
    raw = yaml.safe_load((HW / f"{name}.yaml").read_text("utf-8"))
    del raw["sources"]
    raw.pop("aliases", None)
    found = library.load(name)
    for leaf in schema.leaves(raw):
        if leaf not in ("name", "vendor", "architecture") and not leaf.startswith("runs_as."):
            assert len(found.source(leaf)) > 3, leaf
            assert not found.source(leaf).endswith(".yaml"), f"{leaf} has no source of its own"


@pytest.mark.parametrize("name", library.names())
def test_a_bundled_device_says_its_generation_and_memory(name: str) -> None:
    found = library.load(name)
    if found.vendor in ("NVIDIA", "AMD"):
        assert re.fullmatch(r"sm_\d{2,3}" if found.vendor == "NVIDIA" else r"gfx9[0-9a-f]{2}", found.isa)
        assert re.fullmatch(r"HBM[23]e?|GDDR6X?|GDDR7", found.memory_kind)


def test_calibrations_are_of_bundled_devices_and_none_is_in_a_device_file() -> None:
    assert set(library.calibrated_devices()) <= set(library.names())
    for name in library.names():
        assert "calibration" not in yaml.safe_load((HW / f"{name}.yaml").read_text("utf-8"))
        assert (library.load(name).calibration is not None) == (name in library.calibrated_devices())
        if found := library.load(name).calibration:
            assert found.engine == next((e for e in ENGINES if e in found.engines), "aiter")
            own = {"a100-80-pcie": "torch.distributed nccl"}.get(name, "aiter")
            assert found.engine == (own if found.partial else "vllm")


def test_a_calibration_is_read_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def parse(path: Path) -> dict[Any, Any]:
        opened.append(path.name)
        return schema.parse(path)

    monkeypatch.setattr(library, "parse", parse)
    monkeypatch.setattr(calibration_files, "parse", parse)
    library._bundled.cache_clear()
    calibration_files.calibration_of.cache_clear()
    device = library.load("l40s")
    assert opened == ["l40s.yaml"]
    assert device.calibration is device.calibration
    assert opened == ["l40s.yaml"]
    assert device.calibration
    assert device.calibration.engines["vllm"] is device.calibration.engines["vllm"]
    assert opened == ["l40s.yaml", "vllm.yaml"]
    assert dict(device.calibration.engines) == device.calibration.engines
    assert len(opened) == 1 + len(device.calibration.engines)


@pytest.mark.parametrize("name", library.names())
def test_a_device_is_physically_possible(name: str) -> None:
    found = library.load(name)
    assert found.vector_flops["fp32"] <= found.matrix_peak("bf16")[0]
    assert found.matrix_peak("fp8")[0] >= found.matrix_peak("bf16")[0]
    assert all(link.Bps < found.memory_Bps for link in found.links.values())
    assert all(0 <= link.latency_s < 1e-4 for link in found.links.values())
    # A ridge outside this range has never been built: it would be a unit mistaken somewhere.
    assert 30 < found.matrix_peak("bf16")[0] / found.memory_Bps < 600


def test_one_device_by_name_reads_one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def parse(path: Path) -> dict[Any, Any]:
        opened.append(path.name)
        return schema.parse(path)

    monkeypatch.setattr(library, "parse", parse)
    library._bundled.cache_clear()
    assert library.load("a100") is library.load("A100-SXM4-80GB")
    assert opened == ["a100-80-sxm.yaml"]


# --- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        *(
            (spelling, "h100-sxm")
            for spelling in ("h100-sxm", "H100_SXM", "h100", "nvidia/H100-SXM", "H100 SXM5")
        ),
        *(
            (spelling, "a100-80-sxm")
            for spelling in ("a100", "A100-SXM", "a100_80gb", "NVIDIA A100-SXM4-80GB")
        ),
        ("a100-40", "a100-40-sxm"),
        ("NVIDIA A100 80GB PCIe", "a100-80-pcie"),
        ("NVIDIA A100-PCIE-40GB", "a100-40-pcie"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("v100", "v100-32"),
        ("Tesla V100-SXM2-16GB", "v100-16"),
        ("Tesla T4", "t4"),
        ("RTX A6000", "a6000"),
        *((spelling, "rtx3090") for spelling in ("rtx-3090", "3090", "NVIDIA GeForce RTX 3090")),
        *((spelling, "rtx-pro-6000") for spelling in ("rtx6000pro", "RTX PRO 6000", "rtx_pro_6000")),
        ("h200-sxm", "h200"),
        ("b200-sxm", "b200"),
        ("gh200", "gh200"),
        ("amd/mi300x", "mi300x"),
        ("AMD Instinct MI300X", "mi300x"),
        ("tpuv5p", "tpu-v5p"),
        ("Trillium", "tpu-v6e"),
    ],
)
def test_a_name_is_found_however_it_is_written(spelling: str, name: str) -> None:
    assert library.load(spelling) is library.load(name)


def test_every_alias_leads_to_its_device_and_none_to_two() -> None:
    bundled = [*library.names(), *library.clusters()]
    spellings = [normalize(n) for n in bundled]
    for name in bundled:
        for alias in library.load(name).aliases:
            assert library.load(alias) is library.load(name)
            spellings.append(normalize(alias))
    assert len(spellings) == len(set(spellings))
    assert len(spellings) > 2 * len(bundled)


def test_a_display_name_and_a_device_load_as_themselves() -> None:
    for name in library.names():
        assert library.load(library.load(name).name) is library.load(name)
        assert library.load(library.load(name)) is library.load(name)
    assert len({library.load(name) for name in library.names()}) == len(library.names())
    assert pickle.loads(pickle.dumps(library.load("h100"))).links == library.load("h100").links


# --- peaks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "dtype", "tflops", "unit"),
    [
        ("v100", "bf16", 125, "fp16"),  # a stated stand-in
        ("t4", "bfloat16", 65, "fp16"),
        ("tpu-v6e", "fp16", 918, "bf16"),
        ("a100", "fp8_e4m3", 312, "bf16"),  # the next wider unit
        ("a100", "fp8_e5m2", 312, "bf16"),
        ("h100", "nvfp4", 1978.9, "fp8"),
        ("h100", "mxfp4", 1978.9, "fp8"),
        ("b200", "nvfp4", 9000, "fp4"),
        ("h100", "int4", 1978.9, "int8"),
        ("a100", "int4_g128", 1248, "int4"),
        ("v100", "int4", 125, "fp16"),
        ("h100", "tf32", 494.7, "tf32"),
        ("h100", "fp32", 66.9, "fp32"),  # never tf32 unasked
        ("mi300x", "fp32", 163.4, "fp32"),
        ("v100", "tf32", 15.7, "fp32"),
        ("cpu", "fp16", 14.3, "fp16"),
        ("h100", "fp64", 66.9, "fp64"),
    ],
)
def test_a_matrix_product_runs_on_the_nearest_unit(name: str, dtype: str, tflops: float, unit: str) -> None:
    assert library.load(name).matrix_peak(dtype) == (exactly(tflops), unit)


@pytest.mark.parametrize(
    ("name", "dtype", "tflops", "unit"),
    [
        ("a100", "bf16", 39, "bf16"),
        ("a100", "fp8", 19.5, "fp32"),
        ("v100", "bf16", 31.4, "fp16"),
        ("h20", "bf16", 44, "fp32"),
        ("tpu-v5p", "int32", 14, "fp32"),
    ],
)
def test_elementwise_work_runs_on_lanes_that_hold_it(name: str, dtype: str, tflops: float, unit: str) -> None:
    assert library.load(name).vector_peak(dtype) == (exactly(tflops), unit)


def test_a_peak_that_no_unit_gives_is_an_error_and_not_a_guess() -> None:
    with pytest.raises(HardwareError, match="L4 states no fp64 peak, only fp32"):
        library.load("l4").matrix_peak("fp64")
    with pytest.raises(HardwareError, match=r"unknown dtype 'fp9', known are .*did you mean"):
        library.load("l4").matrix_peak("fp9")
    with pytest.raises(HardwareError, match="L4 has no number 'memory_Gbit'"):
        library.load("l4").source("memory_Gbit")


def test_a_source_is_found_by_key_by_field_and_by_group() -> None:
    found = library.load("h100-pcie")
    assert found.source("memory_GBps") == found.source("memory_Bps") != found.source("memory_bytes")
    assert found.source("links.nvlink.GBps") in found.source("links")
    assert "NCCL" in found.source("links")


@pytest.mark.parametrize("module", [library, calibration, calibration_files, device, link, schema])
def test_the_examples_in_the_docstrings_hold(module: Any) -> None:
    assert doctest.testmod(module).failed == 0
