"""Each option is declared once; records check their values; the command line and Python agree."""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

import llmir
from llmir.api import options
from llmir.api.options import AXES, RECORDS, Record
from llmir.backends.search import sweep
from llmir.base.errors import InputError, LlmirError
from llmir.base.formats import export
from llmir.cli.command import COMMANDS
from llmir.cli.options import Parameter, kind_of
from tests.commands import TINY, Run
from tests.flat import RECORDS as TAKEN
from tests.flat import records

# Options of one command, which declares them itself.
OWN = {
    "opt": {"print_after", "print_after_all"},
    "analyze": {"require_fit"},
    "calibrate": {"folder", "run", "quick", "seconds", "device", "family", "host"},
    "check": {"index"},
    "draw": {"diff", "level"},
    "emit": {"to"},
    "plan": {"gpus", "emit_to"},
    "plot": {"by"},
    "sensitivity": {"more"},
    "serve": {"port", "opens", "host", "token"},
    "serve-sim": {
        *("rates", "replications", "decode_tp", "warm_up"),
        *("requests_out", "steps_out", "trace_out"),
    },
    "sweep": {"jobs"},
    "trace": {"rank"},
    "validate": {"files", "by", "model", "unit", "without", "folds", "plot"},
}
EVERYWHERE = {"plugin", "max_work", "old_file"}  # of all commands; `--plan FILE`, which says its new name
# Two options of one name: tokens of each sequence, and tokens or a law of requests over time.
TWICE = {"prompt", "generate"}
MOST = 15  # parameters of a public function


def parameters() -> list[tuple[str, click.Option]]:
    return [
        (name, each) for name in COMMANDS for each in COMMANDS[name].params if isinstance(each, click.Option)
    ]


def public() -> dict[str, Callable[..., Any]]:
    found = {name: getattr(llmir, name) for name in llmir.__all__}
    return {name: thing for name, thing in found.items() if inspect.isfunction(thing) or thing in RECORDS}


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_each_option_of_a_command_is_declared_by_a_record_or_is_its_own(command: str) -> None:
    known = [each for record in RECORDS for each in record.options]
    for name, each in parameters():
        if name != command or each.name in EVERYWHERE:
            continue
        if isinstance(each, Parameter):
            assert any(each.declared is one for one in known)
            assert each.name == each.declared.key
            assert each.name not in OWN.get(command, ())
        else:
            assert each.name in OWN.get(command, ()), f"--{each.name}: declare it in a record"


def test_options_of_one_command_are_declared_by_no_other() -> None:
    shared = {each.key for record in RECORDS for each in record.options}
    assert {name for names in OWN.values() for name in names} & shared == set()


def test_a_name_is_declared_once() -> None:
    names = [each.name for record in RECORDS for each in record.options]
    assert {name for name in names if names.count(name) > 1} == TWICE


def test_each_option_has_its_help_and_is_used() -> None:
    used = {id(each.declared) for _, each in parameters() if isinstance(each, Parameter)}
    programs = {"verify", "decode_program", "decode_verify", "decode_draft"}  # of Python alone
    for record in RECORDS:
        for each in record.options:
            assert each.help and each.record == record.__name__
            assert (id(each) in used) != (each.name in programs)


def test_axes_of_sweeps_are_options_of_records() -> None:
    assert set(sweep.POINTS) == {name for name, each in AXES.items() if each.record == "Requests"}
    whole = [name for name, each in AXES.items() if each.least is not None]
    assert set(whole) == {*sweep.COUNTS, *sweep.POINTS}
    assert all(default >= (AXES[name].least or 0) for name, default in sweep.POINTS.items())
    for command in ("sweep", "report"):
        taken = {each.name: each for name, each in parameters() if name == command}
        for name in AXES.keys() - (set(sweep.POINTS) if command == "report" else set()):
            each = taken[name]
            assert isinstance(each, Parameter) and each.declared is AXES[name]


@pytest.mark.parametrize("name", sorted(public()))
def test_no_public_function_has_more_parameters_than_one_remembers(name: str) -> None:
    taken = inspect.signature(public()[name]).parameters
    assert len(taken) <= MOST
    assert not any(each.kind is each.VAR_KEYWORD for each in taken.values())


