"""`llmir models` and `llmir hw`: what is bundled, and a device of one's own."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest

from tests.commands import Run


@pytest.mark.slow
def test_the_models_are_those_that_are_bundled(run: Run) -> None:
    from llmir.frontends.models.presets import PRESETS

    rows = json.loads(run("models", "--format", "json").out)
    assert {row["name"]: row["parameters"] for row in rows} == {
        p.name: p.parameters for p in PRESETS.values()
    }
    (qwen,) = (row for row in rows if row["hf_id"] == "Qwen/Qwen3-30B-A3B")
    facts = ("layers", "hidden", "heads", "kv_heads", "head_dim", "experts", "kv_cache_bytes_per_token")
    assert [qwen[key] for key in facts] == [48, 2048, 32, 4, 128, 128, 98304]
    assert {row["name"][:5] for row in json.loads(run("models", "qwen3", "--format", "json").out)} == {
        "Qwen3"
    }
    listed = run("models").out
    assert all(name in listed for name in PRESETS)


def test_a_part_of_a_class_lists_its_models(run: Run) -> None:
    rows = json.loads(run("models", "MambaForCausalLM", "--format", "json").out)
    assert {row["architecture"] for row in rows} == {"MambaForCausalLM", "FalconMambaForCausalLM"}
    assert {row["name"].rpartition("-")[2] for row in rows} >= {"130M", "370M", "790M", "1.4B", "2.8B"}


@pytest.mark.parametrize(
    ("name", "heads"),
    [
        *(("zamba2-1.2b", (32, 32)), ("nemotron-h-8b", (32, 8)), ("granite-4.0-h-tiny", (12, 4))),
        *(("deepseek-v4-flash", (64, 1)), ("deepseek-v3", (128, 128)), ("mamba-codestral-7b", (128, 8))),
    ],
)
def test_heads_are_those_of_attention_and_of_scans_where_there_is_none(
    run: Run, name: str, heads: tuple[int, int]
) -> None:
    row = json.loads(run("models", name, "--format", "json").out)
    assert (row["heads"], row["kv_heads"]) == heads


@pytest.mark.slow
def test_the_devices_are_listed_with_sources(run: Run) -> None:
    from llmir.hw import library

    listed = [row["name"] for row in csv.DictReader(io.StringIO(run("hw", "--format", "csv").out))]
    assert listed == [*library.names(), *library.clusters()]
    assert all(name in run("hw").out for name in listed)
    whose = {row["name"]: row["kernels_of"] for row in json.loads(run("hw", "--format", "json").out)}
    assert [whose[name] for name in ("l40s", "rtx-pro-6000", "dgx-h100", "cpu")] == [
        "L40S",
        "L40S",
        "H100-SXM",
        None,
    ]
    shown = " ".join(run("hw").out.split())
    amd = "mi250, mi300x, mi325x, mi355x prefer the kernels of aiter, as measured on MI300X, MI355X."
    assert amd in shown
    assert "Times of aiter kernels are transferred from MI300X and MI355X" in " ".join(
        run("hw", "mi325x").out.split()
    )
    device = library.load("h100-sxm")
    rows = json.loads(run("hw", "h100", "--format", "json").out)
    kernels = [row for row in rows if row["field"].startswith("calibration.")]
    assert {row["field"]: row["source"] for row in rows if row not in kernels} == dict(device.sources)
    assert device.calibration
    for row in kernels:
        _, engine, family = row["field"].split(".")
        fitted = device.calibration.engines[engine][family]
        assert row["value"] == pytest.approx(100 * fitted.error)
        assert row["source"].startswith(fitted.origin)
    assert {row["field"]: row["value"] for row in rows}["memory_Bps"] == device.memory_Bps
    shown = run("hw", "h100").out
    assert "989 TFLOP/s" in shown
    assert "80.0 GiB" in shown


def test_a_device_with_only_a_name_has_no_empty_brackets(run: Run, tmp_path: Path) -> None:
    text = "vector_tflops: {fp32: 1}\nmemory_GiB: 16\nmemory_GBps: 900\n"
    for more, title in (("", "X1"), ("vendor: V\n", "X1 (V)"), ("vendor: V\narchitecture: A\n", "X1 (V A)")):
        (tmp_path / "my.yaml").write_text(f'name: "X\\n1\\e"\n{text}{more}', "utf-8")
        ran = run("hw", "my.yaml")
        assert (ran.code, ran.err) == (0, "")
        assert re.match(rf"{re.escape(title)}\n\n +value +source\n", ran.out)
