"""Fits: rows are read with care, whole groups are left out, and known parameters are found again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import llmir
from llmir.backends.cost.transfer import basis
from llmir.backends.kernels.base import parameters
from llmir.backends.kernels.gemm import GemmKernel, GemmShape
from llmir.backends.kernels.stream import StreamKernel, StreamShape
from llmir.backends.silicon.rows import Column, error_statistics, group_folds, read_rows
from llmir.backends.silicon.tables.table import FORMATS
from llmir.base.errors import HardwareError, InputError
from llmir.hw import library, schema
from llmir.hw.calibration import Calibration, KernelParameters, to_yaml
from tests.commands import Run

from .table_fits import cases_of, fitted

HEADER = "gpu,dtype,m,n,k,latency_us,framework,kernel,source,flag\n"
MEASURED = Path(__file__).parents[4] / "shared" / "measured"


def grid() -> GemmShape:
    """240 products of 20 shapes of weights."""
    sizes = [(n, k) for n in (256, 1024, 3072, 4096, 12288) for k in (512, 2048, 4096, 8192)]
    rows = [(m, n, k) for n, k in sizes for m in (1, 8, 33, 64, 128, 200, 256, 512, 1000, 2048, 4096, 8192)]
    return GemmShape(*np.array(rows, dtype=float).T)


def written(folder: Path, kernel: GemmKernel, device: str = "h100_sxm", engine: str = "ours-1.0") -> Path:
    """A folder with a gemm.csv that `kernel` made."""
    shape = grid()
    times = np.asarray(kernel.seconds(library.load(device), shape)) * 1e6
    lines = [
        f"{device},bfloat16,{m:.0f},{n:.0f},{k:.0f},{t:.4f},{engine},,test,"
        for m, n, k, t in zip(*map(np.asarray, (shape.m, shape.n, shape.k)), times, strict=True)
    ]
    folder.mkdir(exist_ok=True)
    (folder / "gemm.csv").write_text(HEADER + "\n".join(lines) + "\n")
    return folder


# --- rows ----------------------------------------------------------------------------------------

BAD_CELLS = {
    "": "n is empty",
    "abc": "n must be a number, got 'abc'",
    "-5": "n must be a number from 1 to 2,147,483,648, got -5",
    "0": "n must be a number from 1 to",
    "1e30": "got 1e30",
    "nan": "got nan",
    "inf": "got inf",
    "2.5": "n must be an integer, got 2.5",
    "1_000": "n must be a number",
}


@pytest.mark.parametrize("cell", BAD_CELLS)
def test_a_bad_row_is_named_and_the_rest_is_used(tmp_path: Path, cell: str) -> None:
    path = tmp_path / "gemm.csv"
    good = "h100_sxm,bfloat16,1,128,64,3.5,ours,,test,\n"
    path.write_text(HEADER + good + f"h100_sxm,bfloat16,1,{cell},64,3.5,ours,,test,\n" + good)
    found = read_rows(path, FORMATS["gemm"].numbers, ("gpu",))
    assert found["line"].tolist() == [1, 3]
    [problem] = found.problems
    assert problem.startswith("gemm.csv: row 2: ")
    assert BAD_CELLS[cell] in problem


def test_a_row_that_breaks_off_is_named_too(tmp_path: Path) -> None:
    path = tmp_path / "gemm.csv"
    path.write_text(HEADER + "h100_sxm,bfloat16,1,128\n")
    found = read_rows(path, FORMATS["gemm"].numbers, ("gpu",))
    assert (len(found), list(found.problems)) == (0, ["gemm.csv: row 1: k is empty"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"gpu,m\nh100,1\n", "missing column n; it has gpu, m"),
        (b"\xff\xfe\x00", "not readable as CSV"),
    ],
)
def test_a_file_that_is_no_such_table_is_an_error(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "gemm.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_rows(path, {"m": Column(), "n": Column()}, ())


def test_an_empty_cell_may_have_a_meaning(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("window\n0\n\n \n4\n")
    assert read_rows(path, {"window": Column(low=0, empty=0)}, ())["window"].tolist() == [0, 0, 4]


# --- folds and errors ----------------------------------------------------------------------------


@given(st.lists(st.integers(0, 30), min_size=2), st.integers(2, 7), st.integers(0, 9))
def test_folds_leave_whole_groups_out_and_each_row_once(groups: list[int], folds: int, seed: int) -> None:
    judged: list[int] = []
    for seen, left in group_folds(groups, folds=folds, seed=seed):
        assert not {groups[i] for i in seen} & {groups[i] for i in left}
        assert sorted([*seen, *left]) == list(range(len(groups)))
        judged += left.tolist()
    assert sorted(judged) == list(range(len(groups)))


def test_errors_by_hand() -> None:
    found = error_statistics(np.array([1.2, 0.9, 1.0, 3.0]), np.array([1.0, 1.0, 1.0, 2.0]))
    assert found.n == 4
    assert found[1:] == pytest.approx((0.2, 0.15, 0.15, 0.41))


# --- fits ----------------------------------------------------------------------------------------


def test_a_fit_finds_what_made_noisy_times() -> None:
    pytest.importorskip("scipy")
    device, shape = library.load("h100-sxm"), grid()
    made = GemmKernel(rate=0.75, bandwidth=0.65, feed=0.3, launch_us=4, split_us=2)
    noise = np.random.default_rng(1).lognormal(0, 0.05, len(np.asarray(shape.m)))
    times = np.asarray(made.seconds(device, shape)) * noise
    times[::17] *= 3  # outliers, which a robust fit does not follow
    found = fitted(GemmKernel, device, shape, times)
    for name in ("rate", "bandwidth", "launch_us"):
        assert getattr(found, name) == pytest.approx(getattr(made, name), rel=0.1), name
    away = error_statistics(np.asarray(found.seconds(device, shape)), np.asarray(made.seconds(device, shape)))
    assert away.mape < 0.04
    assert found == fitted(GemmKernel, device, shape, times)  # reproducible


def test_parameters_that_no_row_tells_stay_at_their_defaults() -> None:
    pytest.importorskip("scipy")
    tiny = StreamShape(np.array([1.0, 2, 4]), np.array([64.0, 128, 256]))
    found = fitted(StreamKernel, library.load("a100"), tiny, np.array([5e-6, 5e-6, 5e-6]))
    assert found.launch_us == pytest.approx(5, rel=0.15)
    assert found.bandwidth == pytest.approx(StreamKernel().bandwidth, rel=0.05)


def test_without_rows_or_scipy_a_fit_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "scipy.optimize", None)
    with pytest.raises(InputError, match=r"fitting needs scipy: pip install 'llmir\[calibrate\]'"):
        fitted(GemmKernel, library.load("a100"), GemmShape(1, 1, 1), np.array([1e-6]))


def test_rows_faster_than_the_memory_are_set_apart(tmp_path: Path) -> None:
    folder = written(tmp_path / "rows", GemmKernel())
    with (folder / "gemm.csv").open("a") as file:
        file.write(
            "h100_sxm,bfloat16,1,8192,8192,10,ours-1.0,,test,\nunknown_gpu,bfloat16,1,1,1,9,ours-1.0,,test,\n"
        )
    [case], problems = cases_of(folder / "gemm.csv", "gemm_bf16")
    assert (len(case.seconds), case.hot) == (240, 1)
    [problem] = problems
    assert problem.startswith("gemm.csv: 1 rows of unknown_gpu, ours-1.0: unknown device 'unknown_gpu'")
    assert (case.device.name, case.engine, case.origin) == ("H100-SXM", "ours", "ours-1.0, measured by test")


# --- the command ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_fits_judges_and_writes_a_device_file(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("scipy")
    made = GemmKernel(rate=0.7, bandwidth=0.7, launch_us=5)
    written(tmp_path / "rows", made)
    ran = run("calibrate", "--from", "rows", "--family", "gemm", "--format", "json", "-o", "ours.yaml")
    assert ran.code == 0, ran.err
    [row] = json.loads(ran.out)
    assert (row["device"], row["engine"], row["family"], row["n"], row["groups"]) == (
        *("H100-SXM", "ours", "gemm_bf16"),
        *(240, 20),
    )
    assert row["mape"] < 0.03 < row["ideal_mape"]
    device = library.load(tmp_path / "ours.yaml")
    assert device.calibration
    assert device.calibration.engine == "ours"
    fitted = device.calibration.engines["ours"]["gemm_bf16"]
    assert (fitted.rows, fitted.origin) == (240, "ours-1.0, measured by test")
    assert fitted.parameters["launch_us"] == pytest.approx(5, rel=0.1)
    assert device.memory_Bps == library.load("h100-sxm").memory_Bps


@pytest.mark.slow
def test_each_parameter_is_shown_with_its_least_and_most_over_the_folds(run: Run, tmp_path: Path) -> None:
    """What the rows tell is the same in all five."""
    pytest.importorskip("scipy")
    made = GemmKernel(rate=0.7, bandwidth=0.7, launch_us=5, split_us=20)
    found = llmir.calibrate(written(tmp_path / "rows", made), family="gemm")
    spreads = {row["parameter"]: row for row in found.spreads}
    assert [*spreads] == [p.name for p in parameters(GemmKernel)]
    for row in spreads.values():
        assert row["low"] <= row["high"]
    launch = spreads["launch_us"]
    assert (launch["low"], launch["high"]) == pytest.approx((5, 5), rel=0.1)
    ran = run("calibrate", "--from", "rows", "--family", "gemm")
    assert "least and most of fits that leave a fifth of the groups out" in ran.out
    assert "launch_us" in ran.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--from", "nowhere"), "no folder 'nowhere'"),
        (("--from", "rows", "--device", "b200"), "rows: no rows of b200"),
        (("--from", "rows", "--engine", "x"), "rows: no rows of x"),
        (("--from", "rows", "--family", "gem"), "unknown family 'gem'; did you mean gemm"),
        (("--from", "rows", "--device", "h1000"), "unknown device 'h1000'; did you mean"),
        (("--from", "rows", "-o", "x.txt"), "x.txt: suffix '.txt' is unknown; allowed are .yaml, .yml"),
        ((), "missing option '--from'"),
    ],
)
def test_bad_arguments_are_one_line(run: Run, tmp_path: Path, arguments: Any, message: str) -> None:
    written(tmp_path / "rows", GemmKernel())
    ran = run("calibrate", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err.lower() or message in ran.err
    assert len(ran.err.splitlines()) == 1


def test_one_group_of_shapes_is_too_few_to_judge(run: Run, tmp_path: Path) -> None:
    (tmp_path / "gemm.csv").write_text(HEADER + "h100_sxm,bfloat16,1,128,2048,5,ours,,test,\n" * 9)
    ran = run("calibrate", "--from", ".")
    assert (ran.code, ran.out) == (2, "")
    assert "9 rows of h100_sxm, ours, gemm_bf16: fewer than two groups by n, k, too few to judge" in ran.err
    assert ran.err.splitlines()[-1] == "error: .: no rows of any known device"


def test_times_that_no_device_has_are_too_few_to_judge(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("scipy")
    rows = "".join(f"h100_sxm,bfloat16,64,{n},4096,0.01,ours,,test,\n" for n in (1024, 2048, 4096))
    (tmp_path / "gemm.csv").write_text(HEADER + rows)
    ran = run("calibrate", "--from", ".")
    assert (ran.code, ran.out) == (2, "")
    assert "too few to judge (3 rows are faster than the roofline)" in ran.err


@pytest.mark.slow
@pytest.mark.parametrize("target", ["x.yaml", "out"])
def test_fits_that_are_worse_than_the_roofline_are_not_written(run: Run, tmp_path: Path, target: str) -> None:
    pytest.importorskip("scipy")
    h100 = library.load("h100-sxm")
    sizes = [(m, n) for m in (1, 8, 2048, 8192) for n in (2048, 4096)]
    least = [
        1e6 * max(2 * m * n * 4096 / h100.matrix_flops["bf16"], 2 * 4096 * n / h100.memory_Bps)
        + 2e6 * m * (4096 + n) / h100.memory_Bps * (m < 100)
        for m, n in sizes
    ]
    rows = (
        f"h100_sxm,bfloat16,{m},{n},4096,{t + 1e-3:.6f},ours,,test,\n"
        for (m, n), t in zip(sizes, least, strict=True)
    )
    (tmp_path / "gemm.csv").write_text(HEADER + "".join(rows))
    ran = run("calibrate", "--from", ".", "-o", target)
    assert (ran.code, ran.out, (tmp_path / target).exists()) == (2, "", False)
    assert "nothing to write" in ran.err


@pytest.mark.slow
def test_one_file_is_of_one_device(run: Run, tmp_path: Path) -> None:
    written(tmp_path / "rows", GemmKernel())
    first = (tmp_path / "rows" / "gemm.csv").read_text()
    written(tmp_path / "rows", GemmKernel(), device="b200_sxm")
    second = (tmp_path / "rows" / "gemm.csv").read_text().removeprefix(HEADER)
    (tmp_path / "rows" / "gemm.csv").write_text(first + second)
    ran = run("calibrate", "--from", "rows", "-o", "x.yaml")
    assert (ran.code, not (tmp_path / "x.yaml").exists()) == (2, True)
    assert "a file contains one device; select it with --device: H100-SXM, B200" in ran.err


# --- device files --------------------------------------------------------------------------------

FITTED = "{origin: a, rows: 3, error_percent: 5, rate: 0.5}"


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ("3", "calibration must be a mapping"),
        (f"{{ours: {{gemm_bf16: {FITTED}}}}}", "calibration.engine must be text, got None"),
        (f"{{engine: x, ours: {{gemm_bf16: {FITTED}}}}}", "calibration.engine is 'x', calibrated are ours"),
        ("{engine: ours, ours: {gemm_bf16: {rate: 0.5}}}", "gemm_bf16.origin must be text, got None"),
        ("{engine: ours, ours: {gemm_bf16: {origin: a, rows: 3, error_percent: 5}}}", "must be a mapping"),
        (
            f"{{engine: ours, ours: {{gemm_bf16: {FITTED.replace('0.5', '-1')}}}}}",
            "rate must be a number above 0",
        ),
        (
            f"{{engine: ours, ours: {{gemm_bf16: {FITTED.replace('0.5', 'fast')}}}}}",
            "rate must be a number above 0",
        ),
    ],
)
def test_a_wrong_calibration_is_named(tmp_path: Path, block: str, message: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(
        "name: X\nvector_tflops: {fp32: 1}\nmemory_GiB: 16\nmemory_GBps: 900\n" + f"calibration: {block}\n"
    )
    with pytest.raises(HardwareError, match=message):
        library.load(path)


@pytest.mark.slow
@pytest.mark.skipif(not MEASURED.exists(), reason="the measured rows are not beside this checkout")
def test_the_bundled_products_are_near_what_was_measured() -> None:
    found, problems = cases_of(MEASURED / "gemm.csv", "gemm_bf16")
    assert not problems
    for case in found:
        at = basis(case.device, "gemm_bf16", case.engine)
        if at and len(case.seconds) > 100:
            assert at.device == case.device
            assert error_statistics(case.predicted({"gemm_bf16": at.kernel}), case.seconds).mape < 0.12


def test_collectives_between_nodes_are_fitted_where_the_network_is_known(tmp_path: Path) -> None:
    header = "gpu,op,dtype,num_gpus,bytes,latency_us,framework,kernel,note,source\n"
    row = "{},all_reduce,fp16,{},{},500000,torch.distributed nccl,nccl,devices_per_node={},test\n"
    rows = [
        row.format(gpu, ranks, size, each)
        for gpu in ("a100_sxm", "a100_dgx")
        for ranks in (2, 4, 8)
        for size in (2**12, 2**20)
        for each in (2, 4)
    ]
    (tmp_path / "collective.csv").write_text(header + "".join(rows))
    found, problems = cases_of(tmp_path / "collective.csv", "all_reduce")
    assert [case.device for case in found] == [library.load("a100-80-sxm"), library.load("dgx-a100")]
    for case in found:
        [term] = case.clock.terms
        assert sorted(term.call.shape.ranks) == [2, 2, 2, 2, 4, 4]
    [between], _ = cases_of(tmp_path / "collective.csv", "network")
    [term] = between.clock.terms
    assert (between.clock.known > 0).all()  # what is inside a node is held
    # Of a node's two or four ranks each sends for itself what a ring of so many sends: 2(n-1)/n.
    assert sorted(zip(term.call.shape.ranks, term.call.shape.share, strict=True)) == sorted(
        2 * [(2, 3 / 4), (4, 7 / 16), (2, 7 / 8)]
    )
    assert between.families == ("network",)
    assert all("between nodes: the table does not say over which network" in p for p in problems)


@pytest.mark.parametrize("engine", ["a: b", "123", 'x"y', "my-a", "torch.distributed nccl", "- #"])
def test_a_device_file_reads_back_whatever_the_framework_is_called(engine: str) -> None:
    values = {p.name: p.default for p in parameters(GemmKernel)}
    fitted = KernelParameters(values, f'{engine}, "measured"', 12, 0.1)
    text = to_yaml(Calibration(engine, {engine: {"gemm_bf16": fitted}}))
    again = schema.calibration(yaml.safe_load(text)["calibration"], "test", 1)
    assert again.engine == engine
    assert again.engines[engine]["gemm_bf16"].origin == fitted.origin


@pytest.mark.slow
def test_of_two_versions_of_an_engine_that_of_more_rows_is_kept(run: Run, tmp_path: Path) -> None:
    few, many = GemmKernel(launch_us=9), GemmKernel(launch_us=2)
    written(tmp_path, many, engine="ours-2.0")
    more = (tmp_path / "gemm.csv").read_text()
    written(tmp_path, few, engine="ours-3.0")
    rows = (tmp_path / "gemm.csv").read_text().splitlines(keepends=True)[1:150]
    (tmp_path / "gemm.csv").write_text(more + "".join(rows))
    said = run("calibrate", "--from", str(tmp_path), "-o", "ours.yaml")
    assert said.code == 0, said.err
    found = yaml.safe_load((tmp_path / "ours.yaml").read_text())["calibration"]["ours"]["gemm_bf16"]
    assert found["launch_us"] == pytest.approx(2, rel=0.1)


def test_rows_of_no_family_are_named(tmp_path: Path) -> None:
    good = "h100_sxm,bfloat16,1,128,64,3.5,ours,,test,\n"
    (tmp_path / "gemm.csv").write_text(HEADER + good + good.replace("bfloat16", "bogus16") * 3)
    problems = cases_of(tmp_path / "gemm.csv", "gemm_bf16")[1]
    assert "gemm.csv: dtype 'bogus16' of a gemm is not known: rows 2–4" in problems


def test_a_column_that_is_there_twice_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "gemm.csv").write_text("m,n,m\n1,2,3\n")
    with pytest.raises(InputError, match=r"gemm\.csv: column m occurs more than once"):
        read_rows(tmp_path / "gemm.csv", {"m": Column(), "n": Column()}, ())