def test_functions_take_no_option_that_a_record_of_theirs_has() -> None:
    for name, function in public().items():
        taken = inspect.signature(function).parameters
        for argument in taken.keys() & TAKEN.keys() if inspect.isfunction(function) else ():
            both = {each.name for each in TAKEN[argument].options} & taken.keys()
            assert both <= {"hw"}, name  # the usual way to say it


WRONG = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False),
    st.text(max_size=9),
    st.binary(max_size=3),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)
FIELDS = [(record, each.name) for record in RECORDS for each in record.options]


@pytest.mark.mostly_slow(11)
@pytest.mark.parametrize(("record", "name"), FIELDS, ids=[f"{r.__name__}-{n}" for r, n in FIELDS])
@given(value=WRONG)
def test_a_record_takes_a_value_or_says_why_in_one_line(
    record: type[Record], name: str, value: object
) -> None:
    try:
        made = record(**{name: value})
    except LlmirError as error:
        assert "\n" not in str(error) and str(error).startswith(name)
        return
    assert getattr(made, name) is not None or value is None
    again = dataclasses.replace(made)
    assert again == made and pickle.loads(pickle.dumps(made)) == made
    assert record(**made.given) == made


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: llmir.Parallel(tp=0), "tp: expected an integer from 1 to 1,048,576, got 0"),
        (lambda: llmir.Parallel(pp=[2, 0]), "pp: expected an integer from 1 to 10,000, got 0"),
        (lambda: llmir.Parallel(dispatch="row"), "dispatch: expected rows, ranks or gather, got 'row'"),
        (lambda: llmir.Precision(kv=8), "kv: expected text, got 8"),
        (lambda: llmir.Memory(memory_utilization=0), "memory_utilization: expected a number above 0 up to 1"),
        (lambda: llmir.Memory(cache_policy="pages"), "cache_policy: expected exact, paged or unified"),
        (lambda: llmir.Drafts(acceptance=1.5), "acceptance: expected a number from 0 to 1, got 1.5"),
        (lambda: llmir.Traffic(rate=-1), "rate: expected a number from 0.000001 to 1,000,000,000, got -1"),
        (lambda: llmir.Traffic(prompt="normal:5"), "prompt: normal takes"),
        (lambda: llmir.Servers(replicas=0), "replicas: expected an integer from 1"),
        (lambda: llmir.Estimation(efficiency={"memory": "x"}), "efficiency: memory: expected a number"),
        (lambda: llmir.workload(TINY, "h100", memory={"reserve_bytes": 1}), "memory: expected llmir.Memory"),
        (lambda: llmir.workload(TINY, "h100", estimation=llmir.Estimation("h200")), "names the device"),
        (lambda: llmir.simulate(TINY, "h100", 2), "traffic: expected llmir.Traffic"),
        (lambda: llmir.plan(TINY), "traffic: requires a rate in requests per second"),
        (lambda: llmir.plan(TINY, "h100", llmir.Traffic(closed=2)), "closed: has no effect in a plan"),
        (lambda: llmir.server(TINY, "h100", memory=llmir.Memory(cache_policy="paged")), "cache_policy"),
    ],
)
def test_what_records_refuse(make: Callable[[], object], says: str) -> None:
    with pytest.raises(InputError) as error:
        make()
    assert says in str(error.value) and "\n" not in str(error.value)


def test_records_are_frozen_values() -> None:
    memory = llmir.Memory(max_num_seqs=8)
    with pytest.raises(AttributeError, match="read-only"):
        memory.max_num_seqs = 9  # type: ignore[misc]
    assert memory == llmir.Memory(max_num_seqs=8) != llmir.Memory()
    assert len({memory, llmir.Memory(max_num_seqs=8)}) == 1
    assert dataclasses.replace(memory, reserve_bytes=5).given == {"max_num_seqs": 8, "reserve_bytes": 5}
    assert [each.name for each in dataclasses.fields(llmir.Memory)] == [
        *inspect.signature(llmir.Memory).parameters
    ]
    with pytest.raises(TypeError, match="no option 'tp'"):
        llmir.Memory(tp=2)  # type: ignore[call-arg]


