"""The published accuracy: pages come from docs/accuracy.json, and digests notice changes of estimates."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest

from benchmarks import accuracy
from benchmarks.whole import statistics

HEAD = "file,row,kind,metric,device,engine,model,dtype,measured_s,predicted_s,band,relation,exceeds,tp"


def test_the_pages_are_what_the_json_file_gives() -> None:
    assert accuracy.differences(accuracy.load()) == []
    assert accuracy.PAGE.stat().st_size <= 12_288
    if found := accuracy.stale(accuracy.load()):
        warnings.warn(f"docs/accuracy.json is not up to date: {'; '.join(found)}", stacklevel=1)


def test_a_changed_number_of_a_page_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JSON", "PAGE", "README"):
        copy = tmp_path / getattr(accuracy, name).name
        copy.write_bytes(getattr(accuracy, name).read_bytes())
        monkeypatch.setattr(accuracy, name, copy)
    for name in ("PAGE", "README"):
        path = getattr(accuracy, name)
        text = path.read_text("utf-8")
        begin = text.index("|---|")
        digit = next(i for i in range(begin, len(text)) if text[i].isdigit())
        path.write_text(text[:digit] + str((int(text[digit]) + 1) % 10) + text[digit + 1 :], "utf-8")
        assert accuracy.differences(accuracy.load()) == [path.name]
        assert accuracy.main(["--check"]) == 1
        path.write_text(text, "utf-8")
    assert accuracy.main(["--write"]) == 0
    assert accuracy.differences(accuracy.load()) == []


def test_a_digest_changes_with_code_and_not_with_its_comments(tmp_path: Path) -> None:
    (tmp_path / "passes").mkdir()
    file = tmp_path / "passes" / "one.py"
    texts = (
        'def f(x):\n    """Twice."""\n    return 2 * x\n',
        'def f(x):\n    """Two times x.\n\n    More.\n    """\n    # a product\n\n    return 2 * x\n',
        'def f(x):\n    """Twice."""\n    return 3 * x\n',
        "class A:\n    def f(x):\n        return 2 * x\n",
    )
    found = []
    for text in texts:
        file.write_text(text)
        accuracy.digests.cache_clear()
        found.append(accuracy.digests(tmp_path)["passes"])
    assert found[0] == found[1]
    assert len(set(found)) == 3


def test_a_section_is_stale_after_a_change_or_while_it_is_missing() -> None:
    now = accuracy.digests()
    views = {w: {"digests": now} for w in accuracy.HELD_OUT["kernels"]}
    views[accuracy.DEVICE] = {"digests": now | {"calibrations": "0"}}
    lines = accuracy.stale({"sections": {"kernels": views}})
    assert "kernels, device held out: computed before a change of calibrations" in lines
    assert "runs, none held out: not computed" in lines
    assert not any(line.startswith("kernels, none") for line in lines)


def test_statistics_count_sizes_signs_and_bands() -> None:
    """By hand: errors of +10%, -30% and +20%, of which the first two have a ± of 20%."""
    found = statistics([0.1, -0.3, 0.2], [0.2, 0.2, None])
    assert found.rows == 3
    assert (found.mean, found.median, found.bias) == pytest.approx((0.2, 0.2, 0.0))
    assert (found.band, found.within, found.within_twice) == pytest.approx((0.2, 0.5, 1.0))


def test_rows_become_groups_without_refused_ones_and_those_below_the_roofline(tmp_path: Path) -> None:
    rows = [
        "gemm.csv,1,gemm,latency,H100-SXM,vllm,,bfloat16,1e-5,1.1e-5,0.2,calibrated,,",
        "gemm.csv,2,gemm,latency,H100-SXM,vllm,,bfloat16,1e-5,0.7e-5,0.2,calibrated,,",
        "gemm.csv,3,gemm,latency,H100-SXM,vllm,,bfloat16,1e-5,9e-5,0.2,calibrated,operands fit in L2,",
        "gemm.csv,4,gemm,latency,,vllm,,bfloat16,1e-5,,,,,",
    ]
    path = tmp_path / "rows.csv"
    path.write_text("\n".join([HEAD, *rows]))
    found = accuracy.summarize("kernels", [path])
    assert found["tables"] == {"gemm.csv": {"figures": 4, "estimated": 3, "faster than the roofline": 1}}
    line = found["groups"]["kind and device"]["products | H100"]
    assert (line["rows"], line["mean"], line["bias"], line["within"]) == (2, 0.2, -0.1, 0.5)
    assert found["groups"]["basis"]["calibrated"] == line
    assert json.loads(accuracy._json(found)) == found


def test_an_interrupted_run_continues_with_the_remaining_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = "gpu,dtype,m,n,k,latency_us,framework,kernel,source,flag\n"
    for name in ("gemm.csv", "gemm_amd.csv"):
        (tmp_path / name).write_text(header + "h100_sxm,bfloat16,16,4096,4096,9.0,vllm-0.24.0,vllm,x,\n")
    first = accuracy.collect(tmp_path, tmp_path / "cache", "kernels", accuracy.NONE)
    assert first is not None
    assert [path.name.partition("-")[0] for path in first] == ["gemm", "gemm_amd"]
    first[1].unlink()
    first[0].write_text("kept")
    again = accuracy.collect(tmp_path, tmp_path / "cache", "kernels", accuracy.NONE)
    assert again == first
    assert first[0].read_text() == "kept"
    assert "h100" in first[1].read_text().lower()