OVER = ["--tp", "2", "--kv", "fp8", "--weights", "fp8"]
STEPS = [
    "--max-num-seqs",
    "16",
    "--memory-utilization",
    "0.8",
    "--reserve",
    "1GiB",
    "--max-batched-tokens",
    "4096",
]
PARALLEL, PRECISION = llmir.Parallel(tp=2), llmir.Precision(weights="fp8", kv="fp8")
MEMORY = llmir.Memory(0.8, max_num_seqs=16, reserve_bytes=1 << 30, max_batched_tokens=4096)


def test_a_workload_by_name_is_what_the_command_says(run: Run) -> None:
    more = ["--batch", "4", "--prompt", "300", "--generate", "20", "--engine", "sglang", "--chunk", "128"]
    said = json.loads(run("analyze", "qwen3-0.6b", *OVER, *STEPS, *more, "--format", "json").out)
    job = llmir.workload(
        "qwen3-0.6b",
        "h100-sxm",
        batch=4,
        prompt=300,
        generate=20,
        chunk=128,
        memory=MEMORY,
        parallel=PARALLEL,
        precision=PRECISION,
        estimation=llmir.Estimation(engine="sglang"),
    )
    assert json.loads(export(job, "json")) == said


def test_drafts_by_name_are_what_the_command_says(run: Run) -> None:
    more = ["--draft-tokens", "3", "--acceptance", "0.6", "--draft-model", "qwen3-0.6b"]
    said = json.loads(run("analyze", "qwen3-1.7b", *more, "--format", "json").out)
    job = llmir.workload("qwen3-1.7b", "h100-sxm", drafts=llmir.Drafts(3, 0.6, "qwen3-0.6b"))
    assert json.loads(export(job, "json")) == said


def test_a_simulation_by_name_is_what_the_command_says(run: Run) -> None:
    come = [
        "--rate",
        "9",
        "--prompt",
        "uniform:20,400",
        "--generate",
        "30",
        "--requests",
        "60",
        "--seed",
        "3",
    ]
    come += [
        "--prefix-hits",
        "0.1",
        "--timeout",
        "30",
        "--cancel",
        "0.1",
        "--replicas",
        "2",
        "--warm-up",
        "5",
    ]
    said = json.loads(run("serve-sim", "qwen3-0.6b", *OVER, *STEPS, *come, "--format", "json").out)
    found = llmir.simulate(
        "qwen3-0.6b",
        "h100-sxm",
        llmir.Traffic(
            *(9, None, None, None, 1.0, "uniform:20,400", 30, 60, 3),
            prefix_hits=0.1,
            timeout_s=30,
            cancel=0.1,
        ),
        warm_up=5,
        servers=llmir.Servers(2),
        memory=MEMORY,
        parallel=PARALLEL,
        precision=PRECISION,
    )
    assert json.loads(export(found, "json")) == said


def test_the_device_of_an_estimation_is_what_the_command_says(run: Run) -> None:
    more = ["--hw", "rtx4090-pcie-8", "--network", "25GBps,5us", "--tp", "16", "--price", "rtx4090=0.5"]
    said = json.loads(run("analyze", "llama3.1-8b", *more, "--format", "json").out)
    on = llmir.Estimation("rtx4090-pcie-8", network="25GBps,5us", price={"rtx4090": 0.5})
    job = llmir.workload("llama3.1-8b", parallel=llmir.Parallel(tp=16), estimation=on)
    assert json.loads(export(job, "json")) == said


@pytest.mark.mostly_slow(5)
@pytest.mark.parametrize("command", ["", *sorted(COMMANDS)])
def test_help_imports_no_numpy(command: str) -> None:
    code = (
        "import sys, click\nfrom llmir.cli.main import cli\n"
        f"try: cli.main({[*filter(None, [command])]} + ['--help'])\nexcept SystemExit: pass\n"
        "sys.exit('numpy' in sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=dict(os.environ)
    )
    assert ran.returncode == 0 and "--help" in ran.stdout


def test_values_are_read_as_their_records_take_them() -> None:
    for record in RECORDS:
        for each in record.options:
            kind = kind_of(each)
            assert kind is None or isinstance(kind, click.ParamType)
    assert options.option(llmir.Memory, "reserve_bytes").key == "reserve"
    with pytest.raises(TypeError, match="takes no tp"):
        records(llmir.surface, tp=2)
